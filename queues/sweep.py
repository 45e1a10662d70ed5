"""Dropping the expired items at the head of a queue, a moment's worth at a time.

Knows how much is a moment's worth, and that the rest follows when the timer rings. Refuses to know what time it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from queues.item import LOST_MS
from queues.ports import Heir

if TYPE_CHECKING:
    from queues.queue import Queue

SWEEP_MAX = 20_000  # items: about 4 ms
FOREVER_AGO_MS = -(2**63)


class Sweep:
    """`is_unfinished`: expired items are still at the head; what is behind them comes in a moment."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.is_unfinished = False

    def run(self, now_ms: int, count_max: int) -> int:
        """Drop at most `count_max` items, or send them to expire_to_queue. Returns how many went."""
        queue = self.queue
        self.is_unfinished = False
        head = queue.line.head()
        if head is None or not queue.is_expired(head, now_ms):
            return 0
        turn_max = min(count_max, SWEEP_MAX)
        if queue.heir is not None and queue.config.expire_to_queue:
            count = self._send(queue.heir, now_ms, turn_max)
        else:
            count = self._drop(now_ms, turn_max)
        queue.counters.expired_items += count
        if count == SWEEP_MAX:
            self.is_unfinished = True
            queue.ring_at(now_ms)
        return count

    def _drop(self, now_ms: int, count_max: int) -> int:
        queue = self.queue
        max_age_ms = queue.config.max_age_ms
        count = queue.line.expire(now_ms, now_ms - max_age_ms if max_age_ms else FOREVER_AGO_MS, count_max)
        queue.cleared(count)
        return count

    def _send(self, heir: Heir, now_ms: int, count_max: int) -> int:
        queue = self.queue
        count = 0
        while count < count_max and (head := queue.line.head()) is not None and queue.is_expired(head, now_ms):
            if head.expires_ms == LOST_MS:
                queue.drop_head()
            else:
                queue.departures.send_expired(heir, now_ms)
            count += 1
        return count
