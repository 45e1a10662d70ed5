"""The times of jobs on a machine whose wall is set, judged without a server."""

from __future__ import annotations

from random import Random

import pytest

from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.clocks import HOUR_MS, Clocks
from staniel.sim.jobs.times import WallJobTimes
from staniel.sim.violations import Violation

START_MS = 1_700_000_000_000


class StepsBack(Random):
    """Chances by which the wall is set, eight hours back."""

    def choice(self, options):  # type: ignore[no-untyped-def]
        return options[-1] if -1 in options else 8 * HOUR_MS


def job(date_ms: int) -> Job:
    return Job(b"i" * 16, Terms(JobQueue(b"q"), 1000, 200), b"x", START_MS * NS_A_MS, date_ms * NS_A_MS)


@pytest.mark.parametrize("date_ms", [START_MS + 5, START_MS + 5 + 8 * HOUR_MS])
def test_a_date_of_the_millisecond_in_which_the_wall_is_set_back_has_come_or_is_still_to_come(date_ms: int) -> None:
    clocks = Clocks(START_MS)
    times = WallJobTimes(clocks)
    known = times.added(job(START_MS + 5), 0)
    clocks.pass_until(START_MS + 5)
    clocks.step_wall(StepsBack())
    times.served(job(date_ms), [known])


def test_a_date_before_the_wall_was_set_back_has_come() -> None:
    clocks = Clocks(START_MS)
    times = WallJobTimes(clocks)
    known = times.added(job(START_MS + 5), 0)
    clocks.pass_until(START_MS + 7)
    clocks.step_wall(StepsBack())
    with pytest.raises(Violation, match=r"^lost: a job ends 28800000 ms after its time"):
        times.served(job(START_MS + 5 + 8 * HOUR_MS), [known])
