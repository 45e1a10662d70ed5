"""Summaries of whole queues by a cluster: each segment by itself, then neighbours merged level by level.

Knows which passes a queue needs. Refuses to know records. Where a segment says too little by itself, the transaction
ids are counted first; where that does not help, one task reads the queue in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from journal.numbering import Numbering
from journal.summaries import NOTHING, Entangled, State, Summary, apply, merge
from journal.summarise import EMPTY, UNKNOWN, CounterUnknown, Entry, Facts
from pipeline.columns import ddl
from pipeline.files import feed, folder
from pipeline.journal_options import JournalOptions
from pipeline.kestrel_state import STATE, Summarised, live_rows, summarise_file, summarise_queue
from pipeline.planning import Plan, plan
from pipeline.segments import Part, Reading, Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINGLE_BYTES = 32 << 20  # a queue with less than this is one task: a second pass would cost more than it spares


class Task(Struct, frozen=True):
    """One segment to summarise, or several of one queue in order."""

    url: str
    reading: Reading
    segments: list[Segment]
    entry: Entry


class Queue(Struct, frozen=True):
    """One queue, summarised. `before`: how many items of its line stand before those that `state` has."""

    name: str
    found: list[Summarised]
    state: State
    before: int = 0


def queues_of(spark: SparkSession, path: str, given: Mapping[str, str], sealed: bool = False) -> list[Queue]:
    """Every queue under a path; `sealed`: by its sealed files alone. Raises what reading raises: Corrupt, Vanished."""
    options = JournalOptions({**given, "path": path, "view": "state"})
    form, parts, reading = plan(folder(options.path), options, Plan())
    if form.name != "kestrel":
        raise ValueError(f"summaries are made of Kestrel journals only; use view=state for {form.name}'s")
    if sealed:
        parts = [Part(part.queue, [each for each in part.segments if not each.live]) for part in parts]
        parts = [part for part in parts if part.segments]
    small = [part for part in parts if part.bytes < SINGLE_BYTES]
    large = [part for part in parts if part not in small]
    found = dict(_in_order(spark, options.path, reading, small))
    found |= _in_parallel(spark, options.path, reading, large)
    return [_queue(part.queue, found[part.queue]) for part in parts]


def state_of(spark: SparkSession, path: str, given: Mapping[str, str]) -> DataFrame:
    """The columns of the view `state`. Tasks get the summaries and read what is alive."""
    options = JournalOptions({**given, "path": path, "view": "state"})
    tasks = [task for queue in queues_of(spark, path, given) for task in _live_tasks(queue)]
    where = (options.path, options.reading.include_value)

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for (data,) in zip(batch.column(0).to_pylist(), strict=True):
                queue = pickle.loads(data)
                yield from live_rows(folder(where[0]), queue.name, queue.found, queue.state, where[1], queue.before)

    rdd = spark.sparkContext.parallelize([(pickle.dumps(task),) for task in tasks], max(len(tasks), 1))
    made: DataFrame = spark.createDataFrame(rdd, "task binary").mapInArrow(rows, ddl(STATE))
    return made


def run(spark: SparkSession, tasks: list[Any], work: Callable[[Any], Any]) -> list[Any]:
    """`work` on each task, by whoever is free; the results in order."""
    if not tasks:
        return []
    results: list[Any] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return results


def _in_order(
    spark: SparkSession, url: str, reading: Reading, parts: list[Part]
) -> Iterator[tuple[str, list[Summarised]]]:
    tasks = [Task(url, reading, part.segments, EMPTY) for part in parts]
    results = run(spark, tasks, lambda task: summarise_queue(folder(task.url), task.segments, task.reading))
    yield from zip([part.queue for part in parts], results, strict=True)


def _in_parallel(spark: SparkSession, url: str, reading: Reading, parts: list[Part]) -> dict[str, list[Summarised]]:
    """Each segment by itself; those that cannot be, again with their counter; queues that still do not fit, whole."""
    segments = [segment for part in parts for segment in part.segments]
    tasks = [Task(url, reading, [each], UNKNOWN if each.number else EMPTY) for each in segments]
    first = run(spark, tasks, _alone)
    again = []
    for at, counter in _counters(segments, first):
        again.append((at, Task(url, reading, [segments[at]], Entry(counter))))
    for (at, _), result in zip(again, run(spark, [task for _, task in again], _alone), strict=True):
        first[at] = result
    found: dict[str, list[Any]] = {part.queue: [] for part in parts}
    for segment, result in zip(segments, first, strict=True):
        found[segment.queue].append(result)
    broken = [part for part in parts if not _fits(found[part.queue])]
    return found | dict(_in_order(spark, url, reading, broken))


def _alone(task: Task) -> Summarised | Numbering | None:
    """A summary; how the counter moves if that has to be known first; None if the queue before has to be."""
    place, (segment,) = folder(task.url), task.segments
    try:
        return summarise_file(place, segment, task.entry, task.reading)
    except Entangled:
        return None
    except CounterUnknown:
        file = place.open(segment.file)
        numbering = Numbering()
        try:
            feed(file, segment.begin, segment.end, numbering.consume)
        finally:
            file.close()
        return numbering


def _counters(segments: list[Segment], first: list[Any]) -> Iterator[tuple[int, int]]:
    """The segments that have to be read again, with the counter at their beginning."""
    counter: int | None = 0
    for at, (segment, result) in enumerate(zip(segments, first, strict=True)):
        counter = counter if segment.number else 0
        if isinstance(result, Summarised):
            counter = counter if result.summary.counter is None else result.summary.counter
        elif isinstance(result, Numbering):
            if counter is not None:
                yield at, counter
            counter = result.after(counter)
        else:
            counter = None


def _fits(found: list[Any]) -> bool:
    if not all(isinstance(each, Summarised) for each in found):
        return False
    try:
        apply(whole(found))
    except Entangled:
        return False
    return True


def whole(found: list[Summarised]) -> Summary:
    """Neighbours merged, level by level."""
    level = [each.summary for each in found] or [NOTHING]
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def _queue(name: str, found: list[Summarised]) -> Queue:
    return Queue(name, found, apply(whole(found)))


def _live_tasks(queue: Queue) -> Iterator[Queue]:
    """The queue's live rows as tasks: one a segment that holds some of the line, one for what was handed out."""
    state = queue.state
    if state.front or state.opens:
        held = State(state.front, state.opens, state.added, state.added, state.listed, 0, {})
        yield Queue(queue.name, queue.found, held)
    first = 0
    for one in queue.found:
        low, high = max(first, state.taken), first + one.summary.added
        if low < high:
            found = [each if each is one else _without_marks(each) for each in queue.found]
            part = State([], {}, low, high, state.listed, 0, {})
            yield Queue(queue.name, found, part, len(state.front) + low - state.taken)
        first += one.summary.added


def _without_marks(one: Summarised) -> Summarised:
    return Summarised(one.segment, one.summary, Facts([], []))
