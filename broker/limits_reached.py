"""Counts of how often each limit was reached: for the statistics, for /metrics, and for the log where no other event
reports it. docs/limits.md has one table of all limits.
"""

from __future__ import annotations

from staniel.broker.events import EventSink, Level, RateLimitedSink

LIMITS = (
    "max_connections",
    "max_connections_per_address",
    "open_files",
    "max_handshakes",
    "handshake_timeout",
    "login_timeout",
    "client_timeout",
    "stall_timeout",
    "max_pending_size_total",
    "invalid_requests",
    "max_item_size",
    "queue_full",
    "max_queues",
    "max_fanout_children",
    "max_open_transactions",
    "max_open_reads",
    "max_waiters",
    "max_put_keys",
)
"""Names of limits. Most are settings. `open_files` is the system's limit. `invalid_requests` are those that a parser
rejected, for example because of too long lines and numbers. `queue_full` is a queue's `max_items` or `max_size`.
"""


class LimitsReached:
    """The counts of all limits since the start of the process. `max_connections`: the limit of clients; 0: the driver
    has not set it.
    """

    def __init__(self, report: EventSink) -> None:
        self.counts = dict.fromkeys(LIMITS, 0)
        self.max_connections = 0
        self._rate_limited = RateLimitedSink(report)

    def count(self, limit: str) -> None:
        """Count a limit that has an event of its own, or is reached so often that no event is written."""
        self.counts[limit] += 1

    def log_limit(self, limit: str, now_ms: int, **fields: object) -> None:
        """Count a limit and log it, with at most one line for each limit in ten seconds."""
        self.counts[limit] += 1
        self._rate_limited(Level.WARNING, "limit.reached", now_ms, why=limit, **fields)
