"""Errors about unreadable bytes of a journal file, for all formats: exceptions for readers, and values for reports.

An incomplete record at the end of the current file is not damage: the server was killed while it wrote the record,
nothing about it was promised, and the next start cuts it off. That is `TruncatedRecord`; everything else is
`CorruptRecord`.
"""

from __future__ import annotations

from msgspec import Struct

CUT_SHORT = "the file ends inside a record"
TORN_BYTES_MAX = 32 << 20  # twice the default size of the largest item


class IncompleteRecord(Exception):
    """The signal that a record continues behind the given bytes."""


class CorruptRecord(Exception):
    """The error for an unreadable record, which starts at byte `at`; more bytes would not help. `at` counts from the
    start of the given piece. A caller that reads a file in pieces makes it an offset of the file.
    """

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


class TruncatedRecord(CorruptRecord):
    """The error for a file that ends inside a record: a torn write, if the file was being written."""

    def __init__(self, why: str = CUT_SHORT, at: int = 0) -> None:
        super().__init__(why, at)


def past_end(size: int, left_bytes: int) -> CorruptRecord:
    """Return the error for a block that claims `size` bytes although the file has only `left_bytes` more. If those are
    more than any record can have, the size must be wrong, and the file is not cut off.
    """
    kind = TruncatedRecord if left_bytes <= TORN_BYTES_MAX else CorruptRecord
    return kind(f"a block of {size} bytes, only {left_bytes} are left")


class Flaw(Struct, frozen=True):
    """A flaw: `size` bytes of a file from byte `at` on. `is_torn`: the server was killed while it wrote a record there;
    the next start cuts it off, and loses nothing that was promised.
    """

    at: int
    size: int
    why: str
    is_torn: bool = False

    def describe(self, path: str) -> str:
        """Return one line for people, the same from every tool."""
        end = "; the next start cuts it off" if self.is_torn else ""
        return f"{path}: byte {self.at}, {self.size} bytes: {_described(self.why, self.is_torn)}{end}"


class Damage(Struct, frozen=True):
    """A part that a recovery could not read: `lost_bytes` bytes of `file` from byte `at` on. `saved_as`: the file with
    a copy of them, or the bytes themselves; "" if there is no copy. `is_torn`: the server was killed while it wrote a
    record there, which is not an error.
    """

    file: str
    at: int
    lost_bytes: int
    why: str
    saved_as: str = ""
    is_torn: bool = False

    def describe(self) -> str:
        """Return the line about the damage for operators."""
        why = _described(self.why, self.is_torn)
        return f"{self.file}: byte {self.at}, {self.lost_bytes} bytes: {why}; left behind, kept as {self.saved_as}"


def _described(why: str, is_torn: bool) -> str:
    return f"torn end, {why}" if is_torn else why
