"""Errors of bytes of a journal file that cannot be read, for all formats: exceptions for readers, and values for
reports.

A record that is cut short at the end of the file that was being written is no damage: the server died while it wrote
it, nothing of it had been promised, and the next start cuts it off. That is `Truncated`; everything else is `Corrupt`.
"""

from __future__ import annotations

from msgspec import Struct

CUT_SHORT = "the file ends inside a record"
TORN_BYTES_MAX = 32 << 20  # twice the default size of the largest item


class NeedMore(Exception):
    """The signal that a record goes on behind the bytes given."""


class Corrupt(Exception):
    """The error for an unreadable record, which starts at byte `at`; more bytes would not help. `at` counts from the
    start of the piece given; a caller that reads the file in pieces makes it an offset of the file.
    """

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.why = why
        self.at = at


class Truncated(Corrupt):
    """The error for a file that ends inside a record: a torn write, if the file was being written."""

    def __init__(self, why: str = CUT_SHORT, at: int = 0) -> None:
        super().__init__(why, at)


def past_end(size: int, left_bytes: int) -> Corrupt:
    """Return the error for a block that claims `size` bytes where the file has only `left_bytes` more. If those are
    more than any record has, the size is wrong, and not the end missing.
    """
    kind = Truncated if left_bytes <= TORN_BYTES_MAX else Corrupt
    return kind(f"a block of {size} bytes, only {left_bytes} are left")


class Flaw(Struct, frozen=True):
    """A flaw: `size` bytes of a file from byte `at` on. `is_torn`: a record was being written there when the server
    died; the next start cuts it off, and loses nothing that was promised.
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
    """A part that a recovery could not read: `lost_bytes` bytes of `file` from byte `at` on. `saved_as`: the file that
    holds a copy of them, or the bytes themselves; "" if nothing does. `is_torn`: a record was being written there when
    the server died; that is no error.
    """

    file: str
    at: int
    lost_bytes: int
    why: str
    saved_as: str = ""
    is_torn: bool = False

    def describe(self) -> str:
        """Return the line that an operator reads of the damage."""
        why = _described(self.why, self.is_torn)
        return f"{self.file}: byte {self.at}, {self.lost_bytes} bytes: {why}; left behind, kept as {self.saved_as}"


def _described(why: str, is_torn: bool) -> str:
    return f"torn end, {why}" if is_torn else why
