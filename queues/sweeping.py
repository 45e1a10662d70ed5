"""Expired items behind a live head. Only the head of a line can leave it, so such an item keeps its place until then;
but its payload goes, and the place counts for no limit.

What stays is a *remnant*: an item without payload that has expired since 1970, which readers, journals and packs treat
like any expired item. The journal's own record stands until the head moves on, so a restart finds the item once more,
and that it has expired.
"""

from __future__ import annotations

from staniel.queues.line import IsOver, Line

LOOKED_AT_ONCE = 20_000  # items, 0.1 us each
FRESH_MS = 10_000  # what a pass has found holds for so long, for those who only want to know
LOOKED_PER_MS = 200  # over time, where puts to a full queue ask for more and more: a fiftieth of it


class Sweep:
    """Looks through one queue's line, a piece at a time, and makes remnants of what has expired.

    `is_asked`: the queue's timer begins a pass.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._next_seq = 0  # the pass goes on from there; 0: none is under way
        self._vain_ms: int | None = None  # when the last pass ended, if it found nothing
        self._found = 0  # in the pass that is under way
        self._again_ms = 0  # before this, another pass would take too large a part of the time

    @property
    def is_under_way(self) -> bool:
        return self._next_seq > 0

    def may_help(self, line: Line, now_ms: int) -> bool:
        """Return True if a piece of a pass may find something. Costs nothing if no item can expire."""
        if line.expiring <= line.remnants or line.read_error is not None:
            return False
        return self.is_under_way or now_ms >= self._again_ms

    def was_vain(self, now_ms: int) -> bool:
        """Return True if a pass has just looked at the whole line and found nothing."""
        return self._vain_ms is not None and now_ms < self._vain_ms + FRESH_MS

    def sweep_some(self, line: Line, is_over: IsOver, now_ms: int, count_max: int) -> int:
        """Do a piece of a pass; begin a pass if none is under way. Returns how many items became remnants."""
        count, self._next_seq = line.sweep(is_over, self._next_seq, LOOKED_AT_ONCE, count_max)
        self._found += count
        if not self.is_under_way:
            self._vain_ms = None if self._found else now_ms
            self._found = 0
            self._again_ms = now_ms + line.memory_items // LOOKED_PER_MS
        return count
