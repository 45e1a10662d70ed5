"""The rows of Kestrel's journal files.

Knows every opcode, and the numbers that bare reserves get. Refuses to know print, and which items are left. Source: the
Kestrel journal format, and the words of Kestrel's own dumper.
"""

from __future__ import annotations

import struct

from staniel.journal.dump import Row, Totals
from staniel.journal.errors import Corrupt, NeedMore, past_end
from staniel.journal.kestrel.encoder import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
)
from staniel.queues.xids import next_xid

NAMES = {
    REMOVE: "REM",
    REMOVE_TENTATIVE: "RSV",
    SAVE_XID: "XID",
    UNREMOVE: "CAN",
    CONFIRM_REMOVE: "ACK",
    REMOVE_TENTATIVE_XID: "RSV",
}
WITH_XID = (SAVE_XID, UNREMOVE, CONFIRM_REMOVE, REMOVE_TENTATIVE_XID)
# By opcode of those that add an item: the words before the times or the data, the bytes that the size word counts
# beside the data.
BLOCKS = {ADD: (struct.Struct("<ii"), 4), ADDX: (struct.Struct("<iqq"), 16), ADD_XID: (struct.Struct("<iiqq"), 16)}


class KestrelDumper:
    """Reads one file from its start."""

    format = "kestrel"
    start = 0

    def __init__(self) -> None:
        self.counter = 0
        self.open: set[int] = set()

    def row(self, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row | None:
        op = data[at]
        if op in BLOCKS:
            return self._add(op, data, at, end, rest_bytes, offset)
        if op == STATE_DUMP:
            return self._eight(data, at, end, rest_bytes, offset)
        if op not in NAMES:
            raise Corrupt(f"unknown opcode {op}")
        if op in WITH_XID and end - at < 5:
            raise NeedMore
        if op == REMOVE:
            return Row(offset, 1, NAMES[op])
        if op == REMOVE_TENTATIVE:
            self._opened(next_xid(self.counter, self.open))
            return Row(offset, 1, NAMES[op], self.counter)
        (xid,) = struct.unpack_from("<i", data, at + 1)
        if op == REMOVE_TENTATIVE_XID:
            self._opened(xid)
        elif op == SAVE_XID:
            self.counter = xid
        else:
            self.open.discard(xid)
        return Row(offset, 5, NAMES[op], xid)

    def summary(self, totals: Totals) -> str:
        text = f"Journal size: {totals.bytes} bytes, with {totals.records} operations."
        return f"{text}\n{totals.items} items totalling {totals.item_bytes} bytes were added."

    def _opened(self, xid: int) -> None:
        self.counter = xid
        self.open.add(xid)

    def _add(self, op: int, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row:
        layout, counted = BLOCKS[op]
        if end - at - 1 < layout.size:
            raise NeedMore
        words = layout.unpack_from(data, at + 1)
        xid = words[0] if op == ADD_XID else None
        size = words[1] if op == ADD_XID else words[0]
        begin = at + 1 + layout.size
        stop = begin + size - counted
        if size < counted:
            raise Corrupt(f"a block of {size} bytes, at least {counted} expected")
        if stop > end + rest_bytes:
            raise past_end(size, end + rest_bytes - begin + counted)
        if stop > end:
            raise NeedMore
        added_ms, expires_ms = (None, words[1] * 1000) if op == ADD else words[-2:]
        return Row(offset, stop - at, "ADD", xid, data[begin:stop], added_ms, expires_ms or None)

    def _eight(self, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row:
        """A list of open reads if one follows, else "confirm, and append this": what replay takes it for."""
        if end - at < 9:
            raise NeedMore
        xid, number = struct.unpack_from("<ii", data, at + 1)
        try:
            stop = self._list_end(data, at + 9, end, rest_bytes, number)
            return Row(offset, stop - at, "DUMP", xid, more={"open": number})
        except Corrupt:
            if number < BLOCKS[ADD_XID][1]:
                raise
        except NeedMore:
            if rest_bytes or number < BLOCKS[ADD_XID][1]:
                raise
        row = self._add(ADD_XID, data, at, end, rest_bytes, offset)
        return Row(row.at, row.size, "CON", row.number, row.data, row.added_ms, row.expires_ms)

    def _list_end(self, data: bytes, at: int, end: int, rest_bytes: int, count: int) -> int:
        for _ in range(count):
            if at >= end:
                raise NeedMore
            if data[at] != ADD_XID:
                raise Corrupt("opcode 8 with a list that is not there")
            at += self._add(ADD_XID, data, at, end, rest_bytes, 0).size
            if at >= end:
                raise NeedMore
            if data[at] != REMOVE_TENTATIVE:
                raise Corrupt("opcode 8 with a list that breaks off")
            at += 1
        return at
