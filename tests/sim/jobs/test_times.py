"""The times of jobs on a machine whose wall is set, judged without a server."""

from __future__ import annotations

from random import Random

import pytest

from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.times import NS_A_MS
from staniel.sim.clocks import HOUR_MS, Clocks
from staniel.sim.jobs.checker import JobChecker
from staniel.sim.jobs.model import JobModel, JobRecord
from staniel.sim.jobs.times import WallJobTimes
from staniel.sim.violations import Violation

START_MS = 1_700_000_000_000


class StepsBack(Random):
    """Chances by which the wall is set, eight hours back."""

    sign = -1

    def choice(self, options):  # type: ignore[no-untyped-def]
        return self.sign if -1 in options else 8 * HOUR_MS


class StepsOn(StepsBack):
    """Chances by which the wall is set, eight hours forward, and never while no server runs."""

    sign = 1

    def random(self) -> float:
        return 0.9


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


def started_in_doubt(life_ms: int) -> tuple[JobChecker, JobRecord, Clocks]:
    """A start `life_ms` after a step past the job's date, which the life before has perhaps stored."""
    clocks = Clocks(START_MS)
    times = WallJobTimes(clocks)
    known = times.added(job(START_MS + HOUR_MS), 0)
    clocks.pass_until(START_MS + 5)
    clocks.step_wall(StepsOn())
    clocks.begin_life(START_MS + 5 + life_ms, StepsOn())
    checker = JobChecker(JobModel({job(0).id: known}, {}, False), times)
    checker.now_ms = clocks.passed_ms
    return checker, known, clocks


def test_a_job_that_a_step_in_doubt_has_ended_stays_ended_after_the_wall_is_set_back() -> None:
    checker, known, clocks = started_in_doubt(200)
    checker._check_startup({})
    clocks.step_wall(StepsBack())
    clocks.note_written()
    clocks.begin_life(START_MS + 205 + 8 * HOUR_MS + 1000, StepsOn())  # a second later, by the server's clock
    checker.model.base = {job(0).id: known}  # no record says that it has ended, so a copy of the log has it again
    checker.now_ms = clocks.passed_ms
    assert clocks.passed_ms == START_MS + 1205 and clocks.doubt_ms is None
    checker._check_startup({})


def test_a_job_is_lost_that_no_step_in_doubt_can_have_ended() -> None:
    checker, _, _ = started_in_doubt(150)
    with pytest.raises(Violation, match=r"^lost: job \d+ was found, and is not served"):
        checker._check_startup({})
