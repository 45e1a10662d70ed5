"""The jobs of one name: the ready ones, the scheduled ones, and the clients that wait for one.

Jobs stand in the order in which they are handed out: priority high to low, plain before scheduled, then by time. A line
keeps them in chunks of a bounded size: appending and taking the first cost the same whatever the length, anything else
costs two binary searches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Protocol

from staniel.queues.jobs.job import Job

CHUNK = 512
_WRAP = 1 << 64
_HALF = 1 << 63
# Year 1 as 64-bit nanoseconds since 1970, which overflow. The original compares this value for jobs without a time.
NO_TIME_NS = -6_795_364_578_871_345_152

Order = tuple[int, int, int, bytes]


def order(job: Job) -> Order:
    """Return the sort key. Scheduled times compare as 64-bit nanoseconds like the original's, which overflow after
    2262.
    """
    time_ns = job.time_ns or NO_TIME_NS
    if not -_HALF <= time_ns < _HALF:
        time_ns = (time_ns + _HALF) % _WRAP - _HALF
    return -job.terms.priority, time_ns, job.created_ns, job.id


class JobLine:
    """The ready jobs of one queue, or its scheduled ones."""

    __slots__ = ("_chunks", "_length")

    def __init__(self) -> None:
        self._chunks: list[list[Job]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Job]:
        for chunk in self._chunks:
            yield from chunk

    def fill(self, jobs: Iterable[Job]) -> None:
        """Add these jobs, in any order, to an empty line."""
        ordered = sorted(jobs, key=attrgetter("created_ns", "id"))
        if any(job.time_ns for job in ordered):
            ordered.sort(key=order)
        else:
            ordered.sort(key=attrgetter("terms.priority"), reverse=True)
        self._chunks = [ordered[at : at + CHUNK] for at in range(0, len(ordered), CHUNK)]
        self._length = len(ordered)

    def add(self, job: Job) -> None:
        """Put `job` in its place."""
        self._length += 1
        chunks = self._chunks
        if not chunks:
            chunks.append([job])
            return
        chunk = chunks[-1]
        last = chunk[-1]
        if (
            job.created_ns > last.created_ns
            and job.time_ns == 0 == last.time_ns
            and (job.terms is last.terms or job.terms.priority <= last.terms.priority)
        ):
            if len(chunk) < CHUNK:
                chunk.append(job)
            else:
                chunks.append([job])
        else:
            self._insert(job)

    def _insert(self, job: Job) -> None:
        chunks, key = self._chunks, order(job)
        number = bisect_left(chunks, key, key=_end, hi=len(chunks) - 1)
        chunk = chunks[number]
        chunk.insert(bisect_left(chunk, key, key=order), job)
        if len(chunk) > 2 * CHUNK:
            chunks[number : number + 1] = [chunk[:CHUNK], chunk[CHUNK:]]

    def pop(self) -> Job | None:
        """Remove and return the first job."""
        chunks = self._chunks
        if not chunks:
            return None
        chunk = chunks[0]
        job = chunk.pop(0)
        if not chunk:
            chunks.pop(0)
        self._length -= 1
        return job

    def remove(self, job: Job) -> None:
        """Remove `job`, which must be in the line."""
        was_there = self.discard(job)
        assert was_there, job.id

    def discard(self, job: Job) -> bool:
        """Remove `job` if it is in the line. Return whether it was."""
        chunks, key = self._chunks, order(job)
        number = bisect_left(chunks, key, key=_end)
        if number == len(chunks):
            return False
        chunk = chunks[number]
        at = bisect_left(chunk, key, key=order)
        if chunk[at] is not job:
            return False
        del chunk[at]
        if not chunk:
            del chunks[number]
        self._length -= 1
        return True

    def page(self, offset: int, limit: int) -> list[Job]:
        """Return at most `limit` jobs from number `offset` on."""
        page: list[Job] = []
        for chunk in self._chunks:
            if offset >= len(chunk):
                offset -= len(chunk)
                continue
            page += chunk[offset : offset + limit - len(page)]
            offset = 0
            if len(page) >= limit:
                break
        return page


def _end(chunk: list[Job]) -> Order:
    return order(chunk[-1])


class JobWaiter(Protocol):
    """A client that waits for a job to lease, or for the end of one."""

    def deliver(self, job: Job) -> None:
        """Take `job`. Called in the step that leased or ended it."""


class Leaser(JobWaiter, Protocol):
    """A client that waits for a job of one of these queues."""

    queues: Sequence[JobQueue]

    def dismiss(self) -> None:
        """Stop waiting: no job will come."""


class JobQueue:
    """The jobs of one name. `leased` and `finished` count existing jobs that are in neither line."""

    __slots__ = ("finished", "is_kept", "leased", "name", "ready", "scheduled", "waiters")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = JobLine()
        self.scheduled = JobLine()
        self.waiters: dict[Leaser, None] = {}
        self.leased = 0
        self.finished = 0
        self.is_kept = False  # it has jobs; otherwise it may be removed when no client waits for it
