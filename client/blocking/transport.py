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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from staniel.client.sockets import RECEIVE_BYTES, is_quiet, no_answer, shut_down, took_nothing

TIMEOUT_S_MAX = (2**31 - 1) // 1000
LOOK_AGAIN_S = 0.1
"""A thread that waits for a turn looks again after this time, in case an exception has cut off the call that was to
wake it.
"""


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
        and its reply. Return None, and send nothing, if something has been received since the last reply, or the
        connection was closed.
        """
        sock = self._sock
        try:
            self._is_used = True
            if self._is_over or self._wait(0):
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

    def note_unused(self) -> None:
        """Note that no call of this transport is under way, though one may have been cut off."""
        self._is_used = False

    def close(self) -> None:
        """Close at once. Wake a thread that waits for a reply, except in a forked process, where the connection belongs
        to the parent and stays open. That thread closes the descriptor: otherwise it would wait for, or write to, the
        next socket with the same number. May be called again.
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


class _Waiting:
    """The threads that wait for something."""

    def __init__(self) -> None:
        self.bells: list[threading.Lock] = []
        """One for each thread."""

    def wait_for(self, try_it: Callable[[], bool], timeout_s: float) -> bool:
        """Try until it succeeds, again after each `ring`. Return False if it does not in time."""
        until_s = time.monotonic() + min(timeout_s, threading.TIMEOUT_MAX)
        bell = threading.Lock()
        bell.acquire()
        try:
            self.bells.append(bell)  # before it tries: `ring` follows what it waits for
            while not try_it():
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return False
                bell.acquire(timeout=min(left_s, LOOK_AGAIN_S))
            return True
        finally:
            if bell in self.bells:
                self.bells.remove(bell)

    def ring(self) -> None:
        """Let those who wait try again."""
        for bell in list(self.bells):
            with suppress(RuntimeError):  # it rings already
                bell.release()


class Turn:
    """The right to use a connection, which one call at a time has. A call takes it with an object of its own, its
    hold: with it the call can tell whether the turn was taken, and `end` may be called twice. A dictionary costs
    less than a lock, its methods are as atomic, and it knows the hold.
    """

    def __init__(self) -> None:
        self._holds: dict[None, object] = {}
        self._waiting = _Waiting()

    def acquire(self, hold: object) -> bool:
        """Take the turn if it is free. Return False if it is not."""
        return self._holds.setdefault(None, hold) is hold

    def is_held_by(self, hold: object) -> bool:
        return self._holds.get(None) is hold

    def wait(self, hold: object, timeout_s: float) -> bool:
        """Wait for the turn and take it. Return False if it does not come in time."""
        return self._waiting.wait_for(lambda: self.acquire(hold), timeout_s)

    def end(self, hold: object) -> None:
        """Give the turn back, if this hold has it."""
        if self._holds.get(None) is hold:
            del self._holds[None]
            if self._waiting.bells:
                self._waiting.ring()


class Places:
    """The places of a pool, each taken with a hold, like a turn. `is_over` once the pool is closed; then no further
    place is given.
    """

    def __init__(self, count: int) -> None:
        self.is_over = False
        self._count = count
        self._holds: dict[int, object] = {}
        self._waiting = _Waiting()

    @property
    def free(self) -> int:
        return self._count - len(self._holds)

    def acquire(self, hold: object, timeout_s: float) -> bool:
        """Take a place. Return False if none becomes free in time."""
        return self._waiting.wait_for(lambda: self.is_over or self._take_free(hold), timeout_s) and not self.is_over

    def _take_free(self, hold: object) -> bool:
        for number in range(self._count):  # noqa: SIM110 - `any` would close a generator, which drops an exception
            if self._holds.setdefault(number, hold) is hold:
                return True
        return False

    def give_back(self, hold: object) -> None:
        """Give a place back, if this hold has one."""
        for number in range(self._count):
            if self._holds.get(number) is hold:
                del self._holds[number]
                self._waiting.ring()

    def end(self) -> None:
        """Give no further place, and tell those who wait."""
        self.is_over = True
        self._waiting.ring()


def shielded() -> AbstractContextManager[object]:
    """Return a block. In this kind of client only a signal's handler can interrupt it."""
    return _NOTHING


_NOTHING = nullcontext()


def pause(seconds: float) -> None:
    """Wait for a while, in which other threads go on."""
    time.sleep(seconds)
