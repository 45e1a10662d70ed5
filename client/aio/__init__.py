"""The client for asyncio and trio, on anyio (the extra `aio`). See docs/client.md.

`client` has what programs call, `connection` one connection with its time-outs, `monitoring` the items of a monitor.
Of these the blocking client is made, by `packaging/blocking_client.py`; only `transport` has a twin written by hand.
"""

from __future__ import annotations

from staniel.client.aio.client import Client
from staniel.client.aio.monitoring import Monitoring
from staniel.client.errors import (
    Busy,
    ClientError,
    ConnectionLost,
    Full,
    NotAllStored,
    NotOpen,
    Outcome,
    Refused,
)
from staniel.protocol.client.replies import Item

__all__ = [
    "Busy",
    "Client",
    "ClientError",
    "ConnectionLost",
    "Full",
    "Item",
    "Monitoring",
    "NotAllStored",
    "NotOpen",
    "Outcome",
    "Refused",
]
