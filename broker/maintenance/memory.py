"""A limit for the memory of all queues together: how much each may keep while the limit is exceeded.

Items beyond a queue's share stay in its journal only. A queue without a journal accepts no more than it already holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import NoJournal
from staniel.queues.line import ITEM_COST_BYTES
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues
from staniel.queues.stream.queue import StreamQueue
from staniel.queues.stream.stream import Stream

RELAX_SHARE = 0.75  # of the limit: below it every queue has its own bound again
TIGHT_SHARE = 1.25  # of the limit: the memory in use and all shares stay below it
SHARE_BYTES_MIN = 4 << 10  # about what an empty queue costs


class MemoryBudget:
    """The memory of all queues. `queues` lists them. Their weights together stay below 1.25 times the limit, not
    counting the head of each queue (SHARE_BYTES_MIN, or one item if that is larger) and the items of one batch.
    """

    def __init__(self, limit_bytes: int, queues: Queues) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.is_tight = False
        # Queues that have changed since they were last weighed: those without a journal, and those that read from a
        # stream.
        self.changed: dict[Queue, None] = {}
        self.queues = queues
        self._weights: dict[Queue | Stream, int] = {}
        self._shared_by = 0  # number of queues when the shares were computed
        self._share_bytes = 0

    def adopt(self, queue: Queue) -> None:
        """Include `queue`, which is served from now on."""
        if isinstance(queue.journal, NoJournal):
            queue.journal.watch(queue, self.changed)
        elif isinstance(queue, StreamQueue):
            queue.stream_line.changed = lambda: self.changed.update({queue: None})
        if self.is_tight and len(self.queues) > 2 * self._shared_by:
            self.bound_all()
        else:
            self.bound(queue)
        self.weigh(queue)

    def weigh(self, queue: Queue) -> None:
        """Weigh `queue` again after a change."""
        weights = self._weights
        weight = queue.line.weight_bytes() + queue.in_transfer_bytes + queue.resting_weight_bytes
        self.used_bytes += weight - weights.get(queue, 0)
        weights[queue] = weight
        if self.is_tight or self.used_bytes > self.limit_bytes:
            self._judge()
        if isinstance(queue, StreamQueue):
            self.weigh_stream(queue.stream)

    def weigh_stream(self, stream: Stream) -> None:
        """Weigh the items that are kept for all followers of `stream` again."""
        self._weigh(stream, stream.window_bytes + ITEM_COST_BYTES * stream.window_items)

    def weigh_changed(self) -> None:
        """Weigh the queues that have changed without writing a record."""
        changed = list(self.changed)
        self.changed.clear()
        for queue in changed:
            if isinstance(queue.journal, NoJournal):
                queue.journal.is_noted = False
            if queue in self._weights:
                aside_bytes = queue.in_transfer_bytes + queue.resting_weight_bytes
                self._weigh(queue, queue.line.weight_bytes() + aside_bytes)

    def forget(self, queue: Queue) -> None:
        """Remove `queue`, which is deleted."""
        self.used_bytes -= self._weights.pop(queue, 0)
        if isinstance(queue, StreamQueue) and not queue.stream.members.keys() - {queue.name}:
            self.used_bytes -= self._weights.pop(queue.stream, 0)

    def bound(self, queue: Queue) -> None:
        """Set how much `queue` may keep: its own setting, or a small share of the limit while memory is short."""
        memory_bytes = self.bytes_for(queue.config)
        if isinstance(queue.journal, NoJournal):
            queue.limit_weight(
                max(self._share_bytes, queue.line.weight_bytes() + queue.resting_weight_bytes)
                if self.is_tight
                else None
            )
        elif memory_bytes < queue.config.max_memory_bytes:
            queue.line.bound(memory_bytes, memory_bytes)
        else:
            queue.line.bound(memory_bytes)
        if queue.resting and queue.waiters and queue.timer is not None:
            queue.timer.soon(queue)  # there may be room for more items at rest, and so a head for a waiter

    def bytes_for(self, config: QueueConfig) -> int:
        """Return how much a queue with these settings may keep."""
        own_bytes = config.max_memory_bytes
        return min(own_bytes, self._share_bytes) if self.is_tight else own_bytes

    def bound_all(self) -> None:
        """Set the bound of every queue."""
        for _ in self.bound_each():
            pass

    def bound_each(self) -> Iterator[None]:
        """Compute the shares again and set the bound of every queue; one queue a step."""
        queues = list(self.queues)
        self._shared_by = max(1, len(queues))
        room_bytes = int(self.limit_bytes * TIGHT_SHARE) - self.used_bytes
        self._share_bytes = max(SHARE_BYTES_MIN, room_bytes // (2 * self._shared_by))
        for queue in queues:
            if self.queues.find(queue.name) is queue:  # the queue may have been deleted since
                self.bound(queue)
            yield

    def _weigh(self, what: Queue | Stream, weight: int) -> None:
        self.used_bytes += weight - self._weights.get(what, 0)
        self._weights[what] = weight
        self._judge()

    def _judge(self) -> None:
        if self.used_bytes > self.limit_bytes and not self.is_tight:
            self.is_tight = True
            self.bound_all()
        elif self.is_tight and self.used_bytes < self.limit_bytes * RELAX_SHARE:
            self.is_tight = False
            self.bound_all()
