"""The common records of a busy journal: items that join the line, and the form in which records wait to be written.
Compiled, addx.pyx replaces this module; there an item waits as it is, and is copied once, when its batch is written.
"""

from __future__ import annotations

from staniel.journal.kestrel.records import ADDX, ADDX_HEAD, BLOCK_HEAD_BYTES, SAVE_XID, WITH_XID
from staniel.queues.item import Item

EXPIRY_AT = ADDX_HEAD.size - 8
NEVER = bytes(8)
pack_addx = ADDX_HEAD.pack  # bound here: CPython 3.11 makes a method object for each call through an imported name
xid_record = WITH_XID.pack
"""An opcode and a transaction id."""


def addx_record(item: Item) -> bytes:
    """Return an ADDX record without its flags (see Encoder). Source: the Kestrel journal format document, opcode 2."""
    data = item.data
    return pack_addx(ADDX, len(data) + BLOCK_HEAD_BYTES, item.added_ms, item.expires_ms) + data


waiting_record = addx_record
"""The form in which a record waits for the write. `joined` and the functions below take it."""


def joined(records: list[bytes]) -> bytes:
    """Return the bytes of waiting records."""
    return b"".join(records)


def size_of(records: list[bytes]) -> int:
    """Return the number of bytes of waiting records."""
    return sum(map(len, records))


def boundaries(
    records: list[bytes], at: int, seq: int, added_bytes: int, added_expiring: int, stride_bytes: int
) -> list[tuple[int, int, int, int]]:
    """Return places between waiting records, the last one first, at least `stride_bytes` apart. A place is the byte,
    the seq of the item that is added next, and the payload bytes and the items with an expiry before it. The numbers
    passed are those after the last record.
    """
    ends, last = [], at
    for record in reversed(records):
        at -= len(record)
        head = _add_head(record)
        if head >= 0:
            seq -= 1
            added_bytes -= len(record) - head - ADDX_HEAD.size
            added_expiring -= record[head + EXPIRY_AT : head + ADDX_HEAD.size] != NEVER
        if last - at >= stride_bytes:
            ends.append((at, seq, added_bytes, added_expiring))
            last = at
    return ends


def _add_head(record: bytes) -> int:
    """Return where the ADDX in a record begins; -1 if the record adds nothing."""
    at = 0
    while record[at] == SAVE_XID and at + WITH_XID.size < len(record):
        at += WITH_XID.size  # the item's flags, and the note before it
    return at if record[at] == ADDX else -1
