"""What a client that has left had open goes back: much of it not at once.

Knows how much of it is a turn's work. Refuses to know how reads end: their queues do.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from staniel.queues.batched_aborts import ENDED_AS_MANY, READS_A_STEP
from staniel.queues.item import Delivery
from staniel.queues.queue import Ended, Queue

if TYPE_CHECKING:
    from staniel.broker.session import Session

WORK_A_STEP = 50_000  # as much as to drop so many items
QUEUE_AS_MANY = 15  # of them take as long as to hand one queue its reads, besides one for each read

Reads = deque[tuple[Queue, Delivery]]


class Leaving:
    """`due` until nothing is left; the oldest read of each queue comes first. Many reads are handed over to their
    queues before any of them ends: else who sees that its client is gone would find nothing in those whose turn is to
    come.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._left: deque[Reads] = deque(session.reads.values())
        self._are_few = sum(map(len, self._left)) <= READS_A_STEP

    def due(self, now_ms: int) -> int:
        """A turn's work. Returns as how many dropped items it took."""
        return self._end(now_ms) if self._are_few else self._hand_over(now_ms)

    def _end(self, now_ms: int) -> int:
        session, count = self._session, 0
        for reads in self._left:
            count += len(reads)
            while reads:
                queue, taken = reads.pop()
                session.broker.counters.cmd_get_open_dropped += session.give_back(queue, taken, now_ms)
        return count * ENDED_AS_MANY

    def _hand_over(self, now_ms: int) -> int:
        left, work = self._left, 0
        while left and work < WORK_A_STEP:
            by_queue: dict[Queue, list[Delivery]] = {}
            together = left.popleft()
            for queue, taken in together:
                by_queue.setdefault(queue, []).append(taken)
            for queue, reads in by_queue.items():
                queue.returns.end(reads, partial(self._tell, queue), now_ms)
            work += len(by_queue) * QUEUE_AS_MANY + len(together)
        if left:
            self._session.broker.deadlines.soon(self)
        return work

    def _tell(self, queue: Queue, ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
        self._session.broker.counters.cmd_get_open_dropped += len(ended)
        for taken, fate in ended:
            self._session.tell_end(queue, taken, fate, now_ms)
