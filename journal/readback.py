"""Reading items back from the journal: what read-behind needs when those in memory run out, or before they do.

Knows one place in the segments, and what has been read ahead of it. Refuses to know when to read: the broker asks ahead
of need, the line at need. Source: "If the queue is in read-behind" of the packing strategy.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from journal.items import ItemReader
from journal.replay import Bad, plain
from journal.segments import Segment, Segments
from queues.item import LOST_MS, Item
from queues.line import Line

PIECE_BYTES = 256 << 10
AHEAD_BYTES = 1 << 20  # read ahead of need, at most this much and a piece
ITEMS_A_SLICE = 500  # decoded at once when nobody waits for them: well under 1 ms


class Unreadable(Struct, frozen=True):
    """Items that were in the journal and cannot be read from it any more: `count` of them, from byte `at` of `file`."""

    file: str
    at: int
    count: int
    why: str


class ReadBack:
    """The tail of a line (see queues.line.Tail)."""

    def __init__(self, segments: Segments, line: Line) -> None:
        self.segments = segments
        self.line = line
        self.unreadable: list[Unreadable] = []
        self._segment: Segment | None = None  # where the next item is looked for
        self._turn = -1  # its turn
        self._at = 0  # byte in the segment, of `_data[_used:]`
        self._data = b""
        self._used = 0
        self._starved = False  # what has been read ahead ends inside a record
        self._lost_end = 0  # items before this turn cannot be read
        self._items = ItemReader(0)

    # the tail of a line

    def load(self, turn: int, size_max: int) -> list[Item]:
        """Raises OSError if the disk refuses."""
        self._seek(turn)
        found: list[Item] = []
        size = 0
        end = self.line.end
        while self._turn < end and size < size_max:
            before = len(found)
            self._decode(found, min(ITEMS_A_SLICE, end - self._turn), size_max)
            size += sum([len(item.data) for item in found[before:]])
        return found

    def measure(self, turn: int, count: int) -> tuple[int, int]:
        """Raises OSError if the disk refuses."""
        size, mortal = self.came(turn + count)
        size_before, mortal_before = self.came(turn)
        return size - size_before, mortal - mortal_before

    def came(self, turn: int) -> tuple[int, int]:
        """(payload bytes, how many have an expiry) of all items before `turn`, as far as segments count them alike: in
        recovery only. Reads on from the next known place. Raises OSError.
        """
        segment = self.segments.holding(turn)
        at, near, size, mortal = segment.place(turn)
        if near < turn:
            self._lost_end, self._turn = 0, near
            self._begin(segment, at)
        count = turn - near
        while count:
            found: list[Item] = []
            self._decode(found, min(ITEMS_A_SLICE, count), PIECE_BYTES)
            count -= len(found)
            size += sum([len(item.data) for item in found])
            mortal += sum([item.expires_ms != 0 for item in found])
        return size, mortal

    def fetch(self, turns: Iterable[int]) -> dict[int, Item]:
        """The items with these turns. Raises OSError."""
        items: dict[int, Item] = {}
        for turn in sorted(turns):
            self._seek(turn)
            found: list[Item] = []
            while not found:
                self._decode(found, 1, PIECE_BYTES)
            items[turn] = plain(found[0])
        return items

    def forget(self) -> None:
        """Files have changed under what has been read."""
        self._segment, self._turn, self._lost_end = None, -1, 0
        self._data, self._used = b"", 0

    # ahead of need

    def decode(self) -> list[Item]:
        """A slice of the next items, if they have been read ahead; else nothing."""
        line = self.line
        line.settle()
        self._seek(line.left + len(line.fresh))
        found: list[Item] = []
        count_max = min(ITEMS_A_SLICE, line.behind)
        if self._turn < self._lost_end:
            self._stand_in(found, count_max)
        elif self._used < len(self._data):
            self._starved = not self._consume(found, count_max)
        return found

    def wants(self) -> tuple[Segment, int, int] | None:
        """What should be read ahead: a segment, from byte, how many bytes; None if there is enough or nothing.

        Ask after `decode`.
        """
        segment, ahead = self._segment, len(self._data) - self._used
        if segment is None or (ahead >= AHEAD_BYTES and not self._starved):
            return None
        at = self._at + ahead
        if not ahead and at >= self.segments.size(segment) and self._turn < self.line.end:
            self._next_segment()
            return self.wants()
        left = self.segments.readable(segment) - at
        return (segment, at, min(max(PIECE_BYTES, ahead), left)) if left > 0 else None

    def read_ahead(self, segment: Segment, at: int, data: bytes) -> None:
        """What `wants` asked for has been read."""
        if segment is self._segment and at == self._at + len(self._data) - self._used:
            self._data = self._data[self._used :] + data
            self._used = 0
            self._starved = False

    # inside

    def _seek(self, turn: int) -> None:
        if turn == self._turn and self._segment is not None and not self._segment.is_replaced:
            return
        segment = self.segments.holding(turn)
        at, near, _, _ = segment.place(turn)
        if segment is not self._segment or not near <= self._turn < turn:
            self._lost_end = 0
            self._turn = near
            self._begin(segment, at)
        while self._turn < turn:
            self._decode([], min(ITEMS_A_SLICE, turn - self._turn), PIECE_BYTES)

    def _begin(self, segment: Segment, at: int) -> None:
        self._segment, self._at = segment, at
        self._data, self._used = b"", 0
        self._items.begin_file()

    def _decode(self, found: list[Item], count_max: int, size_max: int) -> None:
        """Append some items to `found`, if need be after reading more of the segment, or going on to the next one."""
        segment = self._segment
        assert segment is not None
        if self._turn < self._lost_end:
            self._stand_in(found, count_max)
            return
        if self._used < len(self._data) and self._consume(found, count_max):
            return
        at = self._at + len(self._data) - self._used
        # A record longer than the piece: read twice as much, which the file really has.
        want = max(min(PIECE_BYTES, size_max), 2 * (len(self._data) - self._used))
        more = self.segments.read(segment, at, want)
        if more:
            self.read_ahead(segment, at, more)
            self._consume(found, count_max)
        else:
            self._next_segment()

    def _stand_in(self, found: list[Item], count_max: int) -> None:
        count = min(count_max, self._lost_end - self._turn)
        found.extend(Item(b"", 0, LOST_MS) for _ in range(count))
        self._turn += count

    def _next_segment(self) -> None:
        """The segment has no more items, though it may have promised some."""
        segment = self._segment
        assert segment is not None
        after = self.segments.after(segment)
        if after is not None and self._turn == after.first:
            self._begin(after, after.origin.at)
        else:
            self._give_up("items are missing")

    def _consume(self, found: list[Item], count_max: int) -> bool:
        """Decode from what has been read; whether that brought anything forward."""
        segment = self._segment
        assert segment is not None
        before, used = len(found), self._used
        rest = self.segments.size(segment) - (self._at + len(self._data) - self._used)
        try:
            self._used = self._items.read(self._data, self._used, rest, found, count_max)
        except Bad as bad:
            self._turn += len(found) - before
            self._at += bad.at - used
            self._give_up(bad.why)
            return True
        self._at += self._used - used
        self._turn += len(found) - before
        return self._used > used

    def _give_up(self, why: str) -> None:
        """The next items cannot be read: lost ones stand in for them, up to the next place where a record is known to
        begin.
        """
        segment = self._segment
        assert segment is not None
        damaged_at = self._at
        known = segment.place_behind(damaged_at + 1, self._turn + 1)
        after = self.segments.after(segment)
        if known is not None:
            self._begin(segment, known.at)
            self._lost_end = known.turn
        elif after is not None:
            self._begin(after, after.origin.at)
            self._lost_end = after.first
        else:
            self._begin(segment, self.segments.size(segment))
            self._lost_end = self.line.end
        self.unreadable.append(Unreadable(segment.name, damaged_at, self._lost_end - self._turn, why))
