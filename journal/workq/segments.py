"""Segments of a command log: what is known of each, and one read piece by piece.

Knows where records begin and end, also behind damage. Refuses to know what the records say.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.workq.encoder import MAGIC
from staniel.journal.workq.records import (
    RECORD_BYTES_MAX,
    Damaged,
    Short,
    claimed_end,
    find_frame,
    follow_frames,
    read_frame,
)

PIECE_BYTES = 1 << 20
HEAD_BYTES = (
    1 << 10
)  # more than what stands in front of a payload: two varints, an id, a name of 255 bytes, six numbers
WINDOW_BYTES = 4 * RECORD_BYTES_MAX
ENDS_EARLY = "the record ends early"

Frame = tuple[int, int, int]
"""Where in a piece a record begins, where its payload does, and where the record ends, its CRC included."""


class CmdLogSegment(Struct, eq=False):
    """One file. `adds` additions stand in it, `dead` of them of jobs that are gone; `limits_ms` is the sum of
    their ends of life, as of the last visit. `due_ms`: when it pays to clean it. `scars`: damaged parts known.
    `senseless`: sound records whose command makes no sense.
    """

    number: int
    size: int = 0
    adds: int = 0
    dead: int = 0
    limits_ms: int = 0
    due_ms: int = 0
    scars: int = 0
    senseless: int = 0

    def settle_due(self) -> None:
        """The average end of its jobs' lives, as the document has it. Without any: at once."""
        self.due_ms = self.limits_ms // self.adds if self.adds else 0


class CorruptRange(Struct, frozen=True):
    """`size` bytes of a segment from `at` on are no records."""

    at: int
    size: int
    why: str
    is_tail: bool

    @property
    def is_torn(self) -> bool:
        """Whether a record was being written there, if the segment is the one that is written to."""
        return self.is_tail and self.why == ENDS_EARLY


def is_begun(fs: Fs, path: str) -> bool:
    """Whether the segment ends inside its header."""
    found = fs.read(path, 0, len(MAGIC))
    return len(found) < len(MAGIC) and MAGIC.startswith(found)


def header_error(fs: Fs, path: str) -> str:
    """What is wrong with a segment's header; "" if nothing is."""
    found = fs.read(path, 0, len(MAGIC))
    if found == MAGIC:
        return ""
    if len(found) < len(MAGIC):
        return f"the header has {len(found)} of {len(MAGIC)} bytes"
    if found[:4] == MAGIC[:4]:
        return f"version {int.from_bytes(found[4:], 'big')}, known is 1"
    return "not a command log's header"


class SegmentReader:
    """One segment from its first record to its end. `scars` grows with what is found to be damaged."""

    def __init__(self, fs: Fs, path: str, piece_bytes: int = PIECE_BYTES) -> None:
        self.size = fs.size(path)
        self.scars: list[CorruptRange] = []
        self._fs = fs
        self._path = path
        self._piece_bytes = piece_bytes
        self._bad_at = -1
        self._why = ""

    def pieces(self) -> Iterator[tuple[bytes, list[Frame], int]]:
        """(bytes, the sound records in them, their offset in the file), one read after the other. Raises OSError."""
        at, want = len(MAGIC), self._piece_bytes
        while at < self.size:
            data = self._fs.read(self._path, at, min(want, self.size - at))
            if not data:
                break
            frames, used, why = self._frames(data, complete=at + len(data) >= self.size)
            if frames and self._bad_at >= 0:
                self._heal(at + frames[0][0])
            yield data, frames, at
            # A record longer than the piece: read twice as much, which the file really has.
            want = self._piece_bytes if used else min(2 * want, 2 * RECORD_BYTES_MAX)
            at += used
            if why:
                if self._bad_at < 0:
                    self._bad_at, self._why = at, why
                at, want = self._go_on_behind(at), self._piece_bytes
        self._heal(self.size, is_tail=True)

    def _frames(self, data: bytes, complete: bool) -> tuple[list[Frame], int, str]:
        """The records `data` begins with, how much of it they are, and what is wrong with the next one, if anything."""
        frames: list[Frame] = []
        at = 0
        while at < len(data):
            try:
                start, end = read_frame(data, at)
            except Short:
                return frames, at, ENDS_EARLY if complete else ""
            except Damaged as damaged:
                return frames, at, str(damaged)
            frames.append((at, start, end))
            at = end
        return frames, at, ""

    def _go_on_behind(self, bad_at: int) -> int:
        """Where reading goes on behind the damaged record at `bad_at`; the size if nowhere.

        Clients choose what stands in a payload, whole records among it, so nothing is believed that may be one. What a
        record says of its own length in two places is taken for its extent. A record that a full disk has torn was
        written again behind its first part, so sound ones may begin within that extent: they are believed if their row
        goes on behind it, which in a payload breaks off at what follows every payload: two times of ours, a checksum.
        Where the two places disagree, a record counts only at the head of a row that no payload could hold, or that
        ends with the file.
        """
        claimed = claimed_end(self._read(bad_at, HEAD_BYTES), 0)
        if claimed is None:
            return self._find_row(bad_at + 1, self.size, self.size)
        end = bad_at + claimed
        return self._find_row(bad_at + 1, end, end) if end < self.size else self.size

    def _find_row(self, at: int, end: int, row_end: int) -> int:
        """The first record from `at` on, before `end`, whose row of sound ones goes on behind `row_end`, or is longer
        than any record, or ends with the file; else `end`.
        """
        while at < end:
            data = self._read(at, WINDOW_BYTES)
            complete = at + len(data) >= self.size
            found = find_frame(data, 0, complete)
            at += found
            if at < end and (found <= len(data) - RECORD_BYTES_MAX or complete):
                row = follow_frames(data, found, found + RECORD_BYTES_MAX)
                ends = complete and row == len(data)
                if row > found and (at - found + row > row_end or row - found >= RECORD_BYTES_MAX or ends):
                    return at
                at += max(1, row - found)
        return end

    def _read(self, at: int, count: int) -> bytes:
        return self._fs.read(self._path, at, min(count, self.size - at))

    def _heal(self, at: int, is_tail: bool = False) -> None:
        """What was bad ends at `at`."""
        if self._bad_at >= 0:
            self.scars.append(CorruptRange(self._bad_at, at - self._bad_at, self._why, is_tail))
            self._bad_at = -1
