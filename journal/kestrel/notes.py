"""Notes: facts about an item for which the format has no field, as records that every reader of the format passes over.

A note stands directly before its item, before the pair of records with memcache flags:

    SAVE_XID(head) SAVE_XID(word)… SAVE_XID(check) SAVE_XID(0) SAVE_XID(counter)

SAVE_XID sets the counter from which ids of open reads are made, and nothing else. The last record sets the value from
before the first one, so together they change nothing for any reader. `head` has a magic number (the kind of the note)
and the number of bytes of the fact. The words are these bytes, four in each, padded with zeros. `check` is a CRC-32 of
the fact and of its item, so that a note never applies to an item that another program has put after it. A reader that
knows flags but no notes takes the 0 for the flags. Source: docs/journal-kestrel.md.
"""

from __future__ import annotations

import struct
from zlib import crc32

from staniel.journal.kestrel.records import SAVE_XID, WITH_XID

PAST = 0x5D4E  # the kind of a note with an encoded queues.past.Past
NOTE_BYTES_MAX = 1024
CHECKED_BYTES = 1 << 20  # of a payload: takes 0.2 ms
AROUND_WORDS = 4  # head, check, 0 and counter
FLAG_WORDS = 2  # the pair with the item's flags
NOTE_RECORDS_MAX = NOTE_BYTES_MAX // 4 + AROUND_WORDS + FLAG_WORDS  # of a note and the pair behind it
_TIME_AND_SIZE = struct.Struct("<qi")
_XID = struct.Struct("<i")


def note_records(fact: bytes, added_ms: int, data: bytes, counter: int) -> bytes:
    """Return the records of a note about the item of `data` that was added at `added_ms`."""
    assert 0 < len(fact) <= NOTE_BYTES_MAX
    padded = fact + bytes(-len(fact) % 4)
    words = [word for (word,) in _XID.iter_unpack(padded)]
    ids = (PAST << 16 | len(fact), *words, _check(fact, added_ms, data), 0, counter)
    return b"".join([WITH_XID.pack(SAVE_XID, xid) for xid in ids])


def fact_in(ids: list[int], added_ms: int, data: bytes) -> bytes:
    """Return the fact of the note in a row of SAVE_XID records before an item; b"" if there is none. `ids`: the ids of
    these records. The pair with the item's flags may follow the note.
    """
    for behind in (2, 4):  # the 0 and the counter; or also the pair
        at = len(ids) - behind - 1  # the index of the check
        if at < 2 or ids[at + 1]:
            continue
        for start in range(at - 2, max(-1, at - 2 - NOTE_BYTES_MAX // 4), -1):
            size = ids[start] & 0xFFFF
            if ids[start] >> 16 == PAST and -(-size // 4) == at - start - 1:
                fact = b"".join([_XID.pack(word) for word in ids[start + 1 : at]])[:size]
                if _check(fact, added_ms, data) == ids[at]:
                    return fact
    return b""


def unfinished_note(ids: list[int]) -> int:
    """Return how many of a row of SAVE_XID records at the end of a file belong to an incomplete note, or to a note
    whose item is missing: all records from its head on.
    """
    for start, xid in enumerate(ids):
        size = xid & 0xFFFF
        if (
            xid >> 16 == PAST
            and 0 < size <= NOTE_BYTES_MAX
            and len(ids) - start <= -(-size // 4) + AROUND_WORDS + FLAG_WORDS
        ):
            return len(ids) - start
    return 0


def _check(fact: bytes, added_ms: int, data: bytes) -> int:
    """Return a checksum, as the signed number of a SAVE_XID."""
    checksum = crc32(data[:CHECKED_BYTES], crc32(_TIME_AND_SIZE.pack(added_ms, len(data)), crc32(fact)))
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum
