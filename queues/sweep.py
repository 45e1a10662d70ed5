"""Dropping the expired items at the head of a queue, a moment's worth at a time.

Knows how much is a moment's worth, and that the rest follows when the timer rings. Refuses to know what time it is.
Items that go to another queue cost more than those that are dropped, and the transfer sink may have no room for them:
then they stay where they are, and nobody gets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.queues.changes import Admission, TransferSink
from staniel.queues.item import LOST_MS

if TYPE_CHECKING:
    from staniel.queues.queue import Queue

SWEEP_MAX = 20_000  # items: about 4 ms
SEND_MAX = 256  # items to another queue: each costs an intent and three records
SEND_BYTES_MAX = 1 << 20
LATER_MS = 1000  # before the transfer sink is asked again
FOREVER_AGO_MS = -(2**63)


class Sweep:
    """`has_more`: expired items are still at the head; what is behind them comes in a moment, or if it `is_ahead` of
    the disk, after the next sync: as much as may be is on its way to another queue.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.has_more = False
        self.is_ahead = False

    @property
    def is_unfinished(self) -> bool:
        """Whether nobody can tell yet what the head is: who wants it asks again in the next turn."""
        return self.has_more or bool(self.queue.batched_aborts.groups)

    def run(self, now_ms: int, count_max: int) -> int:
        """Drop at most `count_max` items, or send them to expire_to_queue. Returns how many went."""
        queue = self.queue
        self.has_more = self.is_ahead = False
        head = queue.line.head()
        if head is None or not queue.is_expired(head, now_ms):
            return 0
        if queue.transfer_sink is not None and queue.config.expire_to_queue:
            count = self._send(queue.transfer_sink, now_ms, count_max)
        else:
            count = self._drop(now_ms, min(count_max, SWEEP_MAX))
            if count == SWEEP_MAX:
                self._go_on_soon(now_ms)
        queue.counters.expired_items += count
        return count

    def _go_on_soon(self, now_ms: int) -> None:
        self.has_more = True
        self.queue.ring_at(now_ms)

    def _drop(self, now_ms: int, count_max: int) -> int:
        queue = self.queue
        queue.outgoing.record_as_open()
        max_age_ms = queue.config.max_age_ms
        count = queue.line.expire(now_ms, now_ms - max_age_ms if max_age_ms else FOREVER_AGO_MS, count_max)
        queue.cleared(count)
        return count

    def _send(self, sink: TransferSink, now_ms: int, count_max: int) -> int:
        queue = self.queue
        count = size = 0
        while count < count_max and (head := queue.line.head()) is not None and queue.is_expired(head, now_ms):
            if count == SEND_MAX or size >= SEND_BYTES_MAX:
                self._go_on_soon(now_ms)
                break
            if head.expires_ms == LOST_MS:
                queue.drop_head()
            else:
                match sink.admits(queue, len(head.data)):
                    case Admission.SOON:
                        self._go_on_soon(now_ms)
                        self.is_ahead = True
                        break
                    case Admission.LATER:
                        queue.ring_at(now_ms + LATER_MS)
                        break
                queue.outgoing.send_expired(sink, now_ms)
                size += len(head.data)
            count += 1
        return count
