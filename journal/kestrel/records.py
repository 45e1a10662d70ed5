"""The Kestrel journal's records: opcodes, layouts, lengths, and the decoder of every record.

Replay, dump, read-behind, search, the effect scan and the pipeline's columns use it. A loop that must be fast reads the
common records by itself, with the layouts from here, and leaves the others to `decode`; property tests compare each
such loop with the decoder. Source: the Kestrel journal format document; where it differs from real journals (opcodes 8
and 9), the records that Kestrel 1.x to 2.4 wrote.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from staniel.journal.errors import CorruptRecord, IncompleteRecord, TruncatedRecord, past_end
from staniel.queues.item import Item, ItemWithXid, copy_of

ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID = 0, 1, 2, 3, 4
UNREMOVE, CONFIRM_REMOVE, ADD_XID, STATE_DUMP, REMOVE_TENTATIVE_XID = 5, 6, 7, 8, 9

ADDX_HEAD = struct.Struct("<Biqq")  # opcode, size, add time, expiry
ADD_XID_HEAD = struct.Struct("<Biiqq")  # opcode, transaction id, size, add time, expiry
WITH_XID = struct.Struct("<Bi")  # opcode, transaction id
# The same without the opcode, which the reader has read already.
ADD_BODY = struct.Struct("<ii")  # size, expiry in seconds
ADDX_BODY = struct.Struct("<iqq")
ADD_XID_BODY = struct.Struct("<iiqq")
XID_BODY = struct.Struct("<i")
XID_AND_NUMBER = struct.Struct(
    "<ii"
)  # the first fields of an ADD_XID and of both kinds of opcode 8: the number is a size or a count

ADD_HEAD_BYTES = 1 + ADD_BODY.size
ADDX_HEAD_BYTES = ADDX_HEAD.size
ADD_XID_HEAD_BYTES = ADD_XID_HEAD.size
WITH_XID_BYTES = WITH_XID.size
BLOCK_HEAD_BYTES = 16  # the add time and the expiry, which the size of an item includes
ADD_BLOCK_HEAD_BYTES = 4  # the expiry, which the size of an ADD includes
SIZE_END = 5  # the offset from which the size of an ADD or ADDX counts
XID_SIZE_END = 1 + XID_AND_NUMBER.size  # the same for an ADD_XID
FLAGS_MASK = 0xFFFFFFFF
NEVER = bytes(8)  # the expiry of an item that has none

# The lengths of records that consist of an opcode, or of an opcode and a transaction id.
FIXED_BYTES = {
    REMOVE: 1,
    REMOVE_TENTATIVE: 1,
    SAVE_XID: WITH_XID_BYTES,
    UNREMOVE: WITH_XID_BYTES,
    CONFIRM_REMOVE: WITH_XID_BYTES,
    REMOVE_TENTATIVE_XID: WITH_XID_BYTES,
}
# The number of bytes before the payload, for records with an item.
HEAD_BYTES = {
    ADD: ADD_HEAD_BYTES,
    ADDX: ADDX_HEAD_BYTES,
    ADD_XID: ADD_XID_HEAD_BYTES,
    STATE_DUMP: ADD_XID_HEAD_BYTES,
}


class Record(Struct, frozen=True, gc=False):
    """A record. Offsets are bytes of the piece that it was read from; `stop` is where the next record starts.

    An item's payload is the `size` bytes from byte `payload_at` on; -1: the record has no item. `listed`: the items of
    an opcode 8 list, each as a record of its own; None for every other record. An opcode 8 without a list means
    "confirm `xid`, and append this item".
    """

    op: int
    stop: int
    xid: int = 0
    payload_at: int = 0
    size: int = -1
    added_ms: int = 0
    expires_ms: int = 0
    listed: list[Record] | None = None

    def payload(self, data: bytes) -> bytes:
        """Return the bytes of the record's item, from the piece that it was read from."""
        return data[self.payload_at : self.payload_at + self.size]


