"""Journals into a lake: Parquet by queue and day, a bit further at each run.

Knows the order of plan, write and commit. Refuses to know the journals' formats and the lake's files. Tasks write
Parquet themselves, from the columns that they have just decoded: sent through Spark's own writer, each row crosses a
socket, is turned into Java's rows, sorted by queue and day, and encoded there, which took five times the processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.streaming.datasource import ReadMaxBytes

from pipeline.files import absolute
from pipeline.fleet import run
from pipeline.journal_options import JournalOptions
from pipeline.journal_source import columns_of
from pipeline.journal_stream import JournalStream, PinnedPartition
from pipeline.lake import Lake, place_of
from pipeline.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK = "asOf"
TASK_BYTES = 128 << 20  # of journal, for each task that can run at the same time
DAY_MS = 86_400_000

Tell = Callable[[dict[str, Any]], None]


class Task(Struct, frozen=True):
    """One part of one batch. `day`: where rows go that have no time, and none near them has."""

    out: str
    batch: int
    partition: PinnedPartition
    columns: pa.Schema
    day: int


class Written(Struct, frozen=True):
    rows: int
    files: list[str]
    days: dict[str, int]


def archive(spark: SparkSession, path: str, out: str, given: Mapping[str, str], tell: Tell) -> int:
    """Add what has been written to the journals since the last run; how many rows that were.

    Exactly once, whatever is killed: see lake.py. `tell` hears of every batch. Raises what reading raises, and Taken.
    """
    default = {"maxBytesPerTrigger": str(TASK_BYTES * spark.sparkContext.defaultParallelism)}
    options = JournalOptions({**default, **given, "path": path})
    columns = columns_of(options)
    stream = JournalStream(options, columns)
    limit = ReadMaxBytes(options.bytes_a_trigger)
    rows, out = 0, absolute(out)
    with Lake(out) as lake:
        start = lake.entry.end or stream.initialOffset()
        stream.prepareForTriggerAvailableNow()
        while (end := stream.latestOffset(start, limit)) != start:
            began = monotonic()
            tasks = [
                Task(out, lake.entry.batch + 1, each, columns, _day_of(each, lake.entry.days))
                for each in stream.pieces(start, end)
            ]
            written = run(spark, tasks, write_part)
            days: dict[str, int] = {}
            for each in written:
                days |= {queue: max(day, days.get(queue, day)) for queue, day in each.days.items()}
            lake.commit(end, list(chain.from_iterable(each.files for each in written)), days)
            start = end
            some = sum(each.rows for each in written)
            rows += some
            tell({"batch": lake.entry.batch, "rows": rows, "rate": round(some / max(monotonic() - began, 0.001))})
    return rows


def write_part(task: Task) -> Written:
    """What one task does. A part whose bytes are gone, and may be, writes nothing."""
    tables = Tables(place_of(task.out), task.columns, CLOCK, task.batch, task.day)
    try:
        for batch in task.partition.read(task.columns):
            if batch.num_rows:
                tables.add(batch)
    except BaseException:
        tables.abandon()
        raise
    tables.close()
    return Written(tables.rows, tables.files, tables.days)


def _day_of(partition: PinnedPartition, days: Mapping[str, int]) -> int:
    """A sealed file's records are from its last day or before; those of another from the last day that is known."""
    segment = partition.segment
    return segment.sealed_ms // DAY_MS if segment.sealed_ms else days.get(segment.queue, 0)
