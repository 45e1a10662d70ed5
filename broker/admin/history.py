"""The history of a queue: points in rings of a fixed size, fine for the last minutes and coarse for a day.

Three levels: ten minutes of 5 s, an hour of 30 s, a day of 10 min. A finer level feeds the next one, so that keeping a
point costs the same at every level. A ring grows for a day, to at most RING_BYTES_MAX.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator

from msgspec import Struct

FINE_MS = 5_000
SPANS = {"10m": 0, "1h": 1, "1d": 2}
"""The spans of a request, each with its level."""
STEPS_MS = (FINE_MS, 30_000, 600_000)
POINTS = (120, 120, 144)
FIELDS = 6
RING_BYTES_MAX = sum(POINTS) * FIELDS * 4 + 1_000  # and Python's own overhead
SPARK_POINTS = 60
SPARK_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
NOT_SEEN = math.nan


class Point(Struct, frozen=True, gc=False):
    """The state of a queue at one moment, or several points as one: depth and open reads at the end, the mean of the
    rates (items a second), the maximum of the age and of the unsynced bytes, so that a peak is not averaged away.
    """

    items: float
    puts: float
    gets: float
    age_ms: float
    open_reads: float
    unsynced_bytes: float


class HistoryView(Struct, frozen=True):
    """A queue's history: in each list one value a step, the oldest first. The last step ends at `end_at_ms`. null: the
    queue was not looked at in that step. `is_kept` false: this queue has no history. `items`, `open_reads`: at the end
    of each step. `put_rate`, `get_rate`: items a second. `age_ms`, `unsynced_bytes`: the maximum within the step.
    """

    queue: str
    is_kept: bool
    step_ms: int
    end_at_ms: int
    items: list[float | None]
    put_rate: list[float | None]
    get_rate: list[float | None]
    age_ms: list[float | None]
    open_reads: list[float | None]
    unsynced_bytes: list[float | None]


class HistoryLevel:
    """The points of one step length. `bucket`: the number of the present step, counted from the epoch."""

    __slots__ = (
        "_count",
        "_gets",
        "_last",
        "_most_age",
        "_most_unsynced",
        "_next",
        "_puts",
        "_size",
        "_values",
        "bucket",
        "ended_ms",
        "step_ms",
    )

    def __init__(self, at: int) -> None:
        self.step_ms = STEPS_MS[at]
        self.bucket = -1
        self.ended_ms = 0  # when the step of the last complete point began
        self._size = POINTS[at] * FIELDS
        self._values = array("f")  # a ring once it is full: the oldest value is at `_next`
        self._next = 0
        self._clear_point()

    def _clear_point(self) -> None:
        self._last: Point | None = None
        self._count = 0
        self._puts = self._gets = self._most_age = self._most_unsynced = 0.0

    def add(self, point: Point, now_ms: int) -> Point | None:
        """Add a point of the moment `now_ms`. Return the point of the previous step if that step has ended."""
        bucket = now_ms // self.step_ms
        done: Point | None = None
        if bucket != self.bucket:
            done = self._end()
            self._skip(bucket)
            self.bucket = bucket
            self._clear_point()
        self._last = point
        self._count += 1
        self._puts += point.puts
        self._gets += point.gets
        self._most_age = max(self._most_age, point.age_ms)
        self._most_unsynced = max(self._most_unsynced, point.unsynced_bytes)
        return done

    def _end(self) -> Point | None:
        if self._last is None:
            return None
        last, count = self._last, self._count
        self.ended_ms = self.bucket * self.step_ms
        done = Point(
            last.items, self._puts / count, self._gets / count, self._most_age, last.open_reads, self._most_unsynced
        )
        self._push((done.items, done.puts, done.gets, done.age_ms, done.open_reads, done.unsynced_bytes))
        return done

    def _skip(self, bucket: int) -> None:
        """Add an empty point for each step in which the queue was not looked at. Add none if the clock went back."""
        if self.bucket < 0:
            return
        for _ in range(min(bucket - self.bucket - 1, self._size // FIELDS)):
            self._push((NOT_SEEN,) * FIELDS)

    def _push(self, values: tuple[float, ...]) -> None:
        if len(self._values) < self._size:
            self._values.extend(values)
            return
        self._values[self._next : self._next + FIELDS] = array("f", values)
        self._next = (self._next + FIELDS) % self._size

    def column(self, field: int) -> list[float]:
        """Return one field of all points, the oldest first."""
        values = self._values
        return [*values[self._next + field :: FIELDS], *values[field : self._next : FIELDS]]

    @property
    def end_at_ms(self) -> int:
        """The end of the last point's step."""
        return max(0, self.bucket) * self.step_ms


class HistoryRing:
    """The history of one queue. `idle_points`: how many fine points in a row had neither items nor traffic."""

    __slots__ = ("_spark", "_spark_bucket", "idle_points", "levels")

    def __init__(self) -> None:
        self.levels = (HistoryLevel(0), HistoryLevel(1), HistoryLevel(2))
        self.idle_points = 0
        self._spark = (0, "")
        self._spark_bucket = -1  # bucket of the finest level when the spark line was made

    def add(self, point: Point, now_ms: int) -> None:
        """Add a point of the queue."""
        done: Point | None = point
        for level in self.levels:
            if done is None:
                return
            done = level.add(done, now_ms)
            now_ms = level.ended_ms
            if level.step_ms == FINE_MS and done is not None:
                is_idle = not (done.items or done.puts or done.gets or done.open_reads)
                self.idle_points = self.idle_points + 1 if is_idle else 0

    def has_seen(self, now_ms: int) -> bool:
        """Tell whether the present step has a point already. A second one without changes would differ only in the age,
        which then stays as it was at the beginning of the step.
        """
        return now_ms // FINE_MS == self.levels[0].bucket

    def spark(self) -> tuple[int, str]:
        """Return the depth of the last ten minutes in a few bytes: the maximum, and for each 10 s a letter for its part
        of that, in 63 steps of SPARK_ALPHABET. All pages share the result.
        """
        if self._spark_bucket != self.levels[0].bucket:
            self._spark_bucket = self.levels[0].bucket
            self._spark = self._new_spark()
        return self._spark

    def _new_spark(self) -> tuple[int, str]:
        depth = [0.0 if math.isnan(level) else level for level in self.levels[0].column(0)]
        depth = depth[1::2] if len(depth) % 2 == 0 else depth[::2]
        most = max(depth, default=0)
        scale = (len(SPARK_ALPHABET) - 1) / most if most else 0
        return int(most), "".join([SPARK_ALPHABET[round(level * scale)] for level in depth[-SPARK_POINTS:]])


def view(queue: str, ring: HistoryRing | None, span: str) -> HistoryView:
    """Return the history of one span of SPANS."""
    level = (ring or HistoryRing()).levels[SPANS[span]]
    columns = [list(_rounded(level.column(field))) for field in range(FIELDS)]
    items, puts, gets, age, open_reads, unsynced = columns
    return HistoryView(
        queue=queue,
        is_kept=ring is not None,
        step_ms=level.step_ms,
        end_at_ms=level.end_at_ms,
        items=items,
        put_rate=puts,
        get_rate=gets,
        age_ms=age,
        open_reads=open_reads,
        unsynced_bytes=unsynced,
    )


def _rounded(values: list[float]) -> Iterator[float | None]:
    for value in values:
        yield None if math.isnan(value) else round(value, 2)
