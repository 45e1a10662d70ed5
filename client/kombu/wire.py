"""A connection to the server: requests are sent at once, each with a function that gets its reply.

Requests may be sent by any thread. Replies are received by one thread at a time, which calls the functions.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from staniel.client.forks import FORKS
from staniel.client.kombu.errors import ConnectionLost, RequestRefused

RECEIVE_BYTES = 262_144
TIMEOUT_S_MAX = 2_000_000.0  # what poll accepts, 23 days
ERRORS = frozenset((b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR"))


class Reply(NamedTuple):
    """A reply: its first word, the rest of the line, the block of a VA, the lines of a dump."""

    word: bytes
    rest: bytes
    data: bytes = b""
    lines: tuple[bytes, ...] = ()

    @property
    def is_error(self) -> bool:
        return self.word in ERRORS

    @property
    def why(self) -> str:
        return self.rest.decode("latin-1") or self.word.decode("latin-1")


class Address(NamedTuple):
    """The server's address, and how to reach it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    user: str
    secret: str
    connect_timeout_s: float
    answer_timeout_s: float


STORED = Reply(b"HD", b"")
_STORED_LINE = b"HD\r\n"

Handler = Callable[[Reply], None]


class Wire:
    """A connected socket of this process. Every method but `close` can raise ConnectionLost."""

    def __init__(self, sock: socket.socket, answer_timeout_s: float) -> None:
        self.fd = sock.fileno()
        self.is_closed = False
        self._sock = sock
        self._forks = FORKS.count
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if not self._is_tls:
            sock.setblocking(False)  # `_input_waits` waits for it, in fewer system calls than a time-out of the socket
        poll = select.poll()
        poll.register(sock, select.POLLIN | select.POLLHUP)
        self._input_waits = poll.poll
        self._answer_timeout_s = min(answer_timeout_s, TIMEOUT_S_MAX)
        self._handlers: deque[Handler] = deque()
        self._sending = threading.Lock()
        self._input = bytearray()
        self._lines: list[bytes] = []
        self._late_at = 0.0
        self._wait_s = 0.0

    def fileno(self) -> int:
        return self.fd

    @property
    def owed(self) -> int:
        """The number of outstanding replies."""
        return len(self._handlers)

    def send(self, data: bytes, *handlers: Handler, wait_s: float = 0) -> None:
        """Send requests, with a handler for the reply to each. The server may wait for `wait_s` with the reply.

        If an exception comes first, such as that of a signal, the connection is lost: a part may have been sent.
        """
        self._must_be_open()
        with self._sending:
            try:
                if not self._handlers:
                    self._wait_s = wait_s
                    self._late_at = time.monotonic() + wait_s + self._answer_timeout_s
                self._handlers.extend(handlers)
                if self._is_tls:
                    self._sock.sendall(data)
                else:
                    self._send_all(data)
            except OSError as error:
                raise self._lost(f"the connection to the server is lost: {error}") from error
            except BaseException:
                self._shut_down()
                raise

    def _send_all(self, data: bytes) -> None:
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent == len(data):
            return
        self._sock.settimeout(self._answer_timeout_s)
        try:
            self._sock.sendall(memoryview(data)[sent:])
        finally:
            self._sock.setblocking(False)

    def call(self, *requests: bytes) -> list[Reply]:
        """Send requests and wait for the replies to all."""
        replies: list[Reply] = []
        self.send(b"".join(requests), *(replies.append for _ in requests))
        while len(replies) < len(requests):
            self.wait_and_receive()
        return replies

    def wait_and_receive(self, until: float = math.inf) -> None:
        """Wait for more bytes, until the oldest reply is late or the monotonic clock shows `until`."""
        left_s = min(self._late_at, until) - time.monotonic()
        if left_s > 0 and not self._is_tls:
            if self._input_waits(left_s * 1000):
                self.receive()
        elif left_s > 0:
            self._sock.settimeout(left_s)
            try:
                self.receive()
            finally:
                if not self.is_closed:
                    self._sock.settimeout(self._answer_timeout_s)
        self.check()

    def receive(self) -> None:
        """Read what has come and call the handlers of the replies that it completes. If an exception comes first, such
        as that of a signal, the connection is lost: its bytes may be.
        """
        self._must_be_open()
        try:
            self._receive()
        except (ConnectionLost, RequestRefused):
            raise
        except BaseException:
            self._shut_down()
            raise

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
            while isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
                data += self._sock.recv(RECEIVE_BYTES)
        except (TimeoutError, BlockingIOError):
            return
        except OSError as error:
            raise self._lost(f"the connection to the server is lost: {error}") from error
        if not data:
            raise self._lost("the server has closed the connection")
        if data == _STORED_LINE and not self._input and not self._lines and self._handlers:
            self._handle(STORED)  # what `_parse` finds, in fewer steps: the reply to a put
            return
        self._input += data
        self._parse()

    def drain_replies(self, seconds_max: float) -> None:
        """Wait for outstanding replies, for a limited time. Never raises."""
        until = time.monotonic() + seconds_max
        with suppress(ConnectionLost, RequestRefused):
            while self._handlers and not self.is_closed and time.monotonic() < until:
                self.wait_and_receive(until)

    def is_usable_now(self) -> bool:
        """Receive the replies that have come, then say whether the connection is usable. For the thread that receives:
        a poll object refuses a second thread.
        """
        if FORKS.count != self._forks:
            return False
        try:
            while not self.is_closed and self._input_waits(0):
                if not self._handlers:
                    return False
                self.receive()
        except ConnectionLost:
            return False
        return not self.is_closed

    def check(self) -> None:
        """Raise ConnectionLost if a reply is late."""
        if self._handlers and time.monotonic() > self._late_at:
            raise self._lost(f"the server did not reply within {self._wait_s + self._answer_timeout_s:g} s")

    @property
    def is_usable(self) -> bool:
        """False if the server has closed the connection, or has sent something unexpected."""
        if self.is_closed or FORKS.count != self._forks:
            return False
        if self._handlers:
            return True
        try:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN | select.POLLHUP)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Close at once; in a forked child without sending anything, because the connection belongs to the parent."""
        if not self.is_closed:
            self.is_closed = True
            if FORKS.count == self._forks:
                with suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
                self._sock.close()
            else:
                with suppress(OSError):
                    os.close(self._sock.detach())

    def _must_be_open(self) -> None:
        if FORKS.count != self._forks:
            self.close()
        if self.is_closed:
            raise ConnectionLost("the connection is closed")

    def _lost(self, why: str) -> ConnectionLost:
        self._shut_down()
        return ConnectionLost(why)

    def _shut_down(self) -> None:
        """Shut the socket down. Its owner closes it: an event loop may still have the descriptor."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _parse(self) -> None:
        data, at = bytes(self._input), 0
        try:
            while (end := data.find(b"\r\n", at)) >= 0:
                line = data[at:end]
                after = end + 2
                word, _, rest = line.partition(b" ")
                block = b""
                if word == b"VA":
                    size = int(rest.partition(b" ")[0])
                    if len(data) < after + size + 2:
                        return
                    block = data[after : after + size]
                    after += size + 2
                at = after
                self._handle_line(word, rest, block, line)
        except ValueError as error:
            raise self._lost(f"the server sent what is no reply: {error}") from error
        finally:
            del self._input[:at]

    def _handle_line(self, word: bytes, rest: bytes, block: bytes, line: bytes) -> None:
        if word in (b"queue", b"", b"}", b"STAT"):  # lines of a dump or of statistics; END follows
            self._lines.append(line)
            return
        lines, self._lines = tuple(self._lines), []
        if not self._handlers:
            raise ValueError(f"{line[:80]!r}, which was not asked for")
        self._handle(Reply(word, rest, block, lines))

    def _handle(self, reply: Reply) -> None:
        handler = self._handlers.popleft()
        if self._handlers:
            self._late_at = time.monotonic() + self._answer_timeout_s
        handler(reply)


