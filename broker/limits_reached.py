"""How often each limit has kept something from a client: for the statistics, for /metrics, and for the log where no
other event tells of it. docs/config.md has one table of all limits.
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
)
"""Most are names of settings. `open_files` is the system's; `invalid_requests` are what a parser has refused, as lines
and numbers that are too long; `queue_full` is a queue's `max_items` or `max_size`.
"""


class LimitsReached:
    """`counts` are since the start. `max_connections`: how many clients there may be; 0: the driver has not said."""

    def __init__(self, report: EventSink) -> None:
        self.counts = dict.fromkeys(LIMITS, 0)
        self.max_connections = 0
        self._rate_limited = RateLimitedSink(report)

    def count(self, limit: str) -> None:
        """For what has an event of its own, or happens so often that none is wanted."""
        self.counts[limit] += 1

    def tell(self, limit: str, now_ms: int, **fields: object) -> None:
        """Count it, and log it; a line for each limit in ten seconds."""
        self.counts[limit] += 1
        self._rate_limited(Level.WARNING, "limit.reached", now_ms, why=limit, **fields)
