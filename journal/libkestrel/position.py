"""The position of a reader, and the reader file that stores it.

Source: "Read checkpoint" of the libkestrel journal format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from staniel.journal.interval_set import IntervalSet
from staniel.journal.libkestrel.records import (
    READ_DONE_COMMAND,
    READ_DONE_HEAD,
    READ_HEAD_COMMAND,
    READ_HEAD_RECORD,
    READER_MAGIC,
    RecordScan,
    decode_read_done,
    decode_read_head,
    encode_read_done,
    encode_read_head,
    read_record,
)
from staniel.journal.libkestrel.segments import StreamSegments

# A disk writes a sector as a whole. A record across a sector boundary could be partly written after a power cut, and a
# part of an id is another id. So no record crosses a boundary: records that change nothing fill the rest of a sector.
SECTOR_BYTES = 512
_HEAD_BYTES, _DONE_BYTES, _ID_BYTES = READ_HEAD_RECORD.size, READ_DONE_HEAD.size, 8
# By number of bytes to fill: how many READ_HEADs and empty READ_DONEs fill exactly that many.
_PADDING = {
    heads * _HEAD_BYTES + dones * _DONE_BYTES: (heads, dones)
    for heads in range(SECTOR_BYTES // _HEAD_BYTES + 1)
    for dones in range(_HEAD_BYTES)
}


class Position:
    """The position of a reader: every id up to `head` is confirmed, and of those above it the ids in `done`."""

    __slots__ = ("done", "head")

    def __init__(self, head: int = 0, done: Iterable[int] = ()) -> None:
        self.head = head
        self.done = IntervalSet(done)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and (self.head, self.done) == (other.head, other.done)

    def __repr__(self) -> str:
        return f"Position({self.head}, {self.done.intervals()})"

    def confirm(self, first: int, last: int, segments: StreamSegments) -> None:
        """Mark the ids from `first` to `last` as confirmed and advance the head over confirmed and unused ids."""
        if first <= self.head + 1:
            self.head = max(self.head, last)
        else:
            self.done.add_interval(first, last)
        if self.done:
            self.advance_head(segments)

    def advance_head(self, segments: StreamSegments) -> None:
        """Move the head over the ids in `done` that follow it, and over ids without items."""
        done = self.done
        while done:
            following = self.head + 1
            if following not in done:
                # Items that are not written yet are in no segment; `next_after` then returns an id below the head.
                following = segments.next_after(self.head) if len(segments.runs) > 1 else 0
                if following <= self.head or following not in done:
                    break
            self.head = done.reach(following)
        done.drop_through(self.head)

    def reconcile(self, segments: StreamSegments) -> None:
        """Adapt a position that was read from a file to the present items: put the head between the oldest and the
        newest, drop ids without items, and advance the head.
        """
        last_id = segments.last_id
        self.head = max(min(self.head, last_id), segments.first_id - 1)
        self.done = IntervalSet(
            item_id for item_id in self.done if self.head < item_id <= last_id and segments.has(item_id)
        )
        self.advance_head(segments)


class ReaderFileScan(RecordScan):
    """The scan of a reader file, piece by piece. `position` has everything readable before any damage."""

    def __init__(self) -> None:
        super().__init__(0)
        self.position = Position()

    def read_from(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        record = read_record(data, at, end, rest_bytes)
        if record is None:
            self.has_ended = True
            return at
        if record.command == READ_HEAD_COMMAND:
            self.position.head = decode_read_head(data, record)
        elif record.command == READ_DONE_COMMAND:
            for item_id in decode_read_done(data, record):
                self.position.done.add(item_id)
        return record.stop


def encode_reader_file(position: Position) -> bytes:
    """Return a complete reader file. If the ids fit into one sector, it equals what the library writes: magic,
    READ_HEAD, READ_DONE.
    """
    first = READER_MAGIC + encode_read_head(position.head)
    done = list(position.done)
    if can_append(len(first) + _DONE_BYTES + len(done) * _ID_BYTES):
        return first + encode_read_done(done)
    return first + b"".join(encode_position(position.head, done, len(first)))


def can_append(size: int) -> bool:
    """Tell whether records may be appended to a reader file of `size` bytes, all of them in whole records: the rest of
    its sector can be filled.
    """
    return -size % SECTOR_BYTES in _PADDING


def encode_position(head: int, done: list[int], at: int) -> Iterator[bytes]:
    """Yield READ_HEAD and READ_DONE records to append at byte `at` of a reader file; `can_append` must have
    allowed it.
    """
    left = -at % SECTOR_BYTES or SECTOR_BYTES
    if left - _HEAD_BYTES not in _PADDING:
        yield from _padding(head, left)
        left = SECTOR_BYTES
    yield encode_read_head(head)
    left -= _HEAD_BYTES
    encoded = 0
    while encoded < len(done):
        count = _ids_that_fit(left, len(done) - encoded)
        if not count:
            yield from _padding(head, left)
            left = SECTOR_BYTES
            continue
        yield encode_read_done(done[encoded : encoded + count])
        encoded += count
        left = left - _DONE_BYTES - count * _ID_BYTES or SECTOR_BYTES


def _ids_that_fit(left: int, wanted: int) -> int:
    """Return how many of `wanted` ids fit into one READ_DONE if the `left` bytes of the sector must be filled exactly;
    0 if none does.
    """
    count = min(wanted, (left - _DONE_BYTES) // _ID_BYTES)
    while count > 0 and left - _DONE_BYTES - count * _ID_BYTES not in _PADDING:
        count -= 1
    return max(count, 0)


def _padding(head: int, left: int) -> Iterator[bytes]:
    """Yield records that change nothing and fill the `left` bytes of the sector."""
    heads, dones = _PADDING[left]
    yield encode_read_head(head) * heads
    yield encode_read_done(()) * dones
