"""A listening socket: takes clients in, and looks away when there is no room for more.

Knows the limit of connections and of file descriptors. Refuses to know what clients say. Journals come first: a part
of the process's descriptors is never given to clients, so that a flood of connections cannot stop a file from being
opened.
"""

from __future__ import annotations

import errno
import resource
import socket
import struct
from typing import Protocol

from broker.report import Level, Report
from broker.session import Wire
from protocol.limits import Limits

ACCEPTS_A_TICK = 64
PAUSE_MS = 200
OUT_OF_FILES = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
UCRED = struct.Struct("iII")  # what SO_PEERCRED gives: pid, uid, gid
RESERVED_FILES = 64  # listeners, poller, lock, ballast, folders, logs


def raise_file_limit() -> tuple[int, int]:
    """Take every descriptor the system grants; how many journals may be open, and how many clients."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    journals = granted // 4
    return journals, max(1, granted - journals - RESERVED_FILES)


def peer_name(sock: socket.socket) -> str:
    """Who is at the other end, for the log: `192.0.2.1:40712`, `[::1]:40712`, `unix:pid=7,uid=0`."""
    try:
        if sock.family == socket.AF_UNIX:
            pid, uid, _ = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
            return f"unix:pid={pid},uid={uid}"
        host, port = sock.getpeername()[:2]
    except OSError:
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Host(Protocol):
    """Who a listener takes clients in for."""

    def has_room(self) -> bool: ...

    def admit(self, sock: socket.socket, wire: Wire, limits: Limits, now_ms: int) -> None: ...

    def watch(self, listener: Listener) -> None: ...

    def unwatch(self, listener: Listener, until_ms: int) -> None:
        """Stop watching; call `due` at `until_ms`, if that is not 0."""


class Listener:
    """One address. `watched`: whether the poller looks at it."""

    def __init__(self, host: Host, sock: socket.socket, wire: Wire, limits: Limits, report: Report) -> None:
        self.host = host
        self.sock = sock
        self.wire = wire
        self.limits = limits
        self.report = report
        self.watched = False
        self.look()

    def knock(self, now_ms: int) -> None:
        """Somebody wants in."""
        for _ in range(ACCEPTS_A_TICK):
            if not self.host.has_room():
                self._look_away(0, "connections.full", "the limit of connections is reached; they wait outside")
                return
            try:
                sock, _ = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    hint = f"{error.strerror}: raise the limit of open files (ulimit -n)"
                    self._look_away(now_ms + PAUSE_MS, "accept.failed", hint)
                return
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.host.admit(sock, self.wire, self.limits, now_ms)

    def look(self) -> None:
        """Watch for clients, again."""
        if not self.watched:
            self.watched = True
            self.host.watch(self)

    def due(self, now_ms: int) -> None:
        self.look()

    def _look_away(self, until_ms: int, event: str, hint: str) -> None:
        self.watched = False
        self.host.unwatch(self, until_ms)
        self.report(Level.WARNING, event, address=str(self.sock.getsockname()), hint=hint)
