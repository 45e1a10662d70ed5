"""Time-outs of a connection: the client says or reads nothing for too long, or does not close its side.

`due` is called by the broker's timers. What a client said in time may still be unread when its time is over: a server
that is stopped between a look at its sockets and its clock (SIGSTOP, a virtual machine that is moved) goes on with the
clock. So a time is over when all has been read that was said in it, `Hub.heard_ms`: a turn later, if need be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.server.connection import CLOSED, LINGERING, OPEN, Connection

if TYPE_CHECKING:
    from staniel.server.hub import Hub


LOGIN_MS = 10_000  # for a client to say who it is, where it has to
RENEWALS_MAX = 3  # a handshake is of three messages at most, and a login of fewer


class Grace:
    """How long a client may take to get in: `timeout_ms`, and as much again after what it says in that time, up to
    RENEWALS_MAX times. A server that stands still (a slow disk, SIGSTOP) hears late what was said in time.
    """

    __slots__ = ("_renewals", "_timeout_ms")

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._renewals = 0

    def until_ms(self, heard_ms: int) -> int:
        """The time is over: until when there is more, or a moment that has passed. `heard_ms`: when something was last
        read of the client.
        """
        self._renewals += 1
        return heard_ms + self._timeout_ms if self._renewals <= RENEWALS_MAX else 0


class LingerTimeout:
    """A client that does not close its side in time is dropped."""

    def __init__(self, connection: Connection, drop: Callable[[Connection, int], None]) -> None:
        self.connection = connection
        self._drop = drop

    def due(self, now_ms: int) -> None:
        self._drop(self.connection, now_ms)


class LoginTimeout:
    """A client that has not said in time who it is is hung up on."""

    def __init__(self, connection: Connection, hub: Hub, now_ms: int) -> None:
        self.connection = connection
        self._hub = hub
        self._grace = Grace(LOGIN_MS)
        self._due_ms = now_ms + LOGIN_MS
        hub.broker.timers.set(self, self._due_ms)

    def due(self, now_ms: int) -> None:
        if self.connection.state is CLOSED:
            return
        if self._hub.heard_ms < self._due_ms:
            self._hub.broker.timers.set(self, now_ms)
            return
        has_more = self._hub.is_postponed(self.connection.fd)
        until_ms = self._grace.until_ms(now_ms if has_more else self.connection.active_ms)
        if until_ms > self._hub.heard_ms:
            self._due_ms = until_ms
            self._hub.broker.timers.set(self, max(until_ms, now_ms))
            return
        self._hub.broker.limits.tell("login_timeout", now_ms, client=self.connection.session.address)
        self._hub.hang_up(self.connection)


class IdleTimeout:
    """Disconnects a client that sends nothing for `client_timeout` while it waits for nothing.
    A client that reads none of its replies for so long is dropped, between one time-out and two after it has stopped.
    """

    def __init__(self, connection: Connection, hub: Hub, now_ms: int) -> None:
        self.connection = connection
        self._hub = hub
        self._had_unsent = False  # when the time-out was last set
        self._since_ms = self._due_ms = now_ms  # the client's time counts from here

    def restart(self, now_ms: int) -> None:
        """Set the time-out anew."""
        connection = self.connection
        self._had_unsent, connection.has_read = bool(connection.unsent), False
        if not self._is_idle:
            self._since_ms = now_ms  # what it waits for is ours to deliver
        self._due_ms = self._active_ms + self._hub.broker.config.server.client_timeout_ms
        self._hub.broker.timers.set(self, self._due_ms)

    @property
    def _is_idle(self) -> bool:
        """Whether the client has to say something, and has not said what there was no time to read."""
        return self.connection.is_idle and not self._hub.is_postponed(self.connection.fd)

    @property
    def _active_ms(self) -> int:
        return max(self._since_ms, self.connection.active_ms)

    def due(self, now_ms: int) -> None:
        connection = self.connection
        timeout_ms = self._hub.broker.config.server.client_timeout_ms
        if connection.state is LINGERING or connection.state is CLOSED:
            return
        if not timeout_ms:
            connection.alarm = None  # no longer configured
        elif self._hub.heard_ms < self._due_ms:
            self._hub.broker.timers.set(self, now_ms)
        elif self._reads_nothing:
            self._hub.broker.limits.count("client_timeout")
            self._hub.drop(connection, now_ms)
        elif connection.state is OPEN and self._is_idle and now_ms - self._active_ms >= timeout_ms:
            if self._hub.heard_ms - self._active_ms < timeout_ms:
                self._hub.broker.timers.set(self, now_ms)
                return
            self._hub.broker.limits.count("client_timeout")
            self._hub.hang_up(connection)
        else:
            self.restart(now_ms)

    @property
    def _reads_nothing(self) -> bool:
        connection = self.connection
        is_stuck = self._had_unsent and bool(connection.unsent) and not connection.has_read
        return is_stuck and not self._hub.is_postponed(connection.fd)
