"""How far one reader has come: the head, and what it has confirmed beyond it.

Knows how a reader file says so. Refuses to know items, and when a file is written. Source: "Read checkpoint" of the
libkestrel journal format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from staniel.journal.errors import Corrupt, NeedMore
from staniel.journal.interval_set import IdSet
from staniel.journal.libkestrel.records import (
    READ_DONE_COMMAND,
    READ_DONE_HEAD,
    READ_HEAD_COMMAND,
    READ_HEAD_RECORD,
    READER_MAGIC,
    decode_read_done,
    decode_read_head,
    encode_read_done,
    encode_read_head,
    read_record,
)
from staniel.journal.libkestrel.segments import StreamSegments

# A disk writes so many bytes as a whole. A record across that border could be half there after a power cut, and half of
# an id is another id: no record crosses it.
SECTOR_BYTES = 512
_HEAD_BYTES, _DONE_BYTES, _ID_BYTES = READ_HEAD_RECORD.size, READ_DONE_HEAD.size, 8
# Every length up to a sector that heads and empty READ_DONEs can fill.
_PADDING = {
    heads * _HEAD_BYTES + dones * _DONE_BYTES: (heads, dones)
    for heads in range(SECTOR_BYTES // _HEAD_BYTES + 1)
    for dones in range(_HEAD_BYTES)
}


class Position:
    """`head`: it and every id below are confirmed. `done`: confirmed ids above it."""

    __slots__ = ("done", "head")

    def __init__(self, head: int = 0, done: Iterable[int] = ()) -> None:
        self.head = head
        self.done = IdSet(done)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and (self.head, self.done) == (other.head, other.done)

    def __repr__(self) -> str:
        return f"Position({self.head}, {self.done.stretches()})"

    def confirm(self, first: int, last: int, segments: StreamSegments) -> None:
        """The ids from `first` to `last` are confirmed. The head moves over what is done, and over ids that no item
        has.
        """
        if first <= self.head + 1:
            self.head = max(self.head, last)
        else:
            self.done.add_stretch(first, last)
        if self.done:
            self.advance_head(segments)

    def advance_head(self, segments: StreamSegments) -> None:
        """Move the head as far as it goes."""
        done = self.done
        while done:
            following = self.head + 1
            if following not in done:
                # What has not been written yet is in no segment: then the next id there lies behind the head.
                following = segments.next_after(self.head) if len(segments.runs) > 1 else 0
                if following <= self.head or following not in done:
                    break
            self.head = done.reach(following)
        done.drop_through(self.head)

    def reconcile(self, segments: StreamSegments) -> None:
        """Bring a position that was read from a file in line with the items there are: between the oldest and the
        newest, and the head as far as it goes.
        """
        last_id = segments.last_id
        self.head = max(min(self.head, last_id), segments.first_id - 1)
        self.done = IdSet(item_id for item_id in self.done if self.head < item_id <= last_id and segments.has(item_id))
        self.advance_head(segments)


class ReaderFileScan:
    """A reader file, read in pieces. What was readable before any damage counts."""

    def __init__(self) -> None:
        self.position = Position()
        self.offset = 0  # of the piece at hand
        self.ended = False

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records from the start of `data`; how many bytes that were. Raises Corrupt, `at` counted from the
        start of the file.
        """
        at, end = 0, len(data)
        try:
            while at < end and not self.ended:
                at = self._read_one(data, at, end, rest_bytes)
        except NeedMore:
            pass
        except Corrupt as error:
            error.at += self.offset
            raise
        self.offset += at
        return at

    def _read_one(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        record = read_record(data, at, end, rest_bytes)
        if record is None:
            self.ended = True
            return at
        if record.command == READ_HEAD_COMMAND:
            self.position.head = decode_read_head(data, record)
        elif record.command == READ_DONE_COMMAND:
            for item_id in decode_read_done(data, record):
                self.position.done.add(item_id)
        return record.stop


def encode_reader_file(position: Position) -> bytes:
    """A whole reader file. With few ids it is what the library writes: magic, READ_HEAD, one READ_DONE."""
    first = READER_MAGIC + encode_read_head(position.head)
    done = list(position.done)
    if can_append(len(first) + _DONE_BYTES + len(done) * _ID_BYTES):
        return first + encode_read_done(done)
    return first + b"".join(encode_position(position.head, done, len(first)))


def can_append(size: int) -> bool:
    """Whether `records` may be appended to a reader file of so many bytes that ends with a whole record."""
    return -size % SECTOR_BYTES in _PADDING


def encode_position(head: int, done: list[int], at: int) -> Iterator[bytes]:
    """READ_HEAD and READ_DONE as they are appended at byte `at` of a reader file, which `can_go_on` has allowed."""
    left = -at % SECTOR_BYTES or SECTOR_BYTES
    if left - _HEAD_BYTES not in _PADDING:
        yield from _padding(head, left)
        left = SECTOR_BYTES
    yield encode_read_head(head)
    left -= _HEAD_BYTES
    taken = 0
    while taken < len(done):
        count = _ids_that_fit(left, len(done) - taken)
        if not count:
            yield from _padding(head, left)
            left = SECTOR_BYTES
            continue
        yield encode_read_done(done[taken : taken + count])
        taken += count
        left = left - _DONE_BYTES - count * _ID_BYTES or SECTOR_BYTES


def _ids_that_fit(left: int, wanted: int) -> int:
    """How many ids one READ_DONE can take so that the rest of the sector can still be filled; 0: none."""
    count = min(wanted, (left - _DONE_BYTES) // _ID_BYTES)
    while count > 0 and left - _DONE_BYTES - count * _ID_BYTES not in _PADDING:
        count -= 1
    return max(count, 0)


def _padding(head: int, left: int) -> Iterator[bytes]:
    """Records that say nothing new, up to the end of the sector."""
    heads, dones = _PADDING[left]
    yield encode_read_head(head) * heads
    yield encode_read_done(()) * dones
