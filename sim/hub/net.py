"""A process's descriptors in memory: sockets, their other ends, a listening socket, and the poller that watches them.

They behave as Linux does at its least convenient: the lowest free number is reused, reads are split, writes are short,
the events of one batch come in any order, some without a cause.
"""

from __future__ import annotations

import errno
import select
import socket
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from staniel.sim.violations import Kind, Violation

FIRST_FD = 3
ALWAYS = select.EPOLLHUP | select.EPOLLERR
HUNG_UP = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLIN | select.EPOLLOUT
WINDOW_BYTES = 3000


class Watched(Protocol):
    """The object behind a descriptor."""

    def ready(self) -> int:
        """Return the events that are ready, as an epoll mask."""


class Net:
    """The descriptors of a process. `meanwhile` is called between two system calls, so that others act during a
    turn.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.tells_all = False
        """True: a poll returns all events, as a kernel does. False: a poll may omit some, which must do no harm."""
        self.open: dict[int, Watched] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        self._interest: dict[int, int] = {}
        self.is_closed = False

    def open_fd(self, what: Watched) -> int:
        """Give the lowest free descriptor to `what`, and return it."""
        fd = FIRST_FD
        while fd in self.open:
            fd += 1
        self.open[fd] = what
        return fd

    def give_back(self, fd: int, what: Watched) -> None:
        if self.open.get(fd) is not what:
            raise Violation(Kind.STOLEN, f"descriptor {fd} is closed twice")
        del self.open[fd]
        self._interest.pop(fd, None)  # as epoll does

    def register(self, fd: int, mask: int) -> None:
        if fd not in self.open:
            raise OSError(errno.EBADF, "register")
        if fd in self._interest:
            raise FileExistsError(errno.EEXIST, "register")
        self._interest[fd] = mask

    def modify(self, fd: int, mask: int) -> None:
        if fd not in self._interest:
            raise FileNotFoundError(errno.ENOENT, "modify")
        self._interest[fd] = mask

    def unregister(self, fd: int) -> None:
        if fd not in self._interest:
            raise FileNotFoundError(errno.ENOENT, "unregister")
        del self._interest[fd]

    def close(self) -> None:
        self.is_closed = True

    def poll(self) -> list[tuple[int, int]]:
        """Return one batch of events, each descriptor once."""
        rng = self.rng
        events = self.ready_events()
        known = {fd for fd, _ in events}
        if events and not self.tells_all and rng.random() < 0.2:
            events = rng.sample(events, rng.randrange(1, len(events) + 1))
        if rng.random() < 0.1:
            events += self._false_alarms(known)
        rng.shuffle(events)
        return events

    def ready_events(self) -> list[tuple[int, int]]:
        """Return all events that are ready."""
        events = [(fd, self.open[fd].ready() & (mask | ALWAYS)) for fd, mask in self._interest.items()]
        return [event for event in events if event[1]]

    def _false_alarms(self, known: set[int]) -> list[tuple[int, int]]:
        """Return readiness that has passed when the hub reads, and events of descriptors that are closed already."""
        numbers = [fd for fd, mask in self._interest.items() if fd not in known and mask & select.EPOLLIN]
        numbers.append(max(self.open, default=FIRST_FD) + self.rng.randrange(1, 3))
        return [(fd, select.EPOLLIN) for fd in self.rng.sample(numbers, min(2, len(numbers)))]


class Link:
    """A connection, as both ends see it. `sent`: everything that the server's socket has taken, received or not."""

    def __init__(self) -> None:
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.sent = bytearray()
        self.client_gone = False  # the client does not read any more: the next bytes cause a reset
        self.client_ended = False  # the client has closed its side: it sends no more bytes
        self.is_reset = False
        self.server_ended = False  # the server has closed its side, or the socket
        self.server: ServerSock | None = None  # set when the connection is accepted
        self.client = "a client"  # the client's address

    def reset(self) -> None:
        """Reset the connection: the client is gone at once, and the bytes on their way are lost."""
        self.is_reset = self.client_ended = True
        self.to_server.clear()
        self.to_client.clear()


class ServerSock:
    """The server's end of a connection."""

    def __init__(self, net: Net, link: Link) -> None:
        self._net = net
        self.link = link
        link.server = self
        self.is_closed = False
        self._fd = net.open_fd(self)

    def fileno(self) -> int:
        return self._fd

    def ready(self) -> int:
        link = self.link
        if link.is_reset:
            return HUNG_UP | select.EPOLLERR
        mask = select.EPOLLIN if link.to_server or link.client_ended else 0
        if link.client_ended:
            mask |= select.EPOLLRDHUP | (select.EPOLLHUP if link.server_ended else 0)
        return mask | (select.EPOLLOUT if len(link.to_client) < WINDOW_BYTES else 0)

    def recv(self, count: int, /) -> bytes:
        self._call("recv")
        link = self.link
        if link.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, "recv")
        if not link.to_server:
            if link.client_ended:
                return b""
            raise BlockingIOError(errno.EAGAIN, "recv")
        available = min(count, len(link.to_server))
        size = available if self._net.rng.random() < 0.6 else self._net.rng.randrange(1, available + 1)
        data = bytes(link.to_server[:size])
        del link.to_server[:size]
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        self._call("send")
        link = self.link
        if link.is_reset or link.server_ended:
            raise BrokenPipeError(errno.EPIPE, "send")
        room = min(len(data), WINDOW_BYTES - len(link.to_client))
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "send")
        size = room if self._net.rng.random() < 0.7 else self._net.rng.randrange(1, room + 1)
        link.to_client += data[:size]
        link.sent += data[:size]
        if link.client_gone:
            link.reset()
        return size

    def shutdown(self, how: int, /) -> None:
        self._call("shutdown")
        if self.link.is_reset:
            raise OSError(errno.ENOTCONN, "shutdown")
        if how == socket.SHUT_RD:
            self.link.client_ended = True  # what a reader of the socket sees
            return
        self.link.server_ended = True

    def close(self) -> None:
        if self.is_closed:
            raise Violation(Kind.STOLEN, f"descriptor {self._fd} is closed twice")
        self.is_closed = True
        link = self.link
        link.server_ended = True
        self._net.give_back(self._fd, self)
        if link.to_server and not link.client_ended:
            link.is_reset = True  # bytes that were sent and never read cause a reset

    def _call(self, what: str) -> None:
        if self.is_closed:
            raise Violation(Kind.STOLEN, f"{what} on descriptor {self._fd}, which is closed")
        self._net.meanwhile()


class ListeningSock:
    """A listening socket. `waiting`: clients that are not accepted yet."""

    name = "the door"

    def __init__(self, net: Net) -> None:
        self._net = net
        self.waiting: deque[Link] = deque()
        self.is_closed = False
        self._fd = net.open_fd(self)

    def fileno(self) -> int:
        return self._fd

    def ready(self) -> int:
        return select.EPOLLIN if self.waiting else 0

    def accept(self) -> tuple[ServerSock, str]:
        self._net.meanwhile()
        if not self.waiting:
            raise BlockingIOError(errno.EAGAIN, "accept")
        if self._net.rng.random() < 0.02:
            raise OSError(errno.EMFILE, "too many open files")
        link = self.waiting.popleft()
        return ServerSock(self._net, link), link.client

    def close(self) -> None:
        self.is_closed = True
        self._net.give_back(self._fd, self)
        for link in self.waiting:
            link.is_reset = link.server_ended = True
