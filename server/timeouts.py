"""The time-outs of a connection: the client sends or reads nothing for too long, or does not close its side.

The broker's timers call `on_timer`. Bytes that a client sent in time may still be unread at its deadline, if the server
was suspended between a poll and a look at its clock (SIGSTOP, a virtual machine that is moved). So a client
times out only when all bytes sent before the deadline have been read, `ReadSchedule.heard_ms`: a turn later, if needed.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.limits_reached import LimitsReached
from staniel.broker.timers import Timers
from staniel.server.connection import CLOSED, LINGERING, OPEN, Connection, Drop
from staniel.server.read_schedule import ReadSchedule

LINGER_MS = 2000  # the time for a client to close its side
LOGIN_MS = 10_000  # the time for a client to authenticate
RENEWALS_MAX = 3  # a handshake has at most three messages, a login fewer


class Grace:
    """The time for a handshake or a login: `timeout_ms`, and as much again after each sign of life in that time, up
    to RENEWALS_MAX times. A stalled server (a slow disk, SIGSTOP) reads late what was sent in time.
    """

    __slots__ = ("_renewals", "_timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._renewals = 0

    def until_ms(self, heard_ms: int) -> int:
        """Return the next deadline after one has passed, or a past moment if there is none. `heard_ms` is when the
        client's bytes were last read.
        """
        self._renewals += 1
        return heard_ms + self._timeout_ms if self._renewals <= RENEWALS_MAX else 0


class ClientTimeouts:
    """The time-outs of all connections, one for each at a time. `client_timeout_ms` 0: clients may stay silent.

    `hang_up` disconnects a client once its replies have left, `drop` at once.
    """

    def __init__(
        self,
        timers: Timers,
        schedule: ReadSchedule,
        limits: LimitsReached,
        hang_up: Callable[[Connection], None],
        drop: Drop,
    ) -> None:
        self.timers = timers
        self.schedule = schedule
        self.limits = limits
        self.hang_up = hang_up
        self.drop = drop
        self.client_timeout_ms = 0

    def start_login(self, connection: Connection, now_ms: int) -> None:
        connection.alarm = LoginTimeout(connection, self, now_ms)

    def start_idle(self, connection: Connection, now_ms: int) -> None:
        """Start or restart the time-out of a silent client, if one is configured. A removed one does nothing when it
        fires; a linger time-out stays.
        """
        if not self.client_timeout_ms:
            return
        if connection.alarm is None:
            connection.alarm = IdleTimeout(connection, self, now_ms)
        if isinstance(connection.alarm, IdleTimeout):
            connection.alarm.restart(now_ms)

    def start_linger(self, connection: Connection, now_ms: int) -> None:
        self.cancel(connection)
        connection.alarm = LingerTimeout(connection, self.drop)
        self.timers.set(connection.alarm, now_ms + LINGER_MS)

    def cancel(self, connection: Connection) -> None:
        """Cancel the connection's time-out, whose timer would keep it in memory until it is due."""
        if connection.alarm is not None:
            self.timers.drop(connection.alarm)
            connection.alarm = None


class LingerTimeout:
    """A time-out that drops a client which does not close its side in time."""

    def __init__(self, connection: Connection, drop: Drop) -> None:
        self.connection = connection
        self._drop = drop

    def on_timer(self, now_ms: int) -> None:
        self._drop(self.connection, now_ms)


class LoginTimeout:
    """A time-out that disconnects a client which has not authenticated in time."""

    def __init__(self, connection: Connection, timeouts: ClientTimeouts, now_ms: int) -> None:
        self.connection = connection
        self._timeouts = timeouts
        self._grace = Grace(LOGIN_MS)
        self._due_ms = now_ms + LOGIN_MS
        timeouts.timers.set(self, self._due_ms)

    def on_timer(self, now_ms: int) -> None:
        if self.connection.state is CLOSED:
            return
        if self._timeouts.schedule.heard_ms < self._due_ms:
            self._timeouts.timers.set(self, now_ms)
            return
        has_more = self._timeouts.schedule.is_postponed(self.connection.fd)
        until_ms = self._grace.until_ms(now_ms if has_more else self.connection.active_ms)
        if until_ms > self._timeouts.schedule.heard_ms:
            self._due_ms = until_ms
            self._timeouts.timers.set(self, max(until_ms, now_ms))
            return
        self._timeouts.limits.log_limit("login_timeout", now_ms, client=self.connection.session.address)
        self._timeouts.hang_up(self.connection)


class IdleTimeout:
    """A time-out that disconnects a client which sends nothing for `client_timeout` while it waits for nothing.

    A client that reads none of its replies is dropped between one and two time-outs after it has stopped.
    """

    def __init__(self, connection: Connection, timeouts: ClientTimeouts, now_ms: int) -> None:
        self.connection = connection
        self._timeouts = timeouts
        self._had_unsent = False  # there were unsent bytes when the time-out was last set
        self._since_ms = self._due_ms = now_ms  # the client's time counts from here

    def restart(self, now_ms: int) -> None:
        """Restart the time-out."""
        connection = self.connection
        self._had_unsent, connection.has_read = bool(connection.unsent), False
        if not self._is_idle:
            self._since_ms = now_ms  # the client waits for us
        self._due_ms = self._active_ms + self._timeouts.client_timeout_ms
        self._timeouts.timers.set(self, self._due_ms)

    @property
    def _is_idle(self) -> bool:
        """True if the client must send next, and has no unread bytes left for lack of time."""
        return self.connection.is_idle and not self._timeouts.schedule.is_postponed(self.connection.fd)

    @property
    def _active_ms(self) -> int:
        return max(self._since_ms, self.connection.active_ms)

    def on_timer(self, now_ms: int) -> None:
        connection = self.connection
        timeout_ms = self._timeouts.client_timeout_ms
        if connection.state is LINGERING or connection.state is CLOSED:
            return
        if not timeout_ms:
            connection.alarm = None  # no longer configured
        elif self._timeouts.schedule.heard_ms < self._due_ms:
            self._timeouts.timers.set(self, now_ms)
        elif self._reads_nothing:
            self._timeouts.limits.count("client_timeout")
            self._timeouts.drop(connection, now_ms)
        elif connection.state is OPEN and self._is_idle and now_ms - self._active_ms >= timeout_ms:
            if self._timeouts.schedule.heard_ms - self._active_ms < timeout_ms:
                self._timeouts.timers.set(self, now_ms)
                return
            self._timeouts.limits.count("client_timeout")
            self._timeouts.hang_up(connection)
        else:
            self.restart(now_ms)

    @property
    def _reads_nothing(self) -> bool:
        connection = self.connection
        is_stuck = self._had_unsent and bool(connection.unsent) and not connection.has_read
        return is_stuck and not self._timeouts.schedule.is_postponed(connection.fd)
