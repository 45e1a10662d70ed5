"""When a stream looks at its files, how long it waits for a batch, and what its progress says. No Spark but its
interfaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from staniel.pipeline.lake import watch as watch_module
from staniel.pipeline.lake.folders import Entries, LocalFolder
from staniel.pipeline.lake.watch import FolderWatch
from staniel.pipeline.sources.journal import JournalReader, columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import LOOK_ANYWAY_S, JournalStream
from staniel.pipeline.sources.live_options import DrainOptions, SinkOptions
from staniel.pipeline.sources.offsets import DataLoss, from_json
from tests.pipeline.test_streams import read_on
from tests.support.records import NOW_MS, addx

QUEUES = 40
Offset = dict[str, Any]


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    for number in range(QUEUES):
        append(folder, f"q{number:02}", b"first")
    return folder


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was listed or opened, in order."""
    seen: list[str] = []
    real_scan, real_open = LocalFolder.scan, LocalFolder.open

    def scan(self: LocalFolder) -> Entries:
        seen.append("scan")
        return real_scan(self)

    def open_file(self: LocalFolder, name: str) -> Any:
        seen.append(name)
        return real_open(self, name)

    monkeypatch.setattr(LocalFolder, "scan", scan)
    monkeypatch.setattr(LocalFolder, "open", open_file)
    return seen


def append(spool: Path, queue: str, *values: bytes) -> None:
    with (spool / queue).open("ab") as file:
        file.write(b"".join(addx(value) for value in values))


def stream_of(spool: Path, clock: Clock, **given: object) -> JournalStream:
    options = JournalOptions({"path": str(spool), **{name: str(value) for name, value in given.items()}})
    return JournalStream(options, columns_of(options), clock=clock)


def ask(stream: JournalStream, start: Offset) -> Offset:
    """What Spark asks for, with an offset that was written down and read again meanwhile."""
    return stream.latestOffset(json.loads(json.dumps(start)), stream.getDefaultReadLimit())


def test_a_poll_without_news_looks_at_no_file(spool: Path, clock: Clock, listings: list[str]) -> None:
    stream = stream_of(spool, clock, format="kestrel")
    end, rows = read_on(stream, {})
    assert len(rows) == QUEUES
    listings.clear()
    for _ in range(5):
        assert ask(stream, end) == end
    assert listings == []


@pytest.mark.parametrize("change", ["appended", "new", "renamed", "rewritten", "removed"])
def test_any_change_of_a_file_is_seen_by_the_next_poll(
    spool: Path, clock: Clock, change: str, listings: list[str]
) -> None:
    stream = stream_of(spool, clock, format="kestrel", failOnDataLoss="false")
    end, _ = read_on(stream, {})
    listings.clear()
    if change == "appended":
        append(spool, "q07", b"more")
    elif change == "new":
        append(spool, "newer", b"more")
    elif change == "renamed":
        (spool / "q07").rename(spool / "q07.5")
        append(spool, "q07", b"more")
    elif change == "rewritten":
        (spool / "other").write_bytes(addx(b"more") * 2)
        (spool / "other").rename(spool / "q07")
    else:
        (spool / "q07").unlink()
    after, rows = read_on(stream, end)
    assert "scan" in listings and after != end
    assert {row["value"] for row in rows} == (set() if change == "removed" else {b"more"})


def test_a_poll_opens_only_the_files_that_have_grown(spool: Path, clock: Clock, listings: list[str]) -> None:
    stream = stream_of(spool, clock, format="kestrel")
    end, _ = read_on(stream, {})
    append(spool, "q07", b"more")
    listings.clear()
    assert ask(stream, end) != end
    assert set(listings) == {"scan", "q07"}


