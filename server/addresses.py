"""The number of connections from each network address, for `max_connections_per_address`.

An IPv6 host commonly chooses its addresses from a whole network of 64 bits, so that network counts as one address.
Clients of Unix sockets have no address and are not counted.
"""

from __future__ import annotations

import socket

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


class AddressCounts:
    """The counts of all connections, including those with an unfinished handshake."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, client: str) -> int:
        """Return the number of connections from the client's address."""
        return self._counts.get(address_of(client), 0)

    def add(self, client: str) -> None:
        if address := address_of(client):
            self._counts[address] = self._counts.get(address, 0) + 1

    def remove(self, client: str) -> None:
        address = address_of(client)
        left = self._counts.pop(address, 0) - 1
        if left > 0:
            self._counts[address] = left
