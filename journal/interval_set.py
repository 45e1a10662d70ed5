"""A set of integers, kept as intervals: a million consecutive confirmed ids take as much memory as one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice


class IntervalSet:
    """Integers in ascending order. Intervals never touch; `starts` has the first member of each."""

    __slots__ = ("_ends", "starts")

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.starts: list[int] = []
        self._ends: list[int] = []
        for item_id in sorted(ids):
            self.add(item_id)

    @classmethod
    def from_intervals(cls, intervals: Iterable[tuple[int, int]]) -> IntervalSet:
        """Return the set of the ids in any of the intervals (first, last), which may be in any order, overlap and
        touch.
        """
        ids = cls()
        for first, last in intervals:
            ids.add_interval(first, last)
        return ids

    def __bool__(self) -> bool:
        return bool(self.starts)

    def __len__(self) -> int:
        return sum(self._ends) - sum(self.starts) + len(self.starts)

    def __contains__(self, item_id: int) -> bool:
        at = bisect_right(self.starts, item_id) - 1
        return at >= 0 and item_id <= self._ends[at]

    def __iter__(self) -> Iterator[int]:
        for start, end in self.intervals():
            yield from range(start, end + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self.intervals() == other.intervals()

    def intervals(self) -> list[tuple[int, int]]:
        """Return (first, last) of each interval."""
        return list(zip(self.starts, self._ends, strict=True))

    def add(self, item_id: int) -> None:
        self.add_interval(item_id, item_id)

    def add_interval(self, first: int, last: int) -> None:
        """Add every id from `first` to `last`."""
        starts, ends = self.starts, self._ends
        low = bisect_left(ends, first - 1)
        high = bisect_right(starts, last + 1)
        if low < high:
            first, last = min(first, starts[low]), max(last, ends[high - 1])
        starts[low:high] = [first]
        ends[low:high] = [last]

    def discard(self, item_id: int) -> None:
        """Remove one number, if it is in the set."""
        at = bisect_right(self.starts, item_id) - 1
        if at < 0 or item_id > self._ends[at]:
            return
        first, last = self.starts[at], self._ends[at]
        remaining = [(low, high) for low, high in ((first, item_id - 1), (item_id + 1, last)) if low <= high]
        self.starts[at : at + 1] = [low for low, _ in remaining]
        self._ends[at : at + 1] = [high for _, high in remaining]

    def drop_through(self, item_id: int) -> None:
        """Remove the ids up to `item_id`."""
        dropped = bisect_right(self._ends, item_id)
        del self.starts[:dropped], self._ends[:dropped]
        if self.starts and self.starts[0] <= item_id:
            self.starts[0] = item_id + 1

    def reach(self, item_id: int) -> int:
        """Return the last id of the interval that contains `item_id`; `item_id` - 1 if none does."""
        at = bisect_right(self.starts, item_id) - 1
        return self._ends[at] if at >= 0 and item_id <= self._ends[at] else item_id - 1

    def nth_outside(self, item_id: int, count: int) -> int:
        """Return the number, from `item_id` on and not in the set, that has `count` such numbers before it."""
        at = bisect_left(self._ends, item_id)
        for start, end in zip(islice(self.starts, at, None), islice(self._ends, at, None), strict=True):
            if count < start - item_id:
                break
            count -= max(0, start - item_id)
            item_id = end + 1
        return item_id + count
