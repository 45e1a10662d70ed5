"""Open reads that end together without a confirmation, and delays that are over together: READS_PER_STEP a turn.

Until all of them are back no client gets an item of the queue: one that came between two turns would get a younger item
before its elders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.queues.item import Delivery

if TYPE_CHECKING:
    from staniel.queues.queue import Ended, Queue

READS_PER_STEP = 256  # 3 us each; no more than these end at once
ENDED_AS_MANY = 20  # dropped items take as long as one open read that ends
FOREVER_MS = 2**63

OnEnded = Callable[[list[tuple[Delivery, "Ended"]], int], None]
"""Called with some of the reads and what became of their items, in the order in which they ended."""


class BatchedAborts:
    """Asks its queue's timer for another step as long as there are `groups`: (reads, callback, opened until)."""

    __slots__ = ("groups", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.groups: deque[tuple[deque[Delivery], OnEnded, int]] = deque()

    def end(self, reads: list[Delivery], on_ended: OnEnded, now_ms: int, opened_until_ms: int = FOREVER_MS) -> None:
        """End `reads`, which has the oldest first, from now on, and call `on_ended`. A read that has ended otherwise
        when its turn comes is left alone, and so is one that counts as opened after `opened_until_ms` by then.
        """
        self._add_group(reads, on_ended, now_ms, opened_until_ms)

    def end_delays(self, rested: list[Delivery], now_ms: int) -> None:
        """End the delays of `rested`, which has the oldest first."""
        self._add_group(rested, _ignore, now_ms, FOREVER_MS)

    def _add_group(self, reads: list[Delivery], on_ended: OnEnded, now_ms: int, opened_until_ms: int) -> None:
        self.groups.append((deque(self._dying_last(reads)), on_ended, opened_until_ms))
        self.queue.begin_batched_aborts()
        if self.queue.timer is not None:
            self.queue.timer.soon(self)
            return
        while self.groups:
            self._abort_some(now_ms)

    def _dying_last(self, reads: list[Delivery]) -> list[Delivery]:
        """Return `reads` with those that go to dead_letter_queue at the end, the oldest of them last: reads are taken
        from the end, so these end first.
        """
        queue = self.queue
        if not queue.config.max_deliveries or queue.config.retry_delays_ms:
            return reads
        dying = {delivery.xid for delivery in reads if queue.dies(delivery)}
        last = [delivery for delivery in reversed(reads) if delivery.xid in dying]
        return [*(delivery for delivery in reads if delivery.xid not in dying), *last]

    def on_timer(self, now_ms: int) -> int:
        """Take another step. Returns as how many dropped items the step took."""
        count = self._abort_some(now_ms) if self.groups else 0
        if self.groups and self.queue.timer is not None:
            self.queue.timer.soon(self)
        return count * ENDED_AS_MANY

    def _abort_some(self, now_ms: int) -> int:
        queue, (reads, on_ended, opened_until_ms) = self.queue, self.groups[0]
        ended: list[tuple[Delivery, Ended]] = []
        count = 0
        # What is put back becomes the head; what rests is handed out in the order in which it has begun to.
        is_oldest_next = queue.config.retry_delays_ms and on_ended is not _ignore
        while reads and count < READS_PER_STEP:
            delivery = reads.popleft() if is_oldest_next else reads.pop()
            count += 1
            if queue.open_reads.get(delivery.xid) is delivery:
                if delivery.opened_ms > opened_until_ms:
                    continue  # its client has asked for more time
                ended.append((delivery, queue.end_read(delivery, now_ms)))
            elif queue.delayed.get(delivery.xid) is delivery:
                queue.end_delay(delivery)
        on_ended(ended, now_ms)
        if not reads:
            self.groups.popleft()
            if not self.groups:
                queue.end_batched_aborts(now_ms)
        return count


def _ignore(ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
    """Do nothing: no client is told of the end of a delay."""


def tell_nobody(ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
    """Do nothing: no client is left that these reads belonged to."""
