"""The times of jobs, when they come and when their lives end: `JobTimes`, and `WallJobTimes` of a machine whose wall
clock is set.

A record has the times that the log has: what the wall showed, or a date. A life lasts as long as time really passes;
a date has come once the wall has shown it, or was set past it.
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
    """The times of jobs on a machine whose wall is never set."""

    def added(self, job: Job, ahead_ns: int) -> JobRecord:
        """Return the record of a job that was added just now, while the wall is so much ahead of the server's
        clock.
        """
        return record_of(job)

    def served(self, job: Job, known: list[JobRecord]) -> JobRecord:
        """Return the record of a job that a start serves. `known`: the records that it may have had."""
        return record_of(job)

    def limit_ms(self, record: JobRecord) -> int:
        """Return when the job's life ends."""
        return record.limit_ms

    def is_doubtful(self, record: JobRecord) -> bool:
        """Tell whether this start may have found the job over: the life before ended during the note of a step."""
        return False

    def has_come(self, record: JobRecord, now_ms: int) -> bool:
        """Tell whether the job may be leased by its date."""
        return record.time_ns <= now_ms * NS_A_MS

    def is_before(self, record: JobRecord, id: bytes, other: JobRecord, other_id: bytes) -> bool:
        """Tell whether the job must be handed out before the other."""
        return (record.place, id) < (other.place, other_id)


class Life(Struct):
    """The times of a job. `created_ns`, `comes_ms`: in the time that has passed; `date_ns`: by the wall, 0 if it has
    none.
    """

    created_ns: int
    date_ns: int
    comes_ms: int | None = None
    is_tied: bool = False  # the wall was set in the very millisecond of the date: it has come, or comes by the new wall


class WallJobTimes(JobTimes):
    """The times of jobs on a machine whose wall is set. All moments, given and returned, are of the time that has
    passed, over all lives.
    """

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._lives: dict[bytes, Life] = {}  # by payload, which no two jobs share
        self._watched_ms = clocks.passed_ms
        clocks.on_passed, clocks.on_step = self.watch, self.note_ties

    def watch(self) -> None:
        """Note that time has passed. A date that the wall was set past comes when time goes on, at the moment of the
        step: if the wall is set back at once, the date has not come.
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
        """Note the dates of this millisecond, in which the wall is about to be set."""
        clocks = self._clocks
        for life in self._lives.values():
            life.is_tied |= bool(life.date_ns) and -(-life.date_ns // NS_A_MS) == clocks.noted_wall_ms

    def added(self, job: Job, ahead_ns: int) -> JobRecord:
        date_ns = job.time_ns and job.time_ns + ahead_ns
        since_ns = self._clocks.since_start_ms * NS_A_MS
        life = self._lives[job.payload] = Life(job.created_ns + since_ns, date_ns)
        if date_ns and job.time_ns <= job.created_ns:
            life.comes_ms = -(-(job.time_ns + since_ns) // NS_A_MS)  # the job came when its life began, or before
        return structs.replace(record_of(job), created_ns=job.created_ns + ahead_ns, time_ns=date_ns)

    def served(self, job: Job, known: list[JobRecord]) -> JobRecord:
        """Return the record of a job that a start serves. Raises Violation if the server lets it end, or come, at
        another moment.
        """
        found = record_of(job)
        before = next((each for each in known if each.payload == found.payload), None)
        if before is None:
            return found
        found = structs.replace(found, created_ns=before.created_ns, time_ns=before.time_ns)
        life, since_ms = self._lives[found.payload], self._clocks.since_start_ms
        doubt_ms = 0 if life.is_tied else self._clocks.doubt_ms
        if life.date_ns and doubt_ms is not None:
            comes_ms = -(-job.time_ns // NS_A_MS) + since_ms
            if doubt_ms <= comes_ms:
                life.comes_ms = comes_ms if comes_ms <= self._clocks.passed_ms else None
            life.is_tied = False
        if life.date_ns and life.comes_ms is None:
            apart_ms, what = job.time_ns // NS_A_MS + since_ms - self._expected_ms(life), "comes"
        else:
            apart_ms, what = job.limit_ms + since_ms - self.limit_ms(found), "ends"
        if abs(apart_ms) > TOLERANCE_MS:
            raise Violation(Kind.LOST, f"a job {what} {apart_ms} ms after its time: {found}")
        return found

    def limit_ms(self, record: JobRecord) -> int:
        life = self._lives[record.payload]
        if not life.date_ns:
            return life.created_ns // NS_A_MS + record.ttl_ms
        return self._comes_ms(life) + record.ttl_ms

    def _comes_ms(self, life: Life) -> int:
        return self._expected_ms(life) if life.comes_ms is None else life.comes_ms

    def _expected_ms(self, life: Life) -> int:
        """Return when the job comes, unless the wall is set until then."""
        clocks = self._clocks
        return max(-(-life.date_ns // NS_A_MS) + clocks.passed_ms - clocks.wall_ms, clocks.passed_ms)

    def is_doubtful(self, record: JobRecord) -> bool:
        return record.time_ns != 0 and self._clocks.doubt_ms is not None

    def has_come(self, record: JobRecord, now_ms: int) -> bool:
        life = self._lives[record.payload]
        return not life.date_ns or self._comes_ms(life) <= now_ms

    def is_before(self, record: JobRecord, id: bytes, other: JobRecord, other_id: bytes) -> bool:
        """Tell whether the job must be handed out before the other. Nothing is known of jobs that have come by a date:
        a step may have brought several at one moment.
        """
        if record.time_ns or other.time_ns:
            return False
        mine, theirs = ((-each.priority, self._lives[each.payload].created_ns) for each in (record, other))
        return (mine, id) < (theirs, other_id)
