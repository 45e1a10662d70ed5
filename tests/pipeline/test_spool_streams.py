"""A stream over several spools has every record of each once, also of those that come, go and come back."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from staniel.pipeline.lake.folders import Entries, LocalFolder
from staniel.pipeline.sources.journal import columns_of, format_of_spools
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import LOOK_ANYWAY_S
from staniel.pipeline.sources.offsets import DataLoss
from staniel.pipeline.sources.spool_streams import LIST_S, RETRY_S, SpoolStreams
from staniel.pipeline.sources.spools import SpoolUnreachable
from tests.pipeline.slow_workers import retried
from tests.pipeline.test_idle_streams import Clock, append
from tests.support.records import addx

Offset = dict[str, Any]
HOSTS = ("web1", "web2", "web3")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for host in HOSTS:
        (tmp_path / host / "spool").mkdir(parents=True)
        for queue in ("jobs", "mail"):
            append(tmp_path / host / "spool", queue, f"{host} {queue}".encode())
    return tmp_path


def stream_of(data: Path, clock: Clock, **given: object) -> SpoolStreams:
    options = JournalOptions({"path": f"{data}/web*/spool", **{name: str(value) for name, value in given.items()}})
    form = format_of_spools(options) if options.format == "auto" else options.format
    return SpoolStreams(options, columns_of(options), form, clock)


def ask(stream: SpoolStreams, start: Offset) -> Offset:
    return stream.latestOffset(json.loads(json.dumps(start)), stream.getDefaultReadLimit())


def rows_between(stream: SpoolStreams, start: Offset, end: Offset) -> list[tuple[str, bytes]]:
    tasks = stream.partitions(start, end)
    return [(row["host"], row["value"]) for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]


def read_on(stream: SpoolStreams, start: Offset) -> tuple[Offset, list[tuple[str, bytes]]]:
    rows = []
    while (end := ask(stream, start)) != start:
        rows += rows_between(stream, start, end)
        start = end
    return start, rows


EVERY = [(host, f"{host} {queue}".encode()) for host in HOSTS for queue in ("jobs", "mail")]


def test_a_stream_has_the_records_of_every_spool_once(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock)
    start, rows = read_on(stream, stream.initialOffset())
    assert rows == EVERY and list(start) == list(HOSTS)
    append(data / "web2" / "spool", "jobs", b"more")
    (data / "web2" / "spool" / "jobs").rename(data / "web2" / "spool" / "jobs.5")
    append(data / "web2" / "spool", "jobs", b"and more")
    again = stream_of(data, clock)
    assert read_on(again, start)[1] == [("web2", b"more"), ("web2", b"and more")]
    assert read_on(stream, start)[1] == [("web2", b"more"), ("web2", b"and more")]


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger"])
def test_a_limit_is_shared_among_the_spools(data: Path, clock: Clock, limit: str) -> None:
    append(data / "web1" / "spool", "jobs", *[b"many"] * 300)
    size = {"maxBytesPerTrigger": 20 * len(addx(b"many")), "maxOffsetsPerTrigger": 20, "maxFilesPerTrigger": 1}[limit]
    stream = stream_of(data, clock, **{limit: size})
    start, rows, batches = stream.initialOffset(), list[tuple[str, bytes]](), list[int]()
    while (end := ask(stream, start)) != start:
        some = rows_between(stream, start, end)
        batches.append(len(some))
        rows, start = rows + some, end
    assert sorted(set(rows)) == sorted({*EVERY, ("web1", b"many")}) and len(rows) == 306
    if limit == "maxOffsetsPerTrigger":
        assert max(batches) <= 20 + 6, "each queue gets a record at least"
    assert len(batches) > 1 or limit == "maxFilesPerTrigger"


def test_a_wait_counts_the_records_of_all_spools(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock, minOffsetsPerTrigger=4, maxTriggerDelay="1m")
    start = ask(stream, {})
    append(data / "web1" / "spool", "jobs", b"a", b"b")
    assert ask(stream, start) == start
    append(data / "web3" / "spool", "mail", b"c")
    assert ask(stream, start) == ask(stream, start) == start
    append(data / "web2" / "spool", "jobs", b"d")
    end = ask(stream, start)
    assert len(rows_between(stream, start, end)) == 4
    append(data / "web2" / "spool", "jobs", b"e")
    assert ask(stream, end) == end
    clock.now_s += 60
    assert ask(stream, end) != end


def test_an_idle_poll_of_many_spools_looks_at_no_file(
    data: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stream_of(data, clock)
    start, _ = read_on(stream, stream.initialOffset())
    scans: list[str] = []
    real = LocalFolder.scan

    def scan(self: LocalFolder) -> Entries:
        scans.append(Path(self.path).parent.name)
        return real(self)

    monkeypatch.setattr(LocalFolder, "scan", scan)
    assert ask(stream, start) == start and scans == []
    append(data / "web2" / "spool", "jobs", b"more")
    assert ask(stream, start) != start and scans == ["web2"]
    scans.clear()
    start = ask(stream, start)
    append(data / "web3" / "spool", "jobs", b"more")
    scans.clear()
    assert ask(stream, start) != start and scans == ["web3"], "a batch without limits leaves nothing behind"
    scans.clear()
    clock.now_s += LOOK_ANYWAY_S
    ask(stream, start)
    assert sorted(scans) == list(HOSTS)


def test_spools_that_a_pattern_matches_later_join_from_their_beginning(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock, startingOffsets="latest")
    start = stream.initialOffset()
    assert ask(stream, start) == start
    (data / "web4" / "spool").mkdir(parents=True)
    append(data / "web4" / "spool", "jobs", b"new")
    assert ask(stream, start) == start
    clock.now_s += LIST_S
    assert read_on(stream, start)[1] == [("web4", b"new")]


def test_a_spool_that_goes_ends_the_stream_or_is_read_on_when_it_is_back(
    data: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    strict, stream = stream_of(data, clock), stream_of(data, clock, ignoreUnreachable="true")
    start, _ = read_on(stream, stream.initialOffset())
    assert ask(strict, start) == start
    append(data / "web2" / "spool", "jobs", b"unread")
    append(data / "web1" / "spool", "jobs", b"more")
    (data / "web2").rename(data / "away")
    clock.now_s += LOOK_ANYWAY_S
    with pytest.raises(
        SpoolUnreachable, match=r"spool .* of host web2: there is no folder .*; option ignoreUnreachable"
    ):
        ask(strict, start)
    with caplog.at_level(logging.WARNING):
        start, rows = read_on(stream, start)
        assert rows == [("web1", b"more")]
        report = stream.reportLatestOffset()
        assert report is not None and list(report["unreachable"]) == ["web2"] and report["spools"] == 3
        clock.now_s += 5 * LOOK_ANYWAY_S
        read_on(stream, start)
        assert caplog.text.count("host web2 is left out until it can be read") == 1
        clock.now_s += LIST_S
        assert ask(stream, start) == start, "the pattern does not match it now"
        with pytest.raises(SpoolUnreachable, match="web2 was read before, and is no longer among the spools"):
            ask(strict, start)
        (data / "away").rename(data / "web2")
        clock.now_s += LIST_S + RETRY_S
        assert read_on(stream, start)[1] == [("web2", b"unread")]


def test_a_spool_that_goes_between_the_end_of_a_batch_and_its_plan_ends_the_query_unless_loss_is_allowed(
    data: Path,
    clock: Clock,
) -> None:
    stream = stream_of(data, clock, ignoreUnreachable="true")
    end = ask(stream, {})
    shutil.rmtree(data / "web2")
    with pytest.raises(SpoolUnreachable, match="of host web2: there is no folder"):
        stream.partitions({}, end)
    with pytest.raises(SpoolUnreachable, match="web2 is in a batch, and no longer among the spools"):
        stream_of(data, clock, ignoreUnreachable="true").partitions({}, end)
    lax = stream_of(data, clock, ignoreUnreachable="true", failOnDataLoss="false")
    assert rows_between(lax, {}, end) == [row for row in EVERY if row[0] != "web2"]


def test_lost_records_are_no_matter_of_reaching_a_spool(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock, ignoreUnreachable="true")
    start, _ = read_on(stream, {})
    (data / "web2" / "spool" / "new").write_bytes(addx(b"other"))
    (data / "web2" / "spool" / "new").rename(data / "web2" / "spool" / "jobs")
    with pytest.raises(DataLoss, match="jobs"):
        ask(stream, start)


def test_a_stream_that_ends_takes_what_was_there_of_each_spool(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock, maxOffsetsPerTrigger=2)
    stream.prepareForTriggerAvailableNow()
    append(data / "web2" / "spool", "jobs", b"late")
    clock.now_s += LIST_S
    start: Offset = {}
    rows = []
    while (end := stream.latestOffset(start, ReadAllAvailable())) != start:
        rows += rows_between(stream, start, end)
        start = end
    assert sorted(rows) == sorted(EVERY)


def test_a_queue_must_be_in_one_of_the_spools(data: Path, clock: Clock) -> None:
    append(data / "web3" / "spool", "rare", b"r")
    stream = stream_of(data, clock, queue="rare")
    assert read_on(stream, stream.initialOffset())[1] == [("web3", b"r")]
    with pytest.raises(ValueError, match="there is no queue none in any of 3 spools"):
        stream_of(data, clock, queue="none").initialOffset()


def test_nothing_that_can_be_read_is_an_error(data: Path, clock: Clock) -> None:
    stream = stream_of(data, clock, ignoreUnreachable="true", format="libkestrel")
    with pytest.raises(SpoolUnreachable, match=r"none of 3 spools can be read; spool .*web1.* holds no queue of"):
        stream.initialOffset()


def test_spark_streams_several_spools(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    place = tmp_path / "spark"

    def run() -> list[Any]:
        source = spark.readStream.format("staniel-journal").option("minOffsetsPerTrigger", "2")
        source = source.option("ignoreUnreachable", "true").option("minPartitions", "2")
        rows = source.load(f"{data}/web*/spool").select("host", "queue", "value")
        writing = rows.writeStream.format("parquet").option("checkpointLocation", str(place / "ck"))
        query = writing.trigger(availableNow=True).start(str(place / "out"))
        query.awaitTermination()
        return [progress.sources[0] for progress in query.recentProgress]

    first = retried(run)
    assert json.loads(str(first[0].latestOffset))["spools"] == 3
    append(data / "web2" / "spool", "jobs", b"more")
    retried(run)
    found = spark.read.parquet(str(place / "out")).collect()
    assert sorted((row.host, bytes(row.value)) for row in found) == sorted([*EVERY, ("web2", b"more")])
