"""What a queue held, from an archive of its journal: the rows that the spool gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from staniel.journal.libkestrel.records import (
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.pipeline.formats.base import CorruptJournal
from staniel.pipeline.lake import parquet as parquet_module
from staniel.pipeline.lake.archived import IncompleteArchive, is_archive
from staniel.pipeline.sources.archived import ArchiveStateReader
from staniel.pipeline.sources.journal import JournalReader, JournalSource, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.tasks.refill import items_of
from staniel.queues.config import JournalDialect
from staniel.queues.item import Item
from tests.pipeline.spools import history
from tests.support.records import FOREIGN, NOW_MS, addx
from tests.support.workq_log import Script
from tests.support.workq_log import files as log_files

Rows = list[dict[str, Any]]
Archive = Callable[..., tuple[int, list[str]]]
ONLY_OF_SPOOLS = {"useSummaries": "false"}


def of_spool(spool: Path, **given: str) -> Rows:
    options = JournalOptions({"path": str(spool), "view": "state", **ONLY_OF_SPOOLS, **given})
    return rows_of(JournalReader(options, columns_of(options)))


def of_archive(lake: Path, **given: str) -> Rows:
    options = JournalOptions({"path": str(lake), "view": "state", **given})
    return rows_of(ArchiveStateReader(options, columns_of(options)))


def rows_of(reader: Any) -> Rows:
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    return [{name: row[name] for name in row if name != "file"} for row in sorted(rows, key=lambda row: row["queue"])]


def write_some(spool: Path, queue: str, data: bytes, end: int) -> None:
    with (spool / queue).open("ab") as file:
        file.write(data[file.tell() : end])


@pytest.mark.parametrize("seed", range(4))
def test_the_state_of_an_archive_is_that_of_the_spool_at_any_time(
    archived: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Journals that grow, rotate and are archived in pieces, in batches and row groups of any size."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 50)
    chance, spool = random.Random(seed), tmp_path / "spool"
    spool.mkdir()
    scribes = {
        "jobs": history(seed, 700, JournalDialect.DOCUMENTS),
        "mail": history(seed + 9, 300, JournalDialect.KESTREL_24),
    }
    for round in range(1, 6):
        for queue, scribe in scribes.items():
            begun = sum(path.stat().st_size for path in spool.glob(f"{queue}.*"))
            ends = [end for end in scribe.ends if end <= len(scribe.data) * round // 5]
            middle = chance.choice(ends)
            if middle > begun and chance.random() < 0.7:
                write_some(spool, queue, bytes(scribe.data[begun:]), middle - begun)
                (spool / queue).rename(spool / f"{queue}.{NOW_MS + round}")
                begun += (spool / f"{queue}.{NOW_MS + round}").stat().st_size
            write_some(spool, queue, bytes(scribe.data[begun:]), max(ends) - begun)
        assert archived(spool, maxBytesPerTrigger=str(chance.choice([300, 4000, 10**9])))[1] == []
        assert of_archive(tmp_path / "lake") == of_spool(spool)
    assert of_spool(spool), "there is something to compare"
    for at in range(0, 700, 97):
        until = {"endingTimestamp": str(NOW_MS + at)}
        assert of_archive(tmp_path / "lake", **until) == of_spool(spool, **until)
    assert [row["queue"] for row in of_archive(tmp_path / "lake", queue="mail")] == [
        row["queue"] for row in of_spool(spool, queue="mail")
    ]
    assert all(row["value"] is None for row in of_archive(tmp_path / "lake", includeValue="false"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=FOREIGN, second=FOREIGN)
def test_records_that_other_servers_wrote_mean_the_same_in_an_archive(
    archived: Archive, tmp_path_factory: pytest.TempPathFactory, data: bytes, second: bytes
) -> None:
    spool = tmp_path_factory.mktemp("spool")
    (spool / "q.17").write_bytes(data)
    (spool / "q").write_bytes(second + addx(b"last"))
    lake = tmp_path_factory.mktemp("lake")
    archived(spool, out=str(lake))
    ids_are_plain = all(abs(row["id"] or 0) < 1 << 62 for row in of_spool(spool))
    ours, right = ([row if ids_are_plain else row | {"id": 0} for row in each(path)] for each, path in (
        (of_archive, lake), (of_spool, spool)))  # fmt: skip
    assert ours == right


def times(first: int, count: int) -> bytes:
    return b"".join(addx(b"%d" % number, NOW_MS + number) for number in range(first, first + count))


def values(rows: Rows) -> list[bytes]:
    return [row["value"] for row in rows]


def test_a_journal_that_was_rewritten_or_deleted_meanwhile_begins_anew(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    (spool / ".staniel").mkdir(parents=True)
    (spool / "jobs").write_bytes(times(0, 2) + b"\1" + times(2, 3))
    (spool / "other").write_bytes(times(0, 1))
    archived(spool)
    (spool / "jobs").unlink()
    (spool / "jobs.7.pack").write_bytes(addx(b"3", NOW_MS + 3))
    (spool / "jobs").write_bytes(times(8, 2))
    (warning,) = archived(spool)[1]
    assert warning.startswith("jobs: some of its journal gone")
    assert values(of_archive(lake, queue="jobs")) == values(of_spool(spool, queue="jobs")) == [b"3", b"8", b"9"]
    before = {"queue": "jobs", "endingTimestamp": str(NOW_MS + 2)}
    assert values(of_archive(lake, **before)) == [b"1", b"2"], "as it was, which the spool does not know any more"
    (spool / "jobs.7.pack").unlink()
    (spool / "jobs").unlink()
    (spool / "jobs").write_bytes(b"")
    archived(spool)
    assert of_archive(lake, queue="jobs") == of_spool(spool, queue="jobs") == []
    (spool / "jobs").write_bytes(times(20, 2))
    archived(spool)
    assert values(of_archive(lake, queue="jobs")) == [b"20", b"21"]
    (spool / "jobs").unlink()
    (spool / "other").unlink()
    assert len(archived(spool)[1]) == 2
    assert of_archive(lake) == of_spool(spool) == []


def test_what_a_pack_left_is_not_in_the_state_also_not_of_earlier_archives(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "q.7.pack").write_bytes(addx(b"", 0) * 3 + addx(b"packed") + addx(b""))
    (spool / "q").write_bytes(b"\1" + addx(b"new"))
    archived(spool)
    right = of_spool(spool)
    assert of_archive(lake) == right and values(right) == [b"packed", b"", b"new"]
    for path in lake.glob("queue=q/*/*.parquet"):
        rows = pq.read_table(path).to_pylist()
        earlier = [
            row | {"op": "add", "size": 0, "value": b"", "flags": 0} if row["op"] == "stand_in" else row for row in rows
        ]
        pq.write_table(pa.Table.from_pylist(earlier, pq.read_schema(path)), path)
    ledger = lake / "_archive" / "ledger.json"
    entry = msgspec.json.decode(ledger.read_bytes())
    del entry["rows"]
    ledger.write_bytes(msgspec.json.encode(entry))
    assert of_archive(lake) == right
    (spool / "q").write_bytes(b"\1" + addx(b"new") + addx(b"newer"))
    archived(spool)
    assert of_archive(lake) == of_spool(spool)
    assert msgspec.json.decode(ledger.read_bytes())["rows"] == {}, "those before were not counted"


def test_an_archive_that_lacks_records_is_an_error(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "jobs").write_bytes(times(0, 3) + addx(b"next day", NOW_MS + 86_400_000))
    archived(spool)
    first, second = sorted(lake.glob("queue=jobs/*/*.parquet"))
    data = first.read_bytes()
    first.unlink()
    with pytest.raises(IncompleteArchive, match="was it removed from the archive"):
        of_archive(lake)
    ledger = lake / "_archive" / "ledger.json"
    entry = msgspec.json.decode(ledger.read_bytes())
    ledger.write_bytes(msgspec.json.encode({**entry, "files": []}))
    with pytest.raises(IncompleteArchive, match="1 of 4 records are in the archive"):
        of_archive(lake)
    ledger.write_bytes(msgspec.json.encode({**entry, "files": [], "rows": {}}))
    with pytest.raises(IncompleteArchive, match=r"first record of .* is at byte 66 of jobs"):
        of_archive(lake)
    first.write_bytes(data)
    gaps = {"jobs": {"times": 1, "items": 0}}
    ledger.write_bytes(msgspec.json.encode({**entry, "gaps": gaps}))
    with pytest.raises(IncompleteArchive, match=r"its journal had lost records 1 times.*did not note where"):
        of_archive(lake)
    ledger.write_bytes(msgspec.json.encode(entry))
    staged = lake / "_archive" / "staged" / second.relative_to(lake)
    staged.parent.mkdir(parents=True, exist_ok=True)
    second.rename(staged)
    assert len(of_archive(lake)) == 4, "the last batch's moves may not be done"


def test_damage_that_was_archived_is_an_error_or_left_out(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "jobs.7").write_bytes(times(0, 3) + b"\xff bad")
    (spool / "jobs").write_bytes(times(9, 1))
    archived(spool, onCorrupt="permissive")
    with pytest.raises(CorruptJournal, match=r"jobs.7: byte 66: unknown opcode 255, when it was archived"):
        of_archive(lake)
    permissive = {"onCorrupt": "permissive"}
    assert of_archive(lake, **permissive) == of_spool(spool, **permissive)


def test_a_place_ends_the_state_of_an_archive_as_it_does_of_a_spool(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "jobs").write_bytes(times(0, 3) + b"\1")
    (spool / "mail").write_bytes(times(0, 2))
    archived(spool)
    place = {"endingOffsets": '{"jobs": {"file": "jobs", "at": 44}}'}
    assert of_archive(lake, **place) == of_spool(spool, **place)
    assert values(of_archive(lake, **place)) == [b"0", b"1", b"0", b"1"]
    with pytest.raises(ValueError, match="byte 45 of jobs of queue jobs: no record of the archive begins there"):
        of_archive(lake, endingOffsets='{"jobs": {"file": "jobs", "at": 45}}')
    with pytest.raises(ValueError, match=r"option endingOffsets: there is no queue jbos in .*; there are jobs, mail"):
        of_archive(lake, endingOffsets='{"jbos": {"file": "jobs", "at": 44}}')
    (spool / "jobs").rename(spool / f"jobs.{NOW_MS}")
    (spool / "jobs").write_bytes(times(5, 4))
    archived(spool)
    with pytest.raises(ValueError, match='the batches 1, 2 have such a record: say which one with "batch"'):
        of_archive(lake, **place)
    second = '{"jobs": {"file": "jobs", "at": 44, "batch": 2}}'
    assert values(of_archive(lake, queue="jobs", endingOffsets=second)) == [b"1", b"2", b"5", b"6"]
    with pytest.raises(ValueError, match="batches are of archives, and this is a spool"):
        of_spool(spool, endingOffsets=second)


REFUSED = {
    "startingTimestamp": ("5", "startingTimestamp of staniel-journal is for spools, not archives"),
    "useSummaries": ("false", "useSummaries of staniel-journal is for spools, not archives"),
    "minPartitions": ("4", "minPartitions of staniel-journal is for spools, not archives"),
    "maxBytesPerTrigger": ("1m", "is for streams"),
    "onCorrupt": ("quarantine", "no bytes to put in quarantine"),
    "format": ("libkestrel", "is an archive of kestrel's format, not of libkestrel's"),
    "queue": ("jbos", "there is no queue jbos in .*; there are jobs"),
    "view": ("items", "is an archive: it answers view=state"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_archive_does_not_answer_is_an_error(archived: Archive, tmp_path: Path, name: str) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "jobs").write_bytes(times(0, 1))
    archived(spool)
    assert is_archive(str(lake)) and not is_archive(str(spool))
    value, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        of_archive(lake, **{name: value})
    with pytest.raises(ValueError, match="an archive is not streamed"):
        JournalSource({"path": str(lake), "view": "state"}).streamReader(StructType())


def write_reader(spool: Path, reader: str, head: int, done: list[int]) -> None:
    data = READER_MAGIC + encode_read_head(head) + encode_read_done(done)
    (spool / f"jobs.read.{reader}").write_bytes(data)


def unordered(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["reader"], row["id"]))


@pytest.mark.parametrize("seed", range(4))
def test_the_state_of_an_archive_of_libkestrel_s_format_is_that_of_the_spool(
    archived: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Segments that grow and go when all is read, and two readers that come on by themselves."""
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 7)
    chance, spool, lake = random.Random(seed), tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    heads, first, last = {"": 0, "late": 0}, 1, 0
    for run in range(12):
        if not run or chance.random() < 0.7:
            for _ in range(chance.randrange(1, 3)):
                path = spool / f"jobs.{1000 + first}"
                data = path.read_bytes() if path.exists() else SEGMENT_MAGIC
                for _ in range(chance.randrange(1, 9)):
                    last += 1
                    data += encode_put(Item(b"item %d" % last, NOW_MS + 10 * last, 0), last, 0)
                path.write_bytes(data)
                if chance.random() < 0.4:
                    first = last + 1
        for reader in heads:
            heads[reader] = chance.randint(heads[reader], last)
            ahead = [number for number in range(heads[reader] + 2, last + 1) if chance.random() < 0.3]
            write_reader(spool, reader, heads[reader], ahead)
        archived(spool, **({"maxBytesPerTrigger": "150"} if run % 2 else {}))
        for ending in ({}, {"endingTimestamp": str(NOW_MS + 10 * chance.randint(1, last + 1))}):
            assert unordered(of_archive(lake, **ending)) == unordered(of_spool(spool, **ending))
        sealed = sorted(spool.glob("jobs.[0-9]*"))[:-1]
        for path, following in pairwise([*sealed, spool / f"jobs.{1000 + first}"]):
            if int(following.suffix[1:]) - 1000 <= min(heads.values()) + 1:
                path.unlink()  # every reader has read it


