"""The view `history`: what happened to each item, from journals and archives. No Spark here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from staniel.journal.libkestrel.records import (
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.pipeline.sources.archived import ArchiveStateReader
from staniel.pipeline.sources.archived import columns_of as columns_of_archive
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.queues.config import JournalDialect
from staniel.queues.item import Item
from tests.broker.test_delays import after, put, take
from tests.broker.test_past import CONFIG, die
from tests.pipeline.spools import history, write
from tests.pipeline.test_sidecars import spill
from tests.support.job_world import job_id
from tests.support.records import NOW_MS, addx, named
from tests.support.streams import asks
from tests.support.workq_log import Script, files
from tests.support.world import World

Rows = list[dict[str, Any]]
Archive = Callable[..., tuple[int, list[str]]]
STATES = {
    "put": "queued",
    "opened": "open",
    "returned": "returned",
    "confirmed": "done",
    "removed": "done",
}


def read(path: Path, view: str = "history", **given: str) -> Rows:
    options = JournalOptions({"path": str(path), "view": view, **given})
    reader = JournalReader(options, columns_of(options))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def read_archive(path: Path, **given: str) -> Rows:
    options = JournalOptions({"path": str(path), "view": "history", **given})
    reader = ArchiveStateReader(options, columns_of_archive(options))
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def events(rows: Rows) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in ("event", "id", "deliveries", "xid", "value", "asOf")) for row in rows]


@pytest.mark.parametrize("dialect", JournalDialect)
def test_the_last_event_of_each_item_is_its_state_and_each_opening_a_delivery(
    tmp_path: Path, dialect: JournalDialect
) -> None:
    write(tmp_path, "q", history(3, 3000, dialect), 3)
    lives: dict[int, Rows] = {}
    for row in read(tmp_path):
        lives.setdefault(row["id"], []).append(row)
    items = read(tmp_path, "items")
    assert len(lives) == len(items) > 500
    for item in items:
        life = lives[item["id"]]
        first, last = life[0], life[-1]
        assert (first["event"], first["value"], first["offset"]) == ("put", item["value"], item["offset"])
        assert (first["time"], first["size"]) == (item["addTime"], item["size"])
        assert STATES[last["event"]] == item["state"]
        assert {"remove": "removed", "confirm": "confirmed", None: last["event"]}[item["endedBy"]] == last["event"]
        opened = [row["deliveries"] for row in life if row["event"] == "opened"]
        assert opened == list(range(1, len(opened) + 1))
        if last["event"] != "removed":
            assert item["deliveries"] == len(opened)
        assert all(row["value"] is None and row["time"] is None for row in life[1:])


def test_records_of_other_servers_are_events_too(tmp_path: Path) -> None:
    opened = named(7, 9, b"with a number", expires_ms=NOW_MS + 5) + b"\3"
    (tmp_path / "q").write_bytes(opened + addx(b"plain") + named(8, 9, b"put as the other ends") + b"\1" + b"\3")
    found = [(row["event"], row["xid"], row["deliveries"], row["value"]) for row in read(tmp_path)]
    assert found == [
        ("put", None, 0, b"with a number"),
        ("opened", 9, 1, None),
        ("put", None, 0, b"plain"),
        ("confirmed", 9, 1, None),
        ("put", None, 0, b"put as the other ends"),
        ("removed", None, 0, None),
        ("opened", 1, 1, None),
    ]


def test_an_archive_and_the_journal_behind_it_are_one_history(archived: Archive, tmp_path: Path) -> None:
    spool, scribe = tmp_path / "spool", history(5, 600)
    whole = write(tmp_path / "whole", "q", scribe, 1)[0].read_bytes()
    spool.mkdir()
    (spool / "q").write_bytes(whole[: sorted(scribe.ends)[len(scribe.ends) // 2]])
    archived(spool)
    first = events(read_archive(tmp_path / "lake"))
    assert first == events(read(spool)) and len(first) > 200
    (spool / "q").write_bytes(whole)
    (spool / "new").write_bytes(addx(b"new"))
    both = read(spool, archivePath=str(tmp_path / "lake"))
    assert events([row for row in both if row["queue"] == "q"]) == events(read(tmp_path / "whole"))
    assert [row["value"] for row in both if row["queue"] == "new"] == [b"new"]
    (spool / "q").unlink()
    gone = read(spool, archivePath=str(tmp_path / "lake"), queue="q")
    assert events(gone) == first, "a queue that was deleted since is in the archive alone"
    one = first[0][1]
    assert events(read_archive(tmp_path / "lake", id=str(one))) == [row for row in first if row[1] == one]


def test_a_dead_letter_tells_who_had_it_last_and_where(archived: Archive, tmp_path: Path) -> None:
    die(world := World(CONFIG), "bad")
    spool = spill(world.disk, tmp_path / "spool")
    for rows in (read(spool), (archived(spool), read_archive(tmp_path / "lake"))[1]):
        dead = [row for row in rows if row["queue"] == "dead"]
        assert [row["event"] for row in dead] == ["died", "put"]
        died = dead[0]
        assert (died["origin"], died["deliveries"], died["times"], died["value"]) == ("q", 2, 1, None)
        assert died["by"] == "192.0.2.7:4711" and died["time"] is not None and died["id"] == dead[1]["id"]
        own = [row["event"] for row in rows if row["queue"] == "q"]
        assert own[:4] == ["put", "opened", "returned", "opened"] and own[-1] in ("confirmed", "removed")
    without = [row for row in read(spool, includeValue="false") if row["event"] == "died"]
    assert [row["origin"] for row in without] == ["q"]


def test_a_delayed_item_rests_until_it_is_due_and_that_is_no_delivery(tmp_path: Path) -> None:
    world = World("")
    assert put(world, 200, "later") == "STORED" and take(world) == ""
    after(world, 300)
    assert asks(world, "get q/open").split()[4] == "later"
    found = [(row["event"], row["deliveries"]) for row in read(spill(world.disk, tmp_path / "spool"))]
    assert found == [("put", 0), ("delayed", 0), ("due", 0), ("opened", 1)]
    due = [row["dueTime"] for row in read(tmp_path / "spool") if row["event"] == "put"]
    assert due[0] is not None


def test_every_record_of_a_job_is_an_event_with_its_time(tmp_path: Path) -> None:
    script = Script(settings="cmdlog_seg_size = 260")
    script.add(1, ttr=50, flags="-max-attempts=2")
    script.add(2)
    for _ in range(2):
        assert script.lease() == "1"
        script.wait(100)
    assert script.lease() == "2"
    script.finish(2)
    script.delete(2)
    for number, log in enumerate(files(script.world.disk), start=1):
        (tmp_path / f"{number:09}.log").write_bytes(log)
    rows = read(tmp_path, queue="q")
    one, two = (
        [row for row in rows if row["jobId"].replace("-", "") == job_id(number).replace("-", "")] for number in (1, 2)
    )
    first = [(row["event"], row["deliveries"]) for row in one]
    assert first == [("put", 0), ("opened", 1), ("returned", 1), ("opened", 2), ("died", 2)]
    assert [row["event"] for row in two] == ["put", "opened", "confirmed", "removed"] and two[0]["value"] == b"job 2"
    assert all(row["time"] is not None and row["queue"] == "q" for row in rows)
    assert rows == read(tmp_path) and read(tmp_path, id=two[0]["jobId"]) == two


def test_libkestrel_s_files_tell_which_reader_confirmed_an_item_and_not_when(archived: Archive, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    puts = b"".join(encode_put(Item(b"%d" % number, NOW_MS + number), number, 0) for number in (1, 2, 3))
    (spool / "jobs.100").write_bytes(SEGMENT_MAGIC + puts)
    (spool / "jobs.read.").write_bytes(READER_MAGIC + encode_read_head(1) + encode_read_done([3]))
    expected = [("put", 1, None), ("confirmed", 1, ""), ("put", 2, None), ("put", 3, None), ("confirmed", 3, "")]
    rows = read(spool)
    assert [(row["event"], row["id"], row["reader"]) for row in rows] == expected
    assert rows[0]["time"] == datetime.fromtimestamp((NOW_MS + 1) / 1000, UTC) and rows[1]["time"] is None
    archived(spool)
    assert [(row["event"], row["id"], row["reader"]) for row in read_archive(tmp_path / "lake")] == expected
    (spool / "jobs.100").write_bytes(SEGMENT_MAGIC + puts + encode_put(Item(b"4", NOW_MS + 4), 4, 0))
    both = read(spool, archivePath=str(tmp_path / "lake"), id="2,4")
    assert [(row["event"], row["id"], row["value"]) for row in both] == [("put", 2, b"2"), ("put", 4, b"4")]


@pytest.mark.parametrize(
    "given",
    [
        {"startingTimestamp": "5"},
        {"view": "state", "id": "7"},
        {"view": "ops", "archivePath": "lake"},
        {"archivePath": "lake", "endingTimestamp": "5"},
        {"archivePath": "lake", "hostColumn": "true"},
    ],
)
def test_options_without_effect_on_a_history_are_refused(tmp_path: Path, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="option"):
        JournalOptions({"path": str(tmp_path), "view": "history", **given})
