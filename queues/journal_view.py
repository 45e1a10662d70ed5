"""The contents of a queue as its journal sees them."""

from __future__ import annotations

from itertools import chain

from staniel.queues.checkpoint import Checkpoint
from staniel.queues.contents import QueueContents
from staniel.queues.delivery_numbers import numbers_of
from staniel.queues.item import Delivery, Item


class JournalView:
    """A queue as its journal sees it: `transferring_head` is still the head of the line, and delayed items, those at
    rest and those in transfer are still open.
    """

    def __init__(self, queue: QueueContents) -> None:
        self.queue = queue

    @property
    def under_way(self) -> dict[int, Delivery]:
        """The items under a transaction, by xid."""
        queue = self.queue
        return {**queue.open_reads, **queue.delayed, **queue.resting, **queue.in_transfer}

    @property
    def heads(self) -> list[Delivery]:
        """The items before the fresh ones, the head first."""
        head = self.queue.transferring_head
        return ([] if head is None else [head]) + self.queue.line.returned[::-1]

    def snapshot(self) -> tuple[dict[int, Delivery], list[Item]]:
        """Return the contents for a rewritten journal: everything under a transaction, and the whole line."""
        head = self.queue.transferring_head
        return self.under_way, ([] if head is None else [head.item]) + self.queue.line.items()

    def checkpoint(self) -> Checkpoint:
        """Return the state after the journal's records so far, as numbers."""
        queue, line = self.queue, self.queue.line
        parts = queue.open_reads, queue.delayed, queue.resting, queue.in_transfer
        xids = tuple(chain.from_iterable(parts))
        seqs, ids, deliveries = numbers_of([*chain.from_iterable([part.values() for part in parts]), *self.heads])
        if queue.transferring_head is not None:
            deliveries[len(xids)] -= 1  # it has left the line, but was not delivered
        count = len(xids)
        return Checkpoint(
            line.left,
            line.end,
            xids,
            tuple(seqs[:count]),
            tuple(seqs[count:]),
            line.last_id,
            line.added_bytes,
            line.added_expiring,
            tuple(ids),
            tuple(deliveries),
        )

    def tip(self) -> tuple[int, int, int]:
        """Return (seq of the next item, payload bytes, number of items with an expiry), counted over all items ever
        added.
        """
        line = self.queue.line
        return line.end, line.added_bytes, line.added_expiring

    def alive(self) -> dict[int, Item]:
        """Return, by seq, every item that has left the fresh ones and is not removed for good."""
        return {delivery.seq: delivery.item for delivery in [*self.under_way.values(), *self.heads]}

    def unread(self) -> int:
        """Return the seq of the first item that is not in memory."""
        line = self.queue.line
        line.measure_dropped()  # the sizes of items that were dropped unread are read now
        return line.left + len(line.in_memory)

    @property
    def is_bare(self) -> bool:
        """True if the queue is completely empty."""
        return not (len(self.queue.line) or self.under_way or self.queue.transferring_head)
