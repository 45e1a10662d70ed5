"""Makes `staniel://host:port` a URL of brokers for kombu and Celery: import this before the first connection.

Where no import is possible, `broker_transport = "staniel.kombu:Transport"` says the same.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from kombu.transport import TRANSPORT_ALIASES

from staniel.client.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["staniel"] = "staniel.kombu:Transport"

with suppress(ModuleNotFoundError):  # kombu alone, without Celery
    import_module("staniel.client.kombu.stopping")
