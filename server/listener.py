"""A listening socket that accepts connections, and pauses if there is no room for more.

Some of the process's file descriptors are never given to clients, so that a flood of connections cannot prevent the
opening of a journal.
"""

from __future__ import annotations

import errno
import socket
from enum import IntEnum
from typing import TYPE_CHECKING

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.session import ProtocolSpec
from staniel.protocol.limits import Limits
from staniel.server.interfaces import Acceptor, ClientRefused, Security, Sock

if TYPE_CHECKING:
    from staniel.server.hub import Hub

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


class Reserve(IntEnum):
    """A listener's share beyond `max_connections`, in multiples of `reserved_connections`. A flood of the operators'
    ports does not exclude a client of the spool's socket.
    """

    NONE = 0
    OPERATORS = 1
    SPOOL = 2


class Listener:
    """A listener on one address. `security` is set for TLS. `watched`: the poller watches it."""

    def __init__(
        self,
        hub: Hub,
        acceptor: Acceptor,
        protocol: ProtocolSpec,
        limits: Limits,
        report: EventSink,
        security: Security | None = None,
        reserve: Reserve = Reserve.NONE,
    ) -> None:
        self.hub = hub
        self.reserve = reserve
        self.acceptor = acceptor
        self.protocol = protocol
        self.limits = limits
        self.security = security
        self.rate_limited = RateLimitedSink(report)
        self.watched = False
        self.resume()

    def on_ready(self, now_ms: int) -> None:
        """Accept pending connections."""
        if not self.watched:
            return
        failed = 0
        for _ in range(ACCEPTS_PER_TURN):
            if not self.hub.has_room(self.reserve):
                self.hub.broker.limits.count("max_connections")
                self._pause(now_ms, 0, "connections.full", "the limit of connections is reached; they wait outside")
                return
            try:
                sock, name = self.acceptor.accept()
            except BlockingIOError:
                return
            except ClientRefused as refused:
                self.rate_limited(Level.WARNING, "client.refused", now_ms, client=refused.client, why=str(refused))
                continue
            except OSError as error:
                failed += 1
                if error.errno in OF_ONE_CLIENT and failed < ACCEPTS_PER_TURN:
                    continue
                self._pause_after(error, now_ms)
                return
            if self.hub.has_many(name, self.reserve):
                self._refuse(sock, name, now_ms)
                continue
            self.hub.addresses.add(name)
            if self.security is not None:
                self.hub.handshakes.begin_handshake(self, self.security, sock, name, now_ms)
            else:
                self.hub.admit(sock, name, self.protocol, self.limits, now_ms)

    def _refuse(self, sock: Sock, name: str, now_ms: int) -> None:
        """Refuse a client whose address has too many connections. It gets an error if its protocol can send one before
        a request.
        """
        limit = "max_connections_per_address"
        self.hub.broker.limits.log_limit(limit, now_ms, client=name, address=self.acceptor.name)
        try:
            if self.security is None and (words := self.protocol.farewell(f"too many connections ({limit})")):
                sock.send(words)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(FIRST_BYTES)  # unread bytes would cause a reset, which discards the error
        except OSError:
            pass  # the client is gone, or has sent nothing yet
        self.hub.close_soon(sock)

    def resume(self) -> None:
        """Watch for connections again, if one may be accepted."""
        if self.watched or not self.hub.has_room(self.reserve):
            return
        try:
            self.hub.watch(self)
            self.watched = True
        except OSError as error:
            now_ms = self.hub.clock.now_ms()
            self.hub.broker.timers.set(self, now_ms + PAUSE_MS)
            hint = f"cannot watch for connections: {error.strerror}; {UNWATCHED_HINT}"
            self.rate_limited(Level.WARNING, "accept.failed", now_ms, address=self.acceptor.name, hint=hint)

    def on_timer(self, now_ms: int) -> None:
        self.resume()

    def _pause_after(self, error: OSError, now_ms: int) -> None:
        """Pause after a failed `accept`, which would fail again at once."""
        why = error.strerror or str(error)
        if error.errno in OUT_OF_FILES:
            self.hub.broker.limits.count("open_files")
            why += ": raise the limit of open files (ulimit -n)"
        elif error.errno in FORBIDDEN:
            why += ": a firewall rule or security module forbids it"
        self._pause(now_ms, now_ms + PAUSE_MS, "accept.failed", why)

    def _pause(self, now_ms: int, until_ms: int, event: str, hint: str) -> None:
        self.watched = False
        self.hub.unwatch(self, until_ms)
        self.rate_limited(Level.WARNING, event, now_ms, address=self.acceptor.name, hint=hint)
