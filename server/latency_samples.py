"""Samples of the latency of replies: of requests, and of deliveries to waiting clients, at most one in SAMPLE_NS."""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.counters import ServerCounters
from staniel.broker.latencies import SAMPLE_NS, Histogram, Latencies
from staniel.broker.session import READY, Session
from staniel.journal.group_commit import GroupCommit

SAMPLES_MAX = 64  # replies timed at once: a disk that hangs holds them all


class LatencySamples:
    """The replies that are timed: `open` has each one's histogram, batch and beginning.

    `request_due_ns` and `delivery_due_ns`: the times from which the next request and the next delivery are timed.
    """

    def __init__(
        self, latencies: Latencies, counters: ServerCounters, group: GroupCommit, elapsed_ns: Callable[[], int]
    ) -> None:
        self._latencies = latencies
        self._counters = counters
        self._group = group
        self._elapsed_ns = elapsed_ns
        self.request_due_ns = self.delivery_due_ns = 0
        self.open: list[tuple[Histogram, int, int]] = []
        self._puts = self._gets = 0  # counters before the request that is timed

    @property
    def is_full(self) -> bool:
        """True if too many samples are open."""
        return len(self.open) > SAMPLES_MAX

    def begin_request(self, session: Session) -> None:
        """Begin to time the next request of a session, which is executed alone."""
        self._puts, self._gets, session.shown = self._counters.cmd_set, self._counters.cmd_get, None

    def end_request(self, session: Session, began_ns: int, now_ms: int) -> None:
        """Note the reply of the request, if it was one put or one get."""
        added_ms = session.shown_added_ms(now_ms)
        has_put, has_got = self._counters.cmd_set > self._puts, self._counters.cmd_get > self._gets
        if has_put != has_got and session.state is READY and not session.backlog:
            histogram = self._latencies.puts if has_put else self._latencies.gets
            self.open.append((histogram, session.batch, began_ns))
            self._latencies.add_rest(added_ms, now_ms)

    def begin_delivery(self, session: Session, now_ns: int) -> None:
        """Begin to time the item of a session that has waited for it."""
        self.delivery_due_ns = now_ns + SAMPLE_NS
        session.shown = None

    def end_delivery(self, session: Session, began_ns: int, now_ms: int) -> None:
        self._latencies.add_rest(session.shown_added_ms(now_ms), now_ms)
        self.open.append((self._latencies.deliveries, session.batch, began_ns))

    def end_sent(self) -> None:
        """End the samples whose replies have left in this turn."""
        durable, now_ns = self._group.durable, self._elapsed_ns()
        for histogram, batch, began_ns in self.open:
            if batch <= durable:
                histogram.add(now_ns - began_ns)
        self.open = [sample for sample in self.open if sample[1] > durable]