def test_a_place_ends_the_state_of_an_archive_of_libkestrel_s_format(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    records = [encode_put(Item(b"%d" % number, NOW_MS, 0), number, 0) for number in range(1, 6)]
    (spool / "jobs.1").write_bytes(SEGMENT_MAGIC + b"".join(records))
    write_reader(spool, "", 1, [3])
    archived(spool)
    place = {"jobs": {"file": "jobs.1", "at": len(SEGMENT_MAGIC) + len(b"".join(records[:4]))}}
    given = {"endingOffsets": msgspec.json.encode(place).decode()}
    assert [row["value"] for row in of_archive(lake, **given)] == [b"2", b"4"]
    assert of_archive(lake, **given) == of_spool(spool, **given)
    assert of_archive(lake, includeValue="false")[0]["value"] is None


def test_a_queue_of_libkestrel_s_format_that_was_deleted_begins_anew(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    for run in (1, 2):
        records = b"".join([encode_put(Item(b"%d.%d" % (run, at), NOW_MS, 0), at, 0) for at in range(1, 4)])
        (spool / f"jobs.{run}").write_bytes(SEGMENT_MAGIC + records)
        write_reader(spool, "", run, [])
        archived(spool)
        (spool / f"jobs.{run}").unlink()
    assert [row["value"] for row in of_archive(lake)] == [b"2.3"]


def test_an_archive_that_does_not_know_the_readers_says_what_to_do(archived: Archive, tmp_path: Path) -> None:
    spool, lake = tmp_path / "spool", tmp_path / "lake"
    spool.mkdir()
    (spool / "jobs.1").write_bytes(SEGMENT_MAGIC + encode_put(Item(b"x", NOW_MS, 0), 1, 0))
    archived(spool)
    assert [row["value"] for row in of_archive(lake)] == [b"x"], "a queue that has no reader yet"
    ledger = lake / "_archive" / "ledger.json"
    entry = msgspec.json.decode(ledger.read_bytes())
    del entry["readers"]
    ledger.write_bytes(msgspec.json.encode(entry))
    with pytest.raises(IncompleteArchive, match="archive it once more"):
        of_archive(lake)
    archived(spool)
    assert [row["value"] for row in of_archive(lake)] == [b"x"]


def test_archives_of_other_formats_have_no_state(archived: Archive, tmp_path: Path) -> None:
    spool, lake, script = tmp_path / "spool", tmp_path / "lake", Script()
    spool.mkdir()
    script.add(1)
    for number, data in enumerate(log_files(script.world.disk), start=1):
        (spool / f"{number:09}.log").write_bytes(data)
    archived(spool)
    with pytest.raises(ValueError, match="an archive of a workq log has no view of its jobs"):
        of_archive(lake)


def test_all_records_are_archived_or_none(archived: Archive, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    for option, value in {"op": "add", "startingTimestamp": "5", "startingOffsets": "latest"}.items():
        with pytest.raises(ValueError, match=f"option {option} .* an archive has all records"):
            archived(tmp_path / "spool", **{option: value})


def test_an_item_that_two_readers_have_not_read_is_replayed_once(spark: SparkSession, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    records = [encode_put(Item(b"%d" % number, NOW_MS, 0), number, 0) for number in range(1, 13)]
    (spool / "jobs.1").write_bytes(SEGMENT_MAGIC + b"".join(records))
    write_reader(spool, "", 2, [])
    write_reader(spool, "late", 8, [10])
    found = items_of(spark, str(spool), False, {})
    assert [row["value"] for row in found.collect()] == [b"%d" % number for number in range(3, 13)]
