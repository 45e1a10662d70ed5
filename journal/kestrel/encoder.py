"""The encoder of the Kestrel journal's records: changes of a queue to bytes.

Source: the Kestrel journal format document. The numbering of opcode 3, opcode 9 and the order of a rewritten file are
as Kestrel 1.x to 2.4 read them.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.journal.kestrel.addx import addx_record, xid_record
from staniel.journal.kestrel.notes import note_records
from staniel.journal.kestrel.records import (
    ADD_XID,
    ADD_XID_HEAD,
    ADDX,
    ADDX_HEAD,
    BLOCK_HEAD_BYTES,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    UNREMOVE,
)
from staniel.queues.changes import Aborted, Change, Cleared, Confirmed, Opened, Removed
from staniel.queues.config import JournalDialect
from staniel.queues.item import Delivery, Item, ItemWithPast, past_bytes
from staniel.queues.xids import XID_MAX, XID_MIN, next_xid, steps_past

REMOVE_RECORD = bytes((REMOVE,))
RESERVE_RECORD = bytes((REMOVE_TENTATIVE,))
_CONFIRM_REMOVE = CONFIRM_REMOVE  # a C number in the compiled build
# Bound here: CPython 3.11 makes a new method object for each call of a method of an imported name.
pack_addx = ADDX_HEAD.pack
pack_add_xid = ADD_XID_HEAD.pack
KESTREL_24 = JournalDialect.KESTREL_24  # Python looks up a global ten times as fast as a member of an Enum


def signed(flags: int) -> int:
    """Return 32 bits as the signed number in a SAVE_XID."""
    return flags - (1 << 32) if flags > XID_MAX else flags


class Encoder:
    """The writer of the records of one queue. It tracks the state that a reader of them would have.

    memcache flags have no field in this format. `SAVE_XID(flags) SAVE_XID(counter)` before an ADDX has no effect on any
    reader, because the second record undoes the first; our reader takes the flags from it. The past of an item stands
    before them, see notes.py.
    """

    def __init__(self, dialect: JournalDialect, counter: int = 0) -> None:
        self.dialect = dialect
        self.counter = counter
        self.open: set[int] = set()
        self.took = False  # an item has left the line since this was last reset

    def encode(self, change: Change) -> bytes:
        """Return the record of a change. For an Added call addx(item) instead."""
        kind = type(change)
        if kind is Opened:
            return self.opened(change.xid)  # type: ignore[union-attr]
        if kind is Confirmed:
            return self.confirmed(change.xid)  # type: ignore[union-attr]
        if kind is Aborted:
            return self._aborted(change)  # type: ignore[arg-type]
        if kind is Removed:
            self.took = True
            return REMOVE_RECORD
        assert kind is Cleared
        return self._cleared(change)  # type: ignore[arg-type]

    def snapshot(self, counter: int, open_reads: dict[int, Delivery], items: list[Item]) -> Iterator[bytes]:
        """Yield the records of a new file, one by one: the counter, every open read, every item. An empty state with
        the counter 0 has no records. Call this on a new Encoder.

        A counter that no item follows is written twice, because a single one might be the beginning of a record that
        was cut off.
        """
        assert not self.open and not self.counter
        if open_reads or items:
            yield self.save_xid(counter)
        elif counter:
            yield self.encode_empty(counter)
        for xid in sorted(open_reads):
            yield self._still_open(xid, open_reads[xid].item)
        if self.counter != counter and open_reads:
            yield self.encode_empty(counter)
        for item in items:
            yield self.addx(item)
        self.open.update(open_reads)

    def addx(self, item: Item) -> bytes:
        """Return the record of an item in the line."""
        if item.flags or type(item) is ItemWithPast:
            return self._in_front(item) + addx_record(item)
        return addx_record(item)

    def _cleared(self, change: Cleared) -> bytes:
        self.took = True
        return REMOVE_RECORD * change.count

    def opened(self, xid: int) -> bytes:
        """Return the records of an Opened."""
        self.took = True
        number = xid  # a C number in the compiled build
        if number == self.counter + 1 != 0 and self.dialect is not KESTREL_24:
            record = RESERVE_RECORD
            self.counter = number
        else:
            record = self._opened_as(xid)
        self.open.add(xid)
        return record

    def _opened_as(self, xid: int) -> bytes:
        """Return the records of an open read whose number is not the next one. If the number is below the counter, 0
        and the counter follow, so that the next number stays the same for every reader.
        """
        if self.dialect is KESTREL_24:
            record = xid_record(REMOVE_TENTATIVE_XID, xid)
        elif next_xid(self.counter, self.open) == xid:
            record = RESERVE_RECORD
        else:
            record = xid_record(SAVE_XID, xid - 1 if xid != XID_MIN else XID_MAX) + RESERVE_RECORD
        if steps_past(self.counter, xid) <= 0:
            return record + self.restored()
        self.counter = xid
        return record

    def restored(self) -> bytes:
        """Return the records that restore the counter. The leading 0 tells every reader that the pair has no memcache
        flags, whatever records precede it.
        """
        return xid_record(SAVE_XID, 0) + xid_record(SAVE_XID, self.counter)

    def confirmed(self, xid: int) -> bytes:
        """Return the record of a Confirmed."""
        self.open.discard(xid)
        return xid_record(_CONFIRM_REMOVE, xid)

    def _aborted(self, change: Aborted) -> bytes:
        self.open.discard(change.xid)
        return xid_record(UNREMOVE, change.xid)

    def _in_front(self, item: Item) -> bytes:
        """Return the records before an item: its past and its flags, which have no field in its own record."""
        past = past_bytes(item)
        note_record = note_records(past, item.added_ms, item.data, self.counter) if past else b""
        return note_record + self._flags(item.flags) if item.flags else note_record

    def _flags(self, flags: int) -> bytes:
        return xid_record(SAVE_XID, signed(flags)) + xid_record(SAVE_XID, self.counter)

    def save_xid(self, counter: int) -> bytes:
        """Return the record that sets the last used transaction id."""
        self.counter = counter
        return xid_record(SAVE_XID, counter)

    def encode_empty(self, counter: int) -> bytes:
        """Return all records of a pack without items and open reads. A pack that was cut off may have one such record
        or none, so a whole pack has two, which mean the same to every reader.
        """
        return self.save_xid(counter) * 2

    def _still_open(self, xid: int, item: Item) -> bytes:
        before = self._in_front(item)
        if self.dialect is JournalDialect.KESTREL_24:
            # Kestrel 2.4 ignores the id of an ADD_XID and misreads opcode 3. So write an ADDX, then a reserve with its
            # id.
            head = pack_addx(ADDX, len(item.data) + BLOCK_HEAD_BYTES, item.added_ms, item.expires_ms)
            self.counter = xid
            return before + head + item.data + xid_record(REMOVE_TENTATIVE_XID, xid)
        head = pack_add_xid(ADD_XID, xid, len(item.data) + BLOCK_HEAD_BYTES, item.added_ms, item.expires_ms)
        return before + head + item.data + RESERVE_RECORD
