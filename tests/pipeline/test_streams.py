"""Streams over journals say what the batch view says, record for record, however they are cut, and whatever becomes of
the files' names meanwhile. No Spark here but its interfaces: tests ask a stream for offsets and read its pieces."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from staniel.journal.kestrel import records
from staniel.journal.libkestrel.records import SEGMENT_MAGIC, encode_put
from staniel.journal.workq.files import segment_name
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.kestrel.state import live_rows
from staniel.pipeline.lake import folders as files
from staniel.pipeline.lake.folders import FileVanished, LocalFolder
from staniel.pipeline.lake.lake import Lake
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import JournalStream
from staniel.pipeline.sources.offsets import DataLoss
from staniel.pipeline.tasks import archive as archive_module
from staniel.pipeline.tasks import summarise as summarise_module
from staniel.queues.item import Item
from tests.pipeline.spools import history, write
from tests.support.records import NOW_MS, addx, with_xid
from tests.support.workq_log import Script
from tests.support.workq_log import files as log_files

Rows = list[dict[str, Any]]


def options_of(spool: Path, **given: object) -> JournalOptions:
    return JournalOptions({"path": str(spool), **{name: str(value) for name, value in given.items()}})


def stream_of(spool: Path, **given: object) -> JournalStream:
    options = options_of(spool, **given)
    return JournalStream(options, columns_of(options))


def batches(stream: JournalStream, start: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Rows]]:
    """(where it ends, its rows) of each batch until nothing is left."""
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        found = [stream.read(part) for part in stream.partitions(start, end)]
        yield end, [row for some in found for batch in some for row in batch.to_pylist()]
        start = end


def read_on(stream: JournalStream, start: dict[str, Any]) -> tuple[dict[str, Any], Rows]:
    rows: Rows = []
    for end, some in batches(stream, start):
        start, rows = end, rows + some
    return start, rows


def batch_view(spool: Path, **given: object) -> Rows:
    options = options_of(spool, **given)
    reader = JournalReader(options, columns_of(options))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def kestrel_history() -> list[tuple[str, bytes]]:
    data = history(3, 500).data
    return [("jobs", data)]


def libkestrel_segments() -> list[tuple[str, bytes]]:
    puts = [encode_put(Item(b"item %d" % n, NOW_MS + n), n, 0) for n in range(1, 201)]
    return [("jobs.100", SEGMENT_MAGIC + b"".join(puts[:90])), ("jobs.200", SEGMENT_MAGIC + b"".join(puts[90:]))]


def workq_log() -> list[tuple[str, bytes]]:
    script = Script(settings="cmdlog_seg_size = 2000")
    for number in range(90):
        script.add(number)
    for _ in range(20):
        script.lease()
    return [(segment_name(number), data) for number, data in enumerate(log_files(script.world.disk), start=1)]


def decoded(form: str, whole: list[tuple[str, bytes]]) -> list[tuple[int, object]]:
    """(offset, value) of every record, without a line of pipeline/."""
    found: list[tuple[int, object]] = []
    for _, data in whole:
        at = 4 if form == "libkestrel" else 0
        while form == "kestrel" and at < len(data):
            record = records.decode(data, at, len(data), 0)
            found.append((at, record.payload(data) if record.size >= 0 else None))
            at = record.stop
        while form == "libkestrel" and at < len(data):
            size = int.from_bytes(data[at + 1 : at + 5], "little")
            found.append((at, data[at + 25 : at + 25 + size]))
            at += 25 + size
    return found


@pytest.mark.parametrize("budget", [{}, {"maxBytesPerTrigger": 300}, {"maxOffsetsPerTrigger": 7}])
@pytest.mark.parametrize(
    ("form", "made"),
    [("kestrel", kestrel_history), ("libkestrel", libkestrel_segments), ("workq", workq_log)],
)
def test_a_stream_over_a_growing_journal_says_what_the_batch_view_says(
    tmp_path: Path, form: str, made: Callable[[], list[tuple[str, bytes]]], budget: dict[str, object]
) -> None:
    whole, chance = made(), random.Random(5)
    stream = stream_of(tmp_path, format=form, **budget)
    start: dict[str, Any] = {}
    told: Rows = []
    for name, data in whole:
        at = 0
        while at < len(data):
            at = min(len(data), at + chance.randrange(1, 4000))
            (tmp_path / name).write_bytes(data[:at]) if at == 0 else None
            with (tmp_path / name).open("ab") as file:
                file.write(data[file.tell() : at])
            start, rows = read_on(stream, start)
            told += rows
    assert told == batch_view(tmp_path, format=form)
    assert len(told) > 100 and all(row["_corrupt"] is None for row in told)
    if form != "workq":
        assert [(row["offset"], row["value"]) for row in told] == decoded(form, whole)


def lake_rows(out: Path) -> Rows:
    import pyarrow.dataset as ds

    found: Rows = ds.dataset(str(out), partitioning="hive", exclude_invalid_files=False).to_table().to_pylist()
    return found


@pytest.mark.parametrize(
    ("form", "made"),
    [("kestrel", kestrel_history), ("libkestrel", libkestrel_segments), ("workq", workq_log)],
)
def test_an_archive_of_any_format_has_every_record_once(
    archived: Callable[..., tuple[int, list[str]]],
    tmp_path: Path,
    form: str,
    made: Callable[[], list[tuple[str, bytes]]],
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    count = 0
    for name, data in made():
        for end in (len(data) // 3, len(data)):
            with (spool / name).open("ab") as file:
                file.write(data[file.tell() : end])
            count += archived(spool, format=form, maxBytesPerTrigger="700")[0]
    expected = batch_view(spool, format=form)
    key = lambda row: (row["file"], row["offset"])  # noqa: E731
    told = sorted(lake_rows(tmp_path / "lake"), key=key)
    names = [name for name in expected[0] if name not in ("queue", "asOf", "addTime", "expireTime", "runAt")]
    assert [[row[name] for name in names] for row in told] == [
        [row[name] for name in names] for row in sorted(expected, key=key)
    ]
    assert count == len(expected)
    if form != "workq":
        assert [(row["offset"], row["value"]) for row in told] == decoded(form, made())


REMOVALS = b"\1"


def test_a_file_that_begins_with_plain_removals_is_not_taken_for_another_one(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    (tmp_path / "jobs").write_bytes(REMOVALS * 72)
    start, rows = read_on(stream, {})
    assert len(rows) == 72
    (tmp_path / "next").write_bytes(REMOVALS * 102)
    (tmp_path / "next").rename(tmp_path / "jobs")
    with pytest.raises(DataLoss, match="byte 72 of jobs is gone"):
        read_on(stream, start)
    assert len(read_on(stream_of(tmp_path, failOnDataLoss="false"), start)[1]) == 102


def test_a_rotated_file_is_found_among_others_that_begin_alike(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    (tmp_path / "jobs").write_bytes(REMOVALS * 30)
    start, _ = read_on(stream, {})
    with (tmp_path / "jobs").open("ab") as file:
        file.write(REMOVALS * 42)
    (tmp_path / "jobs").rename(tmp_path / "jobs.5")
    (tmp_path / "jobs").write_bytes(REMOVALS * 102)
    assert len(read_on(stream, start)[1]) == 42 + 102


def test_without_ids_of_files_only_what_no_other_file_can_hold_is_taken_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = files.stat_of
    monkeypatch.setattr(files, "stat_of", lambda file: (*real(file)[:2], ""))
    (tmp_path / "jobs").write_bytes(addx(b"a") + REMOVALS)
    start, _ = read_on(stream_of(tmp_path), {})
    (tmp_path / "jobs").rename(tmp_path / "jobs.5")
    (tmp_path / "jobs").write_bytes(REMOVALS * 40)
    start, rows = next(batches(stream_of(tmp_path), start))
    assert len(rows) == 40
    (tmp_path / "jobs").write_bytes(REMOVALS * 60)
    with pytest.raises(DataLoss, match="byte 40 of jobs is gone"):
        read_on(stream_of(tmp_path), start)


def test_a_segment_of_which_every_item_was_read_may_go(tmp_path: Path) -> None:
    first, second = libkestrel_segments()
    (tmp_path / first[0]).write_bytes(first[1])
    start, _ = read_on(stream_of(tmp_path, format="libkestrel"), {})
    (tmp_path / second[0]).write_bytes(second[1])
    (tmp_path / first[0]).unlink()
    start, rows = read_on(stream_of(tmp_path, format="libkestrel"), start)
    assert [row["id"] for row in rows] == list(range(91, 201))
    (tmp_path / second[0]).unlink()
    (tmp_path / "jobs.300").write_bytes(SEGMENT_MAGIC + encode_put(Item(b"late", NOW_MS), 205, 0))
    with pytest.raises(DataLoss, match=r"of jobs\.200 is gone"):
        read_on(stream_of(tmp_path, format="libkestrel"), start)


FLAGGED = with_xid(4, 77) + with_xid(4, 0)


def test_a_batch_of_two_records_passes_an_item_with_flags(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a") + FLAGGED + addx(b"b") + FLAGGED + addx(b"c") + b"\1")
    _, rows = read_on(stream_of(tmp_path, maxOffsetsPerTrigger=2), {})
    assert [(row["op"], row["flags"]) for row in rows if row["op"] == "add"] == [("add", 0), ("add", 77), ("add", 77)]
    assert rows == batch_view(tmp_path)


def test_a_start_at_a_time_keeps_the_flags_of_the_first_item(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a", 100) + FLAGGED + addx(b"b", 200) + b"\1")
    for rows in (
        batch_view(tmp_path, startingTimestamp=150),
        read_on(made := stream_of(tmp_path, startingTimestamp=150), made.initialOffset())[1],
    ):
        assert [(row["op"], row["flags"]) for row in rows] == [
            ("save_xid", None),
            ("save_xid", None),
            ("add", 77),
            ("remove", None),
        ]
        assert rows[0]["asOf"] is not None
    assert [row["op"] for row in batch_view(tmp_path, endingTimestamp=150)] == ["add"]


def test_as_of_does_not_depend_on_where_a_file_is_cut(tmp_path: Path) -> None:
    write(tmp_path, "jobs", history(9, 600), 2)
    whole = batch_view(tmp_path)
    assert batch_view(tmp_path, minPartitions=9) == whole
    assert read_on(stream_of(tmp_path, maxBytesPerTrigger=100), {})[1] == whole
    assert read_on(stream_of(tmp_path, maxOffsetsPerTrigger=3), {})[1] == whole


def test_what_a_stream_would_not_obey_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a"))
    for name, value in {"endingTimestamp": "5", "endingOffsets": "latest"}.items():
        with pytest.raises(ValueError, match="a stream has no end"):
            stream_of(tmp_path, **{name: value})
    with pytest.raises(ValueError, match="queue and queuePattern"):
        stream_of(tmp_path, queue="jobs", queuePattern="m.*")


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("2026-11-01T01:30:00", "America/New_York", "2026-11-01T05:30:00+00:00"),  # comes twice: the first
        ("2026-11-01T02:30:00", "America/New_York", "2026-11-01T07:30:00+00:00"),
        ("2026-03-08T02:30:00", "America/New_York", "2026-03-08T07:30:00+00:00"),  # does not come: an hour later
        ("2026-03-08 03:30", "America/New_York", "2026-03-08T07:30:00+00:00"),
        ("2026-03-08 03:30", "+05:30", "2026-03-07T22:00:00+00:00"),
        ("2026-03-08 03:30", "GMT-3", "2026-03-08T06:30:00+00:00"),
        ("2026-03-08 03:30+01:00", "America/New_York", "2026-03-08T02:30:00+00:00"),
    ],
)
def test_a_time_without_a_zone_is_one_of_the_option_s(tmp_path: Path, text: str, zone: str, expected: str) -> None:
    found = options_of(tmp_path, endingTimestamp=text, timeZone=zone).ending_ms
    assert found == datetime.fromisoformat(expected).timestamp() * 1000


def test_a_time_without_a_zone_is_refused_where_no_option_says_which(tmp_path: Path) -> None:
    assert options_of(tmp_path, startingTimestamp="2026-03-08T03:30:00Z").starting_ms == 1_772_940_600_000
    with pytest.raises(ValueError, match=r"startingTimestamp: '2026-03-08 03:30' has no zone, .* option timeZone"):
        options_of(tmp_path, startingTimestamp="2026-03-08 03:30")
    with pytest.raises(ValueError, match=r"timeZone is a region like Europe/Berlin, .* not 'Nowhere'"):
        options_of(tmp_path, startingTimestamp="2026-03-08 03:30", timeZone="Nowhere")


def test_a_table_whose_files_are_gone_says_to_load_it_again(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a") * 9)
    options = options_of(tmp_path)
    reader = JournalReader(options, columns_of(options))
    (task,) = reader.partitions()
    (tmp_path / "jobs").unlink()
    (tmp_path / "jobs").write_bytes(addx(b"b"))
    with pytest.raises(FileVanished, match="a table has the files that its first query found: load it again"):
        list(reader.read(task))


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_where_no_record_begins_is_an_error_with_the_nearest_ones(tmp_path: Path, option: str) -> None:
    records = [addx(b"a"), with_xid(4, 7), with_xid(4, -7), addx(b"bb"), b"\1"]
    (tmp_path / "jobs").write_bytes(b"".join(records) + addx(b"torn")[:-1])
    ends = [0, *accumulate(map(len, records))]

    def offset(at: int, queue: str = "jobs", file: str = "jobs") -> dict[str, object]:
        return {option: json.dumps({queue: {"file": file, "at": at}})}

    for at in ends:
        expected = (
            sum(each < at for each in ends) if option == "endingOffsets" else sum(each >= at for each in ends[:-1])
        )
        assert len(batch_view(tmp_path, **offset(at))) == expected
    size = (tmp_path / "jobs").stat().st_size
    for at in sorted({*range(-1, size + 2)} - {*ends, size}):
        before = max([end for end in ends if end < at], default=0)
        with pytest.raises(
            ValueError, match=f"no record of queue jobs begins at byte {at} of jobs; .* are {before} and "
        ):
            batch_view(tmp_path, **offset(at))
    with pytest.raises(ValueError, match=f"option {option}: there is no queue jbos in .*; there are jobs"):
        batch_view(tmp_path, **offset(0, "jbos"))
    with pytest.raises(ValueError, match=r"queue jobs has no file jobs\.5 any more: .*; there are jobs"):
        batch_view(tmp_path, **offset(0, file="jobs.5"))
    if option == "startingOffsets":
        for given, match in (
            (offset(0, "jbos"), "no queue jbos"),
            (offset(5), "no record of queue jobs begins at byte 5"),
        ):
            with pytest.raises(ValueError, match=match):
                stream_of(tmp_path, **given).initialOffset()


@pytest.mark.parametrize(
    "budget", [{"maxBytesPerTrigger": 200}, {"maxOffsetsPerTrigger": 20}, {"maxFilesPerTrigger": 1}]
)
def test_a_busy_queue_does_not_keep_another_one_waiting(tmp_path: Path, budget: dict[str, object]) -> None:
    (tmp_path / "busy").write_bytes(b"".join(addx(b"%d" % n) for n in range(500)))
    (tmp_path / "calm").write_bytes(addx(b"one") + addx(b"two"))
    stream = stream_of(tmp_path, **budget)
    assert isinstance(stream.getDefaultReadLimit(), ReadAllAvailable) is False
    told: dict[str, int] = {"busy": 0, "calm": 0}
    for count, (_, rows) in enumerate(batches(stream, {})):
        for row in rows:
            told[row["queue"]] += 1
        if count == 1:
            assert told["calm"] == 2
    assert told == {"busy": 500, "calm": 2}


def test_a_file_renamed_or_removed_while_a_spool_is_listed_is_seen_under_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("jobs", "mail", "mail.4"):
        (tmp_path / name).write_bytes(addx(name.encode()))
    real, left = files.stat_of, ["jobs", "mail.4"]

    def meanwhile(file: str | int) -> tuple[bool, int, str]:
        if left:
            name = left.pop()
            (tmp_path / name).rename(tmp_path / "jobs.9") if name == "jobs" else (tmp_path / name).unlink()
        return real(file)

    monkeypatch.setattr(files, "stat_of", meanwhile)
    assert [name for name, _ in LocalFolder(str(tmp_path)).list()] == ["jobs.9", "mail"]


def test_names_that_change_all_the_time_are_an_error_and_no_empty_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").write_bytes(addx(b"a"))
    real, names = files.stat_of, iter(range(10**9))
    current = tmp_path / "jobs"

    def meanwhile(file: str | int) -> tuple[bool, int, str]:
        nonlocal current
        current = current.rename(tmp_path / f"jobs.{next(names)}")
        return real(file)

    monkeypatch.setattr(files, "stat_of", meanwhile)
    monkeypatch.setattr(files, "SCAN_SECONDS", 0.05)
    with pytest.raises(FileVanished, match="change faster than they can be listed"):
        LocalFolder(str(tmp_path)).list()


def replaced_by_a_pack(spool: Path) -> None:
    """What a server's packing does to a sealed file: another one gets its name."""
    (spool / "jobs.5.pack").write_bytes(addx(b"c") + addx(b"d") + addx(b"e") + addx(b"f"))
    (spool / "jobs.5").unlink()
    (spool / "jobs.5.pack").rename(spool / "jobs.5")


