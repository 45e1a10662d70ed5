"""Summaries of whole queues, computed in parallel: one for each segment, then neighbours merged level by level.

A segment with a sidecar is read only if some of its items remain. If a segment's summary depends on the transaction ids
before it, these are counted first; if that is not enough, one task reads the queue in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from staniel.journal.kestrel.effect import EffectMismatch, State
from staniel.pipeline.formats.base import JournalSegment, Part, Reading, check_values
from staniel.pipeline.formats.columns import STATE
from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter
from staniel.pipeline.formats.kestrel.effect_scan import (
    EMPTY,
    UNKNOWN,
    CounterUnknown,
    EntryState,
    SegmentFacts,
    XidScan,
)
from staniel.pipeline.formats.kestrel.queue import Stretch, described, furnish, hold, stand, survey, trusting
from staniel.pipeline.formats.kestrel.state import QueueSummary, Summarised, live_rows, summarise_file
from staniel.pipeline.lake.archived import is_archive
from staniel.pipeline.lake.arrow import ddl
from staniel.pipeline.lake.folders import FileVanished, Folder, feed, folder
from staniel.pipeline.lake.stores import settings_of
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.offsets import pin, pinned_to
from staniel.pipeline.sources.planning import OPEN_BYTES, TASK_BYTES, bundled, formats_of_view, plan_parts
from staniel.pipeline.worker_gc import freeze_imports, then_freeze_imports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRIES = 5
SINGLE_BYTES = 32 << 20  # a queue with less than this is one task: a second pass would cost more than it spares


class SegmentTask(Struct, frozen=True):
    """A segment to summarise."""

    url: str
    reading: Reading
    segment: JournalSegment
    entry: EntryState


def queues_of(spark: SparkSession, path: str, given: Mapping[str, str], sealed: bool = False) -> list[QueueSummary]:
    """Return the summary of every queue under a path; with `sealed`, of its sealed files alone. Tries again if files
    change meanwhile. Raises what reading raises: CorruptJournal, FileVanished.
    """
    for _ in range(TRIES - 1):
        try:
            return _queues_of(spark, path, given, sealed)
        except FileVanished:
            continue
    return _queues_of(spark, path, given, sealed)


def _queues_of(spark: SparkSession, path: str, given: Mapping[str, str], sealed: bool) -> list[QueueSummary]:
    options = JournalOptions({**given, "path": path, "view": "state"})
    form, parts, reading = plan_parts(folder(options.path), options)
    parts = [pin(pinned(options.path, part.segments), part) for part in parts] if form.name == "kestrel" else parts
    if form.name != "kestrel":
        raise ValueError(f"summaries are made of Kestrel journals only; use view=state for {form.name}'s")
    if sealed:
        parts = [Part(part.queue, [segment for segment in part.segments if not segment.live]) for part in parts]
        parts = [part for part in parts if part.segments]
    large = [part for part in parts if part.bytes >= SINGLE_BYTES]
    summaries = _in_parallel(spark, options.path, reading, large)
    summaries |= _in_order(spark, options.path, reading, [part for part in parts if part.queue not in summaries])
    return [summaries[part.queue] for part in parts]


def state_of(spark: SparkSession, path: str, given: Mapping[str, str]) -> DataFrame:
    """Return the columns of the view `state`. Tasks get the summaries and read the remaining items. Of an archive, of
    several spools and of other formats a queue is a task.
    """
    stores = settings_of(spark)
    options = JournalOptions({**given, "path": path, "view": "state"}, stores)
    if options.is_several or is_archive(options.path) or not is_kestrel(options):
        read: DataFrame = spark.read.format("staniel-journal").options(**{**given, "view": "state"}).load(path)
        return read
    options.check_batch()
    tasks = [task for queue in queues_of(spark, options.path, given) for task in _live_tasks(queue)]
    where = (options.path, options.reading.include_value, options.reading.value_bytes_max)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for (data,) in zip(batch.column(0).to_pylist(), strict=True):
                for queue in pickle.loads(data):
                    place = pinned(where[0], [one.segment for one in queue.found])
                    for made in live_rows(place, queue, where[1]):
                        check_values(made, where[2])
                        yield made
        freeze_imports()

    shares = shared_out(spark, tasks, _live_bytes)
    rdd = spark.sparkContext.parallelize([(pickle.dumps(share),) for share in shares], max(len(shares), 1))
    made: DataFrame = spark.createDataFrame(rdd, "task binary").mapInArrow(rows, ddl(STATE))
    return made


def is_kestrel(options: JournalOptions) -> bool:
    """Return True if all queues of a spool are in Kestrel's format."""
    return [form.name for form, _ in formats_of_view(folder(options.path), options)] == ["kestrel"]


def run(
    spark: SparkSession, works: list[Any], work: Callable[[Any], Any], size: Callable[[Any], int] = lambda _: TASK_BYTES
) -> list[Any]:
    """Run `work` on each of `works`, in the next free worker. Return the results in order.

    `size` returns the bytes that one reads, so that small ones share a task; without it each is a task. Raises
    FileVanished if one of them does.
    """
    results = run_each(spark, works, work, size)
    for result in results:
        if isinstance(result, FileVanished):
            raise result
    return results


