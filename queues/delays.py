"""The delay of an item: it was put with a moment before which no client gets it.

The moment is stored with the item, like the past of a dead letter (past.py), and queues and journals carry it as bytes
(`ItemWithPast.past`). An item has one or the other: a delay is dropped when its item leaves a queue as a dead letter or
because it has expired.

An item with a delay stands in the line like any other. When it becomes the head before its time, the queue lets it
*rest*: it leaves the line under a transaction that no client has, until it is due (`QueueContents.resting`). The
numbers of these transactions are from a range of their own, so that a reader of the journal does not count a rest as a
delivery.

The line must know whether a head may have a delay without looking at each. So such an item always has an expiry, which
lines, sidecars and checkpoints count already: UNDYING_MS if it has no other.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from staniel.queues.calendar import Calendar
from staniel.queues.item import Item, ItemWithPast, past_bytes

UNDYING_MS = 9_000_000_000_000
"""The expiry of an item with a delay and without an expiry: a date in the year 2255, which the nanoseconds of other
programs can express.
"""
REST_XID_MIN = -(2**30)
"""Transactions of rests have the numbers from -1 down to this one. Those of reads begin at 1 and rise."""

_KIND = 3  # the first word, where a `Past` has its `Why`


class Delay(Struct, frozen=True, array_like=True):
    """The end of a delay, `due_ms`, as the wall clock shows it in the era of the put, at `put_ms`. It has the mark of
    that era, as the end of a lifetime has (calendar.py).
    """

    kind: int
    due_ms: int
    put_ms: int


_DECODER = msgspec.msgpack.Decoder(Delay)


def delay_of(item: Item) -> Delay | None:
    """Return the delay of an item; None if it has none."""
    fact = past_bytes(item)
    if not fact:
        return None
    try:
        delay = _DECODER.decode(fact)
    except (msgspec.DecodeError, ValueError):
        return None
    return delay if delay.kind == _KIND else None


def delayed_item(calendar: Calendar, item: Item, delay_ms: int, now_ms: int) -> Item:
    """Return `item`, which is put now, with a delay. Without a delay it is returned as it is."""
    if not delay_ms:
        return item
    delay = Delay(_KIND, calendar.end_of_life(now_ms, delay_ms), calendar.wall_ms(now_ms))
    encoded = msgspec.msgpack.encode(delay)
    return ItemWithPast(item.data, item.added_ms, item.expires_ms or UNDYING_MS, item.flags, encoded)


def due_ms(calendar: Calendar, item: Item, now_ms: int) -> int:
    """Return the server time at which the delay of `item` ends; 0 if it has none."""
    delay = delay_of(item)
    return 0 if delay is None else calendar.ends_at_ms(delay.put_ms, delay.due_ms, now_ms)


def expiry_of(item: Item) -> int:
    """Return the expiry that a client gave, or its queue's settings: 0 if the item does not expire."""
    return 0 if item.expires_ms == UNDYING_MS else item.expires_ms


def is_rest(xid: int, item: Item) -> bool:
    """Tell whether the transaction `xid` of `item` is a rest, and no client's read."""
    return REST_XID_MIN <= xid < 0 and delay_of(item) is not None


def next_rest_xid(last: int) -> int:
    """Return the number of a rest after the one with the number `last`."""
    return last - 1 if REST_XID_MIN < last <= 0 else -1