def test_a_change_while_a_poll_looks_is_seen_by_the_next_one(
    spool: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(spool, clock, format="kestrel")
    end, _ = read_on(stream, {})
    append(spool, "torn", b"")
    with (spool / "torn").open("r+b") as file:
        file.truncate(3)
    real = JournalStream._end_of_batch

    def end_of_batch(self: JournalStream, *given: Any) -> Offset:
        made = real(self, *given)
        append(spool, "q01", b"meanwhile")
        return made

    with monkeypatch.context() as patch:
        patch.setattr(JournalStream, "_end_of_batch", end_of_batch)
        assert ask(stream, end) == end
    assert ask(stream, end) != end


def test_files_are_looked_at_now_and_then_because_a_link_may_have_changed(
    spool: Path, clock: Clock, tmp_path: Path
) -> None:
    append(tmp_path, "elsewhere", b"first")
    (spool / "linked").symlink_to(tmp_path / "elsewhere")
    stream = stream_of(spool, clock)
    end, _ = read_on(stream, {})
    assert ask(stream, end) == end
    append(tmp_path, "elsewhere", b"more")
    assert ask(stream, end) == end
    clock.now_s += LOOK_ANYWAY_S
    assert ask(stream, end) != end


def test_without_marks_each_poll_lists_the_folder_and_verifies_each_offset(
    spool: Path, clock: Clock, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "LOCAL_FILE_SYSTEMS", {})
    stream = stream_of(spool, clock, format="kestrel")
    end, _ = read_on(stream, {})
    listings.clear()
    assert ask(stream, end) == ask(stream, end) == end
    assert listings.count("scan") == 2 and listings.count("q07") == 2


@pytest.mark.parametrize("has_marks", [True, False])
@pytest.mark.parametrize("is_resumed", [True, False])
def test_a_file_that_is_overwritten_in_place_with_as_many_bytes_is_noticed(
    spool: Path, clock: Clock, has_marks: bool, is_resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_marks:
        monkeypatch.setattr(watch_module, "LOCAL_FILE_SYSTEMS", {})
    stream = stream_of(spool, clock)
    end, _ = read_on(stream, {})
    assert ask(stream, end) == end
    (spool / "q07").write_bytes(addx(b"other"))
    with pytest.raises(DataLoss, match=r"q07: byte \d+ of q07 is gone"):
        ask(stream_of(spool, clock) if is_resumed else stream, end)


def test_a_mark_knows_the_names_until_its_folder_is_gone_or_its_watch_is_closed(tmp_path: Path) -> None:
    watch = FolderWatch()
    marks = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        marks.append(watch.mark(str(tmp_path / name)))
    gone, moved, kept = marks
    assert gone is not None and moved is not None and kept is not None
    assert [mark.take_names() for mark in (gone, moved, kept)] == [None] * 3, "at first it may be any"
    assert [mark.take_names() for mark in (gone, moved, kept)] == [set(), set(), set()]
    append(tmp_path / "c", "jobs", b"a")
    (tmp_path / "c" / "jobs").rename(tmp_path / "c" / "jobs.5")
    assert watch.mark(str(tmp_path / "c")) is kept
    assert [kept.take_names(), kept.take_names()] == [{"jobs", "jobs.5"}, set()]
    (tmp_path / "a").rmdir()
    (tmp_path / "b").rename(tmp_path / "d")
    assert [mark.take_names() for mark in (gone, gone, moved, moved, kept)] == [None, None, None, None, set()]
    watch.close()
    assert kept.take_names() is None and kept.take_names() is None
    assert watch.mark(str(tmp_path)) is None and FolderWatch().mark(str(tmp_path / "none")) is None


def test_a_look_that_fails_verifies_nothing(
    spool: Path, clock: Clock, listings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(spool, clock, format="kestrel")
    end, _ = read_on(stream, {})
    append(spool, "q03", b"more")

    def end_of_batch(self: JournalStream, *given: Any) -> Offset:
        raise OSError("disk")

    with monkeypatch.context() as patch:
        patch.setattr(JournalStream, "_end_of_batch", end_of_batch)
        with pytest.raises(OSError, match="disk"):
            ask(stream, end)
    listings.clear()
    assert ask(stream, end) != end and "q03" in listings


def test_a_batch_waits_for_enough_records_or_long_enough(spool: Path, clock: Clock) -> None:
    stream = stream_of(spool, clock, minOffsetsPerTrigger=10, maxTriggerDelay="30s")
    assert stream.getDefaultReadLimit() == ReadMinRows(10)
    end = ask(stream, {})
    assert len(end) == QUEUES, "the first batch does not wait"
    append(spool, "q01", *[b"a"] * 6)
    assert ask(stream, end) == end
    append(spool, "q02", *[b"a"] * 3)
    assert ask(stream, end) == ask(stream, end) == end
    append(spool, "q03", b"a")
    full = ask(stream, end)
    assert {queue for queue in full if full[queue] != end[queue]} == {"q01", "q02", "q03"}
    append(spool, "q01", b"a")
    clock.now_s += 29
    assert ask(stream, full) == full
    clock.now_s += 1
    assert ask(stream, full) != full


def test_a_wait_counts_records_of_sealed_files_and_obeys_the_other_limit(spool: Path, clock: Clock) -> None:
    stream = stream_of(spool, clock, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=4, queue="q00")
    assert stream.getDefaultReadLimit() == ReadMaxRows(4)
    end = ask(stream, {})
    append(spool, "q00", *[b"a"] * 9)
    (spool / "q00").rename(spool / "q00.5")
    assert ask(stream, end) == end
    append(spool, "q00", b"a")
    sizes = []
    while (after := ask(stream, end)) != end:
        rows = [
            row for part in stream.partitions(end, after) for batch in stream.read(part) for row in batch.to_pylist()
        ]
        sizes.append(len(rows))
        end = after
        clock.now_s += 900  # the default of maxTriggerDelay
    assert max(sizes) <= 4 and sum(sizes) == 10


def test_a_query_that_ends_does_not_wait(spool: Path, clock: Clock) -> None:
    stream = stream_of(spool, clock, minOffsetsPerTrigger=1000)
    end = ask(stream, {})
    append(spool, "q01", b"a")
    assert ask(stream, end) == end
    assert stream.latestOffset(end, ReadAllAvailable()) != end, "as of Trigger.Once"
    append(spool, "q02", b"a")
    stream.prepareForTriggerAvailableNow()
    assert ask(stream, end) != end


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"maxTriggerDelay": "5m"}, "give that too"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, "is a time like 30s or 15m, not 'soon'"),
        ({"minOffsetsPerTrigger": "0"}, "a number from 1 up"),
        ({"subscribe": "a", "queues": "b"}, "options subscribe and queues say the same"),
    ],
)
def test_options_of_a_wait_that_say_nothing_are_refused(spool: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        JournalOptions({"path": str(spool), **given})
    with pytest.raises(ValueError, match="minOffsetsPerTrigger of staniel-journal is for streams"):
        JournalOptions({"path": str(spool), "minOffsetsPerTrigger": "3"}).check_batch()


def test_names_of_sparks_kafka_source_mean_ours(spool: Path, clock: Clock) -> None:
    assert set(ask(made := stream_of(spool, clock, subscribe="q01,q02"), {})) == {"q01", "q02"}
    assert made.options.queues.named
    assert set(ask(stream_of(spool, clock, subscribePattern="q0[12]"), {})) == {"q01", "q02"}
    given = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "jobs", "spoolPath": "s"}
    drain = DrainOptions({**given, "maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "2m"})
    assert (drain.servers, drain.queues, drain.items_a_trigger) == (["a:1", "b:2"], ["jobs"], 7)
    assert (drain.items_before_trigger, drain.delay_ms) == (3, 120_000)
    assert SinkOptions({"kafka.bootstrap.servers": "a:1", "topic": "jobs"}).queue == "jobs"


def test_many_small_queues_are_as_many_tasks_as_min_partitions_says_at_most(spool: Path, clock: Clock) -> None:
    for count, expected in ((0, 1), (1, 1), (8, 8), (100, QUEUES)):
        stream = stream_of(spool, clock, minPartitions=count)
        end = ask(stream, {})
        tasks = stream.partitions({}, end)
        assert len(tasks) == expected
        rows = [row["queue"] for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]
        assert rows == sorted(rows) and len(rows) == QUEUES


def test_progress_says_how_far_a_stream_is_behind(spool: Path, clock: Clock) -> None:
    one = len(addx(b"first"))
    append(spool, "q07", *[b"first"] * 20)
    stream = stream_of(spool, clock, maxBytesPerTrigger=one * QUEUES)
    stream._wall_clock = lambda: NOW_MS / 1000 + 77
    end = ask(stream, {})
    progress = stream.reportLatestOffset()
    assert progress is not None and progress["queues"] == QUEUES
    total = (QUEUES + 20) * one
    read = sum(from_json(place).at for place in end.values())
    assert progress["bytesBehindLatest"] == total - read > 0
    assert progress["furthestBehind"] == "q07" and progress["maxBytesBehindLatest"] <= 20 * one
    assert len(progress["behind"]) <= 10
    for queue, lag in progress["behind"].items():
        unread = stream.unread_bytes[queue]
        assert lag == {"bytes": unread, "records": unread // one, "seconds": 77 if queue in end else None}
    end, _ = read_on(stream, end)
    assert ask(stream, end) == end
    assert stream.reportLatestOffset() == {"queues": QUEUES, "queuesBehind": 0, "bytesBehindLatest": 0}


def test_a_stream_may_begin_at_a_time_of_each_queue(spool: Path, clock: Clock) -> None:
    for queue in ("q01", "q02"):
        (spool / queue).write_bytes(b"".join(addx(b"%d" % number, NOW_MS + number) for number in range(3)))
    times = json.dumps({"q01": NOW_MS + 1, "q02": {"0": NOW_MS + 2}})
    stream = stream_of(spool, clock, queues="q01,q02,q03", startingOffsetsByTimestamp=times)
    _, rows = read_on(stream, stream.initialOffset())
    assert sorted((row["queue"], row["value"]) for row in rows) == [
        ("q01", b"1"),
        ("q01", b"2"),
        ("q02", b"2"),
        ("q03", b"first"),
    ]
    until = {"path": str(spool), "queues": "q01,q03", "endingOffsetsByTimestamp": json.dumps({"q01": NOW_MS})}
    reader = JournalReader(options := JournalOptions(until), columns_of(options))
    read = [row["value"] for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert read == [b"0", b"first"]
    with pytest.raises(ValueError, match="startingOffsetsByTimestamp: there is no queue q99"):
        stream_of(spool, clock, startingOffsetsByTimestamp='{"q99": 5}').initialOffset()
    with pytest.raises(ValueError, match=r"wants .*queue.*epoch ms"):
        JournalOptions({"path": str(spool), "startingOffsetsByTimestamp": '{"q01": "today"}'})


def test_an_offset_of_a_checkpoint_may_begin_a_query_and_be_one_of_an_earlier_version(
    spool: Path, clock: Clock
) -> None:
    end, _ = read_on(stream_of(spool, clock), {})
    append(spool, "q03", b"more")
    begins = JournalOptions({"path": str(spool), "startingOffsets": json.dumps(end), "queue": "q03"})
    reader = JournalReader(begins, columns_of(begins))
    assert [
        row["value"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    ] == [b"more"]
    earlier = {queue: msgspec.to_builtins(from_json(place)) for queue, place in end.items()}
    assert {type(place) for place in earlier.values()} == {dict}
    after, rows = read_on(stream_of(spool, clock), earlier)
    assert [row["value"] for row in rows] == [b"more"] and after["q03"] != end["q03"]
    with pytest.raises(ValueError, match="'5' is no offset of a checkpoint"):
        from_json("5")
