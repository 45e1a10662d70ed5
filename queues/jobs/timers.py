"""The next time of each job, in rings of jobs by slots of SLOT_MS.

A time far ahead is kept coarsely and refined as it comes near, so that the number of rings stays small. A job never
comes due early, but may be a few milliseconds late. Setting and dropping a time costs the same for any number of jobs,
and sixteen bytes for each.
"""

from __future__ import annotations

import heapq

from staniel.queues.jobs.job import Job, Ring
from staniel.queues.jobs.times import NEVER_MS

SLOT_MS = 8
_SLOT_MS = SLOT_MS  # C integers in the compiled build
# Moments further ahead than these are counted in larger steps, and looked at twice.
_FAR_MS, _FAR_STEP_MS = 1 << 16, 1 << 13
_VERY_FAR_MS, _VERY_FAR_STEP_MS = 1 << 23, 1 << 20
_FAR_STEP_SLOTS, _VERY_FAR_STEP_SLOTS = _FAR_STEP_MS // _SLOT_MS, _VERY_FAR_STEP_MS // _SLOT_MS


class JobTimers:
    """Rings of jobs by slot. A slot comes due when its number times SLOT_MS is reached."""

    def __init__(self) -> None:
        self._rings: dict[int, Ring] = {}
        self._heap: list[int] = []

    def set(self, job: Job, at_ms: int, now_ms: int) -> None:
        """Set the time of `job` to `at_ms`, instead of any set before."""
        after = job.next
        if after is not None:
            before = job.prev
            before.next, after.prev = after, before
        ahead_ms = at_ms - now_ms
        if ahead_ms <= _FAR_MS:
            slot = (at_ms if ahead_ms > 0 else now_ms) // _SLOT_MS + 1
        elif ahead_ms <= _VERY_FAR_MS:
            slot = at_ms // _FAR_STEP_MS * _FAR_STEP_SLOTS
        else:
            slot = at_ms // _VERY_FAR_STEP_MS * _VERY_FAR_STEP_SLOTS
        ring = self._rings.get(slot)
        if ring is None:
            ring = self._add_ring(slot)
        last = ring.prev
        job.prev, job.next = last, ring
        last.next = ring.prev = job

    def _add_ring(self, slot: int) -> Ring:
        ring = self._rings[slot] = Ring()
        ring.prev = ring.next = ring
        heapq.heappush(self._heap, slot)
        return ring

    def drop(self, job: Job) -> None:
        """Remove the time of `job`."""
        before, after = job.prev, job.next
        if after is not None:
            before.next, after.prev = after, before
            job.prev = job.next = None

    def next_ms(self) -> int:
        """Return when the next slot comes due; NEVER_MS if no time is set."""
        heap, rings = self._heap, self._rings
        while heap:
            ring = rings[heap[0]]
            if ring.next is not ring:
                return heap[0] * _SLOT_MS
            ring.prev = ring.next = None
            del rings[heapq.heappop(heap)]
        return NEVER_MS

    def pop(self, now_ms: int) -> Job | None:
        """Remove a job whose slot has come due and return it; None if there is none."""
        if self.next_ms() > now_ms:
            return None
        job: Job = self._rings[self._heap[0]].next
        self.drop(job)
        return job

    def clear(self) -> None:
        """Remove all times."""
        while self._rings:
            ring = self._rings.popitem()[1]
            while ring.next is not ring:
                self.drop(ring.next)
            ring.prev = ring.next = None
        self._heap.clear()
