"""Archives and streams with a retention hold: a server rotates, packs and deletes; nothing is missed or repeated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as parquet
import pytest

from staniel.journal.disk.os_fs import OsFs
from staniel.journal.holds import read_holds
from staniel.pipeline.sources import journal_stream
from staniel.pipeline.sources.holding import HoldLost
from tests.support.process import Server, run_staniel, running
from tests.support.wire import Wire

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """
[admin]
port = 0
[default]
default_journal_size = "2KB"
max_memory_size = "1MB"
max_journal_size = "8KB"
"""
Job = Callable[..., tuple[int, list[str]]]
LIBKESTREL = CONFIG + 'journal_format = "libkestrel"\n'
FORMATS = pytest.mark.parametrize("config", [CONFIG, LIBKESTREL], ids=["kestrel", "libkestrel"])
QUEUES = ("one", "two")


def numbers_in(lake: Path) -> dict[str, list[int]]:
    """Return the numbers of the items that were archived as added, by queue."""
    found: dict[str, list[int]] = {}
    for path in sorted(lake.rglob("*.parquet")):
        queue = next(part.removeprefix("queue=") for part in path.parts if part.startswith("queue="))
        for row in parquet.read_table(path, partitioning=None).to_pylist():
            if row["op"] in ("add", "addx", "put") and row.get("value") is not None:
                found.setdefault(queue, []).append(int(bytes(row["value"]).split(b" ", 1)[0]))
    return {queue: sorted(numbers) for queue, numbers in found.items()}


def pass_through(wire: Wire, first: int, count: int) -> None:
    """Put and take items, so that files are rotated, packed and removed."""
    for number in range(first, first + count):
        for queue in QUEUES:
            assert wire.put(queue, b"%d " % number + b"x" * 200)
            assert wire.get(queue) is not None


def hold(server: Server, *words: str) -> str:
    ran = run_staniel("hold", *words, "--spool", str(server.spool))
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@FORMATS
def test_an_archive_of_a_busy_spool_has_every_item_once(archived: Job, tmp_path: Path, config: str) -> None:
    lake = tmp_path / "lake"
    with running(tmp_path, config=config) as server, Wire(server.address) as wire:
        hold(server, "create", "nightly")
        for run in range(4):
            pass_through(wire, 100 * run, 100)
            assert archived(server.spool, hold="nightly")[1] == []
            if run == 1:
                wire.say(b"delete one\r\n")
                assert wire.hear(len(b"DELETED\r\n")) == b"DELETED\r\n"
        (kept,) = read_holds(OsFs(), str(server.spool))
        assert set(kept.passed) >= {"one", "two"}
        assert len(list((server.spool / ".staniel" / "kept").iterdir())) <= 4  # what was archived is let go
    assert numbers_in(lake) == {queue: list(range(400)) for queue in QUEUES}


def test_without_a_hold_the_same_is_counted_as_lost(archived: Job, tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as server, Wire(server.address) as wire:
        for number in range(30):
            wire.put("one", b"%d " % number + b"x" * 200)
        assert archived(server.spool) == (30, [])
        pass_through(wire, 30, 100)
        while wire.get("one") is not None:
            pass
        pass_through(wire, 130, 30)
        warned = archived(server.spool)[1]
    assert [line.startswith("one: ") and "gone before it was read" in line for line in warned] == [True]


@FORMATS
def test_a_kill_before_the_move_repeats_nothing(
    archived: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    def killed(*order: object) -> str:
        raise KeyboardInterrupt

    with running(tmp_path, config=config) as server, Wire(server.address) as wire:
        hold(server, "create", "nightly")
        pass_through(wire, 0, 100)
        with monkeypatch.context() as patched:
            patched.setattr(journal_stream, "move_hold", killed)
            with pytest.raises(KeyboardInterrupt):
                archived(server.spool, hold="nightly")
        pass_through(wire, 100, 100)
        assert archived(server.spool, hold="nightly")[1] == []
    assert numbers_in(tmp_path / "lake") == {queue: list(range(200)) for queue in QUEUES}


def test_a_hold_that_is_not_there_or_was_dropped_is_an_error_that_says_what_to_do(
    archived: Job, tmp_path: Path
) -> None:
    with running(tmp_path, config=CONFIG) as server, Wire(server.address) as wire:
        pass_through(wire, 0, 10)
        with pytest.raises(HoldLost, match="staniel hold create nightly --spool"):
            archived(server.spool, hold="nightly")
        hold(server, "create", "nightly", "--max-bytes", "1000")
        while "dropped" not in hold(server, "list"):
            pass_through(wire, 0, 100)
        with pytest.raises(HoldLost, match=r"was dropped: its files had .* read on once without option hold"):
            archived(server.spool, hold="nightly")
    with pytest.raises(ValueError, match=r"it has no folder \.staniel"):
        archived(tmp_path, hold="nightly")


def test_a_stream_moves_its_hold_and_has_every_item_once(spark: SparkSession, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    with running(tmp_path, config=CONFIG) as server, Wire(server.address) as wire:
        hold(server, "create", "stream")
        for run in range(3):
            pass_through(wire, 50 * run, 50)
            source = spark.readStream.format("staniel-journal").option("hold", "stream").load(str(server.spool))
            sink = source.writeStream.format("parquet").option("checkpointLocation", checkpoint)
            sink.trigger(availableNow=True).start(out).awaitTermination()
        (moved,) = read_holds(OsFs(), str(server.spool))
        assert set(moved.passed) == set(QUEUES)
    rows = spark.read.parquet(out).where("op in ('add', 'addx')").select("queue", "value").collect()
    found = sorted((row["queue"], int(bytes(row["value"]).split(b" ", 1)[0])) for row in rows)
    assert found == [(queue, number) for queue in QUEUES for number in range(150)]
