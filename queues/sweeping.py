"""Expired items behind a live head. Only the head of a line can leave it, so such an item keeps its place until then;
but its payload is freed, and its place does not count for limits.

The rest is a *remnant*: an item without payload that has expired since 1970, which readers, journals and packs treat
like any expired item. The journal's own record is valid until the head moves on, so after a restart the item is there
again, and expires again.
"""

from __future__ import annotations

from staniel.queues.line import IsOver, Line

LOOKED_AT_ONCE = 20_000  # items checked in one step, 0.1 us each
FRESH_MS = 10_000  # for callers that only ask whether it would help, the result of a pass is valid this long
LOOKED_PER_MS = 200  # on average, where puts to a full queue request one pass after another: a fiftieth of the time


class Sweep:
    """Searches one queue's line, a piece at a time, and turns expired items into remnants.

    `is_asked`: the queue's timer begins a pass.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._next_seq = 0  # the pass continues there; 0: no pass is running
        self._vain_ms: int | None = None  # when the last pass ended, if it found no expired item
        self._found = 0  # in the running pass
        self._again_ms = 0  # before this, another pass would take too much of the time

    @property
    def is_under_way(self) -> bool:
        return self._next_seq > 0

    def may_help(self, line: Line, now_ms: int) -> bool:
        """Return True if a piece of a pass may find something. Costs nothing if no item can expire."""
        if line.expiring <= line.remnants or line.read_error is not None:
            return False
        return self.is_under_way or now_ms >= self._again_ms

    def was_vain(self, now_ms: int) -> bool:
        """Return True if a recent pass has checked the whole line and found nothing."""
        return self._vain_ms is not None and now_ms < self._vain_ms + FRESH_MS

    def sweep_some(self, line: Line, is_over: IsOver, now_ms: int, count_max: int) -> int:
        """Do a piece of a pass; begin one if none is running. Return how many items became remnants."""
        count, self._next_seq = line.sweep(is_over, self._next_seq, LOOKED_AT_ONCE, count_max)
        self._found += count
        if not self.is_under_way:
            self._vain_ms = None if self._found else now_ms
            self._found = 0
            self._again_ms = now_ms + line.memory_items // LOOKED_PER_MS
        return count
