"""Events for the operator: a level, a short dotted name, and fields. The sink decides where they go."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec import Struct

from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.time_outs import Ended

SELDOM_MS = 10_000  # between two lines of one kind
CLIENT_EVENTS_MAX = 20  # lines of one kind that clients cause, in that time
KINDS_MAX = 64  # of lines that are counted separately at a time; further kinds share one count, under OTHERS
OTHERS = object()


class Level(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventSink(Protocol):
    """A function that takes events. `event` is a short dotted name; `fields` are numbers and texts."""

    def __call__(self, level: Level, event: str, /, **fields: object) -> None: ...


def discard(level: Level, event: str, /, **fields: object) -> None:
    """Discard an event."""


DAMAGES = frozenset({
    "cmdlog.damaged", "convert.plan_damaged", "intents.damaged", "journal.damaged", "journal.gone",
    "journal.shortened", "journal.unreadable_items", "pauses.damaged", "put_keys.damaged",
    "redo.damaged", "redo.unusable", "spool.cleared",
})  # fmt: skip
"""Names of events about bytes of the spool that are lost or cannot be read, while the rest is served."""


class DamageWatch:
    """A sink that passes every event on to `report`. `count`: how many of them were in DAMAGES; `first`: the first of
    those, with its file.
    """

    def __init__(self, report: EventSink) -> None:
        self.count = 0
        self.first = ""
        self._report = report

    def __call__(self, level: Level, event: str, /, **fields: object) -> None:
        if event in DAMAGES:
            self.count += 1
            if not self.first:
                self.first = f"{event}: {fields.get('file') or fields.get('queue') or fields.get('spool')}"
        self._report(level, event, **fields)


class LineWindow(Struct):
    """The lines of one kind since `since_ms`: how many were written, and how many were left out before the next one."""

    since_ms: int
    length_ms: int = SELDOM_MS
    lines: int = 0
    left_out: int = 0
    is_exceeded: bool = False

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.since_ms + self.length_ms


class RateLimit:
    """A limit of `burst` lines of a kind in SELDOM_MS. While a kind keeps exceeding it, its windows become twice as
    long each time, up to `longest_ms`.
    """

    def __init__(self, burst: int, longest_ms: int = SELDOM_MS) -> None:
        self._burst = burst
        self._longest_ms = longest_ms
        self._windows: dict[object, LineWindow] = {}

    def admits(self, kind: object, now_ms: int) -> bool:
        """Tell whether a line of this kind may be written now. If not, count it as left out."""
        if kind not in self._windows and len(self._windows) >= KINDS_MAX:
            self._windows = {key: window for key, window in self._windows.items() if not window.is_over(now_ms)}
            if len(self._windows) >= KINDS_MAX:
                kind = OTHERS
        window = self._windows.get(kind)
        if window is None:
            self._windows[kind] = LineWindow(now_ms)
        elif window.is_over(now_ms):
            longer_ms = min(2 * window.length_ms, self._longest_ms) if window.is_exceeded else SELDOM_MS
            window.since_ms, window.length_ms, window.lines, window.is_exceeded = now_ms, longer_ms, 0, False
        elif window.lines >= self._burst:
            window.left_out += 1
            window.is_exceeded = True
            return False
        return True

    def count(self, kind: object) -> int:
        """Count a line of a kind that was admitted, and return how many were left out before it."""
        window = self._windows.get(kind) or self._windows[OTHERS]
        left_out, window.left_out = window.left_out, 0
        window.lines += 1
        return left_out


class RateLimitedSink:
    """A sink for events that clients can cause as often as they like: at most `burst` lines in SELDOM_MS for each event
    and `why`. The next line has in `left_out` how many were not written. If `why` contains a client's own words, each
    line would be of another kind: for such events `of_kind` names the kind.
    """

    def __init__(self, report: EventSink, burst: int = 1) -> None:
        self._report = report
        self._limit = RateLimit(burst)

    def __call__(self, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        self.of_kind(fields.get("why"), level, event, now_ms, **fields)

    def of_kind(self, kind: object, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        """Report an event whose lines are counted together with those of the same event and `kind`."""
        if not self.is_wanted(event, now_ms, kind):
            return
        if left_out := self._limit.count((event, kind)):
            fields["left_out"] = left_out
        self._report(level, event, **fields)

    def is_wanted(self, event: str, now_ms: int, kind: object = None) -> bool:
        """Tell whether such a line may be written now. If not, count it as left out. Use it for events whose fields
        take time to find.
        """
        return self._limit.admits((event, kind), now_ms)


LAST_TIME = {Ended.DEAD: "item.dead", Ended.SPARED: "item.spared"}
"""The events for an item that has been delivered for the last time."""


def dead_letter(queue: Queue, taken: Delivery) -> dict[str, object]:
    """Return the fields of the events of DEAD_LETTERS."""
    target = queue.config.dead_letter_queue
    return {"queue": queue.name, "item": taken.id, "deliveries": taken.deliveries, "target": target}
