"""Jobs in memory: states, orders, waiters. A journal that remembers every fact must be able to rebuild them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from staniel.protocol.workq.fields import is_name
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.jobs import Finish, Jobs
from staniel.queues.jobs.journal import JobJournal
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.jobs.states import COMPLETED, FAILED, LEASED, NEW, PENDING

NOW = 1_700_000_000_000


class Notes(JobJournal):
    """A journal of calls; `replay` plays them to new jobs."""

    batch = 0

    def __init__(self) -> None:
        self.facts: list[tuple[str, tuple[object, ...]]] = []

    def added(self, job: Job, limit_ms: int) -> None:
        terms = job.terms
        self.facts.append(("added", (job.id, terms, job.payload, job.created_ns, job.time_ns, 1)))
        assert limit_ms == job.limit_ms

    def attempted(self, job: Job, now_ms: int) -> None:
        self.facts.append(("attempted", (job.id, now_ms * 10**6 + 10**6)))

    def timed_out(self, job: Job, now_ms: int) -> None:
        self.facts.append(("timed_out", (job.id,)))

    def finished(self, job: Job, result: bytes, now_ms: int, *, success: bool) -> None:
        self.facts.append(("completed" if success else "failed", (job.id, result, now_ms * 10**6 + 10**6)))

    def deleted(self, job: Job, now_ms: int) -> None:
        self.facts.append(("removed", (job.id,)))

    def expired(self, job: Job, now_ms: int) -> None:
        self.facts.append(("removed", (job.id,)))

    def replay(self, now_ms: int, *, honours_max_fails: bool = False) -> Jobs:
        replay = JobReplay(Jobs(Notes(), honours_max_fails=honours_max_fails), now_ms)
        for name, facts in self.facts:
            if name in ("completed", "failed"):
                replay.finished(*facts, success=name == "completed")  # type: ignore[arg-type, misc]
            elif name == "added":
                id, terms, *rest = facts
                assert isinstance(terms, Terms)
                mine = Terms(replay.jobs.queue(terms.queue.name), terms.ttr_ms, terms.ttl_ms, terms.priority,
                             terms.max_attempts, terms.max_fails)  # fmt: skip
                replay.added(id, mine, *rest)  # type: ignore[arg-type]
            else:
                getattr(replay, name)(*facts)
        replay.end()
        return replay.jobs


class Somebody:
    """A waiter that keeps what it is given."""

    def __init__(self, queues: Sequence[JobQueue] = ()) -> None:
        self.queues = queues
        self.got: list[Job] = []
        self.leases = 0
        self.is_dismissed = False

    def deliver(self, job: Job) -> None:
        self.got.append(job)

    def leased(self, job: Job, now_ms: int) -> None:
        self.leases += 1

    def dismiss(self) -> None:
        self.is_dismissed = True


class Bench:
    def __init__(self, *, honours_max_fails: bool = False) -> None:
        self.notes = Notes()
        self.jobs = Jobs(self.notes, honours_max_fails=honours_max_fails)
        self.now = NOW

    def add(self, number: int, name: bytes = b"q", ttr: int = 1000, ttl: int = 60_000, at_ms: int = 0,
            priority: int = 0, max_attempts: int = 0, max_fails: int = 0) -> Job | None:  # fmt: skip
        terms = Terms(self.jobs.queue(name), ttr, ttl, priority, max_attempts, max_fails)
        return self.jobs.add(id_of(number), terms, b"payload", self.now, at_ms * 10**6)

    def lease(self, *names: bytes) -> int:
        job = self.jobs.lease([self.jobs.queue(name) for name in names or (b"q",)], self.now)
        return int.from_bytes(job.id, "big") if job is not None else 0

    def finish(self, number: int, success: bool = True) -> Finish:
        return self.jobs.finish(id_of(number), b"result", self.now, success=success)

    def job(self, number: int) -> Job:
        return self.jobs.by_id[id_of(number)]

    def wait(self, ms: int) -> None:
        self.now += ms
        while self.jobs.next_ms() <= self.now:
            self.jobs.ring(self.now, 100)


def id_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_jobs_of_one_millisecond_keep_their_order() -> None:
    bench = Bench()
    for number in range(1, 2000):
        bench.add(number)
    assert [bench.lease() for _ in range(1, 2000)] == list(range(1, 2000))


def test_a_lease_that_ends_puts_the_job_back_into_its_old_place() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        bench.add(number)
    assert bench.lease() == 1
    bench.wait(1010)
    assert bench.job(1).state is PENDING and [bench.lease() for _ in range(3)] == [1, 2, 3]
    assert bench.job(1).attempts == 2


@pytest.mark.parametrize(("max_attempts", "leases"), [(1, 1), (3, 3), (0, 255)])
def test_after_the_last_attempt_a_job_has_failed(max_attempts: int, leases: int) -> None:
    bench = Bench()
    bench.add(1, ttl=2_000_000_000, max_attempts=max_attempts)
    waiting = Somebody()
    bench.jobs.watch(bench.job(1), waiting)
    for _ in range(leases):
        assert bench.lease() == 1
        bench.wait(1010)
    assert bench.lease() == 0 and bench.job(1).state is FAILED and waiting.got == [bench.job(1)]


def test_max_fails_has_no_effect_unless_it_is_asked_for() -> None:
    bench = Bench()
    bench.add(1, max_fails=3)
    assert bench.finish(1, success=False) is Finish.DONE and bench.job(1).state is FAILED and bench.job(1).fails == 0


def test_an_honoured_max_fails_lets_a_job_fail_so_often() -> None:
    bench = Bench(honours_max_fails=True)
    bench.add(1, max_fails=3)
    for fails in (1, 2):
        assert bench.lease() == 1
        bench.finish(1, success=False)
        assert (bench.job(1).state, bench.job(1).fails) == (PENDING, fails)
        again = bench.notes.replay(bench.now, honours_max_fails=True).by_id[id_of(1)]
        assert (again.state, again.fails, again.attempts) == (PENDING, fails, fails)
    bench.lease()
    bench.finish(1, success=False)
    assert (bench.job(1).state, bench.job(1).fails) == (FAILED, 3)


def test_max_fails_does_not_outlive_max_attempts() -> None:
    bench = Bench(honours_max_fails=True)
    bench.add(1, max_fails=9, max_attempts=1)
    bench.lease()
    bench.finish(1, success=False)
    assert bench.job(1).state is FAILED


def test_a_scheduled_job_waits_for_its_time_and_lives_from_there() -> None:
    bench = Bench()
    bench.add(1, at_ms=NOW + 5000, ttl=1000)
    bench.wait(4990)
    assert bench.lease() == 0
    bench.wait(20)
    assert bench.lease() == 1
    bench.wait(980)
    assert bench.job(1).state is LEASED
    bench.wait(30)
    assert not bench.jobs.by_id and bench.jobs.evicted == 1


def test_a_scheduled_job_can_be_finished_before_its_time() -> None:
    bench = Bench()
    bench.add(1, at_ms=NOW + 5000)
    assert bench.finish(1) is Finish.DONE and len(bench.jobs.queue(b"q").scheduled) == 0
    assert bench.finish(1) is Finish.DUPLICATE and bench.finish(2) is Finish.NOT_FOUND


@pytest.mark.parametrize("date_ms", [0, 1000])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("way", ["delete", "finish", "lease"])
def test_a_clock_before_1970_does_not_confuse_the_place_of_a_job(date_ms: int, restarts: bool, way: str) -> None:
    bench = Bench()
    bench.now = -5000
    bench.add(1, at_ms=date_ms)
    if restarts:
        bench.jobs = bench.notes.replay(bench.now)
    queue = bench.jobs.queue(b"q")
    assert (len(queue.scheduled), len(queue.ready)) == ((1, 0) if date_ms else (0, 1))
    if way == "delete":
        assert bench.jobs.delete(id_of(1), bench.now)
    elif way == "finish":
        assert bench.finish(1) is Finish.DONE
    else:
        bench.wait(7000)
        assert bench.lease() == 1
    assert (len(queue.scheduled), len(queue.ready)) == (0, 0)


def test_a_lease_ends_before_1970() -> None:
    bench = Bench()
    bench.now = -1000
    bench.add(1, ttr=1000, ttl=10_000)
    assert bench.lease() == 1
    bench.wait(1010)
    assert bench.lease() == 1
    assert bench.jobs.timed_out == 1


def test_plain_jobs_before_1970_are_ready_after_a_restart_and_a_step_of_the_wall() -> None:
    bench = Bench()
    bench.now = -5000
    bench.add(1)
    again = bench.notes.replay(bench.now)
    again.shift_schedules(10**9, bench.now)
    job = again.lease([again.queue(b"q")], bench.now)
    assert job is not None and job.id == id_of(1)


def test_a_step_of_the_wall_shifts_the_jobs_that_stand_in_the_schedule_and_no_others() -> None:
    """Many additions in one millisecond make jobs seem created later than now: a date before that comes at once."""
    bench = Bench()
    bench.jobs._last_ns = NOW * 10**6 + 5 * 10**6
    for number, at_ms in ((1, NOW + 3), (2, NOW + 9000)):
        bench.add(number, at_ms=at_ms)
    queue = bench.jobs.queue(b"q")
    assert (len(queue.ready), len(queue.scheduled)) == (1, 1)
    bench.jobs.shift_schedules(4000 * 10**6, NOW)
    assert (bench.job(1).time_ns, bench.job(2).time_ns) == ((NOW + 3) * 10**6, (NOW + 13_000) * 10**6)
    assert bench.jobs.delete(id_of(1), NOW) and bench.jobs.delete(id_of(2), NOW)


def test_an_expired_job_that_was_done_is_not_counted_as_evicted() -> None:
    bench = Bench()
    bench.add(1)
    bench.finish(1)
    bench.wait(61_000)
    assert not bench.jobs.by_id and bench.jobs.evicted == 0


def test_more_expiries_than_one_ring_does_are_not_seen_by_anybody() -> None:
    bench = Bench()
    for number in range(1, 500):
        bench.add(number, ttl=100)
    bench.add(500)
    bench.now += 200
    bench.jobs.ring(bench.now, 10)
    assert bench.jobs.find(id_of(400), bench.now) is None and not bench.jobs.delete(id_of(401), bench.now)
    assert bench.finish(402) is Finish.NOT_FOUND
    assert bench.add(403) is not None
    assert bench.lease() == 500 and bench.lease() == 403


def test_waiters_are_served_first_come_first_served_and_only_once() -> None:
    bench = Bench()
    a, b = bench.jobs.queue(b"a"), bench.jobs.queue(b"b")
    first, second = Somebody([a, b]), Somebody([b])
    bench.jobs.park(first)
    bench.jobs.park(second)
    bench.add(1, b"b")
    bench.add(2, b"b")
    bench.add(3, b"a")
    assert [job.id for job in first.got + second.got] == [id_of(1), id_of(2)]
    assert bench.lease(b"a") == 3 and not a.waiters and not b.waiters


def test_a_lease_over_several_names_is_fair_to_each() -> None:
    bench = Bench()
    for number in range(300):
        bench.add(number + 1, b"abc"[number % 3 : number % 3 + 1])
    got = [bench.lease(b"a", b"b", b"c") % 3 for _ in range(90)]
    assert {got.count(which) for which in range(3)} == {30}


def test_a_lease_on_a_thousand_names_leaves_nothing_behind() -> None:
    bench = Bench()
    queues = [bench.jobs.queue(b"q%d" % number) for number in range(1000)]
    waiting = Somebody(queues)
    bench.jobs.park(waiting)
    bench.add(1, b"q777")
    assert waiting.got == [bench.job(1)] and not any(queue.waiters for queue in queues)


def test_a_hundred_thousand_waiting_leases_are_served_in_their_order() -> None:
    bench = Bench()
    queue = bench.jobs.queue(b"q")
    waiting = [Somebody([queue]) for _ in range(100_000)]
    for each in waiting:
        bench.jobs.park(each)
    for each in waiting[1::2]:
        bench.jobs.unpark(each)
    for number in range(1, 1001):
        bench.add(number)
    assert all(each.got for each in waiting[0:2000:2]) and not any(each.got for each in waiting[1::2])
    assert len(queue.waiters) == 49_000


def test_a_run_is_gone_when_it_is_done_and_never_written() -> None:
    bench = Bench()
    runner, other = Somebody(), Somebody()
    job = bench.jobs.run(id_of(1), Terms(bench.jobs.queue(b"q"), 1000, 0), b"x", runner, bench.now)
    assert job is not None and bench.lease() == 1 and runner.leases == 1
    bench.jobs.watch(job, other)
    assert bench.finish(1) is Finish.DONE and job.state is COMPLETED
    assert runner.got == other.got == [job] and not bench.jobs.by_id and bench.notes.facts == []


def test_a_run_that_nobody_waits_for_is_gone_whatever_its_state() -> None:
    bench = Bench()
    for leases in (0, 1):
        job = bench.jobs.run(id_of(1), Terms(bench.jobs.queue(b"q"), 1000, 0), b"x", Somebody(), bench.now)
        assert job is not None
        for _ in range(leases):
            bench.lease()
        bench.jobs.abandon(job)
        assert not bench.jobs.by_id and bench.lease() == 0 and bench.jobs.queue(b"q").leased == 0


def facts_of(jobs: Jobs) -> dict[bytes, tuple[object, ...]]:
    return {
        id: (job.state, job.attempts, job.result, job.payload, job.created_ns, job.time_ns, job.terms.priority)
        for id, job in jobs.by_id.items()
    }


@pytest.mark.parametrize("seed", range(30))
def test_what_is_written_rebuilds_what_was(seed: int) -> None:
    random, bench = Random(seed), Bench()
    for _ in range(400):
        number = random.randrange(1, 25)
        match random.randrange(8):
            case 0 | 1:
                bench.add(number, random.choice((b"a", b"q")), ttr=random.choice((5, 5000)),
                          ttl=random.choice((50, 90_000)), max_attempts=random.choice((0, 0, 1)),
                          priority=random.randrange(3))  # fmt: skip
            case 2:
                bench.add(number, at_ms=bench.now + random.randrange(-10, 200))
            case 3 | 4:
                bench.lease(b"a", b"q")
            case 5:
                bench.finish(number, success=random.random() < 0.5)
            case 6:
                bench.jobs.delete(id_of(number), bench.now)
            case _:
                bench.wait(random.choice((1, 10, 60)))
        check(bench.jobs)
    bench.wait(16 - bench.now % 8)  # to the end of a slot of the timers, so that nothing due is still to be done
    again = bench.notes.replay(bench.now - 1)
    check(again)
    assert facts_of(again) == facts_of(bench.jobs)
    for name, queue in again.queues.items():
        before = bench.jobs.queues[name]
        assert [job.id for job in queue.ready] == [job.id for job in before.ready]
        assert [job.id for job in queue.scheduled] == [job.id for job in before.scheduled]


def check(jobs: Jobs) -> None:
    for queue in jobs.queues.values():
        mine = [job for job in jobs.by_id.values() if job.terms.queue is queue]
        assert len(mine) == len(queue.ready) + len(queue.scheduled) + queue.leased + queue.finished
        assert all(job.next is not None for job in mine)


@pytest.mark.parametrize(("name", "is_one"), [(b"a.b-c_D9", True), (b"", False), (b"a" * 255, True),
                                              (b"a" * 256, False), (b"a b", False), (b"a\n", False)])  # fmt: skip
def test_names(name: bytes, is_one: bool) -> None:
    assert is_name(name) is is_one


def swapped(*facts: tuple[str, int]) -> Job | None:
    """A log whose writer mixed the order up: (what, moment) about one job that was created at 100."""
    replay = JobReplay(Jobs(Notes()), NOW)
    terms = Terms(replay.jobs.queue(b"q"), 1000, 10**9)
    for what, at in facts:
        if what == "added":
            replay.added(id_of(1), terms, b"x", NOW * 10**6 + 100, 0, 1)
        elif what == "attempted":
            replay.attempted(id_of(1), NOW * 10**6 + at)
        elif what == "finished":
            replay.finished(id_of(1), b"r", NOW * 10**6 + at, success=True)
        else:
            getattr(replay, what)(id_of(1))
    replay.end()
    return replay.jobs.by_id.get(id_of(1))


def test_a_lease_that_stands_before_its_addition_counts() -> None:
    job = swapped(("attempted", 150), ("added", 0))
    assert job is not None and (job.state, job.attempts) == (LEASED, 1)


def test_a_result_that_stands_before_its_addition_counts() -> None:
    job = swapped(("attempted", 120), ("finished", 150), ("added", 0))
    assert job is not None and (job.state, job.result) == (COMPLETED, b"r")


def test_what_is_left_of_an_earlier_life_does_not_touch_the_new_one() -> None:
    job = swapped(("attempted", 50), ("finished", 60), ("added", 0))
    assert job is not None and (job.state, job.attempts) == (NEW, 0)


def test_what_a_crash_has_left_of_a_lost_job_does_not_touch_one_that_a_clock_set_back_makes_older() -> None:
    job = swapped(("attempted", 60_000_000_000), ("finished", 60_000_000_001), ("added", 0))
    assert job is not None and (job.state, job.attempts) == (NEW, 0)


def test_a_timeout_that_stands_behind_the_next_lease_ends_the_one_before() -> None:
    job = swapped(("added", 0), ("attempted", 150), ("attempted", 160), ("timed_out", 0))
    assert job is not None and (job.state, job.attempts) == (LEASED, 2)


def test_the_later_of_two_additions_wins_and_the_first_of_two_results() -> None:
    replay = JobReplay(Jobs(Notes()), NOW)
    terms = Terms(replay.jobs.queue(b"q"), 1000, 10**9)
    for payload in (b"old", b"new"):
        replay.added(id_of(1), terms, payload, NOW * 10**6, 0, 7)
    for result in (b"first", b"second"):
        replay.finished(id_of(1), result, NOW * 10**6, success=result == b"first")
    replay.end()
    job = replay.jobs.by_id[id_of(1)]
    assert (job.payload, job.result, job.state, replay.dead[7]) == (b"new", b"first", COMPLETED, 1)
