"""What the broker has to say to whoever operates it: one event a happening, with fields. Refuses to know where it
goes.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

SELDOM_MS = 10_000  # between two lines about the same
KINDS_MAX = 64  # of lines that are told apart; then all begin anew


class Level(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Report(Protocol):
    """`event` is a short dotted name; `fields` are numbers and texts."""

    def __call__(self, level: Level, event: str, /, **fields: object) -> None: ...


def silent(level: Level, event: str, /, **fields: object) -> None:
    """Says nothing."""


class Seldom:
    """Events that clients can bring about as often as they like: one line in SELDOM_MS for each event and reason. The
    next line says in `left_out` how many were not written.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._told: dict[tuple[str, object], list[int]] = {}  # when the last line was written, how many are left out

    def __call__(self, level: Level, event: str, now_ms: int, /, **fields: object) -> None:
        kind = (event, fields.get("why"))
        told = self._told.get(kind)
        if told is not None and now_ms < told[0] + SELDOM_MS:
            told[1] += 1
            return
        if told is not None and told[1]:
            fields["left_out"] = told[1]
        if len(self._told) >= KINDS_MAX:
            self._told.clear()
        self._told[kind] = [now_ms, 0]
        self._report(level, event, **fields)
