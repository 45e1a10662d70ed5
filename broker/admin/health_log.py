"""The log lines of health: each reason of `health.py` has one when it begins and one when it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.broker.admin.health import names_by_reason, of_one_queue, reasons_of_server
from staniel.broker.admin.reasons import HealthReason, ReasonName
from staniel.broker.admin.watch import Watch
from staniel.broker.events import CLIENT_EVENTS_MAX, Level, RateLimitedSink

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

Key = tuple[ReasonName, str]
"""A reason and the name of the queue that it is about, or ""."""


class HealthLog:
    """The reasons that the log tells. After each round of the watch, `log_changes` compares them with those
    that health tells. Each queue has lines of its own, of each kind so many in a minute at most.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._report = RateLimitedSink(broker.report, CLIENT_EVENTS_MAX)
        self._told: dict[Key, str] = {}  # the text that stands in the log; "" if the line was left out

    def log_changes(self, now_ms: int) -> None:
        """Log which reasons have begun, and which have ended, since the last round."""
        broker, told = self._broker, self._told
        of_server = {(reason.name, ""): reason for reason in reasons_of_server(broker, now_ms)}
        found: dict[Key, HealthReason | None] = {**of_server, **dict.fromkeys(self._of_queues())}
        for key in sorted([key for key in found if key not in told], key=_order):
            told[key] = self._begins(key, found[key], now_ms)
        for key in sorted([key for key in told if key not in found], key=_order):
            self._ends(key, told.pop(key), now_ms)

    def _of_queues(self) -> list[Key]:
        found = names_by_reason(self._broker, self._broker.watch.unreadable)
        return [(reason, name) for reason, names in found.items() for name in names]

    def _begins(self, key: Key, reason: HealthReason | None, now_ms: int) -> str:
        """Log that a reason has begun. Return the text that the log has then."""
        kind, name = key
        if not self._report.is_wanted("health.warning", now_ms, kind):
            return ""
        reason = reason or of_one_queue(self._broker, kind, name, now_ms)
        fields = {"reason": kind.value, **_about(name), "why": reason.text, "hint": reason.mend}
        self._report.of_kind(kind, Level.WARNING, "health.warning", now_ms, **fields)
        return reason.text

    def _ends(self, key: Key, text: str, now_ms: int) -> None:
        kind, name = key
        fields = {"reason": kind.value, **_about(name), **({"why": text} if text else {})}
        self._report.of_kind(kind, Level.INFO, "health.ended", now_ms, **fields)


def logged_watch(broker: Broker) -> Watch:
    """Return a watch whose rounds are followed by lines of the log."""
    watch = Watch(broker)
    watch.after_round = HealthLog(broker).log_changes
    return watch


def _order(key: Key) -> tuple[str, str]:
    return key[0].value, key[1]


def _about(name: str) -> dict[str, str]:
    return {"queue": name} if name else {}
