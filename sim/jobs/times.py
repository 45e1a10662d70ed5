"""The times at which jobs come and their lifetimes end: `JobTimes`, and `WallJobTimes` for a machine whose wall clock
is set.

A record has the times in the log: a time of the wall clock, or a date. A lifetime lasts as long as time really passes.
A date has come once the wall clock has shown it, or was set past it.
"""

from __future__ import annotations

from msgspec import Struct, structs

from staniel.queues.jobs.job import Job
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.clocks import Clocks
from staniel.sim.jobs.model import JobRecord, record_of
from staniel.sim.violations import Kind, Violation

TOLERANCE_MS = 1


class JobTimes:
    """The times of jobs on a machine whose wall clock is never set."""

    def added(self, job: Job, ahead_ns: int) -> JobRecord:
        """Return the record of a job that was just added, while the wall clock is `ahead_ns` ahead of the server's
        clock.
        """
        return record_of(job)

    def served(self, job: Job, known: list[JobRecord]) -> JobRecord:
        """Return the record of a job that a start serves. `known`: the records that it may have had."""
        return record_of(job)

    def limit_ms(self, record: JobRecord) -> int:
        """Return when the job's lifetime ends."""
        return record.limit_ms

    def ended(self, record: JobRecord) -> None:
        """Note that a start does not serve this job, because it has found the job ended."""

    def is_doubtful(self, record: JobRecord) -> bool:
        """Tell whether this start may have found the job ended: the life before stopped while it stored a step of the
        clock, which may have brought the job so long ago that its lifetime is over.
        """
        return False

    def has_come(self, record: JobRecord, now_ms: int) -> bool:
        """Tell whether the job's date allows a lease."""
        return record.time_ns <= now_ms * NS_A_MS

    def is_before(self, record: JobRecord, id: bytes, other: JobRecord, other_id: bytes) -> bool:
        """Tell whether the job must be delivered before the other."""
        return (record.place, id) < (other.place, other_id)


class Life(Struct):
    """The times of a job. `created_ns`, `comes_ms`: in passed time. `date_ns`: by the wall clock, 0 if it has none."""

    created_ns: int
    date_ns: int
    comes_ms: int | None = None
    is_tied: bool = False  # the wall clock was set in the ms of the date: it has come, or comes by the new time


class WallJobTimes(JobTimes):
    """The times of jobs on a machine whose wall clock is set. All moments, given and returned, are in passed time, over
    all lives.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._lives: dict[bytes, Life] = {}  # by payload, which no two jobs share
        self._watched_ms = clocks.passed_ms
        clocks.on_passed, clocks.on_step = self.watch, self.note_ties

    def watch(self) -> None:
        """Note that time has passed. A date that the wall clock was set past comes when time passes, at the moment of
        the step. If the clock is set back before that, the date has not come.
        """
        clocks = self._clocks
        behind_ms = clocks.passed_ms - clocks.noted_wall_ms
        for life in self._lives.values():
            if life.date_ns and life.comes_ms is None:
                comes_ms = -(-life.date_ns // NS_A_MS) + behind_ms
                if comes_ms <= clocks.passed_ms:
                    life.comes_ms = max(comes_ms, self._watched_ms)
        self._watched_ms = clocks.passed_ms

    def note_ties(self) -> None:
        """Note the dates of this millisecond, in which the wall clock is about to be set."""
        clocks = self._clocks
        for life in self._lives.values():
            life.is_tied |= bool(life.date_ns) and -(-life.date_ns // NS_A_MS) == clocks.noted_wall_ms

    def added(self, job: Job, ahead_ns: int) -> JobRecord:
        date_ns = job.time_ns and job.time_ns + ahead_ns
        since_ns = self._clocks.since_start_ms * NS_A_MS
        life = self._lives[job.payload] = Life(job.created_ns + since_ns, date_ns)
        if date_ns and job.time_ns <= job.created_ns:
            life.comes_ms = -(-(job.time_ns + since_ns) // NS_A_MS)  # the job came when its lifetime began, or before
        return structs.replace(record_of(job), created_ns=job.created_ns + ahead_ns, time_ns=date_ns)

    def served(self, job: Job, known: list[JobRecord]) -> JobRecord:
        """Return the record of a job that a start serves. Raises Violation if the server lets it end, or come, at a
        wrong moment.
        """
        record = record_of(job)
        before = next((state for state in known if state.payload == record.payload), None)
        if before is None:
            return record
        record = structs.replace(record, created_ns=before.created_ns, time_ns=before.time_ns)
        life, since_ms = self._lives[record.payload], self._clocks.since_start_ms
        doubt_ms = 0 if life.is_tied else self._clocks.doubt_ms
        if life.date_ns and doubt_ms is not None:
            comes_ms = -(-job.time_ns // NS_A_MS) + since_ms
            if doubt_ms <= comes_ms:
                # A date of this moment comes when time passes, unless the wall clock is set back before that.
                has_come = comes_ms < self._clocks.passed_ms + life.is_tied
                life.comes_ms = comes_ms if has_come else None
            life.is_tied = False
        if life.date_ns and life.comes_ms is None:
            apart_ms, what = job.time_ns // NS_A_MS + since_ms - self._expected_ms(life), "comes"
        else:
            apart_ms, what = job.limit_ms + since_ms - self.limit_ms(record), "ends"
        if abs(apart_ms) > TOLERANCE_MS:
            raise Violation(Kind.LOST, f"a job {what} {apart_ms} ms after its time: {record}")
        return record

    def limit_ms(self, record: JobRecord) -> int:
        life = self._lives[record.payload]
        if not life.date_ns:
            return life.created_ns // NS_A_MS + record.ttl_ms
        return self._comes_ms(life) + record.ttl_ms

    def _comes_ms(self, life: Life) -> int:
        return self._expected_ms(life) if life.comes_ms is None else life.comes_ms

    def _expected_ms(self, life: Life) -> int:
        """Return when the job comes, unless the wall clock is set before that."""
        clocks = self._clocks
        return max(-(-life.date_ns // NS_A_MS) + clocks.passed_ms - clocks.wall_ms, clocks.passed_ms)

    def ended(self, record: JobRecord) -> None:
        """Note that a start does not serve this job. If only the step in doubt explains that, the step has brought the
        job: it stays ended, also for later starts and even if the wall clock is set back before time passes.
        """
        if self.is_doubtful(record) and self.limit_ms(record) > self._clocks.passed_ms:
            self._lives[record.payload].comes_ms = self._clocks.doubt_ms

    def is_doubtful(self, record: JobRecord) -> bool:
        clocks = self._clocks
        if clocks.doubt_ms is None or not record.time_ns:
            return False
        return clocks.doubt_ms + record.ttl_ms <= clocks.passed_ms + TOLERANCE_MS

    def has_come(self, record: JobRecord, now_ms: int) -> bool:
        life = self._lives[record.payload]
        return not life.date_ns or self._comes_ms(life) <= now_ms

    def is_before(self, record: JobRecord, id: bytes, other: JobRecord, other_id: bytes) -> bool:
        """Tell whether the job must be delivered before the other. The order of jobs that have come by a date is
        unknown, because a step may have brought several at one moment.
        """
        if record.time_ns or other.time_ns:
            return False
        mine, theirs = ((-job.priority, self._lives[job.payload].created_ns) for job in (record, other))
        return (mine, id) < (theirs, other_id)
