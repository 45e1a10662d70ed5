"""The files of one journal as a sequence of segments, and the places of items in them.

An item is found by its seq (its number in its line): each segment has the seq of its first item and an index of record
boundaries. Reads include unwritten bytes. Only the last segment is appended to; the others are sealed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from staniel.journal.disk.fs import Fs, Reader
from staniel.journal.kestrel.addx import boundaries
from staniel.journal.kestrel.effect import SegmentEffect
from staniel.queues.checkpoint import Checkpoint

SAMPLE_BYTES = 128 << 10  # between indexed boundaries, so that a seq is found without reading a whole file
EMPTY_MARK = Checkpoint(0, 0)


class IndexEntry(NamedTuple):
    """A record boundary: its byte in the file; the seq of the item that is added next; the payload bytes of all earlier
    items, and how many of these have an expiry. The last two count from any point that is the same within a file.
    """

    at: int
    seq: int
    added_bytes: int = 0
    added_expiring: int = 0


class SegmentHead(Struct, frozen=True):
    """The beginning of a rewritten file: a whole state. `effect` is the effect of these records. `lead`: how many items
    come before the fresh ones (open reads, and returned items), with `lead_bytes` and `lead_expiring`.
    """

    effect: SegmentEffect
    lead: int
    lead_bytes: int
    lead_expiring: int


class LogSegment(Struct, eq=False):
    """A file of a journal. The first item that it adds after its `head`'s lead has the seq `origin` or a later one.

    `index`: some record boundaries, rising. `entry` and `entered`: the content of the queue and the last transaction id
    before the file, or at the end of its `head` if it has one. `checkpoint` and `counter`: the same at its end; None
    while it is written. `is_replaced`: a pack has replaced it. `checks`: the crc32 of each `block_bytes` of it; empty
    if unknown. `is_damaged`: recovery could not read it to its end. `is_gone`: the file is missing, its items are lost.
    `held`: the file, kept open while a pack takes its name.
    """

    name: str
    number: int
    origin: IndexEntry
    size: int = 0
    index: list[IndexEntry] = field(default_factory=list)
    entry: Checkpoint = EMPTY_MARK
    entered: int = 0
    checkpoint: Checkpoint | None = None
    counter: int = 0
    head: SegmentHead | None = None
    checks: list[int] = field(default_factory=list)
    block_bytes: int = 0
    is_replaced: bool = False
    is_damaged: bool = False
    is_gone: bool = False
    held: Reader | None = None

    @property
    def first(self) -> int:
        """The seq of its first item after the lead."""
        return self.origin.seq

    def index_entry(self, seq: int) -> IndexEntry:
        """Return the last known record boundary at or before `seq`."""
        at = bisect_right(self.index, seq, key=lambda entry: entry.seq)
        return self.index[at - 1] if at else self.origin

    def index_entry_behind(self, at: int, seq: int) -> IndexEntry | None:
        """Return the first known record boundary from byte `at` on whose seq is at least `seq`."""
        begin = bisect_left(self.index, at, key=lambda entry: entry.at)
        return next((entry for entry in self.index[begin:] if entry.seq >= seq), None)

    def block_at(self, at: int) -> int:
        """Return where the block with byte `at` begins; `at` itself if there are no checksums."""
        return at - at % self.block_bytes if self.checks else at

    def block_end(self, at: int) -> int:
        """Return where the block with byte `at` - 1 ends; `at` itself if there are no checksums."""
        return min(self.size, -(-at // self.block_bytes) * self.block_bytes) if self.checks else at

    def first_bad(self, at: int, checks: list[int]) -> int:
        """Return the first byte that differs from what was written, in a piece that begins at byte `at`; -1 if none
        does. `checks`: the checksums of its blocks; if empty, nothing is known.
        """
        checksums = self.checks[at // self.block_bytes :] if checks else []
        for block, (check, expected) in enumerate(zip(checks, checksums, strict=False)):
            if check != expected:
                return at + block * self.block_bytes
        return -1

    def add_index_entry(self, entry: IndexEntry) -> None:
        """Index a record boundary, if it is far enough from the last one."""
        if entry.at - (self.index[-1].at if self.index else 0) >= SAMPLE_BYTES:
            self.index.append(entry)


def index_records(segment: LogSegment, records: list[bytes], end: IndexEntry) -> None:
    """Index some boundaries of `records`, each a whole change, which have been written to `segment` and end at
    `end`.
    """
    for boundary in reversed(boundaries(records, *end, SAMPLE_BYTES)):
        segment.add_index_entry(IndexEntry(*boundary))
    segment.add_index_entry(end)


def index_run(segment: LogSegment, record_bytes: int, count: int, end: IndexEntry) -> None:
    """Index some boundaries of `count` records of `record_bytes` each, which are empty items without an expiry and end
    at `end`.
    """
    at, seq = end.at - count * record_bytes, end.seq - count
    stride = -(-SAMPLE_BYTES // record_bytes)
    for done in range(stride, count, stride):
        segment.add_index_entry(IndexEntry(at + done * record_bytes, seq + done, end.added_bytes, end.added_expiring))
    segment.add_index_entry(end)


class Writer(Protocol):
    """The log that appends to the last segment, as readers need it; so they need not import log.py."""

    @property
    def written_bytes(self) -> int: ...

    def unwritten(self) -> bytes:
        """Return the bytes that are recorded but not in the file yet."""


class Segments:
    """The files of one journal in order; `current` is the last one."""

    def __init__(self, fs: Fs, folder: str, name: str) -> None:
        self.fs = fs
        self.folder = folder
        self.sealed: list[LogSegment] = []
        self.sealed_bytes = 0
        self.current = LogSegment(name, 0, IndexEntry(0, 0))
        self.writer: Writer | None = None
        self.is_certain = True
        """True if seqs and checkpoints describe the whole state: no item in the middle of the line was lost."""
        self.on_sealed: Callable[[LogSegment], None] = lambda segment: None
        """A hook that the owner sets; called when `segment` has been sealed."""

    def seal(self, name: str, number: int, size: int, checkpoint: Checkpoint, counter: int) -> LogSegment:
        """Seal the current segment, which is complete and has a new name. Begin another one."""
        sealed = self.current
        origin = IndexEntry(0, checkpoint.end, checkpoint.added_bytes, checkpoint.added_expiring)
        self.current = LogSegment(sealed.name, 0, origin, entry=checkpoint, entered=counter)
        sealed.name, sealed.number, sealed.size = name, number, size
        sealed.checkpoint, sealed.counter = checkpoint, counter
        self.sealed.append(sealed)
        self.sealed_bytes += size
        self.on_sealed(sealed)
        return sealed

    def start_over(self, pack: LogSegment) -> None:
        """Put `pack` in place of the only file."""
        assert not self.sealed
        self.current.is_replaced = True
        self.current = pack

    def replace_through(self, last: LogSegment, pack: LogSegment) -> None:
        """Put `pack` in place of every segment up to `last`."""
        at = self.sealed.index(last)
        for segment in self.sealed[: at + 1]:
            segment.is_replaced = True
        self.sealed[: at + 1] = [pack]
        self.sealed_bytes = sum(segment.size for segment in self.sealed)
        self.on_sealed(pack)

    def covered_by(self, last: LogSegment) -> list[LogSegment]:
        """Return every segment up to `last`."""
        return self.sealed[: self.sealed.index(last) + 1]

    def keep_open(self, covered: list[LogSegment], seq: int) -> None:
        """Open the files of those segments that have items from `seq` on, and keep them open, because a pack will take
        the names of `covered` at an unknown moment. Raises OSError; none of them is open then.
        """
        try:
            for segment in covered:
                if segment.checkpoint is not None and segment.checkpoint.end > seq and not segment.is_gone:
                    segment.held = self.fs.reader(self.path(segment))
        except OSError:
            self.close_held(covered)
            raise

    def close_held(self, covered: list[LogSegment]) -> None:
        """Close what `hold` has opened."""
        for segment in covered:
            if segment.held is not None:
                segment.held.close()
                segment.held = None

    def holding(self, seq: int) -> LogSegment:
        """Return the segment that added the item with this seq."""
        if seq >= self.current.first:
            return self.current
        at = bisect_right(self.sealed, seq, key=lambda segment: segment.first)
        # A segment without items has the same first seq as the next one, and the search finds the next one.
        return self.sealed[max(0, at - 1)]

    def next_after(self, segment: LogSegment) -> LogSegment | None:
        """Return the segment after `segment`; None for the current one."""
        if segment is self.current:
            return None
        at = self.sealed.index(segment) + 1
        return self.sealed[at] if at < len(self.sealed) else self.current

    def path(self, segment: LogSegment) -> str:
        return f"{self.folder}/{segment.name}"

    def size(self, segment: LogSegment) -> int:
        """Return the size of `segment` in bytes, including the unwritten ones of the current one."""
        if segment is self.current and self.writer is not None:
            return self.writer.written_bytes + len(self.writer.unwritten())
        return segment.size

    def readable(self, segment: LogSegment) -> int:
        """Return how many bytes of `segment` are in its file."""
        if segment is self.current and self.writer is not None:
            return self.writer.written_bytes
        return segment.size

    def read(self, segment: LogSegment, at: int, count: int) -> bytes:
        """Return at most `count` bytes of `segment` from byte `at`; b"" only at its end. Raises OSError."""
        written = self.readable(segment)
        if at < written:
            count = min(count, written - at)
            return segment.held.read(at, count) if segment.held else self.fs.read(self.path(segment), at, count)
        if segment is self.current and self.writer is not None:
            return self.writer.unwritten()[at - written : at - written + count]
        return b""
