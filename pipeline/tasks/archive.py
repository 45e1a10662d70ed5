"""Archiving journals into a lake: Parquet by queue and day, continued at each run.

Tasks write Parquet themselves from the columns that they have decoded. In Spark's own writer each row would cross a
socket, become a Java row, be sorted by queue and day, and be encoded there: five times the processor time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.streaming.datasource import ReadMaxBytes

from staniel.pipeline.formats.base import CorruptJournal
from staniel.pipeline.lake.folders import FileVanished, absolute, below
from staniel.pipeline.lake.lake import Gap, Lake, LedgerEntry, lake_folder_of
from staniel.pipeline.lake.names import partition_name
from staniel.pipeline.lake.parquet import ParquetTables
from staniel.pipeline.lake.stores import NONE, with_settings
from staniel.pipeline.sources.journal import columns_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_stream import LOG, TRIES, JournalStream, Offset, PinnedPartition
from staniel.pipeline.sources.options import as_option
from staniel.pipeline.sources.spool_plans import readable_spools
from staniel.pipeline.sources.spools import SpoolUnreachable
from staniel.pipeline.tasks.summarise import run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOCK = "asOf"
OF_SEVERAL = {"hostsFile", "ignoreUnreachable", "hostColumn", "queue", "queues", "queuePattern", "format"}
TASK_BYTES = 128 << 20  # of journal, for each task that can run at the same time
DAY_MS = 86_400_000

Tell = Callable[[dict[str, Any]], None]


class ArchiveTask(Struct, frozen=True):
    """A part of one batch. `day` is the day of rows without a time and without a row with a time near them."""

    out: str
    batch: int
    partition: PinnedPartition
    columns: pa.Schema
    day: int


class WrittenPart(Struct, frozen=True):
    rows: int
    files: list[str]
    days: dict[str, int]
    counts: dict[str, int]


def archive_each(
    spark: SparkSession,
    path: str,
    out: str,
    given: Mapping[str, str],
    tell: Tell,
    warn: Callable[[str], None] = LOG.warning,
    stores: Mapping[str, str] = NONE,
) -> int:
    """Archive several spools, each into a folder of its own, `OUT/host=NAME`; one path alone into OUT. Return the
    number of rows. Nothing is written if a spool cannot be read, unless `given` says to ignore that. `stores` are
    settings of object stores.
    """
    options, out = JournalOptions({**given, "path": path}, stores), with_settings(absolute(out), stores)
    if not options.is_several:
        return archive(spark, options.path, out, given, tell, warn)
    plans, form = readable_spools(options)
    plain = {name: value for name, value in given.items() if name not in OF_SEVERAL}
    rows = 0
    for plan in plans:
        chosen = sorted(name for name in plan.queues if name in options.queues)
        if not chosen:
            continue
        one = {**plain, "format": form} | ({"queues": as_option(chosen)} if options.queues.named else {})
        where = below(out, f"host={partition_name(plan.spool.host)}")
        try:
            rows += archive(spark, plan.spool.path, where, one, tell, warn)
        except (FileVanished, CorruptJournal, OSError) as error:
            if not options.ignores_unreachable:
                raise SpoolUnreachable(f"{plan.spool.describe()}: {error}") from None
            warn(f"{plan.spool.describe()} is left out: {error}")
    return rows


def archive(
    spark: SparkSession,
    path: str,
    out: str,
    given: Mapping[str, str],
    tell: Tell,
    warn: Callable[[str], None] = LOG.warning,
) -> int:
    """Add the records written to the journals since the last run. Return the number of rows. The archive has all
    records from the first on, because the state of a queue is computed from them.

    Each record is added exactly once, whatever is killed: see lake.py. If a journal was packed, rewritten or removed
    before it was read to its end, the archive continues with the remaining records; the loss is counted in the ledger,
    and passed to `warn`. `tell` gets every batch. Raises what reading raises, and LakeTaken.
    """
    size = str(TASK_BYTES * spark.sparkContext.defaultParallelism)
    options = JournalOptions({"maxBytesPerTrigger": size, "failOnDataLoss": "false", **given, "path": path})
    options.refuse({"op", "startingOffsets", "startingTimestamp"}, "queries: an archive has all records")
    columns = columns_of(options)
    stream = JournalStream(options, columns, replans=True)
    limit = ReadMaxBytes(options.bytes_a_trigger)
    rows, out, misses = 0, absolute(out), 0
    with Lake(out) as lake:
        stream.check()
        start = lake.entry.end or stream.initialOffset()
        stream.prepareForTriggerAvailableNow()
        while (end := stream.latestOffset(start, limit)) != start:
            began = monotonic()
            try:
                written = _write(spark, stream, lake, start, end)
            except FileVanished:
                # Discard this attempt, and plan again with the files of now.
                if (misses := misses + 1) >= TRIES:
                    raise
                continue
            changed = [queue for queue in end if start.get(queue) != end[queue]]
            readers = stream.read_marks(changed)
            misses, days, counts = 0, dict[str, int](), Counter[str]()
            for part in written:
                days |= {queue: max(day, days.get(queue, day)) for queue, day in part.days.items()}
                counts.update(part.counts)
            gaps = _gaps(start, end, stream.lost, lake.entry)
            lake.commit(end, list(chain.from_iterable(part.files for part in written)), days, gaps, counts, readers)
            for queue in sorted(gaps):
                warn(
                    f"{queue}: {_lost(stream.lost[queue])} of its journal gone before it was read; the archive goes on"
                )
            start = end
            if why := stream.pass_files(end):
                warn(f"the retention hold {options.hold} does not move, and goes on keeping what is archived: {why}")
            some = sum(part.rows for part in written)
            rows += some
            tell({"batch": lake.entry.batch, "rows": rows, "rate": round(some / max(monotonic() - began, 0.001))})
        readers = stream.read_marks(list(start))
        if any(lake.entry.readers.get(queue) != marks for queue, marks in readers.items()):
            lake.commit(start, [], {}, readers=readers)  # readers have progressed, and nothing was put
    return rows


def _write(spark: SparkSession, stream: JournalStream, lake: Lake, start: Offset, end: Offset) -> list[WrittenPart]:
    """Write the files of the next batch. Raises FileVanished."""
    tasks = [
        ArchiveTask(lake.url, lake.entry.batch + 1, piece, stream.columns, _day_of(piece, lake.entry.days))
        for piece in stream.pieces(start, end)
    ]
    written: list[WrittenPart] = run(spark, tasks, write_part, lambda task: task.partition.segment.bytes)
    return written


def _gaps(start: Offset, end: Offset, lost: Mapping[str, int | None], entry: LedgerEntry) -> dict[str, Gap]:
    """Return the losses of the next batch, added to earlier ones."""
    gone = {queue: items or 0 for queue, items in lost.items() if start.get(queue) != end.get(queue)}
    before = {queue: entry.gaps.get(queue, Gap()) for queue in gone}
    return {
        queue: Gap(known.times + 1, known.items + gone[queue], [*known.batches, entry.batch + 1])
        for queue, known in before.items()
    }


def _lost(items: int | None) -> str:
    return "some" if items is None else f"{items:,} items"


def write_part(task: ArchiveTask) -> WrittenPart:
    """Write one task's part. Raises FileVanished if the bytes are gone."""
    tables = ParquetTables(lake_folder_of(task.out), task.columns, CLOCK, task.batch, task.day)
    try:
        for batch in task.partition.rows(task.columns):
            if batch.num_rows:
                tables.add(batch)
    except BaseException:
        tables.abandon()
        raise
    tables.close()
    return WrittenPart(tables.rows, tables.files, tables.days, tables.counts)


def _day_of(partition: PinnedPartition, days: Mapping[str, int]) -> int:
    """Return the last day of a sealed file, whose records are from that day or before; for another file, the last known
    day of the queue.
    """
    segment = partition.segment
    return segment.sealed_ms // DAY_MS if segment.sealed_ms else days.get(segment.queue, 0)
