"""The difference between the two kinds of client: the socket, and the turn to use it. This is the twin of
`client/aio/transport.py`, on the sockets of the standard library.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from staniel.client.sockets import RECEIVE_BYTES, is_quiet, no_answer, shut_down, took_nothing

ResultT = TypeVar("ResultT")

TIMEOUT_S_MAX = (2**31 - 1) // 1000


class Transport:
    """A connected socket. Its methods raise OSError; a TimeoutError says what did not happen.

    It does not block; `poll` waits for it. A socket with a time-out would call poll before each call, even for a
    request that can be sent at once, and a time-out option of the kernel would start again after each signal.

    One thread at a time uses the socket, and any thread may close it. The descriptor is closed when no thread is in a
    call of the socket: by the user, if it finds `_is_over` at the end of its call, else by `close`. Each notes its own
    step before it looks for the other's, so that one of them sees both: this is a lock without its cost.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._process = os.getpid()
        sock.setblocking(False)
        self._is_used = self._is_over = False
        readable = select.poll()
        readable.register(sock, select.POLLIN)
        self._wait = readable.poll

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Let the block call the socket."""
        try:
            self._is_used = True
            if self._is_over:
                raise _closed()
            yield
        finally:
            self._is_used = False
            if self._is_over:
                self._sock.close()

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of the bytes."""
        with self._use():
            try:
                sent = self._sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._send_rest(memoryview(data)[sent:], timeout_s)

    def _send_rest(self, data: memoryview, timeout_s: float) -> None:
        self._sock.settimeout(_limited(timeout_s))
        try:
            self._sock.sendall(data)
        except TimeoutError:
            raise took_nothing(timeout_s) from None
        finally:
            self._sock.setblocking(False)

    def receive(self, timeout_s: float) -> bytes:
        """Return the bytes that come next, none at the end of the stream."""
        with self._use():
            if not self._wait(_limited(timeout_s) * 1000):
                raise no_answer(timeout_s)
            return self._sock.recv(RECEIVE_BYTES)

    def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        """Send, and return the bytes that come next: `has_unasked`, `send` and `receive` in fewer steps, for a request
        and its reply. Return None, and send nothing, if something has been received since the last reply.
        """
        sock = self._sock
        try:
            self._is_used = True
            if self._is_over:
                raise _closed()
            if self._wait(0):
                return None
            try:
                sent = sock.send(data)
            except BlockingIOError:
                sent = 0
            if sent != len(data):
                self._send_rest(memoryview(data)[sent:], send_timeout_s)
            if not self._wait((timeout_s if timeout_s < TIMEOUT_S_MAX else TIMEOUT_S_MAX) * 1000):
                raise no_answer(timeout_s)
            return sock.recv(RECEIVE_BYTES)
        finally:
            self._is_used = False
            if self._is_over:
                sock.close()

    @property
    def is_quiet(self) -> bool:
        """True if nothing has come since the last reply: neither the server's end nor bytes beyond its replies."""
        try:
            return is_quiet(self._sock)
        except (OSError, ValueError):  # closed by another thread
            return False

    def has_unasked(self) -> bool:
        """Return True if it is certain that something has been received since the last reply: a cheaper check than
        `is_quiet`, made for each request. With TLS a readable socket is no proof.
        """
        return bool(self._wait(0))

    def close(self) -> None:
        """Close at once. Wake a thread that waits for a reply, except in a forked process, where the connection belongs
        to the parent and stays open. That thread closes the descriptor: otherwise it would wait for, or write to, the
        next socket with the same number.
        """
        if os.getpid() != self._process:
            self._sock.close()
            return
        shut_down(self._sock)  # first: the thread in a call closes the descriptor once it sees `_is_over`
        self._is_over = True
        if not self._is_used:
            self._sock.close()


class TlsTransport(Transport):
    """A transport under TLS, where a readable socket need not have bytes for the program."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        super().__init__(sock)
        self._timeout_s = -1.0

    def has_unasked(self) -> bool:
        return False

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of the bytes."""
        with self._use():
            self._limit(timeout_s)
            try:
                self._sock.sendall(data)
            except TimeoutError:
                raise took_nothing(timeout_s) from None

    def receive(self, timeout_s: float) -> bytes:
        """Return the bytes that come next, none at the end of the stream."""
        with self._use():
            self._limit(timeout_s)
            try:
                return self._sock.recv(RECEIVE_BYTES)
            except TimeoutError:
                raise no_answer(timeout_s) from None

    def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        """Send, and return the bytes that come next."""
        self.send(data, send_timeout_s)
        return self.receive(timeout_s)

    def _limit(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._sock.settimeout(_limited(timeout_s))
            self._timeout_s = timeout_s


def _closed() -> OSError:
    return OSError(errno.EBADF, "closed by this program")


def _limited(timeout_s: float) -> float:
    """Return the time-out, or the longest that the system accepts, which is shorter than the longest wait of a request
    plus the time for its reply.
    """
    return min(timeout_s, TIMEOUT_S_MAX)


def open_transport(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> Transport:
    """Connect, with a TLS handshake if `tls` is given. Raises OSError."""
    sock = socket.create_connection((host, port), timeout_s)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Transport(sock) if tls is None else TlsTransport(tls.wrap_socket(sock, server_hostname=host))
    except BaseException:
        sock.close()
        raise


class Turn:
    """The right to use a connection, which one thread at a time has: who takes the one element of a list has it. A list
    costs less than a lock, and its methods are as atomic.
    """

    def __init__(self) -> None:
        self._free = [True]
        self._waiting = 0
        self._given_back = threading.Condition()

    def acquire(self) -> bool:
        """Take the turn if it is free. Return False if it is not."""
        try:
            return self._free.pop()
        except IndexError:
            return False

    def wait(self, timeout_s: float) -> bool:
        """Wait for the turn and take it. Return False if it does not come in time."""
        with self._given_back:
            self._waiting += 1  # before the turn is tried: `end` gives it back before it looks for who waits
            try:
                return self._given_back.wait_for(self.acquire, timeout_s)
            finally:
                self._waiting -= 1

    def end(self) -> None:
        """Give the turn back."""
        self._free.append(True)
        if self._waiting:
            with self._given_back:
                self._given_back.notify()


class Places:
    """The places of a pool. `is_over` once the pool is closed; then no further place is given."""

    def __init__(self, count: int) -> None:
        self.is_over = False
        self._free = count
        self._changed = threading.Condition()

    def acquire(self, timeout_s: float) -> bool:
        """Take a place. Return False if none becomes free in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self.is_over, timeout_s)
            if self.is_over or not self._free:
                return False
            self._free -= 1
            return True

    def give_back(self) -> None:
        """Give a place back."""
        with self._changed:
            self._free += 1
            self._changed.notify()

    def end(self) -> None:
        """Give no further place, and tell those who wait."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()


def shielded() -> AbstractContextManager[object]:
    """Return a block. In this kind of client only a signal's handler can interrupt it."""
    return _NOTHING


_NOTHING = nullcontext()


def in_shield(result: ResultT) -> ResultT:
    """Return the result of a call: `shielded` for one call, with fewer steps."""
    return result


def pause(seconds: float) -> None:
    """Wait for a while, in which other threads go on."""
    time.sleep(seconds)
