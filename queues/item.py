"""An item, and an item that has left the line at least once."""

from __future__ import annotations

from msgspec import Struct

LOST_MS = -1
"""The expiry of an item that the disk has lost. Such an item is dropped, and never delivered or transferred."""

REMNANT_MS = 2
"""The expiry of the remnant of an item that expired behind a live head, see sweeping.py."""


class Item(Struct, gc=False):
    """An item as a client put it. Times are epoch milliseconds; `expires_ms` 0 = never. `flags` are memcache's, 32
    bits.

    Four fields fit into 48 bytes. There is no id, because most items never need one (see Line).
    """

    data: bytes
    added_ms: int
    expires_ms: int = 0
    flags: int = 0


class Numbered(Item, gc=False):
    """An item that got an id from its journal when it was put (libkestrel's format does that). `errors`: how often it
    had been given up before it was put.
    """

    id: int = 0
    errors: int = 0


class ItemWithXid(Item, gc=False):
    """An item that came with a transaction id of its own (ADD_XID in Kestrel's journal). After it was reserved once it
    is a plain item.
    """

    xid: int = 0
    past: bytes = b""


class ItemWithPast(Item, gc=False):
    """An item that has left a queue as a dead letter, or was put with a delay. `past`: an encoded `Past`, see past.py,
    or an encoded `Delay`, see delays.py. Journals store it with the item.
    """

    past: bytes = b""


class Delivery(Struct, gc=False, eq=False):
    """An item that was delivered at least once.

    `id`: the same at every delivery of this item. `xid`: the open read's number in its queue; 0 if the item was removed
    for good. `deliveries` counts this one. `opened_ms`: when the read was opened. `seq`: how many items had left the
    line before it, since the journal began; negative for an item that never stood in the line. `client`: the address of
    the client that got it, if that is known.
    """

    item: Item
    id: int
    deliveries: int = 1
    xid: int = 0
    opened_ms: int = 0
    seq: int = 0
    client: str = ""


ID_SHIFT = 16  # room for 65,536 items added within one millisecond before ids run ahead of the clock


def id_after(added_ms: int, last_id: int) -> int:
    """Return the id of an item that was added at `added_ms` and leaves the line directly after the item `last_id`."""
    by_clock = added_ms << ID_SHIFT
    return by_clock if by_clock > last_id else last_id + 1


# Called with all fields, in their order: compiled, these are cheaper than the classes (item.pyx).
new_item, new_delivery = Item, Delivery


def item_with(past: bytes, data: bytes, added_ms: int, expires_ms: int, flags: int) -> Item:
    """Return an item, with its past or delay if it has one."""
    return ItemWithPast(data, added_ms, expires_ms, flags, past) if past else Item(data, added_ms, expires_ms, flags)


def past_bytes(item: Item) -> bytes:
    """Return the encoded past or delay of an item; b"" if it has none."""
    return item.past if isinstance(item, ItemWithPast | ItemWithXid) else b""


def copy_of(item: Item) -> Item:
    """Return the same item without the marks that are valid only in its present journal."""
    return item_with(past_bytes(item), item.data, item.added_ms, item.expires_ms, item.flags)


def is_remnant(item: Item) -> bool:
    """Tell whether only its place in the line is left of this item."""
    return item.expires_ms == REMNANT_MS and not item.data


def is_payload_gone(item: Item) -> bool:
    """Tell whether there is nothing to deliver or to transfer: the disk lost the payload, or a sweep removed it."""
    return item.expires_ms == LOST_MS or is_remnant(item)


def remnant_of(item: Item) -> Item:
    """Return the remnant of an expired item: the data from which its id is computed, or its id."""
    if isinstance(item, Numbered):
        return Numbered(b"", item.added_ms, REMNANT_MS, 0, item.id, item.errors)
    return Item(b"", item.added_ms, REMNANT_MS)
