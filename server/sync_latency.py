"""How long the disk takes for a sync, as far as the last ones tell: whether the hub waits for it at once.

Handing a sync to the thread and back costs some 50 microseconds and a fight for the interpreter; a disk that answers
within a few hundred is better waited for at once, as redis does. A slow one is not.
"""

from __future__ import annotations

ONE_JOURNAL_NS = 500_000
SEVERAL_JOURNALS_NS = 1_000_000  # more is saved, too
LATEST_WEIGHS = 8  # an eighth


class SyncLatency:
    """A running average. One slow sync is enough to switch to the thread; many brief ones switch back."""

    def __init__(self, brief_ns: int = ONE_JOURNAL_NS) -> None:
        self._brief_ns = brief_ns
        self._average_ns = 2 * brief_ns

    @property
    def is_brief(self) -> bool:
        return self._average_ns < self._brief_ns

    def add(self, duration_ns: int) -> None:
        """A sync has taken so long."""
        if duration_ns > 4 * self._brief_ns:
            self._average_ns = 4 * duration_ns
        else:
            self._average_ns += (duration_ns - self._average_ns) // LATEST_WEIGHS
