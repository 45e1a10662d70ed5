"""Broken rules of the calendar and of the file that keeps it."""

from __future__ import annotations

from typing import Any

from staniel.broker.wall_clock import WallClock
from staniel.queues import calendar
from staniel.queues.calendar import Calendar
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


@mutant("a step of the wall is not kept for the next start", "wall")
def steps_not_kept() -> Any:
    return replaced(WallClock, "_write", lambda right: lambda self: None)


@mutant("a server that runs does not see that the wall is set", "wall")
def steps_not_seen() -> Any:
    return replaced(WallClock, "look", lambda right: lambda self, now_ms: None)