def run_each(
    spark: SparkSession, works: list[Any], work: Callable[[Any], Any], size: Callable[[Any], int]
) -> list[Any]:
    """Run `work` on each of `works`, with a FileVanished as the result of one that raised it: trying that one again
    would not help, and others may have finished.
    """
    if not works:
        return []

    def run_or_vanished(piece: Any) -> Any:
        try:
            return work(piece)
        except FileVanished as gone:
            return gone

    tasks = shared_out(spark, works, size)
    results: list[Any] = (
        spark.sparkContext.parallelize(tasks, len(tasks))
        .mapPartitions(lambda some: then_freeze_imports(map(run_or_vanished, chain.from_iterable(some))))
        .collect()
    )
    return results


def shared_out(spark: SparkSession, works: list[Any], size: Callable[[Any], int]) -> list[list[Any]]:
    """Group pieces of work into tasks, as the reader of a view does, with some for each core."""
    total = sum(size(piece) + OPEN_BYTES for piece in works)
    return bundled(works, size, min(TASK_BYTES, -(-total // spark.sparkContext.defaultParallelism)))


def _in_order(spark: SparkSession, url: str, reading: Reading, parts: list[Part]) -> dict[str, QueueSummary]:
    queues = run(spark, parts, lambda part: hold(pinned(url, part.segments), part, reading), lambda part: part.bytes)
    return {queue.name: queue for queue in queues}


def _in_parallel(spark: SparkSession, url: str, reading: Reading, parts: list[Part]) -> dict[str, QueueSummary]:
    """Summarise each segment by itself, and again with its counter if it needs that. Queues that still do not fit are
    left out.
    """
    tasks = [
        SegmentTask(url, trusting(part.segments, reading), segment, UNKNOWN if segment.number else EMPTY)
        for part in parts
        for segment in part.segments
    ]
    first = run(spark, tasks, _alone)
    again = [(at, replace(tasks[at], entry=EntryState(counter))) for at, counter in _counters(tasks, first)]
    for (at, _), result in zip(again, run(spark, [task for _, task in again], _alone), strict=True):
        first[at] = result
    by_queue: dict[str, list[Any]] = {part.queue: [] for part in parts}
    for task, result in zip(tasks, first, strict=True):
        by_queue[task.segment.queue].append(result)
    stood = {name: found for name, results in by_queue.items() if (found := _stood(name, results)) is not None}
    looks: list[tuple[str, int, Stretch]] = [
        (name, at, stretch) for name, (_, stretches) in stood.items() for at, stretch in stretches.items()
    ]
    surveyed = run(spark, [stretch for *_, stretch in looks], lambda stretch: _survey(url, stretch))
    seen: dict[str, dict[int, Summarised | None]] = {name: {} for name in stood}
    for (name, at, _), result in zip(looks, surveyed, strict=True):
        seen[name][at] = result
    queues = {name: furnish(queue, seen[name]) for name, (queue, _) in stood.items()}
    return {name: queue for name, queue in queues.items() if queue is not None}


def pinned(url: str, segments: Iterable[JournalSegment]) -> Folder:
    """Return the folder pinned to the files that a query was planned with."""
    return pinned_to(folder(url), KestrelAdapter(), segments)


def _survey(url: str, stretch: Stretch) -> Summarised | None:
    return survey(pinned(url, [stretch.summarised.segment]), stretch)


def _alone(task: SegmentTask) -> Summarised | XidScan | None:
    """Return a segment's summary; the movement of the counter if the summary needs the counter first; None if it needs
    the queue before it.
    """
    segment = task.segment
    place = pinned(task.url, [segment])
    try:
        known = described(place, segment) if task.reading.use_summaries else None
        return known or summarise_file(place, segment, task.entry, task.reading)
    except EffectMismatch:
        return None
    except CounterUnknown:
        file = place.open(segment.file)
        xid_scan = XidScan()
        try:
            feed(file, segment.begin, segment.end, xid_scan.consume)
        finally:
            file.close()
        return xid_scan


def _counters(tasks: list[SegmentTask], first: list[Any]) -> Iterator[tuple[int, int]]:
    """Yield the segments to read again, with the counter at their beginning."""
    counter: int | None = 0
    for at, (task, result) in enumerate(zip(tasks, first, strict=True)):
        counter = counter if task.segment.number else 0
        if isinstance(result, Summarised):
            counter = counter if result.summary.counter is None else result.summary.counter
        elif isinstance(result, XidScan):
            if counter is not None:
                yield at, counter
            counter = result.counter_after(counter)
        else:
            counter = None


def _stood(name: str, results: list[Any]) -> tuple[QueueSummary, dict[int, Stretch]] | None:
    """See `stand`. Return None if the results do not make a queue."""
    if not all(isinstance(result, Summarised) for result in results):
        return None
    try:
        return stand(name, results)
    except EffectMismatch:
        return None


def _live_tasks(queue: QueueSummary) -> Iterator[QueueSummary]:
    """Yield the tasks for the queue's remaining rows: one for each segment that holds some of the line, one for
    delivered items.
    """
    state = queue.state
    if state.front or state.opens:
        held = State(state.front, state.opens, state.added, state.added, state.listed, 0, {})
        yield replace(queue, state=held)
    first = 0
    for one in queue.found:
        low, high = max(first, state.taken), first + one.summary.added
        if low < high:
            segments = [segment if segment is one else _without_marks(segment) for segment in queue.found]
            part = State([], {}, low, high, state.listed, 0, {})
            before = len(state.front) + low - state.taken
            yield replace(queue, found=segments, state=part, before=before)
        first += one.summary.added


def _live_bytes(queue: QueueSummary) -> int:
    """Return how many bytes of its files a task of `_live_tasks` may read."""
    return sum(one.segment.bytes for one in queue.found if one.facts.marks)


def _without_marks(one: Summarised) -> Summarised:
    return replace(one, facts=SegmentFacts([], []))
