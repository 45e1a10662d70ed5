"""The files of one journal as a sequence of segments, and where in them an item is to be found.

Knows turns (an item's number in its line), the segment and byte where they begin, and how to read bytes, those not yet
written included. Refuses to know records. Only the last segment is appended to; the others are sealed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Protocol

from msgspec import Struct, field

from journal.fs import Fs
from queues.marks import Mark

SAMPLE_BYTES = 1 << 20  # a place is noted about this often, so that a turn is found without reading a whole file


class Segment(Struct, eq=False):
    """One file. The first item that it adds at byte `start` or later has turn `first`.

    `samples`: (byte, turn of the item that is added next) of record boundaries, rising. `mark` and `counter`: what the
    queue held and which transaction id was the last, at its end; None while it is written. `is_replaced`: a summary has
    taken its place.
    """

    name: str
    number: int
    size: int = 0
    first: int = 0
    start: int = 0
    samples: list[tuple[int, int]] = field(default_factory=list)
    mark: Mark | None = None
    counter: int = 0
    is_replaced: bool = False

    def place(self, turn: int) -> tuple[int, int]:
        """The last known record boundary at or before `turn`: its byte, and the turn that comes next there."""
        at = bisect_right(self.samples, turn, key=lambda sample: sample[1])
        return self.samples[at - 1] if at else (self.start, self.first)


class Writer(Protocol):
    """Whoever appends to the last segment."""

    @property
    def written_bytes(self) -> int: ...

    def unwritten(self) -> bytes:
        """What is recorded and not yet in the file."""


class Segments:
    """In order; `current` is the last one."""

    def __init__(self, fs: Fs, folder: str, name: str) -> None:
        self.fs = fs
        self.folder = folder
        self.sealed: list[Segment] = []
        self.sealed_bytes = 0
        self.current = Segment(name, 0)
        self.writer: Writer | None = None

    def seal(self, name: str, number: int, size: int, mark: Mark, counter: int) -> None:
        """The current segment is complete and has a new name; another one begins."""
        sealed = self.current
        self.current = Segment(sealed.name, 0, first=mark.end)
        sealed.name, sealed.number, sealed.size = name, number, size
        sealed.mark, sealed.counter = mark, counter
        self.sealed.append(sealed)
        self.sealed_bytes += size

    def replace_through(self, last: Segment, summary: Segment) -> None:
        """`summary` now stands for every segment up to `last`."""
        at = self.sealed.index(last)
        for segment in self.sealed[: at + 1]:
            segment.is_replaced = True
        self.sealed[: at + 1] = [summary]
        self.sealed_bytes = sum(segment.size for segment in self.sealed)

    def covered_by(self, last: Segment) -> list[Segment]:
        """Every segment up to `last`."""
        return self.sealed[: self.sealed.index(last) + 1]

    def holding(self, turn: int) -> Segment:
        """The segment that added the item with this turn."""
        if turn >= self.current.first:
            return self.current
        at = bisect_right(self.sealed, turn, key=lambda segment: segment.first)
        # Segments that add nothing have the same first turn as the one behind them, which is the one that is found.
        return self.sealed[max(0, at - 1)]

    def after(self, segment: Segment) -> Segment | None:
        """The next one; None behind the current one."""
        if segment is self.current:
            return None
        at = self.sealed.index(segment) + 1
        return self.sealed[at] if at < len(self.sealed) else self.current

    def path(self, segment: Segment) -> str:
        return f"{self.folder}/{segment.name}"

    def size(self, segment: Segment) -> int:
        """Bytes, those of the current one that are not yet written included."""
        if segment is self.current and self.writer is not None:
            return self.writer.written_bytes + len(self.writer.unwritten())
        return segment.size

    def readable(self, segment: Segment) -> int:
        """How many bytes of it are in its file."""
        if segment is self.current and self.writer is not None:
            return self.writer.written_bytes
        return segment.size

    def read(self, segment: Segment, at: int, count: int) -> bytes:
        """At most `count` bytes from byte `at`; nothing only at its end. Raises OSError."""
        written = self.readable(segment)
        if at < written:
            return self.fs.read(self.path(segment), at, min(count, written - at))
        if segment is self.current and self.writer is not None:
            return self.writer.unwritten()[at - written : at - written + count]
        return b""
