"""A trio client for Staniel and every other server that speaks Kestrel's memcache protocol. See docs/client.md.

It never tries again by itself: when to do that is the program's decision, and `examples/` shows one. `client` is what
programs use, `connection` one connection with its time-outs; the bytes are `protocol/client`'s, and sockets trio's.
"""

from __future__ import annotations

from staniel.client.client import Client, connect
from staniel.client.errors import ClientError, ConnectionLost, Full, NotAllStored, Refused
from staniel.client.monitoring import Monitoring
from staniel.protocol.client.replies import Item

__all__ = [
    "Client",
    "ClientError",
    "ConnectionLost",
    "Full",
    "Item",
    "Monitoring",
    "NotAllStored",
    "Refused",
    "connect",
]
