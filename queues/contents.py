"""The items of one queue and the places where they are. The queue's journal records each move between two places.

This module has the ready items, the open reads and the items in transfer to another queue. time_outs.py decides when a
read ends, queue.py which client gets which item. The data model is at the top of queue.py.
"""

from __future__ import annotations

from staniel.queues.changes import Aborted, Change, Cleared, Removed
from staniel.queues.delays import next_rest_xid
from staniel.queues.interfaces import Journal
from staniel.queues.item import Delivery, Item, Numbered, is_remnant
from staniel.queues.line import Line, PlainLine
from staniel.queues.xids import XID_MAX, next_xid

CLEARED_MAX = 1 << 20
RESTING_COST_BYTES = 512  # of an item at rest in addition to its payload: the item, its delivery, its place
_XID_MAX = XID_MAX  # a C number in the compiled build


class QueueContents:
    """The items of one queue. An item is in exactly one of the places below, or removed.

    `transferring_head` is in transfer without a transaction. In the journal it is still the head of the line, so a
    transaction must be recorded for it before any other record about the head (`_record_transferring_head`).
    """

    __slots__ = (
        "delayed",
        "delayed_bytes",
        "in_transfer",
        "in_transfer_bytes",
        "journal",
        "last_rest_xid",
        "last_xid",
        "line",
        "open_reads",
        "resting",
        "resting_bytes",
        "resting_weight_bytes",
        "transferring_head",
    )

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.line: Line = PlainLine()
        self.open_reads: dict[int, Delivery] = {}  # by xid, in the order of opening; an OrderedDict with a time-out
        self.delayed: dict[int, Delivery] = {}  # by xid, until retry_delay ends, at their `opened_ms`
        self.delayed_bytes = 0  # payload
        self.resting: dict[int, Delivery] = {}  # by xid, put with a delay that ends at their `opened_ms`
        self.resting_bytes = 0  # payload
        self.resting_weight_bytes = 0  # their real cost: they are all in memory
        self.last_rest_xid = 0
        self.in_transfer: dict[int, Delivery] = {}  # by xid, on the way to another queue
        self.transferring_head: Delivery | None = None
        self.in_transfer_bytes = 0  # payload, with that of `transferring_head`
        self.last_xid = 0

    # the line

    @property
    def waiting_items(self) -> int:
        """The number of items that wait, for people and for limits: those in the line, and those at rest."""
        return self.line.present + len(self.resting)

    @property
    def waiting_bytes(self) -> int:
        """The payload of the items that wait."""
        return self.line.bytes + self.resting_bytes

    def drop_head(self) -> None:
        """Remove the head for good."""
        self.line.head()
        self._record(Removed(self.line.drop()))

    def drop_heads(self, count: int) -> int:
        """Remove up to `count` heads for good, and the remnants between them. Return how many heads were removed."""
        line, places = self.line, 0
        before = line.present
        while len(line) and before - line.present < count:
            line.drop()
            places += 1
        self.record_cleared(places)
        return before - line.present

    def give_back(self, delivery: Delivery) -> None:
        """Make an item the head again. The caller has just removed its transaction from its dictionary."""
        self._record(Aborted(delivery.id, delivery.xid))
        self.line.give_back(delivery)

    def _bring_forward(self, ahead: int, count: int) -> None:
        """Move the last `count` items of the line ahead of the first `ahead` ones."""
        passed: list[Delivery] = []
        while len(passed) < ahead + count and self.line.head() is not None:
            delivery = self.line.pop()
            self._record_opened(delivery)
            delivery.deliveries -= 1  # no client has seen it
            passed.append(delivery)
        for delivery in reversed(passed[ahead:] + passed[:ahead]):
            self.give_back(delivery)

    # items at rest

    def rest_head(self, until_ms: int) -> Delivery:
        """Take the head out of the line until `until_ms`, under a transaction that no client has."""
        delivery = self.line.pop()
        delivery.deliveries -= 1
        if self.transferring_head is not None:
            self._record_transferring_head()
        xid = next_rest_xid(self.last_rest_xid)
        while xid in self.resting or xid in self.open_reads or xid in self.delayed or xid in self.in_transfer:
            xid = next_rest_xid(xid)
        self.last_rest_xid = delivery.xid = xid
        self.journal.record_opened(delivery.id, xid)
        self.keep_at_rest(delivery, until_ms)
        return delivery

    def keep_at_rest(self, delivery: Delivery, until_ms: int) -> None:
        """Let an item rest that is under a transaction for that."""
        delivery.opened_ms = until_ms
        self.resting[delivery.xid] = delivery
        self._count_resting(delivery, 1)

    def forget_resting(self, delivery: Delivery) -> None:
        """Remove an item from those at rest. The caller records what becomes of it."""
        del self.resting[delivery.xid]
        self._count_resting(delivery, -1)

    def _count_resting(self, delivery: Delivery, sign: int) -> None:
        size = sign * len(delivery.item.data)
        self.resting_bytes += size
        self.resting_weight_bytes += size + sign * RESTING_COST_BYTES

    # transfers to another queue

    def open_head_for_transfer(self) -> Delivery:
        """Remove the head from the line and put it in transfer, under a transaction of its own."""
        delivery = self.line.pop()
        self._record_opened(delivery)
        self.set_aside(delivery)
        return delivery

    def pop_head_for_transfer(self, head: Item) -> Delivery:
        """Remove `head` from the line and put it in transfer, without a transaction if it is the only item of the
        queue.
        """
        if not self._is_only_item(head):
            return self.open_head_for_transfer()
        delivery = self.transferring_head = self.line.pop()
        self.in_transfer_bytes += len(head.data)
        return delivery

    def _is_only_item(self, head: Item) -> bool:
        """Return True if `head` is the only item of the queue and has no id. Items with ids can be distinguished."""
        if self.open_reads or self.delayed or self.resting or self.in_transfer or self.transferring_head is not None:
            return False
        return len(self.line) == 1 and not isinstance(head, Numbered)

    def set_aside(self, delivery: Delivery) -> None:
        """Put an item in transfer that is under a transaction and not an open read any more."""
        assert delivery.xid and delivery.xid not in self.open_reads
        self.in_transfer[delivery.xid] = delivery
        self.in_transfer_bytes += len(delivery.item.data)

    def is_in_transfer(self, delivery: Delivery) -> bool:
        """Return True until `delivery` is released or taken back, or the queue is closed."""
        return self.transferring_head is delivery or self.in_transfer.get(delivery.xid) is delivery

    def release(self, delivery: Delivery) -> bool:
        """Remove an item for good that has arrived at the other queue. Return False, and record nothing, if this queue
        was closed.
        """
        if self.transferring_head is delivery:
            self.transferring_head = None
            self.in_transfer_bytes -= len(delivery.item.data)
            self.journal.record(Removed(delivery.id))
            return True
        is_known = self._forget_in_transfer(delivery)
        if is_known:
            self.journal.record_confirmed(delivery.id, delivery.xid)
        return is_known

    def release_all(self, deliveries: list[Delivery]) -> None:
        """Release each of `deliveries`."""
        for delivery in deliveries:
            self.release(delivery)

    def take_back(self, delivery: Delivery) -> None:
        """Make an item in transfer the head of the line again, because it does not go to another queue."""
        if self.transferring_head is delivery:
            self._record_transferring_head()
        if self._forget_in_transfer(delivery):
            self.give_back(delivery)

    def take_back_unseen(self, delivery: Delivery) -> None:
        """Take back an item that no client has seen: it does not count as delivered."""
        delivery.deliveries -= 1
        self.take_back(delivery)

    def _forget_in_transfer(self, delivery: Delivery) -> bool:
        """Remove a transaction from `in_transfer`. Return False if there is none."""
        if self.in_transfer.get(delivery.xid) is not delivery:
            return False
        del self.in_transfer[delivery.xid]
        self.in_transfer_bytes -= len(delivery.item.data)
        return True

    # the journal

    def record_cleared(self, count: int) -> None:
        """Record the removal of the first `count` items of the line."""
        while count:
            some = min(count, CLEARED_MAX)
            self._record(Cleared(some))
            count -= some

    def _record(self, change: Change) -> None:
        """Record a change of the line's head, or of the item that becomes the head."""
        if self.transferring_head is not None:
            self._record_transferring_head()
        self.journal.record(change)

    def _record_opened(self, delivery: Delivery) -> None:
        """Put the item that was just removed from the line under a transaction."""
        if self.transferring_head is not None:
            self._record_transferring_head()  # uses the number before
        last = self.last_xid
        xid = last + 1
        if not 0 <= last < _XID_MAX or xid in self.open_reads or self.delayed or self.in_transfer:
            xid = next_xid(last, self.open_reads, self.delayed, self.in_transfer, self.resting)
        self.last_xid = delivery.xid = xid
        self.journal.record_opened(delivery.id, xid)

    def _record_transferring_head(self) -> None:
        """Put `transferring_head` under a transaction, because the next record is about another head."""
        delivery, self.transferring_head = self.transferring_head, None
        assert delivery is not None
        self._record_opened(delivery)
        self.in_transfer[delivery.xid] = delivery

    def _discard_all(self) -> None:
        """Forget every item, without a record. Large collections are freed over several turns."""
        line, self.line = self.line, PlainLine()
        line.abandon()
        reads, self.open_reads = self.open_reads, {}
        delayed, self.delayed = self.delayed, {}
        resting, self.resting = self.resting, {}
        if line.deferred_free is not None:
            line.deferred_free.add(reads, 0)
            line.deferred_free.add(delayed, self.delayed_bytes)
            line.deferred_free.add(resting, self.resting_bytes)
        self.delayed_bytes = self.resting_bytes = self.resting_weight_bytes = 0
        self.in_transfer.clear()
        self.transferring_head = None
        self.in_transfer_bytes = 0

    def check(self) -> None:
        """Assert that every count fits the items, and that each transaction is in one place only."""
        line = self.line
        assert line.bytes == sum(len(item.data) for item in line.items())
        assert line.expiring == sum(item.expires_ms != 0 for item in line.items())
        assert line.remnants == sum(map(is_remnant, [*line.in_memory, *(delivery.item for delivery in line.returned)]))
        under_way = [*self.open_reads.items(), *self.delayed.items(), *self.in_transfer.items()]
        under_way += self.resting.items()
        assert all(xid == delivery.xid != 0 for xid, delivery in under_way)
        assert len({xid for xid, _ in under_way}) == len(under_way), "an item is under one transaction"
        assert self.delayed_bytes == sum(len(delivery.item.data) for delivery in self.delayed.values())
        assert self.resting_bytes == sum(len(delivery.item.data) for delivery in self.resting.values())
        head = self.transferring_head
        in_transfer = [*self.in_transfer.values(), *([] if head is None else [head])]
        assert self.in_transfer_bytes == sum(len(delivery.item.data) for delivery in in_transfer)
        assert head is None or head.xid == 0
