"""The log lines of health: each reason of `health.py` has one when it begins and one when it ends."""

from __future__ import annotations

from staniel.broker.admin.health import HealthCheck
from staniel.broker.admin.reasons import HealthReason, ReasonName
from staniel.broker.events import CLIENT_EVENTS_MAX, EventSink, Level, RateLimitedSink

Key = tuple[ReasonName, str]
"""A reason and the name of the queue that it is about, or ""."""


class HealthLog:
    """The reasons that are in the log. After each round of the watch, `log_changes` compares them with the present
    ones. A reason is logged for each queue; in one minute only so many lines of a kind.
    """

    def __init__(self, health: HealthCheck, report: EventSink) -> None:
        self._health = health
        self._report = RateLimitedSink(report, CLIENT_EVENTS_MAX)
        self._told: dict[Key, str] = {}  # the text in the log; "" if the line was left out

    def log_changes(self, now_ms: int) -> None:
        """Log which reasons have begun, and which have ended, since the last round."""
        told = self._told
        of_server = {(reason.name, ""): reason for reason in self._health.reasons_of_server(now_ms)}
        reasons: dict[Key, HealthReason | None] = {**of_server, **dict.fromkeys(self._of_queues())}
        for key in sorted([key for key in reasons if key not in told], key=_order):
            told[key] = self._begins(key, reasons[key], now_ms)
        for key in sorted([key for key in told if key not in reasons], key=_order):
            self._ends(key, told.pop(key), now_ms)

    def _of_queues(self) -> list[Key]:
        queues = self._health.queues
        by_reason = queues.names_by_reason(queues.watch.unreadable)
        return [(reason, name) for reason, names in by_reason.items() for name in names]

    def _begins(self, key: Key, reason: HealthReason | None, now_ms: int) -> str:
        """Log that a reason has begun. Return the text that is in the log then."""
        kind, name = key
        if not self._report.is_wanted("health.warning", now_ms, kind):
            return ""
        reason = reason or self._health.queues.about(kind, [name], now_ms)
        fields = {"reason": kind.value, **_about(name), "why": reason.text, "hint": reason.mend}
        self._report.of_kind(kind, Level.WARNING, "health.warning", now_ms, **fields)
        return reason.text

    def _ends(self, key: Key, text: str, now_ms: int) -> None:
        kind, name = key
        fields = {"reason": kind.value, **_about(name), **({"why": text} if text else {})}
        self._report.of_kind(kind, Level.INFO, "health.ended", now_ms, **fields)


def _order(key: Key) -> tuple[str, str]:
    return key[0].value, key[1]


def _about(name: str) -> dict[str, str]:
    return {"queue": name} if name else {}
