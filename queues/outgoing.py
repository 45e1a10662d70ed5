"""The items of one queue that are on their way to another: taken from the line, and not yet gone.

Knows how they stand in the journal meanwhile: open, under a transaction of their own. Refuses to know where they go and
when they have arrived: the transfer sink does, and then calls `release`.

An expired item that is all its queue holds costs one plain removal, as in Kestrel: for the journal it is the head until
then (`unrecorded`), and nothing else can be meant. Before a record that would mean another head the queue calls
`record_as_open`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.queues.changes import Confirmed, Opened, Reason, Removed, TransferSink
from staniel.queues.item import Delivery, Item, Numbered
from staniel.queues.xids import next_xid, previous_xid

if TYPE_CHECKING:
    from staniel.queues.queue import Queue


class Outgoing:
    """`leaving`: by xid. For all other expired items a transaction is opened: its number says later which of several
    equal ones has left. (With plain removals for all, an equal item could be taken for one that is gone already.)
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.leaving: dict[int, Delivery] = {}
        self.unrecorded: Delivery | None = None
        self.bytes = 0  # of payload

    def send_expired(self, sink: TransferSink, now_ms: int) -> None:
        """The head has expired: it goes to expire_to_queue."""
        if not self._is_alone:
            sink.accept(self.queue, self._take_head(), Reason.EXPIRED, now_ms)
            return
        taken = self.unrecorded = self.queue.line.pop()
        self.bytes += len(taken.item.data)
        sink.accept(self.queue, taken, Reason.EXPIRED, now_ms)

    @property
    def _is_alone(self) -> bool:
        """Whether the queue has one item, and no more. One with an id can always be told from others."""
        queue = self.queue
        under_way = queue.open_reads or queue.delayed or self.leaving or self.unrecorded is not None
        return len(queue.line) == 1 and not under_way and not isinstance(queue.line.head(), Numbered)

    def record_as_open(self) -> None:
        """Put what is in limbo under a transaction: the next record means another head."""
        taken, self.unrecorded = self.unrecorded, None
        if taken is not None:
            self.queue.begin(taken)
            self.leaving[taken.xid] = taken

    def send_dead(self, sink: TransferSink, taken: Delivery, now_ms: int) -> None:
        """A read that is no longer open was its item's last: it goes to dead_letter_queue."""
        self._set_aside(taken)
        sink.accept(self.queue, taken, Reason.DEAD, now_ms)

    def send_head(self, sink: TransferSink, target: str, now_ms: int) -> None:
        """An operator wants the head in queue `target`."""
        sink.accept(self.queue, self._take_head(), Reason.MOVED, now_ms, target)

    def _take_head(self) -> Delivery:
        taken = self.queue.line.pop()
        self.record_as_open()
        self.queue.begin(taken)
        self._set_aside(taken)
        return taken

    def _set_aside(self, taken: Delivery) -> None:
        self.leaving[taken.xid] = taken
        self.bytes += len(taken.item.data)

    def _forget(self, taken: Delivery) -> bool:
        """False if it is not known any more: the queue was closed."""
        if self.leaving.get(taken.xid) is not taken:
            return False
        del self.leaving[taken.xid]
        self.bytes -= len(taken.item.data)
        return True

    def release(self, taken: Delivery) -> bool:
        """The item has arrived: it is gone from here for good. False if the queue was closed: it records nothing."""
        if self.unrecorded is taken:
            self.unrecorded = None
            self.bytes -= len(taken.item.data)
            self.queue.journal.record(Removed(taken.id))
            return True
        is_known = self._forget(taken)
        if is_known:
            self.queue.journal.record(Confirmed(taken.id, taken.xid))
        return is_known

    def give_back(self, taken: Delivery) -> None:
        """The item goes nowhere: it is the head of the line again."""
        if self.unrecorded is taken:
            self.record_as_open()
        if self._forget(taken):
            self.queue.give_back(taken)

    # recovery

    def claim_open(self, xid: int, means: Callable[[Item, int], bool]) -> Delivery | None:
        """Set aside the item that the journal says is open under `xid`, before open reads are put back; None if none
        is, or another item. `means` gets an item and its id.
        """
        taken = self.queue.open_reads.get(xid)
        if taken is None or not means(taken.item, taken.id):
            return None
        del self.queue.open_reads[xid]
        self._set_aside(taken)
        return taken

    def claim(self, xid: int, means: Callable[[Item, int], bool]) -> Delivery | None:
        """Set aside the first item that is meant, open under another number or in the line, under `xid` (0: the next
        number), of which the journal does not know. None if there is none. Raises OSError if the line cannot be read.

        Those ahead of it are opened too, and handed back, because a record can only mean the head. Their transactions
        get numbers below the last one, so that wherever the disk stops the journal's last number tells whether `xid`
        was opened.
        """
        queue = self.queue
        is_open = next((taken for taken in queue.open_reads.values() if means(taken.item, taken.id)), None)
        if is_open is not None:
            del queue.open_reads[is_open.xid]
            queue.give_back(is_open)
        ahead = next((at for at, item in enumerate(queue.line.walk()) if means(item, getattr(item, "id", 0))), None)
        if ahead is None:
            return None
        last, passed = queue.last_xid, []
        spare = last
        for _ in range(ahead):
            spare = previous_xid(spare, queue.open_reads, queue.delayed, self.leaving, (xid,))
            passed.append(self._open_head_as(spare))
        queue.last_xid = last
        xid = xid or next_xid(last, queue.open_reads, queue.delayed, self.leaving)
        taken = self._open_head_as(xid)
        self._set_aside(taken)
        for each in reversed(passed):
            queue.give_back(each)
        return taken

    def _open_head_as(self, xid: int) -> Delivery:
        queue = self.queue
        queue.line.head()
        taken = queue.line.pop()
        queue.last_xid = taken.xid = xid
        queue.journal.record(Opened(taken.id, xid))
        return taken

    def clear(self) -> None:
        """The queue is closed: nothing that arrives concerns it any more."""
        self.leaving.clear()
        self.unrecorded = None
        self.bytes = 0
