"""How much all queues together keep in memory, and what each may keep while that is too much.

Knows weights and bounds. Refuses to know files: a queue that may keep less leaves the rest of its items to its
journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from queues.line import SMALL_ITEMS_BYTES
from queues.queue import Queue

RELAX_SHARE = 0.75  # of the limit: below it every queue has its own bound again


class Memory:
    """`queues` lists all of them; those without a journal count and cannot be bounded."""

    def __init__(self, limit_bytes: int, queues: Callable[[], Iterable[Queue]]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.is_tight = False
        self._queues = queues
        self._weights: dict[Queue, int] = {}

    def weigh(self, queue: Queue) -> None:
        """`queue` has changed."""
        weight = queue.line.weight_bytes
        self.used_bytes += weight - self._weights.get(queue, 0)
        self._weights[queue] = weight
        if self.used_bytes > self.limit_bytes and not self.is_tight:
            self.is_tight = True
            self.bound_all()
        elif self.is_tight and self.used_bytes < self.limit_bytes * RELAX_SHARE:
            self.is_tight = False
            self.bound_all()

    def forget(self, queue: Queue) -> None:
        """`queue` is gone."""
        self.used_bytes -= self._weights.pop(queue, 0)

    def bound_all(self) -> None:
        """Tell every queue what it may keep: its own setting, or while memory is tight a small share of the limit."""
        queues = list(self._queues())
        share_bytes = max(SMALL_ITEMS_BYTES, self.limit_bytes // (4 * max(1, len(queues))))
        for queue in queues:
            own_bytes = queue.config.max_memory_bytes
            queue.line.bound(min(own_bytes, share_bytes) if self.is_tight else own_bytes)
