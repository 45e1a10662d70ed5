"""The memory that connections hold: unfinished requests, and replies that the client does not read.

Beyond `max_pending_size_total` the clients that hold most are dropped; so are clients without progress for
`stall_timeout`. A client whose requests come whole and whose replies leave at once costs nothing: only others are
counted.
"""

from __future__ import annotations

from heapq import nlargest

from msgspec import Struct

from staniel.broker.config.schema import ServerSettings
from staniel.broker.events import Level, RateLimitedSink
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.timers import Timers
from staniel.server.connection import LONG_BYTES, Connection, Drop
from staniel.server.read_schedule import ReadSchedule

COUNTS = 4  # full counts in one stall_timeout
CUTS_PER_TURN = 8  # each returns the client's open reads, and frees up to megabytes of memory
MORE_CUTS_PER_TURN = 32  # a quarter above the limit: then the limit is more important than the clients' delay


class Pending(Struct):
    """The memory of one connection. `since_ms` is when `unsent_bytes` or `begun_bytes` was last seen to change."""

    held_bytes: int
    unsent_bytes: int
    begun_bytes: int
    since_ms: int

    @property
    def is_pressing(self) -> bool:
        """True if it holds more than short replies that wait for the disk, which any client that puts has."""
        return bool(self.begun_bytes or self.unsent_bytes) or self.held_bytes > LONG_BYTES


class PendingBytes:
    """The memory of all connections. `changed` has those to count at the end of this turn; `tracked` those that held
    bytes at the last count; `pressing` the descriptors of those with more than short replies that wait for the disk.
    """

    def __init__(
        self, timers: Timers, schedule: ReadSchedule, limits: LimitsReached, report: RateLimitedSink, drop: Drop
    ) -> None:
        self._timers = timers
        self._schedule = schedule
        self._limits = limits
        self._report = report
        self._drop = drop
        self._limit_bytes = self._stall_timeout_ms = 0
        self.changed: dict[Connection, None] = {}
        self.total_bytes = 0
        self.tracked: dict[Connection, Pending] = {}
        self.pressing: set[int] = set()
        self._is_armed = False
        self._count_all_ms = 0  # the time of the next full count

    def configure(self, server: ServerSettings, now_ms: int) -> None:
        """Set the limits, and count all connections in the next turn."""
        self._limit_bytes, self._stall_timeout_ms = server.max_pending_bytes, server.stall_timeout_ms
        self._count_all_ms = now_ms
        if self.tracked:
            self._is_armed = True
            self._timers.set(self, now_ms)

    def count_changed(self, now_ms: int) -> None:
        """Count what has changed. If the total exceeds the limit, drop the clients that hold most until it does not."""
        for connection in self.changed:
            self._count(connection, now_ms)
        self.changed.clear()
        if self.total_bytes > self._limit_bytes:
            self._cut_largest(now_ms)
        if self.tracked and not self._is_armed:
            self._arm(now_ms)

    def _cut_largest(self, now_ms: int) -> None:
        """Drop the largest clients until the total is within the limit or a turn's work is done; the next turn
        continues.
        """
        tracked, limit = self.tracked, self._limit_bytes
        cuts = CUTS_PER_TURN if self.total_bytes <= limit + limit // 4 else MORE_CUTS_PER_TURN
        largest = nlargest(cuts, tracked, key=lambda connection: tracked[connection].held_bytes)
        for connection in largest:
            if self.total_bytes <= limit:
                return
            self._limits.count("max_pending_size_total")
            self._cut(connection, "it held most of max_pending_size_total", now_ms)
        if self.total_bytes > limit:
            self._is_armed = True
            self._timers.set(self, now_ms)

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.changed.pop(connection, None)
        self.pressing.discard(connection.fd)
        pending = self.tracked.pop(connection, None)
        if pending is not None:
            self.total_bytes -= pending.held_bytes
        if not self.tracked and self._is_armed:
            self._timers.drop(self)
            self._is_armed = False

    def on_timer(self, now_ms: int) -> None:
        """Continue the drops that exceeded a turn, and from time to time count all connections."""
        self._is_armed = False
        if now_ms >= self._count_all_ms:
            self._cut_stuck(now_ms)
        if self.tracked:
            self._arm(now_ms)
        if self.total_bytes > self._limit_bytes:
            self._cut_largest(now_ms)

    def _cut_stuck(self, now_ms: int) -> None:
        """Drop clients that have made no progress for too long, although they could have."""
        timeout_ms = self._stall_timeout_ms
        heard_ms = self._schedule.heard_ms  # later bytes may be unread
        for connection in list(self.tracked):
            self._count(connection, now_ms)
            pending = self.tracked.get(connection)
            if pending is not None and timeout_ms and heard_ms - pending.since_ms >= timeout_ms:
                self._limits.count("stall_timeout")
                self._cut(connection, "it made no progress with a request or a reply for stall_timeout", now_ms)

    def _arm(self, now_ms: int) -> None:
        timeout_ms = self._stall_timeout_ms
        if timeout_ms:
            self._is_armed = True
            if now_ms >= self._count_all_ms:
                self._count_all_ms = now_ms + max(1, timeout_ms // COUNTS)
            self._timers.set(self, self._count_all_ms)

    def _count(self, connection: Connection, now_ms: int) -> None:
        held, unsent, begun = connection.owed_bytes, connection.unsent_bytes, connection.begun_bytes
        known = self.tracked.get(connection)
        self.total_bytes += held - (known.held_bytes if known else 0)
        if not held:
            self.tracked.pop(connection, None)
            self.pressing.discard(connection.fd)
            return
        if known is None:
            self.tracked[connection] = pending = Pending(held, unsent, begun, now_ms)
        else:
            # A client that waits, or is not read from, or is postponed, could not have made progress.
            moved = (unsent, begun) != (known.unsent_bytes, known.begun_bytes)
            may_move = (unsent > 0 or connection.may_begin) and not self._schedule.is_postponed(connection.fd)
            is_stuck = may_move and not moved
            since_ms = known.since_ms if is_stuck else now_ms
            self.tracked[connection] = pending = Pending(held, unsent, begun, since_ms)
        if pending.is_pressing:
            self.pressing.add(connection.fd)
        else:
            self.pressing.discard(connection.fd)

    def _cut(self, connection: Connection, why: str, now_ms: int) -> None:
        client = connection.session.address
        self._report(Level.WARNING, "client.cut", now_ms, client=client, why=why)
        self._drop(connection, now_ms)
