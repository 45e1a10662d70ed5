"""A listening socket that accepts connections, and pauses if there is no room for more.

Some of the process's file descriptors are never given to clients, so that a flood of connections cannot prevent the
opening of a journal.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

from msgspec import Struct

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.session import ProtocolSpec
from staniel.broker.timers import Timers
from staniel.server.connection_limits import ConnectionLimits, Reserve
from staniel.server.dispatcher import Dispatcher
from staniel.server.interfaces import Acceptor, ClientRefused, Security, Sock

ACCEPTS_PER_TURN = 8  # per listener: 0.1 ms each; others are accepted in the next turns
PAUSE_MS = 200
FIRST_BYTES = 64 << 10
OUT_OF_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
FORBIDDEN = frozenset((errno.EACCES, errno.EPERM))
# Errors of the pending connection, which accept(2) passes on and drops: the next one may be sound.
OF_ONE_CLIENT = frozenset((
    errno.ECONNABORTED, errno.ENETDOWN, errno.EPROTO, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET,
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EINTR,
))  # fmt: skip
UNWATCHED_HINT = "see fs.epoll.max_user_watches and the machine's memory"


class Endpoint(Struct, frozen=True, eq=False):
    """An address, and what is served there. `security` is set for TLS."""

    acceptor: Acceptor
    protocol: ProtocolSpec
    security: Security | None = None
    reserve: Reserve = Reserve.NONE


class Listener:
    """A listener on one address. `is_watched`: the poller watches it. It calls `on_accept` with its endpoint, each
    client's socket and address, and the time in ms.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: ConnectionLimits,
        dispatcher: Dispatcher,
        timers: Timers,
        report: EventSink,
        on_accept: Callable[[Endpoint, Sock, str, int], None],
    ) -> None:
        self.endpoint = endpoint
        self._acceptor = endpoint.acceptor
        self._limits = limits
        self._dispatcher = dispatcher
        self._timers = timers
        self._rate_limited = RateLimitedSink(report)
        self._on_accept = on_accept
        self.is_watched = False

    def on_ready(self, now_ms: int) -> None:
        """Accept pending connections."""
        if not self.is_watched:
            return
        failed = 0
        for _ in range(ACCEPTS_PER_TURN):
            if not self._limits.has_room(self.endpoint.reserve):
                self._limits.reached.count("max_connections")
                self._pause(
                    now_ms,
                    0,
                    "connections.full",
                    "the limit of connections is reached; new ones wait for one to end",
                )
                return
            try:
                sock, name = self._acceptor.accept()
            except BlockingIOError:
                return
            except ClientRefused as refused:
                self._rate_limited(Level.WARNING, "client.refused", now_ms, client=refused.client, why=str(refused))
                continue
            except OSError as error:
                failed += 1
                if error.errno in OF_ONE_CLIENT and failed < ACCEPTS_PER_TURN:
                    continue
                self._pause_after(error, now_ms)
                return
            if self._limits.is_address_full(name, self.endpoint.reserve):
                self._refuse(sock, name, now_ms)
                continue
            self._limits.add(name)
            self._on_accept(self.endpoint, sock, name, now_ms)

    def _refuse(self, sock: Sock, name: str, now_ms: int) -> None:
        """Refuse a client whose address has too many connections. It gets an error if its protocol can send one before
        a request.
        """
        limit = "max_connections_per_address"
        self._limits.reached.log_limit(limit, now_ms, client=name, address=self._acceptor.name)
        try:
            is_plain = self.endpoint.security is None
            if is_plain and (words := self.endpoint.protocol.farewell(f"too many connections ({limit})")):
                sock.send(words)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(FIRST_BYTES)  # unread bytes would cause a reset, which discards the error
        except OSError:
            pass  # the client is gone, or has sent nothing yet
        self._dispatcher.dropped.append(sock)

    def resume(self, now_ms: int) -> None:
        """Watch for connections again, if one may be accepted."""
        if self.is_watched or not self._limits.has_room(self.endpoint.reserve):
            return
        try:
            self._dispatcher.watch(self._acceptor.fileno(), select.EPOLLIN, self.on_ready)
            self.is_watched = True
        except FileExistsError:  # it could not be unwatched before
            self.is_watched = True
        except OSError as error:
            self._timers.set(self, now_ms + PAUSE_MS)
            hint = f"cannot watch for connections: {error.strerror}; {UNWATCHED_HINT}"
            self._rate_limited(Level.WARNING, "accept.failed", now_ms, address=self._acceptor.name, hint=hint)

    def on_timer(self, now_ms: int) -> None:
        self.resume(now_ms)

    def _pause_after(self, error: OSError, now_ms: int) -> None:
        """Pause after a failed `accept`, which would fail again at once."""
        why = error.strerror or str(error)
        if error.errno in OUT_OF_FILES:
            self._limits.reached.count("open_files")
            why += ": raise the limit of open files (ulimit -n)"
        elif error.errno in FORBIDDEN:
            why += ": a firewall rule or security module forbids it"
        self._pause(now_ms, now_ms + PAUSE_MS, "accept.failed", why)

    def _pause(self, now_ms: int, until_ms: int, event: str, hint: str) -> None:
        self.is_watched = False
        self._dispatcher.unwatch(self._acceptor.fileno())
        if until_ms:
            self._timers.set(self, until_ms)
        self._rate_limited(Level.WARNING, event, now_ms, address=self._acceptor.name, hint=hint)
