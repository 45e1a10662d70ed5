"""The items of a queue at a moment, as far as its files can show.

A command log has the time of each record, so the result is exact, except for what cleaning has removed. The other
formats have only the times of additions. In Kestrel's, changes stand in their order, so those between two additions
happened between their times, and the changes in a sealed file happened before the time in its name. In libkestrel's
format a reader's file has no times, but a record after the confirmation of a later item was written after that item was
added. If the state of an item remains open, the item was `perhaps` there.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.journal.interval_set import IntervalSet
from staniel.journal.kestrel.trace import KestrelTrace, Step, TracedItem
from staniel.journal.libkestrel.trace import Put
from staniel.journal.tools.source import FileFlaw, JournalNotFound, ReadSource, file_flaws
from staniel.journal.trace import FrozenFs, Happened, Payload
from staniel.journal.workq.dump import show_id
from staniel.journal.workq.trace import CmdLogTrace
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.journal import JobJournal
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.jobs.states import JobState
from staniel.queues.jobs.times import NS_A_MS

JOB_STATES = {JobState.NEW: "ready", JobState.PENDING: "ready again", JobState.LEASED: "leased"}


class Held(Struct, frozen=True, gc=False):
    """An item at the moment. `state`: "waiting", "open", or "waiting or open"; of a job "ready", "ready again",
    "scheduled", "leased", "completed" or "failed". `is_certain`: the item was in the queue; otherwise it may have been
    removed already. `data`: its payload, if that is not to be read from a file.
    """

    id: str
    state: str
    is_certain: bool
    added_ms: int
    expires_ms: int
    payload: Payload | None
    data: bytes = b""
    xid: int | None = None

    @property
    def data_bytes(self) -> int:
        return len(self.data) if self.payload is None else self.payload.size


class Contents(Struct):
    """The items at the moment: those in the line, the head first, then the open ones, then those that were perhaps
    there. `notes`: what the files cannot show about that moment. `files` stay open, as they were read, until `close`.
    """

    format: str
    items: list[Held]
    notes: list[str]
    flaws: list[FileFlaw]
    files: FrozenFs
    folder: str

    def read(self, held: Held, count: int) -> bytes:
        """Return at most `count` bytes of a payload, from its beginning."""
        if held.payload is None:
            return held.data[:count]
        return self.files.read(f"{self.folder}/{held.payload.file}", held.payload.at, min(count, held.payload.size))

    def close(self) -> None:
        self.files.close()


def contents(source: ReadSource, queue: str, at_ms: int, now_ms: int, *, jobs: bool) -> Contents:
    """Return the content of a queue at `at_ms`. `jobs`: return the jobs called `queue`, not the items of the queue of
    that name. `now_ms`: everything in the files is earlier than this. Raises JournalNotFound, OSError.
    """
    exists = queue in source.listing.kestrel or source.family(queue) or queue in source.listing.mixed
    if jobs or (not exists and source.cmdlog):
        return _of_jobs(source, queue, at_ms, now_ms)
    source.check(queue)
    if family := source.family(queue):
        return _of_stream(source, family, queue, at_ms, now_ms)
    return _of_kestrel(source, queue, at_ms, now_ms)


class Window:
    """The items that have changed since the last point that certainly lies before the moment, with their state at that
    point. They may have been in that state at the moment.
    """

    def __init__(self) -> None:
        self.before: dict[str, tuple[TracedItem, str, int | None]] = {}

    def add(self, step: Step) -> None:
        for event, item in zip(step.events, step.items, strict=True):
            was_open = event.happened in (Happened.CLOSED, Happened.ABORTED)
            if event.happened is not Happened.ADDED:
                before = (item, "open" if was_open else "waiting", event.xid if was_open else None)
                self.before.setdefault(item.id, before)

    def clear(self) -> None:
        self.before.clear()


def _of_kestrel(source: ReadSource, queue: str, at_ms: int, now_ms: int) -> Contents:
    trace, files = source.kestrel(queue)
    rows = _held(trace, _follow(trace, at_ms, is_over=at_ms >= now_ms))
    items = [held for held in rows if held is not None]
    notes = _kestrel_notes(trace, at_ms, at_ms >= now_ms)
    if left_out := len(rows) - len(items):
        notes.append(f"{left_out} more that have been removed since are in no file: a pack has omitted them")
    return Contents("kestrel", items, notes, file_flaws(trace.flaws), files, source.folder)


def _follow(trace: KestrelTrace, at_ms: int, *, is_over: bool) -> Window:
    """Read the records up to the moment. `is_over`: all of them are earlier."""
    window, file = Window(), ""
    for step in trace.steps():
        if step.file != file:
            ended_ms = trace.sealed_ms(file) if file else None
            if ended_ms is not None and ended_ms > at_ms:
                trace.undo(step)  # every record of this file is later than the moment
                break
            if ended_ms is not None:
                window.clear()
            file = step.file
        sealed_ms = trace.sealed_ms(file)
        is_before = is_over or (sealed_ms is not None and sealed_ms <= at_ms)
        if step.added_ms > at_ms and not is_before:
            trace.undo(step)
            break
        if is_before or 0 < step.added_ms == trace.clock_ms:
            window.clear()
        else:
            window.add(step)
    else:
        if is_over or ((sealed_ms := trace.sealed_ms(file)) is not None and sealed_ms <= at_ms):
            window.clear()
    return window


def _held(trace: KestrelTrace, window: Window) -> list[Held | None]:
    """Return the items that were in the queue, then those that may have been; None for a stand-in that a pack has
    written in an item's place.
    """
    items: list[tuple[TracedItem, str, int | None]] = [(item, "waiting", None) for item in trace.line]
    items += [(item, "open", xid) for xid, item in sorted(trace.open.items())]
    rows = []
    for item, state, xid in items:
        before = window.before.pop(item.id, None)
        shown = state if before is None or before[1] == state else "waiting or open"
        rows.append(_kestrel_item(item, shown, xid, is_certain=True))
    rows += [_kestrel_item(item, state, xid, is_certain=False) for item, state, xid in window.before.values()]
    return rows


def _kestrel_item(item: TracedItem, state: str, xid: int | None, *, is_certain: bool) -> Held | None:
    if item.is_stand_in:
        return None
    return Held(item.id, state, is_certain, item.added_ms, item.expires_ms, item.payload, b"", xid)


def _kestrel_notes(trace: KestrelTrace, at_ms: int, is_over: bool) -> list[str]:
    names = trace.names()
    notes = []
    if names and not is_over and trace.begins_with_state(names[0]):
        sealed_ms = trace.sealed_ms(names[0])
        if sealed_ms is None or sealed_ms > at_ms:
            written = "at a time that it does not tell" if sealed_ms is None else f"not long before {sealed_ms} ms"
            notes.append(f"{names[0]} was rewritten {written}: items that had been removed by then are in no file")
    if not is_over:
        notes.append("removals and opens have no time: between two additions it is not known when they happened")
        notes.append("an item that was moved here has the time at which it was first put")
    return notes


def _of_stream(source: ReadSource, family: str, queue: str, at_ms: int, now_ms: int) -> Contents:
    trace, files = source.stream(family)
    name = trace.readers().get(queue)
    if name is None and trace.readers():
        raise JournalNotFound(f"there is no queue {queue} in {source.folder}")
    is_over = at_ms >= now_ms
    # A record after the confirmation of a later item was written later.
    before = trace.done_before(name, IntervalSet(put.id for put in trace.puts() if put.added_ms > at_ms))
    final = trace.done(name)
    certain, perhaps = list[Held](), list[Held]()
    oldest = 0
    for put in trace.puts():
        oldest = min(oldest or put.id, put.id)
        if put.added_ms > at_ms and not is_over:
            continue
        if put.id not in final or (put.id not in before and not is_over):
            certain.append(_stream_item(put, is_certain=True))
        elif not is_over:
            perhaps.append(_stream_item(put, is_certain=False))
    notes = ["opens are not recorded"]
    if oldest > 1:
        notes.append(f"items below the number {oldest} are in no file any more")
    if not is_over:
        notes.append("a reader's file has no times: the time of a confirmation is known only by later additions")
    return Contents("libkestrel", certain + perhaps, notes, file_flaws(trace.flaws), files, source.folder)


def _stream_item(put: Put, *, is_certain: bool) -> Held:
    return Held(str(put.id), "waiting or open", is_certain, put.added_ms, put.expires_ms, put.payload)


def replayed(trace: CmdLogTrace, now_ms: int, *, until_ns: int | None) -> JobReplay:
    """Return the jobs as they were at `now_ms`, according to the records up to `until_ns`, or to all if that is None.
    Raises OSError.
    """
    replay = JobReplay(Jobs(JobJournal()), now_ms)
    for step in trace.steps():
        if until_ns is None or step.time_ns <= until_ns:
            step.apply(replay)
    return replay


def _of_jobs(source: ReadSource, queue: str, at_ms: int, now_ms: int) -> Contents:
    trace, files = source.jobs()
    replay = replayed(trace, at_ms, until_ns=None if at_ms >= now_ms else (at_ms + 1) * NS_A_MS - 1)
    jobs = [job for job in replay.found.values() if job.terms.queue.name.decode("latin-1") == queue]
    notes = ["jobs that were over and have been cleaned away since are in no file"]
    return Contents("workq", [_job(job, at_ms) for job in jobs], notes, file_flaws(trace.flaws), files, source.cmdlog)


def job_state(job: Job, at_ms: int) -> str:
    if job.state is JobState.NEW and job.time_ns > at_ms * NS_A_MS:
        return "scheduled"
    return JOB_STATES.get(job.state, job.state.name.lower())


def _job(job: Job, at_ms: int) -> Held:
    added_ms = job.created_ns // NS_A_MS
    return Held(show_id(job.id), job_state(job, at_ms), True, added_ms, job.limit_ms, None, job.payload)
