"""Broken rules of the calendar and of the file that keeps it."""

from __future__ import annotations

from typing import Any

from staniel.broker.wall_clock import WallClock
from staniel.queues import calendar
from staniel.queues.calendar import Calendar
from staniel.queues.jobs import jobs
from staniel.queues.jobs.jobs import Jobs
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced

__all__ = ["MUTANTS"]


@mutant("a life is read by the wall as it is now", "wall")
def lives_follow_the_wall() -> Any:
    return replaced(Calendar, "_era", lambda right: lambda self, *rest: self._eras[-1])


@mutant("a date is read by the wall of its put", "wall")
def dates_are_lives() -> Any:
    return replaced(calendar, "is_date", lambda right: lambda expires_ms: False)


@mutant("the end of a life has no mark of its era", "wall")
def no_marks() -> Any:
    return replaced(
        Calendar, "end_of_life", lambda right: lambda self, now_ms, life_ms: max(1, self.wall_ms(now_ms) + life_ms) | 1
    )


@mutant("schedules of jobs do not follow the wall", "jobs-wall")
def schedules_stay() -> Any:
    return replaced(Jobs, "shift_schedules", lambda right: lambda self, by_ns, now_ms: None)


@mutant("a schedule is read by the wall as it is now", "jobs-wall")
def schedules_by_the_wall_of_now() -> Any:
    return replaced(
        Calendar, "comes_ns", lambda right: lambda self, date_ns, *rest: date_ns - self.ahead_ms * calendar.NS_A_MS
    )


@mutant("the creation of a job has no mark of its era", "jobs-wall")
def no_marks_of_jobs() -> Any:
    return replaced(jobs, "next_ns", lambda right: lambda now_ms, last_ns, mark: right(now_ms, last_ns, 0))


@mutant("a step of the wall is not kept for the next start", "wall")
def steps_not_kept() -> Any:
    return replaced(WallClock, "_write", lambda right: lambda self: None)


@mutant("a server that runs does not see that the wall is set", "wall")
def steps_not_seen() -> Any:
    return replaced(WallClock, "check_clock", lambda right: lambda self, now_ms: None)
