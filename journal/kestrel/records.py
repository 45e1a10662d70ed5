"""The shape of single Kestrel records: where one ends and what it carries. No state.

Knows the rare records that the fast loops (summaries, columns) do not read themselves, by the same rules as
journal/kestrel/replay.py, and whether a record breaks off or is damaged. Source: the Kestrel journal format document.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from staniel.journal.errors import Corrupt, NeedMore, Truncated, past_end
from staniel.journal.kestrel.encoder import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
)
from staniel.journal.kestrel.replay import ADD_BODY, ADDX_BODY, BLOCK_MIN, DUMP_BODY, NAMED_BODY, XID_BODY

XID_ONLY = frozenset((SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID))
SINGLE = frozenset((1, REMOVE_TENTATIVE))


class Record(Struct, frozen=True, gc=False):
    """One record. Offsets are bytes of the piece that it was read from; `stop` is where the next one starts.

    An item's payload is `payload` to `payload` + `size`. `listed`: the items of an opcode 8 list, each as a record of
    its own, None for every other record: an opcode 8 without a list is "confirm `xid`, and append this item".
    """

    op: int
    stop: int
    xid: int = 0
    payload: int = 0
    size: int = -1
    added_ms: int = 0
    expires_ms: int = 0
    listed: list[Record] | None = None


def read(data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    """The record at `at`. `rest_bytes`: how many bytes of the file follow `end`.

    Raises Corrupt for damage, NeedMore when the record goes on behind `end`; at the end of the file that is damage
    too. The payload of an ADDX may reach behind `end`: only its head is looked at.
    """
    op = data[at]
    try:
        if op == ADDX:
            size, added_ms, expires_ms = _unpack(ADDX_BODY, data, at + 1, end)
            stop = _block(size, BLOCK_MIN, at + 5, end + rest_bytes)
            return Record(op, stop, 0, at + 21, size - BLOCK_MIN, added_ms, expires_ms)
        if op in SINGLE:
            return Record(op, at + 1)
        if op in XID_ONLY:
            return Record(op, at + 5, _unpack(XID_BODY, data, at + 1, end)[0])
        if op == ADD:
            size, expires_s = _unpack(ADD_BODY, data, at + 1, end)
            stop = _whole(_block(size, 4, at + 5, end + rest_bytes), end)
            return Record(op, stop, 0, at + 9, size - 4, 0, expires_s * 1000)
        if op == ADD_XID:
            return _named(op, data, at + 1, end, rest_bytes)
        if op == STATE_DUMP:
            return _eight(data, at + 1, end, rest_bytes)
    except NeedMore:
        if not rest_bytes:
            raise Truncated(at=at) from None
        raise
    except Corrupt as error:
        error.at = at
        raise
    raise Corrupt(f"unknown opcode {op}", at)


def _eight(data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    """Opcode 8 has two meanings; journal/kestrel/replay.py says how they are told apart."""
    _, number = _unpack(DUMP_BODY, data, at, end)
    if number < 0:
        raise Corrupt(f"opcode 8 with the size {number}")
    if number < BLOCK_MIN:
        return _list(data, at, end, rest_bytes)
    try:
        return _list(data, at, end, rest_bytes)
    except Corrupt:
        return _named(STATE_DUMP, data, at, end, rest_bytes)
    except NeedMore:
        if rest_bytes:
            raise
        return _named(STATE_DUMP, data, at, end, rest_bytes)


def _list(data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    counter, count = DUMP_BODY.unpack_from(data, at)
    at += 8
    listed = []
    for _ in range(count):
        if at >= end:
            raise NeedMore
        if data[at] != ADD_XID:
            raise Corrupt("opcode 8 with a list that is not there")
        record = _named(ADD_XID, data, at + 1, end, rest_bytes)
        at = record.stop
        if at >= end:
            raise NeedMore
        if data[at] != REMOVE_TENTATIVE:
            raise Corrupt("opcode 8 with a list that breaks off")
        at += 1
        listed.append(record)
    return Record(STATE_DUMP, at, counter, listed=listed)


def _named(op: int, data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    if end - at < 8:
        raise NeedMore
    xid, size = DUMP_BODY.unpack_from(data, at)
    stop = _whole(_block(size, BLOCK_MIN, at + 8, end + rest_bytes), end)
    _, _, added_ms, expires_ms = NAMED_BODY.unpack_from(data, at)
    return Record(op, stop, xid, at + 24, size - BLOCK_MIN, added_ms, expires_ms)


def _block(size: int, size_min: int, at: int, limit: int) -> int:
    if size < size_min:
        raise Corrupt(f"a block of {size} bytes, at least {size_min} expected")
    if at + size > limit:
        raise past_end(size, limit - at)
    return at + size


def _whole(stop: int, end: int) -> int:
    if stop > end:
        raise NeedMore
    return stop


def _unpack(layout: struct.Struct, data: bytes, at: int, end: int) -> tuple[int, ...]:
    if end - at < layout.size:
        raise NeedMore
    return layout.unpack_from(data, at)
