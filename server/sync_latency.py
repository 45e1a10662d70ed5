"""How long the disk takes for a sync, as far as the last ones tell: whether to wait for it on the spot.

Knows durations only. Handing a sync to the thread and back costs some 50 microseconds and a fight for the interpreter;
a disk that answers within a few hundred is better waited for on the spot, as redis does. A slow one is not.
"""

from __future__ import annotations

BRIEF_NS = 500_000  # for one journal
BRIEF_FOR_MANY_NS = 1_000_000  # for several: more is saved, too
LATEST_WEIGHS = 8  # an eighth


class Pace:
    """A running average. One slow sync is enough to leave the spot; many brief ones lead back to it."""

    def __init__(self, brief_ns: int = BRIEF_NS) -> None:
        self._brief_ns = brief_ns
        self._average_ns = 2 * brief_ns

    @property
    def is_brief(self) -> bool:
        return self._average_ns < self._brief_ns

    def took(self, duration_ns: int) -> None:
        """A sync took so long."""
        if duration_ns > 4 * self._brief_ns:
            self._average_ns = 4 * duration_ns
        else:
            self._average_ns += (duration_ns - self._average_ns) // LATEST_WEIGHS


class Paces:
    """Syncs of one journal, and syncs of several."""

    def __init__(self) -> None:
        self.one, self.many = Pace(), Pace(BRIEF_FOR_MANY_NS)

    def of(self, journals: int) -> Pace:
        """The pace of a sync of so many."""
        return self.one if journals == 1 else self.many
