"""Recovery of transfers: set aside the item of a queue that was on its way to another one when the server ended.

The open reads of the queue must not have been put back yet. A found item is in transfer again (`Queue.release`,
`Queue.take_back`). `means` gets an item and its id, and says whether it is the wanted one.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.queues.changes import Opened
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from staniel.queues.xids import previous_xid


def set_aside_open(queue: Queue, xid: int, means: Callable[[Item, int], bool]) -> Delivery | None:
    """Set aside the item that is open under `xid` in the journal; None if there is none, or it is another item."""
    delivery = queue.open_reads.get(xid)
    if delivery is None or not means(delivery.item, delivery.id):
        return None
    del queue.open_reads[xid]
    queue.set_aside(delivery)
    return delivery


def set_aside_found(queue: Queue, xid: int, means: Callable[[Item, int], bool]) -> Delivery | None:
    """Set aside the first wanted item, open under another number or in the line, under `xid`, which the journal does
    not know. With 0, use a number below the last one, so that no other intent takes it for its own. Return None if
    there is no such item. Raises OSError if the line cannot be read.

    Items before it are opened too, and returned, because a record can only mean the head. Their transactions get
    numbers below the last one. So wherever a crash cuts the journal off, its last number shows whether `xid` was
    opened: records of such a number restore the last one (Encoder.opened).
    """
    assert queue.transferring_head is None, "an opened item is the head of the journal's line, too"
    is_open = next((delivery for delivery in queue.open_reads.values() if means(delivery.item, delivery.id)), None)
    if is_open is not None:
        del queue.open_reads[is_open.xid]
        queue.give_back(is_open)
    ahead = next((at for at, item in enumerate(queue.line.walk()) if means(item, getattr(item, "id", 0))), None)
    if ahead is None:
        return None
    passed: list[Delivery] = []
    spare = queue.last_xid
    for _ in range(ahead):
        spare = _previous(queue, spare, xid)
        passed.append(_open_head_as(queue, spare))
    if xid:
        queue.last_xid = xid
    delivery = _open_head_as(queue, xid or _previous(queue, spare, 0))
    queue.set_aside(delivery)
    for open_read in reversed(passed):
        queue.give_back(open_read)
    return delivery


def _previous(queue: Queue, spare: int, xid: int) -> int:
    return previous_xid(spare, queue.open_reads, queue.delayed, queue.resting, queue.in_transfer, (xid,))


def _open_head_as(queue: Queue, xid: int) -> Delivery:
    queue.line.head()
    delivery = queue.line.pop()
    delivery.xid = xid
    queue.journal.record(Opened(delivery.id, xid))
    return delivery
