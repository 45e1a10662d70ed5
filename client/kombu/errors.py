"""The errors that the transport raises. Celery ends a worker for any error that is neither these nor their bases."""

from __future__ import annotations

from amqp.exceptions import ChannelError, RecoverableConnectionError


class ConnectionLost(RecoverableConnectionError, OSError):
    """The connection is lost or cannot be made. What it held is back in its queues."""


class PutRefused(RecoverableConnectionError):
    """The server refuses this put at present: the queue or the disk is full, puts are paused. Nothing is stored."""


class RequestRefused(ChannelError):
    """The server refuses this request whenever it comes: an item too large, an illegal name, a missing right."""


class Undeliverable(ChannelError):
    """No queue is bound for this message; it is not stored."""
