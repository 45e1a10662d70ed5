"""Timers of jobs: nobody is told early, everybody is told soon after, and far moments cost no more than near ones."""

from __future__ import annotations

from random import Random

from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.timers import SLOT_MS, JobTimers
from staniel.queues.jobs.times import NEVER_MS

TERMS = Terms(JobQueue(b"q"), 1, 1)


def job(number: int) -> Job:
    return Job(number.to_bytes(16, "big"), TERMS, b"", number)


def told(timers: JobTimers, moments: dict[bytes, int], now_ms: int) -> list[Job]:
    """Whose moment has come; those that were only looked at are set again, as the jobs do it."""
    found = []
    while (each := timers.pop(now_ms)) is not None:
        if moments[each.id] > now_ms:
            timers.set(each, moments[each.id], now_ms)
        else:
            found.append(each)
    return found


def test_a_moment_is_told_within_a_slot_and_never_before() -> None:
    for ahead_ms in (0, 1, 7, 8, 100, 65_535, 65_537, 3_600_000, 86_400_000, 2_592_000_000):
        for start_ms in (1_700_000_000_000, 1_700_000_000_003):
            timers, one = JobTimers(), job(1)
            moments = {one.id: start_ms + ahead_ms}
            timers.set(one, moments[one.id], start_ms)
            now_ms = start_ms
            while not told(timers, moments, now_ms):
                now_ms = max(now_ms + 1, timers.next_ms())
            assert 0 <= now_ms - moments[one.id] <= SLOT_MS
            assert timers.next_ms() == NEVER_MS


def test_setting_again_replaces_and_dropping_forgets() -> None:
    timers, one, two = JobTimers(), job(1), job(2)
    timers.set(one, 1000, 0)
    timers.set(two, 1000, 0)
    timers.set(one, 2000, 0)
    timers.drop(two)
    timers.drop(two)
    assert timers.pop(1500) is None
    assert timers.pop(2010) is one and timers.pop(10**12) is None
    assert one.next is None and two.prev is None


def test_many_jobs_that_come_and_go() -> None:
    random, timers, now_ms = Random(3), JobTimers(), 10**12
    jobs = [job(number) for number in range(300)]
    moments: dict[bytes, int] = {}
    for _ in range(3000):
        each = random.choice(jobs)
        if random.random() < 0.7:
            moments[each.id] = now_ms + random.choice((5, 900, 80_000, 10**7))
            timers.set(each, moments[each.id], now_ms)
        else:
            moments.pop(each.id, None)
            timers.drop(each)
        now_ms += random.choice((0, 3, 400, 20_000))
        for due in told(timers, moments, now_ms):
            assert moments.pop(due.id) <= now_ms
        assert all(moment >= now_ms - SLOT_MS for moment in moments.values())


def test_a_million_far_moments_need_few_rings() -> None:
    timers = JobTimers()
    for number in range(20_000):
        timers.set(job(number), 10**12 + number * 129_600, 10**12)  # spread over thirty days
    assert len(timers._rings) < 3_500
    timers.clear()
    assert timers.next_ms() == NEVER_MS
