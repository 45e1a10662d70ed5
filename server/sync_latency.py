"""The recent duration of syncs, which decides whether the hub waits for a sync itself.

Handing a sync to the thread and back costs some 50 microseconds and a fight for the interpreter; for a disk that syncs
within a few hundred it is better to wait at once, as redis does. For a slow disk it is not.
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
        """Add the duration of a sync."""
        if duration_ns > 4 * self._brief_ns:
            self._average_ns = 4 * duration_ns
        else:
            self._average_ns += (duration_ns - self._average_ns) // LATEST_WEIGHS
