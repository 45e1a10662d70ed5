"""A listening socket: accepts connections, and pauses when there is no room for more.

A part of the process's file descriptors is never given to clients, so that a flood of connections cannot stop a journal
from being opened.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.session import ProtocolSpec
from staniel.protocol.limits import Limits
from staniel.server.interfaces import Acceptor, Security

if TYPE_CHECKING:
    from staniel.server.hub import Hub

ACCEPTS_PER_TURN = 8  # of each address: 0.1 ms each; the others are accepted in the next turns
PAUSE_MS = 200
OUT_OF_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Listener:
    """One address. `security`: of TLS, where that is spoken. `watched`: whether the poller watches it."""

    def __init__(
        self,
        hub: Hub,
        acceptor: Acceptor,
        protocol: ProtocolSpec,
        limits: Limits,
        report: EventSink,
        security: Security | None = None,
    ) -> None:
        self.hub = hub
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
        for _ in range(ACCEPTS_PER_TURN):
            if not self.hub.has_room():
                self._pause(now_ms, 0, "connections.full", "the limit of connections is reached; they wait outside")
                return
            try:
                sock, name = self.acceptor.accept()
            except BlockingIOError:
                return
            except PermissionError as refused:
                client, why = refused.filename or "", refused.strerror
                self.rate_limited(Level.WARNING, "client.refused", now_ms, client=client, why=why)
                continue
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    hint = f"{error.strerror}: raise the limit of open files (ulimit -n)"
                    self._pause(now_ms, now_ms + PAUSE_MS, "accept.failed", hint)
                return
            if self.security is not None:
                self.hub.handshakes.begin(self, self.security, self.security.wrap(sock), name, now_ms)
            else:
                self.hub.admit(sock, name, self.protocol, self.limits, now_ms)

    def resume(self) -> None:
        """Watch for connections, again."""
        if not self.watched:
            self.watched = True
            self.hub.watch(self)

    def due(self, now_ms: int) -> None:
        self.resume()

    def _pause(self, now_ms: int, until_ms: int, event: str, hint: str) -> None:
        self.watched = False
        self.hub.unwatch(self, until_ms)
        self.rate_limited(Level.WARNING, event, now_ms, address=self.acceptor.name, hint=hint)
