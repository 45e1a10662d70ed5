"""Events for the operator: a level, a short dotted name, and fields. Where they go is up to the sink."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

SELDOM_MS = 10_000  # between two lines about the same
CLIENT_EVENTS_MAX = 20  # lines about one thing that clients do, in that time
KINDS_MAX = 64  # of lines that are told apart; then all begin anew


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


class RateLimitedSink:
    """For events that clients cause as often as they like: at most `burst` lines in SELDOM_MS for each event and `why`.
    The next line after those says in `left_out` how many were not written.
    """

    def __init__(self, report: EventSink, burst: int = 1) -> None:
        self._report = report
        self._burst = burst
        self._windows: dict[tuple[str, object], list[int]] = {}  # since when, how many lines, how many are left out

    def __call__(self, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        if not self.is_wanted(event, now_ms, fields.get("why")):
            return
        window = self._windows[event, fields.get("why")]
        if window[2]:
            fields["left_out"] = window[2]
            window[2] = 0
        window[1] += 1
        self._report(level, event, **fields)

    def is_wanted(self, event: str, now_ms: int, why: object = None) -> bool:
        """Whether a line about this would be written now; if not, it counts as left out. For events whose fields take
        time to find.
        """
        kind = (event, why)
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= KINDS_MAX:
                self._windows.clear()
            self._windows[kind] = [now_ms, 0, 0]
        elif now_ms >= window[0] + SELDOM_MS:
            window[0], window[1] = now_ms, 0
        elif window[1] >= self._burst:
            window[2] += 1
            return False
        return True
