"""How many connections each address of the network has, for `max_connections_per_address`.

A host of IPv6 commonly has a whole network of 64 bits to choose its addresses from, so that counts as one address.
Unix sockets have none, and are not counted.
"""

from __future__ import annotations

import socket

NETWORK_BYTES = 8  # of an address of IPv6: those that its host cannot choose
MAPPED = bytes(10) + b"\xff\xff"  # an address of IPv4 on a socket of IPv6


def address_of(client: str) -> str:
    """What is counted of `192.0.2.1:40712` or `[2001:db8::1]:40712`; "": nothing."""
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
    """Of all connections that are there, handshakes under way among them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, client: str) -> int:
        """How many connections there are from where `client` is."""
        return self._counts.get(address_of(client), 0)

    def add(self, client: str) -> None:
        if address := address_of(client):
            self._counts[address] = self._counts.get(address, 0) + 1

    def remove(self, client: str) -> None:
        address = address_of(client)
        left = self._counts.pop(address, 0) - 1
        if left > 0:
            self._counts[address] = left
