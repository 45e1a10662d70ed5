"""Read-behind: reading items back from the journal when those in memory run out, or before.

Every item of a journal has a seq, the number of items before it. A `Line` keeps its first items in memory, and of the
others only their number and bytes. Each `LogSegment` knows the seq of its first item and of a record about every 128
KB, so an item is found by its seq. Unwritten records are read from the pending bytes. A block of a sealed file is
compared with its checksum, if a sidecar has one, before it is decoded.

`ReadBehind` keeps one position in the segments, and the bytes that were read ahead from it. After a batch
`MaintenanceScheduler` sees that a line has room again: the thread of background tasks reads a piece of the journal, and
the hub decodes it, 500 items a turn. If a client is faster, the line reads the next piece itself. Source: "If the queue
is in read-behind" of the packing strategy.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from staniel.journal.background import checks_of
from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel.item_reader import LOST, read_items
from staniel.journal.kestrel.records import plain
from staniel.journal.kestrel.segments import IndexEntry, LogSegment, Segments
from staniel.queues.item import ID_SHIFT, LOST_MS, Item
from staniel.queues.line import PlainLine

PIECE_BYTES = 256 << 10
AHEAD_BYTES = 1 << 20  # read ahead of need, at most this much and one piece
NO_BAD = -1
STAND_INS = "stand-ins of removed items, and what removed them is lost"
ITEMS_PER_SLICE = 500  # decoded in one step if no client waits for them: well under 1 ms


class UnreadableItems(Struct, frozen=True):
    """Items that were in the journal but cannot be read any more: `count` of them. The `size` bytes from byte `at` of
    `file` are unreadable, or cannot be trusted.
    """

    file: str
    at: int
    size: int
    count: int
    why: str


class ReadBehind:
    """The tail of a line (see staniel.queues.line.Tail)."""

    def __init__(self, segments: Segments, line: PlainLine) -> None:
        self.segments = segments
        self.line = line
        self.unreadable: list[UnreadableItems] = []
        self._segment: LogSegment | None = None  # the segment of the next item
        self._seq = -1  # the seq of the next item
        self._at = 0  # the byte in the segment at which `_data[_used:]` begins
        self._data = b""
        self._used = 0
        self._bad_at = NO_BAD  # the read bytes end here, at a damaged block
        self._starved = False  # the bytes read ahead end inside a record
        self._lost_end = 0  # items before this seq are unreadable
        self._saves: list[int] = []  # transaction ids of the SAVE_XID records before the next record
        self._wanted = 0  # items before this seq have left the line: they can be skipped without loss
        self.loses_stand_ins = False
        """True if stand-ins of a pack are returned as LOST: no later record removes one of the items that are read from
        now on.
        """

    def load(self, seq: int, size_max: int) -> list[Item]:
        """Return items from `seq` on, about `size_max` payload bytes. Raises OSError if the disk refuses a read before
        any item was read.
        """
        self._seek(seq)
        items: list[Item] = []
        size = 0
        end = self.line.end
        while self._seq < end and size < size_max:
            before = len(items)
            try:
                self._decode(items, min(end - self._seq, self._about(size_max - size)), size_max)
            except OSError:
                if not items:
                    raise
                break
            size += sum([len(item.data) for item in items[before:]])
        return items

    def measure(self, seq: int, count: int) -> tuple[int, int]:
        """Return (payload bytes, how many have an expiry) of `count` items from `seq` on. Raises OSError if the disk
        refuses.
        """
        size, expiring = self.totals_before(seq + count)
        size_before, expiring_before = self.totals_before(seq)
        return size - size_before, expiring - expiring_before

    def totals_before(self, seq: int) -> tuple[int, int]:
        """Return (payload bytes, how many have an expiry) of all items before `seq`. Read on from the last known record
        boundary. Only recovery may call this, because only then all segments count these totals the same way. Raises
        OSError.
        """
        unreadable_before = len(self.unreadable)
        self._wanted = seq
        segment = self.segments.holding(seq)
        at, near, size, expiring = segment.index_entry(seq)
        if near < seq:
            self._lost_end, self._seq = 0, near
            self._begin_segment(segment, at)
        count = seq - near
        while count:
            items: list[Item] = []
            self._decode(items, min(ITEMS_PER_SLICE, count), PIECE_BYTES)
            count -= len(items)
            size += sum([len(item.data) for item in items])
            expiring += sum([item.expires_ms not in (0, LOST_MS) for item in items])
        self._take_back(unreadable_before)
        return size, expiring

    def newest_id(self, seq: int, count: int) -> int:
        """Return the highest id of `count` items from `seq` on. Read backwards from the end to where the newest add
        time begins; earlier items are assumed to be older, which is true unless the clock was set back. Raises OSError.
        """
        unreadable_before = len(self.unreadable)
        newest = self._newest_id(seq, seq + count)
        self._take_back(unreadable_before)
        return newest

    def _newest_id(self, seq: int, end: int) -> int:
        at = end
        newest_ms, first = -1, end
        while at > seq:
            begin = max(seq, self.segments.holding(at - 1).index_entry(at - 1).seq)
            for number, item in zip(range(at - 1, begin - 1, -1), reversed(self._between(begin, at)), strict=True):
                if item.added_ms < newest_ms:
                    return (newest_ms << ID_SHIFT) + end - 1 - first
                newest_ms, first = item.added_ms, number
            at = begin
        return (newest_ms << ID_SHIFT) + end - 1 - first

    def _take_back(self, unreadable_before: int) -> None:
        """Forget all losses except the first `unreadable_before`. They were met while counting items that have left the
        line or are still to be read. A later read meets and reports the latter again.
        """
        if len(self.unreadable) > unreadable_before:
            del self.unreadable[unreadable_before:]
            self.reset()

    def _between(self, seq: int, end: int) -> list[Item]:
        self._seek(seq)
        items: list[Item] = []
        while len(items) < end - seq:
            self._decode(items, min(ITEMS_PER_SLICE, end - seq - len(items)), PIECE_BYTES)
        return items

    def fetch(self, seqs: Iterable[int]) -> dict[int, Item]:
        """Return the items with these seqs. Raises OSError."""
        items: dict[int, Item] = {}
        for seq in sorted(seqs):
            items[seq] = plain(self._between(seq, seq + 1)[0])
        return items

    def give_up_missing_files(self) -> list[str]:
        """Give up the sealed files that do not exist any more. Return their names. Raises OSError."""
        names = {name for name, _ in self.segments.fs.list(self.segments.folder)}
        missing = [segment for segment in self.segments.sealed if segment.name not in names and not segment.is_gone]
        for segment in missing:
            segment.is_gone = True
        self.reset()
        return [segment.name for segment in missing]

    def reset(self) -> None:
        """Forget the bytes that were read, because a file was cut."""
        self._segment, self._seq, self._lost_end = None, -1, 0
        self._data, self._used, self._bad_at = b"", 0, NO_BAD

    def decode(self) -> list[Item]:
        """Return a slice of the next items if they have been read ahead; else []."""
        line = self.line
        line.measure_dropped()
        self._seek(line.left + len(line.in_memory))
        items: list[Item] = []
        count_max = min(line.on_disk, self._about(line.full_bytes - line.memory_bytes))
        if self._seq >= self._lost_end and self._used < len(self._data):
            self._starved = not self._consume(items, count_max)
        if self._is_at_bad and self._seq >= self._lost_end and (self._starved or self._used == len(self._data)):
            self._give_up_block()
        if self._segment is not None and self._segment.is_gone and self._lost_end <= self._seq < line.end:
            self._give_up_file()
        if self._seq < self._lost_end and len(items) < count_max:
            self._stand_in(items, count_max - len(items))
        return items

    def span_to_read(self) -> tuple[LogSegment, int, int] | None:
        """Return the part of a segment that should be read ahead: (segment, first byte, number of bytes). Return None
        if enough has been read, if there is nothing to read, or if a pack is just replacing the segment.

        Call `decode` first.
        """
        segment, ahead = self._segment, len(self._data) - self._used
        if segment is None or self._seq < self._lost_end or (ahead >= AHEAD_BYTES and not self._starved):
            return None
        at = self._at + ahead
        if self._seq < self.line.end and (
            self._is_through(segment) or (not ahead and at >= self.segments.size(segment))
        ):
            self._next_segment()
            return self.span_to_read()
        if segment.held is not None or segment.is_gone:
            return None
        start, stop = self._span(segment, at, max(PIECE_BYTES, ahead))
        return (segment, start, stop - start) if at < stop and not self._is_at_bad else None

    def read_ahead(self, segment: LogSegment, at: int, data: bytes, checks: list[int]) -> None:
        """Take the bytes that `span_to_read` asked for, and the crc32 of each block if the segment has checksums."""
        end = self._at + len(self._data) - self._used
        if segment is not self._segment or segment.is_replaced or at != segment.block_at(end):
            return
        bad_at = segment.first_bad(at, checks)
        if bad_at >= 0:
            self._bad_at = max(bad_at, end)
            data = data[: bad_at - at]
        self._data = self._data[self._used :] + data[end - at :]
        self._used = 0
        self._starved = False

    def _about(self, size: int) -> int:
        """Return how many items probably have `size` bytes, at most a slice."""
        line = self.line
        return min(ITEMS_PER_SLICE, size * max(1, line.on_disk) // max(1, line.on_disk_bytes) + 1)

    def _seek(self, seq: int) -> None:
        self._wanted = seq
        if seq == self._seq and self._segment is not None and not self._segment.is_replaced:
            return
        segment = self.segments.holding(seq)
        at, near, _, _ = segment.index_entry(seq)
        if segment is not self._segment or not near <= self._seq < seq:
            self._lost_end = 0
            self._seq = near
            self._begin_segment(segment, at)
        while self._seq < seq:
            self._decode([], min(ITEMS_PER_SLICE, seq - self._seq), PIECE_BYTES)

    def _begin_segment(self, segment: LogSegment, at: int) -> None:
        self._segment, self._at = segment, at
        self._data, self._used, self._bad_at = b"", 0, NO_BAD
        self._saves.clear()

    @property
    def _is_at_bad(self) -> bool:
        return self._bad_at == self._at + len(self._data) - self._used

    def _span(self, segment: LogSegment, at: int, count: int) -> tuple[int, int]:
        """Return (from, to) of the whole blocks to read for `count` bytes from byte `at` on."""
        stop = min(self.segments.readable(segment), at + count)
        return segment.block_at(at), segment.block_end(stop)

    def _decode(self, items: list[Item], count_max: int, size_max: int) -> None:
        """Append some items to `items`. If necessary, read more of the segment, or continue in the next one."""
        segment = self._segment
        assert segment is not None
        if self._seq < self._lost_end:
            self._stand_in(items, count_max)
            return
        if segment.is_gone:
            self._give_up_file()
            return
        if self._used < len(self._data) and self._consume(items, count_max):
            return
        if self._is_at_bad:
            self._give_up_block()
            return
        if self._is_through(segment):
            self._next_segment()
            return
        at = self._at + len(self._data) - self._used
        # The record is longer than the piece. Read twice as much, because the file is known to have so much.
        want = max(min(PIECE_BYTES, size_max), 2 * (len(self._data) - self._used))
        more, start = b"", at
        if segment.checks:
            start, stop = self._span(segment, at, want)
            more = self.segments.read(segment, start, stop - start) if at < stop else b""
        else:
            more = self.segments.read(segment, at, want)
        if more:
            self.read_ahead(segment, start, more, checks_of(more, segment.block_bytes) if segment.checks else [])
            self._consume(items, count_max)
        else:
            self._next_segment()

    def _is_through(self, segment: LogSegment) -> bool:
        """Tell whether no item follows in the segment. Records after its last item are not read, because a pack that
        covers these items may replace the file at any moment.
        """
        if segment.checkpoint is None or self._seq != segment.checkpoint.end:
            return False  # the usual case; finding the next segment takes longer the more there are
        after = self.segments.next_after(segment)
        return after is not None and self._seq == after.first

    def _stand_in(self, items: list[Item], count_max: int) -> None:
        count = min(count_max, self._lost_end - self._seq)
        items.extend(Item(b"", 0, LOST_MS) for _ in range(count))
        self._seq += count

    def _next_segment(self) -> None:
        """Continue in the next segment. If this one has fewer items than the next one's first seq says, they
        are lost.
        """
        segment = self._segment
        assert segment is not None
        after = self.segments.next_after(segment)
        if after is not None and self._seq == after.first:
            self._begin_segment(after, after.origin.at)
        else:
            self._give_up("items are missing")

    def _consume(self, items: list[Item], count_max: int) -> bool:
        """Decode from the bytes that were read. Return whether that made any progress."""
        segment = self._segment
        assert segment is not None
        before, used = len(items), self._used
        unread_bytes = self.segments.size(segment) - (self._at + len(self._data) - self._used)
        why = ""
        try:
            stop = read_items(self._data, used, unread_bytes, items, count_max, self._saves, self.loses_stand_ins)
        except CorruptRecord as error:
            stop, why = error.at, error.why
        loses = self.loses_stand_ins and self._seq >= self._wanted
        if loses and (count := sum([item is LOST for item in items[before:]])):
            self.unreadable.append(UnreadableItems(segment.name, self._at, stop - used, count, STAND_INS))
        self._used = stop
        self._at += stop - used
        self._seq += len(items) - before
        if why:
            self._give_up(why)
        return stop > used or bool(why)

    def _give_up(self, why: str) -> None:
        """Give up the next items, which cannot be read. Return lost items in their place, up to the next known record
        boundary.
        """
        segment = self._segment
        assert segment is not None
        next_entry = segment.index_entry_behind(self._at + 1, self._seq + 1)
        end = self.segments.size(segment) if next_entry is None else next_entry.at
        self._give_up_bytes(self._at, end, next_entry, why)

    def _give_up_file(self) -> None:
        """Give up the rest of the segment, whose file does not exist any more."""
        segment = self._segment
        assert segment is not None
        self._give_up_bytes(self._at, segment.size, None, "the file is gone")

    def _give_up_block(self) -> None:
        """Give up the next block, which does not match its checksum. Items that begin in it or extend into it are lost.
        Reading continues at the first record boundary after it.
        """
        segment = self._segment
        assert segment is not None
        at = segment.block_at(self._bad_at)
        end = segment.block_end(at + 1)
        self._give_up_bytes(at, end, segment.index_entry_behind(end, self._seq), "a block does not match its checksum")

    def _give_up_bytes(self, at: int, end: int, next_entry: IndexEntry | None, why: str) -> None:
        """Give up bytes `at` to `end` of the segment. Reading continues at `next_entry`, or in the next segment if that
        is None.
        """
        segment = self._segment
        assert segment is not None
        after = self.segments.next_after(segment)
        if next_entry is not None:
            self._begin_segment(segment, next_entry.at)
            self._lost_end = next_entry.seq
        elif after is not None:
            self._begin_segment(after, after.origin.at)
            self._lost_end = after.first
        else:
            self._begin_segment(segment, self.segments.size(segment))
            self._lost_end = self.line.end
        count = max(0, self._lost_end - max(self._seq, self._wanted))
        self.unreadable.append(UnreadableItems(segment.name, at, end - at, count, why))
