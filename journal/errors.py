"""What can be wrong with a file's bytes, and which of it is no damage: the end of a record that was being written.

Knows how a torn end looks. Refuses to know how flaws are found.
"""

from __future__ import annotations

from msgspec import Struct

TORN = "the file ends inside a record"
TORN_BYTES_MAX = 32 << 20  # twice the largest item that a queue takes unless it is told to take larger ones


class Flaw(Struct, frozen=True):
    """`size` bytes of a file from byte `at` on. `is_torn`: a record was being written there when the server died; the
    next start cuts it off, and nothing is lost that had been promised."""

    at: int
    size: int
    why: str
    is_torn: bool = False

    def told(self, path: str) -> str:
        """One line for people, the same from every tool."""
        end = "; the next start cuts it off" if self.is_torn else ""
        return f"{path}: byte {self.at}, {self.size} bytes: {described(self.why, self.is_torn)}{end}"


def described(why: str, is_torn: bool) -> str:
    """The reason, with the one word that tells what is no damage."""
    return f"torn end, {why}" if is_torn else why


def is_torn(why: str, lost_bytes: int) -> bool:
    """Whether the end of a file, unreadable for `why`, looks like a record that is being written."""
    return why == TORN or (why.endswith(" are left") and lost_bytes <= TORN_BYTES_MAX)