def connect(address: Address) -> Wire:
    """Connect and log in. Raises ConnectionLost, RequestRefused for a login that is refused."""
    try:
        sock = socket.create_connection((address.host, address.port), address.connect_timeout_s)
    except OSError as error:
        raise ConnectionLost(f"cannot connect to {address.host}:{address.port}: {error}") from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            sock = address.tls.wrap_socket(sock, server_hostname=address.host)
        sock.settimeout(min(address.answer_timeout_s, TIMEOUT_S_MAX))
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"cannot connect to {address.host}:{address.port}: {error}") from error
    wire = Wire(sock, address.answer_timeout_s)
    try:
        if address.user or address.secret:
            _log_in(wire, address)
    except BaseException:
        wire.close()
        raise
    return wire


def _log_in(wire: Wire, address: Address) -> None:
    """Log in if the server requires it. A server without users would store the secret as an item."""
    (version,) = wire.call(b"version\r\n")
    if version.is_error and version.why.startswith("unauthenticated"):
        secret = f"{address.user} {address.secret}".encode("utf-8", "surrogateescape")
        (reply,) = wire.call(b"set login 0 0 %d\r\n%b\r\n" % (len(secret), secret))
        if reply.is_error:
            raise RequestRefused(f"the server refuses the login of {address.user}: {reply.why}")
