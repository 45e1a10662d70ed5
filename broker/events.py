"""Events for the operator: a level, a short dotted name, and fields. Where they go is up to the sink."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from msgspec import Struct

SELDOM_MS = 10_000  # between two lines about the same
CLIENT_EVENTS_MAX = 20  # lines about one thing that clients do, in that time
KINDS_MAX = 64  # of lines that are told apart at a time; further ones share the lines of OTHERS
OTHERS = object()


class Level(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventSink(Protocol):
    """`event` is a short dotted name; `fields` are numbers and texts."""

    def __call__(self, level: Level, event: str, /, **fields: object) -> None: ...


def discard(level: Level, event: str, /, **fields: object) -> None:
    """A sink for nothing."""


DAMAGES = frozenset({
    "cmdlog.damaged", "convert.plan_damaged", "intents.damaged", "journal.damaged", "journal.gone",
    "journal.shortened", "journal.unreadable_items", "pauses.damaged", "redo.damaged",
    "redo.unusable", "spool.cleared",
})  # fmt: skip
"""Events about bytes of the spool that are lost or cannot be read, while the rest is served."""


class DamageWatch:
    """Hands every event on to `report`. `count`: how many of DAMAGES came by, `first`: one, and its file."""

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
    """What has come of one kind since `since_ms`: how many lines, and how many were left out before the next one."""

    since_ms: int
    length_ms: int = SELDOM_MS
    lines: int = 0
    left_out: int = 0
    is_exceeded: bool = False

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.since_ms + self.length_ms


class RateLimit:
    """At most `burst` lines of a kind in SELDOM_MS. Of a kind that goes on exceeding that the windows become twice as
    long each time, up to `longest_ms`.
    """

    def __init__(self, burst: int, longest_ms: int = SELDOM_MS) -> None:
        self._burst = burst
        self._longest_ms = longest_ms
        self._windows: dict[object, LineWindow] = {}

    def admits(self, kind: object, now_ms: int) -> bool:
        """Whether a line of this kind would be written now; if not, it counts as left out."""
        if kind not in self._windows and len(self._windows) >= KINDS_MAX:
            self._windows = {each: window for each, window in self._windows.items() if not window.is_over(now_ms)}
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
        """A line of a kind that was admitted is written; how many were left out before it."""
        window = self._windows.get(kind) or self._windows[OTHERS]
        left_out, window.left_out = window.left_out, 0
        window.lines += 1
        return left_out


class RateLimitedSink:
    """For events that clients cause as often as they like: at most `burst` lines in SELDOM_MS for each event and `why`.
    The next line after those says in `left_out` how many were not written. A `why` in which a client's own words stand
    would make each of its lines one of another kind: there `of_kind` says what is counted together.
    """

    def __init__(self, report: EventSink, burst: int = 1) -> None:
        self._report = report
        self._limit = RateLimit(burst)

    def __call__(self, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        self.of_kind(fields.get("why"), level, event, now_ms, **fields)

    def of_kind(self, kind: object, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        """The same, of lines that are counted together with those of that event and `kind`."""
        if not self.is_wanted(event, now_ms, kind):
            return
        if left_out := self._limit.count((event, kind)):
            fields["left_out"] = left_out
        self._report(level, event, **fields)

    def is_wanted(self, event: str, now_ms: int, kind: object = None) -> bool:
        """Whether a line about this would be written now; if not, it counts as left out. For events whose fields take
        time to find.
        """
        return self._limit.admits((event, kind), now_ms)
