"""The reader of the items that are added by a Kestrel journal's records, in order, for read-behind."""

from __future__ import annotations

from staniel.journal.errors import IncompleteRecord
from staniel.journal.kestrel.adds import read_adds
from staniel.journal.kestrel.notes import fact_in
from staniel.journal.kestrel.records import (
    ADD_XID,
    ADDX,
    ADDX_BODY,
    ADDX_HEAD_BYTES,
    BLOCK_HEAD_BYTES,
    FIXED_BYTES,
    FLAGS_MASK,
    SAVE_XID,
    SIZE_END,
    STATE_DUMP,
    XID_BODY,
    decode,
)
from staniel.queues.item import LOST_MS, Item, ItemWithXid, item_with, past_bytes

LOST = Item(b"", 0, LOST_MS)


def is_stand_in(item: Item) -> bool:
    """Tell whether a pack wrote `item` in place of a removed one: no client puts items at the moment 0."""
    return not item.added_ms and not item.data and not item.expires_ms


def read_items(
    data: bytes,
    at: int,
    rest_bytes: int,
    items: list[Item],
    count_max: int,
    saves: list[int],
    loses_stand_ins: bool = False,
) -> int:
    """Append at most `count_max` items to `items`, from byte `at` of `data` on. Return the byte where that stopped.

    `rest_bytes` of the file follow `data`. `saves`: the transaction ids of the SAVE_XID records before byte `at`, which
    this updates. `loses_stand_ins`: append LOST in place of a pack's stand-ins. Raises CorruptRecord with the byte in
    `data` if a record is damaged; `items` has those before it.
    """
    end, count_max = len(data), count_max + len(items)
    unpack, unpack_xid, fixed = ADDX_BODY.unpack_from, XID_BODY.unpack_from, FIXED_BYTES
    try:
        while at < end and len(items) < count_max:
            op = data[at]
            if op == ADDX and not saves and (stop := read_adds(data, at, end, items, count_max, loses_stand_ins)) > at:
                at = stop
            elif op == ADDX and end - at >= ADDX_HEAD_BYTES:
                size, added_ms, expires_ms = unpack(data, at + 1)
                stop = at + SIZE_END + size
                if size < BLOCK_HEAD_BYTES or stop > end:
                    decode(data, at, end, rest_bytes)  # raises
                if size == BLOCK_HEAD_BYTES and loses_stand_ins and not (added_ms or expires_ms):
                    items.append(LOST)
                    saves.clear()
                else:
                    items.append(_item(data[at + ADDX_HEAD_BYTES : stop], added_ms, expires_ms, saves))
                at = stop
            elif op in fixed and end - at >= fixed[op]:
                if op == SAVE_XID:
                    saves.append(unpack_xid(data, at + 1)[0])
                else:
                    saves.clear()
                at += fixed[op]
            else:
                record = decode(data, at, end, rest_bytes)
                if op == STATE_DUMP:
                    saves.clear()
                if record.size >= 0:
                    item = _item(record.payload(data), record.added_ms, record.expires_ms, saves)
                    items.append(_with_xid(item, record.xid) if op == ADD_XID else item)
                at = record.stop
    except IncompleteRecord:
        pass
    return at


def _item(payload: bytes, added_ms: int, expires_ms: int, saves: list[int]) -> Item:
    """Return an item with the past and the flags from the records before its own, and clear `saves`."""
    past = fact_in(saves, added_ms, payload) if len(saves) > 2 else b""
    return item_with(past, payload, added_ms, expires_ms, _flags(saves))


def _with_xid(item: Item, xid: int) -> ItemWithXid:
    return ItemWithXid(item.data, item.added_ms, item.expires_ms, item.flags, xid, past_bytes(item))


def _flags(saves: list[int]) -> int:
    """Return the memcache flags in two SAVE_XID records before an item, and clear `saves`. A reader that begins in the
    middle of a file does not know the counter, so it cannot check that the second record restores it. But before an
    item two such records have no other meaning.
    """
    flags = saves[-2] & FLAGS_MASK if len(saves) >= 2 else 0
    saves.clear()
    return flags
