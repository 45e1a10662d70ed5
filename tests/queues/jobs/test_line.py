"""A line of jobs against a sorted list: any order of coming and going, any length."""

from __future__ import annotations

from random import Random

import pytest

from staniel.queues.jobs import queue as job_queue
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.queue import JobLine, JobQueue, order

QUEUE = JobQueue(b"q")


def job(number: int, priority: int = 0, time_ns: int = 0, created_ns: int | None = None) -> Job:
    created = number if created_ns is None else created_ns
    return Job(number.to_bytes(16, "big"), Terms(QUEUE, 1, 1, priority), b"", created, time_ns)


@pytest.mark.parametrize("seed", range(20))
def test_a_line_is_always_a_sorted_list(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "CHUNK", 4)
    random = Random(seed)
    line, model = JobLine(), list[Job]()
    for number in range(1, 400):
        if not model or random.random() < 0.55:
            new = job(number, random.choice((0, 0, 0, 5, -5)), random.choice((0, 0, random.randrange(1, 99))),
                      random.choice((number, random.randrange(400))))  # fmt: skip
            line.add(new)
            model.append(new)
        elif random.random() < 0.5:
            model.sort(key=order)
            assert line.pop() is model.pop(0)
        else:
            gone = model.pop(random.randrange(len(model)))
            line.remove(gone)
        model.sort(key=order)
        assert list(line) == model and len(line) == len(model)
        offset, limit = random.randrange(20), random.randrange(1, 20)
        assert line.page(offset, limit) == model[offset : offset + limit]


def test_a_filled_line_is_in_order() -> None:
    jobs = [job(number, number % 3) for number in range(2000)]
    line = JobLine()
    line.fill(reversed(jobs))
    assert list(line) == sorted(jobs, key=order) and len(line) == 2000


def test_plain_jobs_come_before_scheduled_ones_of_their_priority() -> None:
    late, plain, urgent = job(1, time_ns=10), job(2), job(3, priority=1, time_ns=99)
    line = JobLine()
    for each in (late, plain, urgent):
        line.add(each)
    assert list(line) == [urgent, plain, late]


def test_an_empty_line_has_nothing() -> None:
    assert JobLine().pop() is None and JobLine().page(0, 10) == []
