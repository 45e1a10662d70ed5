"""Raw sockets of all clients: their ends, and the errors of their time-outs."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

RECEIVE_BYTES = 65_536
SHIELD_S = 5.0
"""The time for which a cancellation waits for the reply to a request that ends an item or a job."""


def is_quiet(raw: socket.socket) -> bool:
    """Return True if a socket has nothing to read, and no end."""
    poll = select.poll()
    poll.register(raw, select.POLLIN | select.POLLHUP)
    return not poll.poll(0)


def shut_down(raw: socket.socket) -> None:
    """End a connection also for a forked process that has its descriptor, so that the server notices."""
    with suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)


class TooSlow(TimeoutError):
    """The server was too slow, for a time-out of the client. Its message says at what."""


class NoAnswer(TooSlow):
    """A reply that does not come. The transport may go on to wait for it."""


def took_nothing(timeout_s: float) -> TooSlow:
    """Return the error of a request that the server does not receive."""
    return TooSlow(f"the server took nothing for {timeout_s:g} s")


def no_answer(timeout_s: float) -> NoAnswer:
    """Return the error of a reply that does not come."""
    return NoAnswer(f"no answer for {timeout_s:g} s")
