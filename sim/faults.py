"""A fault of the fake disk: which step fails, when, how often, and how. Knows nothing of what the disk holds."""

from __future__ import annotations

from msgspec import Struct


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

    def strikes(self, verb: str, path: str) -> bool:
        """Whether this step fails; counts it."""
        if verb != self.verb or self.path_part not in path or not self.times:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True
