"""How long clients may keep us waiting: for their next request, and for closing their side.

Knows moments. Refuses to know sockets: who is to be hung up on or dropped is told to the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from staniel.broker.broker import Broker
from staniel.server.connection import OPEN, Connection, ConnectionState


class Ender(Protocol):
    """Who hangs up."""

    broker: Broker

    def end(self, connection: Connection) -> None: ...

    def drop(self, connection: Connection, now_ms: int) -> None: ...

    def keeps_waiting(self, connection: Connection) -> bool: ...


class LingerTimeout:
    """A client that does not close its side in time is dropped."""

    def __init__(self, connection: Connection, drop: Callable[[Connection, int], None]) -> None:
        self.connection = connection
        self._drop = drop

    def due(self, now_ms: int) -> None:
        self._drop(self.connection, now_ms)


class IdleTimeout:
    """A client that says nothing for too long, while nothing is due to it, is hung up on. One that reads nothing for
    too long of what it is owed is dropped, between one time-out and two after it has stopped.
    """

    def __init__(self, connection: Connection, hub: Ender, now_ms: int) -> None:
        self.connection = connection
        self._hub = hub
        self._owed = False  # at the last look
        self._since_ms = now_ms  # before that its time does not count

    def look_again(self, now_ms: int) -> None:
        connection = self.connection
        self._owed, connection.has_read = bool(connection.unsent), False
        if not self._is_silent:
            self._since_ms = now_ms  # what it waits for is ours to deliver
        timeout_ms = self._hub.broker.config.server.client_timeout_ms
        self._hub.broker.timers.set(self, self._active_ms + timeout_ms)

    @property
    def _is_silent(self) -> bool:
        """Whether it is for the client to say something, and it has not said what there was no time to read."""
        return self.connection.is_silent and not self._hub.keeps_waiting(self.connection)

    @property
    def _active_ms(self) -> int:
        return max(self._since_ms, self.connection.active_ms)

    def due(self, now_ms: int) -> None:
        connection = self.connection
        timeout_ms = self._hub.broker.config.server.client_timeout_ms
        if connection.state in (ConnectionState.LINGERING, ConnectionState.CLOSED):
            return
        if not timeout_ms:
            connection.alarm = None  # taken back by a reload
        elif self._owed and connection.unsent and not connection.has_read and not self._hub.keeps_waiting(connection):
            self._hub.drop(connection, now_ms)
        elif connection.state is OPEN and self._is_silent and now_ms - self._active_ms >= timeout_ms:
            self._hub.end(connection)
        else:
            self.look_again(now_ms)
