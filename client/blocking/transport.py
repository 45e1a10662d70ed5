"""The difference between the two kinds of client: the socket, and the turn to use it. This is the twin of
`client/aio/transport.py`, on the sockets of the standard library.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from contextlib import AbstractContextManager, nullcontext, suppress

RECEIVE_BYTES = 65_536


class Transport:
    """A connected socket. Its methods raise OSError, TimeoutError among them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._process = os.getpid()
        self._timeout_s: float | None = None

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of the bytes."""
        if timeout_s != self._timeout_s:
            self._limit(timeout_s)
        self._sock.sendall(data)

    def receive(self, timeout_s: float) -> bytes:
        """Return the bytes that come next, none at the end of the stream."""
        if timeout_s != self._timeout_s:
            self._limit(timeout_s)
        return self._sock.recv(RECEIVE_BYTES)

    def _limit(self, timeout_s: float) -> None:
        self._sock.settimeout(timeout_s)
        self._timeout_s = timeout_s

    @property
    def is_quiet(self) -> bool:
        """True if nothing has come since the last reply: neither the server's end nor bytes beyond its replies."""
        try:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN | select.POLLHUP)
            return not poll.poll(0)
        except (OSError, ValueError):  # closed by another thread
            return False

    def close(self) -> None:
        """Close at once. A thread that waits for an answer is woken, unless it is one of the process before a fork,
        whose connection goes on.
        """
        if os.getpid() == self._process:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def open_transport(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> Transport:
    """Connect, with a TLS handshake if `tls` is given. Raises OSError."""
    sock = socket.create_connection((host, port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Transport(sock if tls is None else tls.wrap_socket(sock, server_hostname=host))
    except BaseException:
        sock.close()
        raise


class Turn:
    """The turn to use a connection: that of one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take the turn if it is free. Return False if it is not."""
        return self._lock.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the turn and take it. Return False if it does not come in time."""
        return self._lock.acquire(timeout=timeout_s)

    def end(self) -> None:
        self._lock.release()


def shielded() -> AbstractContextManager[object]:
    """Return a block, which nothing but a signal's handler cuts off in this kind of client."""
    return nullcontext()
