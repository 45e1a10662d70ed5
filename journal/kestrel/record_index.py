"""Record boundaries in what is being written, so that a turn is found later without reading a whole file.

Knows which of our own records adds an item, and how large its payload is. Refuses to know what anything else says.
"""

from __future__ import annotations

from staniel.journal.kestrel.encoder import ADDX, ADDX_HEAD, SAVE_XID, WITH_XID
from staniel.journal.kestrel.segments import SAMPLE_BYTES, Place, Segment

FLAGS_BYTES = 2 * WITH_XID.size  # what stands before an item that has flags
EXPIRY_AT = ADDX_HEAD.size - 8
NEVER = bytes(8)


def note_places(segment: Segment, records: list[bytes], end: Place) -> None:
    """`records`, each a whole change, have been written to `segment`, up to `end`: keep some of their boundaries."""
    at, turn, came_bytes, came_mortal = end
    found = [end]
    for record in reversed(records):
        at -= len(record)
        head = _add_head(record)
        if head >= 0:
            turn -= 1
            came_bytes -= len(record) - head - ADDX_HEAD.size
            came_mortal -= record[head + EXPIRY_AT : head + ADDX_HEAD.size] != NEVER
        if found[-1].at - at >= SAMPLE_BYTES:
            found.append(Place(at, turn, came_bytes, came_mortal))
    for place in reversed(found):
        segment.note(place)


def note_run(segment: Segment, record_bytes: int, count: int, end: Place) -> None:
    """The same for `count` records of `record_bytes` each, all of them empty items without an expiry."""
    at, turn = end.at - count * record_bytes, end.turn - count
    stride = -(-SAMPLE_BYTES // record_bytes)
    for done in range(stride, count, stride):
        segment.note(Place(at + done * record_bytes, turn + done, end.came_bytes, end.came_mortal))
    segment.note(end)


def _add_head(record: bytes) -> int:
    """Where the ADDX in a record begins, -1: it adds nothing."""
    if record[0] == ADDX:
        return 0
    return FLAGS_BYTES if record[0] == SAVE_XID and len(record) > FLAGS_BYTES else -1