@pytest.mark.parametrize("view", ["state", "items", "ops", "summaries"])
def test_a_sealed_file_that_another_one_has_replaced_is_not_read_for_it(tmp_path: Path, view: str) -> None:
    (tmp_path / "jobs.5").write_bytes(addx(b"a") + addx(b"b") + addx(b"c"))
    (tmp_path / "jobs").write_bytes(b"\1\1")
    options = options_of(tmp_path, view=view)
    reader = JournalReader(options, columns_of(options))
    (part,) = reader.partitions()
    replaced_by_a_pack(tmp_path)
    with pytest.raises(FileVanished, match=r"bytes 0 to \d+ of jobs\.5 are gone: the file was rotated, packed"):
        list(reader.read(part))


def test_a_state_made_by_many_tasks_is_planned_anew_when_a_file_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs.5").write_bytes(addx(b"a") + addx(b"b") + addx(b"c"))
    (tmp_path / "jobs").write_bytes(b"\1")
    rounds: list[int] = []

    def run_each(spark: object, tasks: list[Any], work: Callable[[Any], Any], _: object) -> list[Any]:
        rounds.append(len(tasks))
        if len(rounds) == 1:
            replaced_by_a_pack(tmp_path)
        found: list[Any] = []
        for task in tasks:
            try:
                found.append(work(task))
            except FileVanished as gone:
                found.append(gone)
        return found

    monkeypatch.setattr(summarise_module, "run_each", run_each)
    spark: Any = None
    (queue,) = summarise_module.queues_of(spark, str(tmp_path), {})
    rows = [row["value"] for batch in live_rows(LocalFolder(str(tmp_path)), queue, True) for row in batch.to_pylist()]
    assert rows == [b"d", b"e", b"f"] and len(rounds) > 1


def test_a_reader_s_file_that_was_rewritten_meanwhile_is_noticed(tmp_path: Path) -> None:
    from staniel.journal.libkestrel.records import READER_MAGIC, encode_read_head

    name, data = libkestrel_segments()[0]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "jobs.read.").write_bytes(READER_MAGIC + encode_read_head(5))
    options = options_of(tmp_path, view="state")
    reader = JournalReader(options, columns_of(options))
    (part,) = reader.partitions()
    assert len(list_segments(LocalFolder(str(tmp_path)), "auto")[1]["jobs"]) == 1
    (tmp_path / "new").write_bytes(READER_MAGIC + encode_read_head(80))
    (tmp_path / "new").rename(tmp_path / "jobs.read.")
    with pytest.raises(FileVanished, match=r"jobs\.read\. are gone"):
        list(reader.read(part))


def test_an_archive_goes_on_where_a_journal_started_over_and_counts_it(
    archived: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for name in ("jobs", "mail", "gone"):
        (spool / name).write_bytes(addx(b"a") + addx(b"b") + b"\1\1")
    assert archived(spool) == (12, [])
    (spool / "new").write_bytes(addx(b"c"))
    (spool / "new").rename(spool / "jobs")
    (spool / "gone").unlink()
    count, warned = archived(spool)
    assert count == 1 and [line.partition(":")[0] for line in warned] == ["gone", "jobs"]
    assert archived(spool) == (0, [])
    (spool / "gone").write_bytes(addx(b"again"))
    assert archived(spool) == (1, [])
    with Lake(str(tmp_path / "lake")) as lake:
        assert {queue: gap.times for queue, gap in lake.entry.gaps.items()} == {"gone": 1, "jobs": 1}
    assert len(lake_rows(tmp_path / "lake")) == 14


def test_an_archive_counts_the_items_of_segments_that_went_unread(
    archived: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    first, second = libkestrel_segments()
    (spool / first[0]).write_bytes(first[1])
    assert archived(spool) == (90, [])
    (spool / first[0]).unlink()
    (spool / second[0]).write_bytes(second[1])
    assert archived(spool) == (110, [])
    (spool / second[0]).unlink()
    (spool / "jobs.300").write_bytes(SEGMENT_MAGIC + encode_put(Item(b"late", NOW_MS), 205, 0))
    count, (warning,) = archived(spool)
    assert count == 1 and warning.startswith("jobs: 4 items of its journal gone")


def test_an_archive_plans_a_batch_anew_when_a_file_goes_before_its_task_reads_it(
    archived: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "jobs.5").write_bytes(addx(b"a") + addx(b"b"))
    (spool / "jobs").write_bytes(b"\1\1")
    real, rounds = archive_module.write_part, [0]

    def write_part(task: Any) -> Any:
        if not rounds[0]:
            replaced_by_a_pack(spool)
        rounds[0] += 1
        return real(task)

    monkeypatch.setattr(archive_module, "write_part", write_part)
    archived(spool)
    archived(spool)
    values = sorted(row["value"] for row in lake_rows(tmp_path / "lake") if row["value"] is not None)
    assert values == [b"c", b"d", b"e", b"f"] and len(lake_rows(tmp_path / "lake")) == 6


def replan_meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None], at_batch: int) -> None:
    """Something happens when the end of an archive's batch is known, and its pieces are not."""
    real, calls = JournalStream.pieces, [0]

    def pieces(self: JournalStream, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        calls[0] += 1
        if calls[0] == at_batch:
            happens()
        return real(self, start, end)

    monkeypatch.setattr(JournalStream, "pieces", pieces)


def test_a_batch_of_an_archive_whose_end_goes_before_it_is_cut_into_pieces_is_planned_anew(
    archived: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "jobs").write_bytes(addx(b"a") + addx(b"b"))

    def rewritten() -> None:
        (spool / "new").write_bytes(addx(b"b") + addx(b"c"))
        (spool / "new").rename(spool / "jobs")

    replan_meanwhile(monkeypatch, rewritten, 1)
    told = [archived(spool), archived(spool)]
    assert [warned for _, warned in told] == [[], []], "nothing had been read, so nothing is lost"
    assert sorted(row["value"] for row in lake_rows(tmp_path / "lake")) == [b"b", b"c"]


def test_a_batch_of_an_archive_whose_start_goes_before_it_is_cut_into_pieces_keeps_its_budget(
    archived: Callable[..., tuple[int, list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "jobs.5").write_bytes(b"".join(addx(b"a%d" % n) for n in range(6)))
    (spool / "jobs").write_bytes(b"".join(addx(b"b%d" % n) for n in range(6)))

    def packed() -> None:
        (spool / "jobs.5.pack").write_bytes(b"".join(addx(b"c%03d" % n) for n in range(200)))
        (spool / "jobs.5.pack").rename(spool / "jobs.5")

    replan_meanwhile(monkeypatch, packed, 2)
    _, warned = archived(spool, maxBytesPerTrigger="100")
    assert len(warned) == 1 and warned[0].startswith("jobs: some of its journal gone")
    archived(spool)
    batches: Counter[str] = Counter()
    for path in (tmp_path / "lake").rglob("0*.parquet"):
        batches[path.name[:8]] += pq.read_metadata(path).num_rows
    assert sum(batches.values()) >= 206 and batches["00000002"] <= 5