def decode(data: bytes, at: int, end: int, rest_bytes: int, heads_only: bool = False) -> Record:
    """Return the record that starts at byte `at` of `data`, without reading beyond byte `end`.

    `rest_bytes`: how many bytes of the file follow `end`. Raises IncompleteRecord if the record continues beyond `end`,
    TruncatedRecord if the file ends inside it, CorruptRecord if it is damaged: an unknown opcode, or an impossible
    size. `heads_only`: for callers that do not read payloads, that of an ADDX may extend beyond `end`.
    """
    op = data[at]
    try:
        if op == ADDX:
            if end - at < ADDX_HEAD_BYTES:
                raise IncompleteRecord
            size, added_ms, expires_ms = ADDX_BODY.unpack_from(data, at + 1)
            stop = at + SIZE_END + size
            if size < BLOCK_HEAD_BYTES or stop > end + rest_bytes:
                raise _wrong_size(size, BLOCK_HEAD_BYTES, end + rest_bytes - at - SIZE_END)
            if stop > end and not heads_only:
                raise IncompleteRecord
            return Record(op, stop, 0, at + ADDX_HEAD_BYTES, size - BLOCK_HEAD_BYTES, added_ms, expires_ms)
        if op in FIXED_BYTES:
            size = FIXED_BYTES[op]
            if end - at < size:
                raise IncompleteRecord
            return Record(op, at + size, XID_BODY.unpack_from(data, at + 1)[0] if size == WITH_XID_BYTES else 0)
        if op == ADD:
            if end - at < ADD_HEAD_BYTES:
                raise IncompleteRecord
            size, expires_s = ADD_BODY.unpack_from(data, at + 1)
            stop = at + SIZE_END + size
            if size < ADD_BLOCK_HEAD_BYTES or stop > end + rest_bytes:
                raise _wrong_size(size, ADD_BLOCK_HEAD_BYTES, end + rest_bytes - at - SIZE_END)
            if stop > end:
                raise IncompleteRecord
            return Record(op, stop, 0, at + ADD_HEAD_BYTES, size - ADD_BLOCK_HEAD_BYTES, 0, expires_s * 1000)
        if op == ADD_XID:
            return _item_with_xid(op, data, at, end, rest_bytes)
        if op == STATE_DUMP:
            return _eight(data, at, end, rest_bytes)
    except IncompleteRecord:
        if not rest_bytes:
            raise TruncatedRecord(at=at) from None
        raise
    except CorruptRecord as error:
        error.at = at
        raise
    raise CorruptRecord(f"unknown opcode {op}", at)


def _eight(data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    """Return a record of opcode 8, which has two meanings: a list of open reads (a few days of 2011), or "confirm, and
    append this" (2.1 to 2.4).

    A block is at least 16 bytes long, so a smaller number is a count. Otherwise the record is a list only if as many
    ADD_XID records follow, which the bytes of an add time cannot look like.
    """
    if end - at < XID_SIZE_END:
        raise IncompleteRecord
    _, number = XID_AND_NUMBER.unpack_from(data, at + 1)
    if number < 0:
        raise CorruptRecord(f"opcode 8 with the size {number}")
    if number < BLOCK_HEAD_BYTES:
        return _state_dump(data, at, end, rest_bytes)
    try:
        return _state_dump(data, at, end, rest_bytes)
    except CorruptRecord:
        pass
    except IncompleteRecord:
        if rest_bytes:
            raise
    return _item_with_xid(STATE_DUMP, data, at, end, rest_bytes)


def _state_dump(data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    """Return a list of open reads: the last transaction id, a count, then that many pairs of ADD_XID and
    REMOVE_TENTATIVE.
    """
    counter, count = XID_AND_NUMBER.unpack_from(data, at + 1)
    at += XID_SIZE_END
    listed = []
    for _ in range(count):
        if at >= end:
            raise IncompleteRecord
        if data[at] != ADD_XID:
            raise CorruptRecord("opcode 8 with a list that is not there")
        record = _item_with_xid(ADD_XID, data, at, end, rest_bytes)
        at = record.stop
        if at >= end:
            raise IncompleteRecord
        if data[at] != REMOVE_TENTATIVE:
            raise CorruptRecord("opcode 8 with a list that breaks off")
        at += 1
        listed.append(record)
    return Record(STATE_DUMP, at, counter, listed=listed)


def _item_with_xid(op: int, data: bytes, at: int, end: int, rest_bytes: int) -> Record:
    """Return an ADD_XID, or an opcode 8 of the same layout."""
    if end - at < XID_SIZE_END:
        raise IncompleteRecord
    xid, size = XID_AND_NUMBER.unpack_from(data, at + 1)
    stop = at + XID_SIZE_END + size
    if size < BLOCK_HEAD_BYTES or stop > end + rest_bytes:
        raise _wrong_size(size, BLOCK_HEAD_BYTES, end + rest_bytes - at - XID_SIZE_END)
    if stop > end:
        raise IncompleteRecord
    _, _, added_ms, expires_ms = ADD_XID_BODY.unpack_from(data, at + 1)
    return Record(op, stop, xid, at + ADD_XID_HEAD_BYTES, size - BLOCK_HEAD_BYTES, added_ms, expires_ms)


def _wrong_size(size: int, size_min: int, left_bytes: int) -> CorruptRecord:
    """Return the error for a block of `size` bytes that must have at least `size_min`, while the file has `left_bytes`
    more. The check precedes any allocation of the claimed size.
    """
    if size < size_min:
        return CorruptRecord(f"a block of {size} bytes, at least {size_min} expected")
    return past_end(size, left_bytes)


def plain(item: Item) -> Item:
    """Return the item without its transaction id, if it came with one."""
    if isinstance(item, ItemWithXid):
        return copy_of(item)
    return item
