"""A trio client for Staniel and for any other server that speaks Kestrel's memcache protocol. See docs/client.md.

The client never retries by itself: the program decides when to retry, and `examples/` shows one way. `client` has what
programs call, `connection` one connection with its time-outs. `protocol/client` has the bytes, trio the sockets.
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
