"""A listening socket: takes clients in, and looks away when there is no room for more.

Knows the limit of connections and of file descriptors. Refuses to know what clients say. Journals come first: a part
of the process's descriptors is never given to clients, so that a flood of connections cannot stop a file from being
opened.
"""

from __future__ import annotations

import errno
from typing import Protocol

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.session import ProtocolSpec
from staniel.protocol.limits import Limits
from staniel.server.interfaces import Acceptor, Sock

ACCEPTS_A_TURN = 8  # of each address: 0.1 ms each; who still waits outside is taken in in the next turns
PAUSE_MS = 200
OUT_OF_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Host(Protocol):
    """Who a listener takes clients in for."""

    def has_room(self) -> bool: ...

    def admit(self, sock: Sock, name: str, protocol: ProtocolSpec, limits: Limits, now_ms: int) -> None: ...

    def watch(self, listener: Listener) -> None: ...

    def unwatch(self, listener: Listener, until_ms: int) -> None:
        """Stop watching; call `due` at `until_ms`, if that is not 0."""


class Listener:
    """One address. `watched`: whether the poller looks at it."""

    def __init__(
        self, host: Host, acceptor: Acceptor, protocol: ProtocolSpec, limits: Limits, report: EventSink
    ) -> None:
        self.host = host
        self.acceptor = acceptor
        self.protocol = protocol
        self.limits = limits
        self.rate_limited = RateLimitedSink(report)
        self.watched = False
        self.look()

    def on_ready(self, now_ms: int) -> None:
        """Somebody wants in."""
        if not self.watched:
            return
        for _ in range(ACCEPTS_A_TURN):
            if not self.host.has_room():
                self._look_away(now_ms, 0, "connections.full", "the limit of connections is reached; they wait outside")
                return
            try:
                sock, name = self.acceptor.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    hint = f"{error.strerror}: raise the limit of open files (ulimit -n)"
                    self._look_away(now_ms, now_ms + PAUSE_MS, "accept.failed", hint)
                return
            self.host.admit(sock, name, self.protocol, self.limits, now_ms)

    def look(self) -> None:
        """Watch for clients, again."""
        if not self.watched:
            self.watched = True
            self.host.watch(self)

    def due(self, now_ms: int) -> None:
        self.look()

    def _look_away(self, now_ms: int, until_ms: int, event: str, hint: str) -> None:
        self.watched = False
        self.host.unwatch(self, until_ms)
        self.rate_limited(Level.WARNING, event, now_ms, address=self.acceptor.name, hint=hint)
