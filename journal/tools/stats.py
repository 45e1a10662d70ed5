"""Statistics of the journals of a spool, by queue: files, records, items, and how much of the files is still needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct, field

from staniel.journal.kestrel.records import ADD_XID_HEAD_BYTES, WITH_XID_BYTES
from staniel.journal.libkestrel.records import MAGIC_BYTES
from staniel.journal.tools.contents import job_state, replayed
from staniel.journal.tools.source import JOBS, FileFlaw, ReadSource, file_flaws
from staniel.queues.jobs.times import NS_A_MS

BATCHES = 16  # of queues: their files are listed before and after each batch


class LineStats(Struct):
    """The items of one queue, or the jobs of one name. Times are those of the additions, None if there are none.
    `states`: how many are in each state; items are "waiting" or "open".
    """

    states: dict[str, int] = field(default_factory=dict)
    item_bytes: int = 0
    oldest_ms: int | None = None
    newest_ms: int | None = None

    def count(self, state: str, size: int, added_ms: int) -> None:
        self.states[state] = self.states.get(state, 0) + 1
        self.item_bytes += size
        if added_ms:
            self.oldest_ms = added_ms if self.oldest_ms is None else min(self.oldest_ms, added_ms)
            self.newest_ms = added_ms if self.newest_ms is None else max(self.newest_ms, added_ms)


class QueueStats(Struct):
    """The files with one name, and their content. `lines`: of each queue or name of jobs in them. `packed_bytes`: the
    size that they would have with nothing but what is needed now.
    """

    name: str
    format: str
    files: int
    bytes: int
    records: dict[str, int]
    lines: dict[str, LineStats]
    packed_bytes: int
    flaws: list[FileFlaw] = field(default_factory=list)

    @property
    def packed_share(self) -> float:
        return self.packed_bytes / self.bytes if self.bytes else 1.0


def stats(source: ReadSource, now_ms: int, queues: frozenset[str] = frozenset()) -> Iterator[QueueStats]:
    """Yield the statistics of every queue, then of the command log; or only of `queues`. Raises OSError."""
    names = [name for name in source.queues() if not queues or name in queues]
    step = -(-len(names) // BATCHES)
    before = source.names()
    for at in range(0, len(names), step or 1):
        rows = [_of_queue(source, name, before[name]) for name in names[at : at + step]]
        after = source.names()
        for row in rows:
            # If files have come or gone meanwhile, some may have been missed: read these queues again, one by one.
            yield row if before[row.name] == after[row.name] else _of_queue(source, row.name, None)
        before = after
    if source.cmdlog and not queues:
        yield _of_jobs(source, now_ms)


def _of_queue(source: ReadSource, name: str, listed: list[str] | None) -> QueueStats:
    of_format = _of_stream if name in source.listing.streams else _of_kestrel
    return of_format(source, name, listed)


def _of_kestrel(source: ReadSource, queue: str, listed: list[str] | None) -> QueueStats:
    trace, files = source.kestrel(queue, listed)
    with closing(files):
        for _ in trace.steps():
            pass
        line, packed_bytes = LineStats(), WITH_XID_BYTES
        for state, items in (("waiting", trace.line), ("open", trace.open.values())):
            for item in items:
                packed_bytes += ADD_XID_HEAD_BYTES + 1 + item.payload.size if state == "open" else item.record_bytes
                if not item.is_stand_in:
                    line.count(state, item.payload.size, item.added_ms)
        names = trace.names()
        size = sum(files.size(f"{source.folder}/{name}") for name in names)
        packed_bytes = packed_bytes if line.states else 0
        return QueueStats(
            queue,
            "kestrel",
            len(names),
            size,
            dict(trace.records),
            {queue: line},
            packed_bytes,
            file_flaws(trace.flaws),
        )


def _of_stream(source: ReadSource, family: str, listed: list[str] | None) -> QueueStats:
    trace, files = source.stream(family, listed)
    with closing(files):
        done = {queue: trace.done(name) for queue, name in trace.readers().items()}
        if not done:
            done = {family: trace.done(None)}
        lines = {queue: LineStats() for queue in done}
        needed_bytes = MAGIC_BYTES
        for put in trace.puts():
            is_needed = False
            for queue, position in done.items():
                if put.id not in position:
                    is_needed = True
                    lines[queue].count("waiting", put.payload.size, put.added_ms)
            needed_bytes += put.size if is_needed else 0
        entries = files.list(source.folder)
        size = sum(files.size(f"{source.folder}/{name}") for name, _ in entries)
        return QueueStats(
            family, "libkestrel", len(entries), size, dict(trace.records), lines, needed_bytes, file_flaws(trace.flaws)
        )


def _of_jobs(source: ReadSource, now_ms: int) -> QueueStats:
    trace, files = source.jobs()
    with closing(files):
        replay = replayed(trace, now_ms, until_ns=None)
        records, flaws = dict(trace.records), file_flaws(trace.flaws)
        needed_bytes = sum(step.size for step in trace.steps() if step.id in replay.found)
        entries = files.list(source.cmdlog)
        size = sum(files.size(f"{source.cmdlog}/{name}") for name, _ in entries)
    lines: dict[str, LineStats] = {}
    for job in replay.found.values():
        line = lines.setdefault(job.terms.queue.name.decode("latin-1"), LineStats())
        line.count(job_state(job, now_ms), len(job.payload), job.created_ns // NS_A_MS)
    return QueueStats(JOBS, "workq", len(entries), size, records, lines, needed_bytes, flaws)
