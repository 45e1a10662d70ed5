"""How long clients may keep us waiting: for their next request, and for closing their side.

Knows moments. Refuses to know sockets: who is to be hung up on or dropped is told to the hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from broker.broker import Broker
from server.connection import OPEN, Connection


class Ender(Protocol):
    """Who hangs up."""

    broker: Broker

    def end(self, connection: Connection) -> None: ...


class Farewell:
    """A client that does not close its side in time is dropped."""

    def __init__(self, connection: Connection, drop: Callable[[Connection, int], None]) -> None:
        self._connection = connection
        self._drop = drop

    def due(self, now_ms: int) -> None:
        self._drop(self._connection, now_ms)


class Silence:
    """A client that says nothing for too long, while nothing is due to it, is hung up on."""

    def __init__(self, connection: Connection, hub: Ender) -> None:
        self._connection = connection
        self._hub = hub

    def look_again(self, now_ms: int) -> None:
        timeout_ms = self._hub.broker.config.server.client_timeout_ms
        if not self._connection.is_silent:
            self._connection.active_ms = now_ms  # what it waits for is ours to deliver
        if timeout_ms:
            self._hub.broker.deadlines.set(self, self._connection.active_ms + timeout_ms)

    def due(self, now_ms: int) -> None:
        connection = self._connection
        if connection.phase is not OPEN:
            return
        silent_ms = now_ms - connection.active_ms
        if connection.is_silent and silent_ms >= self._hub.broker.config.server.client_timeout_ms:
            self._hub.end(connection)
        else:
            self.look_again(now_ms)
