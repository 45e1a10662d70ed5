"""The recent duration of syncs, which decides whether the hub waits for a sync itself.

Handing a sync to the thread and back costs some 50 microseconds and a fight for the interpreter; for a disk that syncs
within a few hundred it is better to wait at once, as redis does. For a slow disk it is not.

Beside a busy hub a sync in the thread ends when the hub lets go of the interpreter, once or twice a turn, and seems to
take that long. So where it may have been brief, one of many is waited for, which tells.
"""

from __future__ import annotations

ONE_JOURNAL_NS = 500_000
SEVERAL_JOURNALS_NS = 1_000_000  # more is saved, too
LATEST_WEIGHS = 8  # an eighth
TRIED_BELOW = 4  # times what is brief
TRIED_AFTER = 8  # syncs in the thread


class SyncLatency:
    """A running average. One slow sync is enough to switch to the thread; many brief ones switch back."""

    def __init__(self, brief_ns: int = ONE_JOURNAL_NS) -> None:
        self._brief_ns = brief_ns
        self._average_ns = 2 * brief_ns
        self._in_thread = 0  # since the last one that the hub waited for

    @property
    def is_brief(self) -> bool:
        return self._average_ns < self._brief_ns

    @property
    def is_worth_a_try(self) -> bool:
        """True if the next sync may be brief although those in the thread were not."""
        return self._in_thread >= TRIED_AFTER and self._average_ns < TRIED_BELOW * self._brief_ns

    def add(self, duration_ns: int, *, has_waited: bool = False) -> None:
        """Add the duration of a sync. `has_waited`: the hub waited for it, so nothing else is in the duration."""
        self._in_thread = 0 if has_waited else self._in_thread + 1
        if has_waited and duration_ns < self._brief_ns:
            self._average_ns = min(self._average_ns, self._brief_ns - 1)
        if duration_ns > 4 * self._brief_ns:
            self._average_ns = 4 * duration_ns
        else:
            self._average_ns += (duration_ns - self._average_ns) // LATEST_WEIGHS
