"""A fault of the fake disk: which step fails, when, how often, and how. Knows nothing of what the disk holds."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Where(Enum):
    """Who is at work on the disk."""

    ANYBODY = "anybody"
    TURN = "a turn of the server"
    THREAD = "one of its threads"


class Fault(Struct):
    """`verb` on a path that contains `path_part`: `after` pass, then `times` fail with `errno`, having written `short`
    bytes.
    """

    verb: str
    path_part: str
    errno: int
    after: int
    times: int
    short: int
    where: Where = Where.ANYBODY

    def strikes(self, verb: str, path: str, where: Where) -> bool:
        """Whether this step fails; counts it."""
        if verb != self.verb or self.path_part not in path or not self.times:
            return False
        if self.where is not Where.ANYBODY and self.where is not where:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True
