"""The segments of a command log: facts about each, and a reader that goes piece by piece, also past damage."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import CorruptRecord, IncompleteRecord, TruncatedRecord
from staniel.journal.workq.encoder import MAGIC
from staniel.journal.workq.records import (
    RECORD_BYTES_MAX,
    claimed_end,
    find_frame,
    follow_frames,
    read_frame,
)

PIECE_BYTES = 1 << 20
# More than all bytes before a payload: two varints, an id, a name of 255 bytes, six numbers.
HEAD_BYTES = 1 << 10
WINDOW_BYTES = 4 * RECORD_BYTES_MAX
ENDS_EARLY = "the record ends early"

Frame = tuple[int, int, int]
"""Offsets in a piece: the beginning of a record, that of its payload, and the end of the record after its CRC."""


class CmdLogSegment:
    """A segment file. `adds`: additions in it, of which `dead` are of jobs that are gone; `limits_ms`: the sum of their
    ends of life. `due_ms`: when to clean it. `corrupt_ranges`: how many ranges contain no records. `invalid_records`:
    how many records have a valid CRC and an invalid command.
    """

    __slots__ = ("adds", "corrupt_ranges", "dead", "due_ms", "invalid_records", "limits_ms", "number", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.size = 0
        self.adds = 0
        self.dead = 0
        self.limits_ms = 0
        self.due_ms = 0
        self.corrupt_ranges = 0
        self.invalid_records = 0

    @property
    def is_mostly_dead(self) -> bool:
        """True if more than half of its additions are of jobs that are gone."""
        return 2 * self.dead > self.adds

    @property
    def kept_bytes(self) -> int:
        """The estimated size of the file without these additions, in bytes."""
        return self.size * (self.adds - self.dead) // self.adds if self.adds else self.size

    def settle_due(self) -> None:
        """Set the time when cleaning is due: the average end of life of its jobs, as in the document; immediately if it
        has none.
        """
        self.due_ms = self.limits_ms // self.adds if self.adds else 0


class CorruptRange(Struct, frozen=True):
    """A part of a segment without records: `size` bytes from byte `at` on. `is_tail`: it extends to the end of the
    file. `is_torn`: it is a tail and the start of a record, which is not damage in the current segment.
    """

    at: int
    size: int
    why: str
    is_tail: bool = False
    is_torn: bool = False


def is_begun(fs: Fs, path: str) -> bool:
    """Tell whether the segment ends inside its header. Raises OSError."""
    magic = fs.read(path, 0, len(MAGIC))
    return len(magic) < len(MAGIC) and MAGIC.startswith(magic)


def header_error(fs: Fs, path: str) -> str:
    """Return what is wrong with a segment's header, or "". Raises OSError."""
    magic = fs.read(path, 0, len(MAGIC))
    if magic == MAGIC:
        return ""
    if len(magic) < len(MAGIC):
        return f"the header has {len(magic)} of {len(MAGIC)} bytes"
    if magic[:4] == MAGIC[:4]:
        return f"version {int.from_bytes(magic[4:], 'big')}, known is 1"
    return "not a command log's header"


class SegmentReader:
    """The reader of one segment, from its first record to its end. It appends to `corrupt_ranges`. Raises OSError."""

    def __init__(self, fs: Fs, path: str, piece_bytes: int = PIECE_BYTES) -> None:
        self.size = fs.size(path)
        self.corrupt_ranges: list[CorruptRange] = []
        self._fs = fs
        self._path = path
        self._piece_bytes = piece_bytes
        self._bad_at = -1
        self._error = CorruptRecord("")

    def pieces(self) -> Iterator[tuple[bytes, list[Frame], int]]:
        """Yield (bytes, the valid records in them, their offset in the file) for each read. Raises OSError."""
        at, want = len(MAGIC), self._piece_bytes
        while at < self.size:
            data = self._fs.read(self._path, at, min(want, self.size - at))
            if not data:
                break
            frames, used, error = self._frames(data, complete=at + len(data) >= self.size)
            if frames and self._bad_at >= 0:
                self._end_corrupt_range(at + frames[0][0])
            yield data, frames, at
            # The record is longer than the piece. Read twice as much.
            want = self._piece_bytes if used else min(2 * want, 2 * RECORD_BYTES_MAX)
            at += used
            if error is not None:
                if self._bad_at < 0:
                    self._bad_at, self._error = at, error
                at, want = self._resume_after(at), self._piece_bytes
        self._end_corrupt_range(self.size, is_tail=True)

    def _frames(self, data: bytes, complete: bool) -> tuple[list[Frame], int, CorruptRecord | None]:
        """Return the records at the start of `data`, the number of their bytes, and the error of the next record, if
        any.
        """
        frames: list[Frame] = []
        at = 0
        while at < len(data):
            try:
                start, end = read_frame(data, at)
            except IncompleteRecord:
                return frames, at, TruncatedRecord(ENDS_EARLY) if complete else None
            except CorruptRecord as error:
                return frames, at, error.with_traceback(None)
            frames.append((at, start, end))
            at = end
        return frames, at, None

    def _resume_after(self, bad_at: int) -> int:
        """Return where reading continues after the corrupt record at `bad_at`; the file size if nowhere.

        Clients choose the bytes of payloads, which may contain whole records, so bytes that may be a payload are not
        trusted. If the record's size and the lengths within it agree, they are its extent. Valid records may begin
        within that extent: when the disk was full, a record was written again after its torn first part. They are
        accepted if their sequence continues past the extent; records within a payload cannot, because two times and a
        checksum follow every payload. If the lengths disagree, a record is accepted only at the start of a sequence
        that is longer than any payload or ends with the file.
        """
        claimed = claimed_end(self._read(bad_at, HEAD_BYTES), 0)
        if claimed is None:
            return self._find_sequence(bad_at + 1, self.size, self.size)
        end = bad_at + claimed
        return self._find_sequence(bad_at + 1, end, end) if end < self.size else self.size

    def _find_sequence(self, at: int, end: int, sequence_end: int) -> int:
        """Return the first record between `at` and `end` that starts a sequence of valid records that ends after
        `sequence_end`, is longer than any record, or ends with the file; `end` if there is none.
        """
        while at < end:
            data = self._read(at, WINDOW_BYTES)
            complete = at + len(data) >= self.size
            frame = find_frame(data, 0, complete)
            at += frame
            if at < end and (frame <= len(data) - RECORD_BYTES_MAX or complete):
                row = follow_frames(data, frame, frame + RECORD_BYTES_MAX)
                ends = complete and row == len(data)
                if row > frame and (at - frame + row > sequence_end or row - frame >= RECORD_BYTES_MAX or ends):
                    return at
                at += max(1, row - frame)
        return end

    def _read(self, at: int, count: int) -> bytes:
        return self._fs.read(self._path, at, min(count, self.size - at))

    def _end_corrupt_range(self, at: int, is_tail: bool = False) -> None:
        """Note that the corrupt range, if there is one, ends at `at`."""
        if self._bad_at >= 0:
            is_torn = is_tail and isinstance(self._error, TruncatedRecord)
            self.corrupt_ranges.append(CorruptRange(self._bad_at, at - self._bad_at, self._error.why, is_tail, is_torn))
            self._bad_at = -1
