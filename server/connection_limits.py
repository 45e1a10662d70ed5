"""The limits of connections: of all clients, and of each network address.

An IPv6 host commonly chooses its addresses from a whole network of 64 bits, so that network counts as one address.
Clients of Unix sockets have no address and are not counted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import IntEnum

from staniel.broker.config.schema import ServerSettings
from staniel.broker.limits_reached import LimitsReached

NETWORK_BYTES = 8  # the part of an IPv6 address that its host cannot choose
MAPPED = bytes(10) + b"\xff\xff"  # an IPv4 address on an IPv6 socket


def address_of(client: str) -> str:
    """Return the counted address of `192.0.2.1:40712` or `[2001:db8::1]:40712`; "" if it is not counted."""
    host, colon, _ = client.rpartition(":")
    if not colon or host == "unix":
        return ""
    if not host.startswith("["):
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host[1:-1].partition("%")[0])
    except OSError:
        return host
    if packed.startswith(MAPPED):
        return socket.inet_ntoa(packed[len(MAPPED) :])
    return socket.inet_ntop(socket.AF_INET6, packed[:NETWORK_BYTES] + bytes(NETWORK_BYTES)) + "/64"


class Reserve(IntEnum):
    """A listener's share beyond `max_connections`, in multiples of `reserved_connections`. A flood of the operators'
    ports does not exclude a client of the spool's socket.
    """

    NONE = 0
    OPERATORS = 1
    SPOOL = 2


class ConnectionLimits:
    """The counts and limits of connections. Connections with an unfinished handshake count too.

    `max_connections` and `reserved_connections` are the limits in force. `descriptors_max` is the number of descriptors
    for clients. `reached` counts the refusals; `on_room` is called when a connection has ended.
    """

    def __init__(self, descriptors_max: int, reached: LimitsReached) -> None:
        self._descriptors_max = descriptors_max
        self.reached = reached
        self.on_room: Callable[[int], None] = lambda now_ms: None
        self._count = 0
        self._counts: dict[str, int] = {}  # by address
        self._per_address_max: int | None = None
        self.max_connections = self.reserved_connections = 0

    def configure(self, server: ServerSettings) -> None:
        """Set the limits. The operators' reserve also comes out of the system's descriptors; if these are few, only a
        part of it.
        """
        self._per_address_max = server.max_connections_per_address
        self.reserved_connections = min(server.reserved_connections, self._descriptors_max // 8)
        room = self._descriptors_max - Reserve.SPOOL * self.reserved_connections
        self.max_connections = self.reached.max_connections = min(room, server.max_connections or room)

    def has_room(self, reserve: Reserve) -> bool:
        """Return True if another client may be accepted, given the listener's reserve."""
        return self._count < self.max_connections + reserve * self.reserved_connections

    def is_address_full(self, client: str, reserve: Reserve) -> bool:
        """Return True if the client's address has reached its limit of connections."""
        limit = self._per_address_max
        return limit is not None and self.count(client) >= limit + reserve * self.reserved_connections

    def count(self, client: str) -> int:
        """Return the number of connections from the client's address."""
        return self._counts.get(address_of(client), 0)

    def add(self, client: str) -> None:
        """Count an accepted connection."""
        self._count += 1
        if address := address_of(client):
            self._counts[address] = self._counts.get(address, 0) + 1

    def remove(self, client: str, now_ms: int) -> None:
        """Count the end of a connection, which makes room for another one."""
        self._count -= 1
        address = address_of(client)
        others = self._counts.pop(address, 0) - 1
        if others > 0:
            self._counts[address] = others
        self.on_room(now_ms)
