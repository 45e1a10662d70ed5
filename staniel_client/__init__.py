"""A trio client for Staniel and every other server that speaks Kestrel's memcache protocol. See docs/client.md.

Knows what a program that puts and takes items needs. Refuses to know bytes (`protocol/client.py`) and when to try
again: that is the program's decision, and `examples/` shows one.
"""

from __future__ import annotations

from protocol.client_replies import Item
from staniel_client.client import Client, connect
from staniel_client.errors import ClientError, ConnectionLost, Full, NotAllStored, Refused
from staniel_client.monitoring import Monitoring

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
