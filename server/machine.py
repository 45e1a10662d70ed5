"""The real poller, sockets and threads of a hub (interfaces.py), and the limit of file descriptors."""

from __future__ import annotations

import fcntl
import resource
import socket
import sys
import termios
from time import perf_counter_ns

from staniel.journal.background import BackgroundTask
from staniel.server.client_socket import client_socket
from staniel.server.interfaces import ClientRefused, Clock, Sock, close_quietly
from staniel.server.kernel_sync import SyncWorker
from staniel.server.poller import Poller
from staniel.server.spool_socket import credentials
from staniel.server.sync_thread import WorkerThread

TASKS_NICE = 10  # the kernel needs 50 ms to forget a file of 128 MB
NO_INT = bytes(4)
RESERVED_FILES = 64  # listeners, poller, lock, ballast, folders, logs


class SystemMachine:
    """The real machine. `poller` and the threads live until the hub closes them."""

    now_ns = elapsed_ns = step_ns = staticmethod(perf_counter_ns)  # a method of ours would take twice as long

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.poller = Poller()
        self.syncs: SyncWorker = SyncWorker("syncs")
        self.tasks: WorkerThread[BackgroundTask] = WorkerThread("tasks", TASKS_NICE)

    def waiting_bytes(self, fd: int) -> int:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, NO_INT), sys.byteorder)


class ListeningSocket:
    """A bound socket that listens. `uids` are the users whose programs may connect; None: all."""

    def __init__(self, sock: socket.socket, uids: frozenset[int] | None = None) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._uids = uids

    @property
    def name(self) -> str:
        return own_name(self._sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self) -> tuple[Sock, str]:
        """Return a client's socket and its name. Raises BlockingIOError, ClientRefused, OSError."""
        sock, _ = self._sock.accept()
        name = peer_name(sock)
        try:
            if self._uids is not None and credentials(sock)[1] not in self._uids:
                raise ClientRefused(name, "a program of another user")
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ClientRefused) as error:
            close_quietly(sock)
            if isinstance(error, OSError):  # of this socket: the next client's may be sound
                raise ClientRefused(name, f"its socket cannot be set up: {error.strerror}") from error
            raise
        return client_socket(sock), name

    def close(self) -> None:
        self._sock.close()


def own_name(sock: socket.socket) -> str:
    """Return a socket's listening address as in the configuration: `192.0.2.1:22133`, `[::1]:22133`,
    `unix:/run/staniel`. An abstract name begins with @, as other programs show it.
    """
    name = sock.getsockname()
    if isinstance(name, bytes):
        return "unix:@" + name[1:].decode("utf-8", "backslashreplace")
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def peer_name(sock: socket.socket) -> str:
    """Return the client's address for the log: `192.0.2.1:40712`, `[::1]:40712`, `unix:pid=7,uid=0`."""
    try:
        if sock.family == socket.AF_UNIX:
            pid, uid, _ = credentials(sock)
            return f"unix:pid={pid},uid={uid}"
        host, port = sock.getpeername()[:2]
    except OSError:
        return "gone"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def file_bytes_max() -> int:
    """Raise the limit on the size of a file as far as the system allows. Return it; -1: no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        except (OSError, ValueError):
            return soft
    return -1 if hard == resource.RLIM_INFINITY else hard


def raise_file_limit() -> tuple[int, int]:
    """Raise the limit as far as the system allows. Return how many journals and how many clients may be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError):  # a filter forbids it: the limit is what it was
        granted = soft if soft != resource.RLIM_INFINITY else granted
    journals = granted // 4
    return journals, granted - journals - min(RESERVED_FILES, granted // 2)
