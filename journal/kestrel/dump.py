"""The rows of Kestrel's journal files. Source: the Kestrel journal format, and the words of Kestrel's own dumper."""

from __future__ import annotations

from staniel.journal.dump import Row, Totals
from staniel.journal.kestrel.records import (
    ADD,
    ADDX,
    BLOCK_HEAD_BYTES,
    CONFIRM_REMOVE,
    FIXED_BYTES,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    SIZE_END,
    STATE_DUMP,
    UNREMOVE,
    XID_BODY,
    Record,
    decode,
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


class KestrelDumper:
    """The reader of a file from its start. It counts the numbers that reserves without a number get."""

    format = "kestrel"
    start = 0

    def __init__(self) -> None:
        self.counter = 0
        self.open: set[int] = set()

    def row(self, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row:
        record = decode(data, at, end, rest_bytes)
        size = record.stop - at
        if record.listed is not None:
            return Row(offset, size, "DUMP", record.xid, more={"open": len(record.listed)})
        if record.size >= 0:
            return _item_row(record, record.payload(data), size, offset)
        if record.op == REMOVE:
            return Row(offset, size, NAMES[REMOVE])
        return Row(offset, size, NAMES[record.op], self._follow(record))

    def skip(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Skip ADDX records and records that hold no item."""
        count, last_at, last_size_at = 0, at, end - SIZE_END
        unpack, fixed_bytes = XID_BODY.unpack_from, FIXED_BYTES.get  # four bytes, like a size
        while at < end:
            op = data[at]
            if op == ADDX and at <= last_size_at:
                (size,) = unpack(data, at + 1)
                stop = at + SIZE_END + size
                if size < BLOCK_HEAD_BYTES:
                    break
            else:
                stop = at + fixed_bytes(op, end + 1)  # for an opcode without a fixed size, behind the end
            if stop > end:
                break
            count += 1
            last_at, at = at, stop
        return count, last_at, at

    def summary(self, totals: Totals) -> str:
        text = f"Journal size: {totals.bytes} bytes, with {totals.records} operations."
        return f"{text}\n{totals.items} items totalling {totals.item_bytes} bytes were added."

    def _follow(self, record: Record) -> int:
        """Return the transaction id that a record names or, for a REMOVE_TENTATIVE, is given."""
        op, xid = record.op, record.xid
        if op in (UNREMOVE, CONFIRM_REMOVE):
            self.open.discard(xid)
            return xid
        if op == REMOVE_TENTATIVE:
            xid = next_xid(self.counter, self.open)
        if op != SAVE_XID:
            self.open.add(xid)
        self.counter = xid
        return xid


def _item_row(record: Record, payload: bytes, size: int, offset: int) -> Row:
    op = record.op
    xid = None if op in (ADD, ADDX) else record.xid
    added_ms = None if op == ADD else record.added_ms
    name = "CON" if op == STATE_DUMP else "ADD"
    return Row(offset, size, name, xid, payload, added_ms, record.expires_ms or None)
