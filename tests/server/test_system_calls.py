"""Every system call of the server on sockets, epoll, eventfd and threads, with every errno that its manual lists: a
client's costs that client, a listener's pauses the listener, and none of them ends the server or makes it spin.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from staniel.bench.own.hops import StandingClock
from staniel.broker import protocols
from staniel.journal.background import BackgroundTask
from staniel.protocol.memcache.requests import Dialect
from staniel.server.gc_policy import GcPolicy
from staniel.server.listener import ACCEPTS_PER_TURN, Endpoint
from staniel.server.loop import Loop
from staniel.server.machine import ListeningSocket
from staniel.server.sync_thread import WorkerThread
from tests.server.test_hub import Served
from tests.support.ready import is_readable
from tests.support.wire import Wire

TURNS = 20


class Costs(Enum):
    CLIENT = "that client"
    PAUSE = "a pause of the listener"
    NOTHING = "nothing"


def errnos(names: str) -> list[int]:
    return [getattr(errno, name) for name in names.split()]


# Sources: recv(2), send(2), shutdown(2), close(2), accept(2), tcp(7), setsockopt(2), fcntl(2), epoll_ctl(2), ioctl(2).
TABLE = {
    "recv": (
        Costs.CLIENT,
        (
            "EBADF ECONNREFUSED ECONNRESET EFAULT EINVAL ENOMEM ENOTCONN ENOTSOCK ETIMEDOUT EHOSTUNREACH EIO "
            "ENETUNREACH EPIPE"
        ),
    ),
    "send": (
        Costs.CLIENT,
        (
            "EACCES EBADF ECONNRESET EDESTADDRREQ EFAULT EINVAL EISCONN EMSGSIZE ENOBUFS ENOMEM ENOTCONN "
            "ENOTSOCK EOPNOTSUPP EPIPE ETIMEDOUT EHOSTUNREACH EPERM ENETDOWN"
        ),
    ),
    "shutdown": (Costs.CLIENT, "EBADF EINVAL ENOTCONN ENOTSOCK"),
    "close": (Costs.CLIENT, "EBADF EIO ENOSPC EDQUOT"),
    "set up": (Costs.CLIENT, "EBADF EFAULT EINVAL ENOPROTOOPT ENOTSOCK ENOMEM EPERM EACCES EDOM ECONNRESET"),
    "epoll add": (Costs.CLIENT, "EBADF EEXIST EINVAL ELOOP ENOENT ENOMEM ENOSPC EPERM"),
    "epoll modify": (Costs.CLIENT, "EBADF EINVAL ENOENT ENOMEM EPERM"),
    "epoll delete": (Costs.CLIENT, "EBADF EINVAL ENOENT ENOMEM EPERM"),
    "waiting bytes": (Costs.NOTHING, "EBADF EFAULT EINVAL ENOTTY"),
    "accept": (
        Costs.PAUSE,
        (
            "EBADF ECONNABORTED EFAULT EINVAL EMFILE ENFILE ENOBUFS ENOMEM ENOTSOCK EOPNOTSUPP EPERM EPROTO "
            "EACCES ENETDOWN ENOPROTOOPT EHOSTDOWN ENONET EHOSTUNREACH ENETUNREACH ENOSR ESOCKTNOSUPPORT "
            "EPROTONOSUPPORT ETIMEDOUT EIO"
        ),
    ),
    "watch listener": (Costs.PAUSE, "EBADF EINVAL ELOOP ENOENT ENOMEM ENOSPC EPERM"),
    "unwatch listener": (Costs.PAUSE, "EBADF EINVAL ENOENT ENOMEM EPERM"),
}
OF_LISTENERS = [call for call, (costs, _) in TABLE.items() if costs is Costs.PAUSE]
OF_CLIENTS = [call for call in TABLE if call not in OF_LISTENERS]


class Faults:
    """Which calls fail, and how many have failed."""

    def __init__(self) -> None:
        self.armed: dict[str, int] = {}
        self.struck = 0

    def strike(self, call: str) -> None:
        if call in self.armed:
            self.struck += 1
            raise OSError(self.armed[call], os.strerror(self.armed[call]))


class FaultySock:
    """A client's socket."""

    def __init__(self, below: Any, faults: Faults) -> None:
        self._below, self._faults = below, faults

    def fileno(self) -> int:
        return int(self._below.fileno())

    def recv(self, count: int, /) -> bytes:
        self._faults.strike("recv")
        return bytes(self._below.recv(count))

    def send(self, data: bytes | memoryview, /) -> int:
        self._faults.strike("send")
        return int(self._below.send(data))

    def shutdown(self, how: int, /) -> None:
        self._faults.strike("shutdown")
        self._below.shutdown(how)

    def close(self) -> None:
        self._below.close()  # as the kernel does, also where it reports an error
        self._faults.strike("close")


class FaultyNewSocket(socket.socket):
    """A socket as accept(2) returns it, before it is set up."""

    faults: Faults

    def setsockopt(self, *args: Any) -> None:
        self.faults.strike("set up")
        super().setsockopt(*args)


class FaultyDoor:
    """A listening socket."""

    def __init__(self, below: socket.socket, faults: Faults) -> None:
        self._below, self._faults = below, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def accept(self) -> tuple[socket.socket, Any]:
        self._faults.strike("accept")
        sock, name = self._below.accept()
        made = FaultyNewSocket(fileno=sock.detach())
        made.faults = self._faults
        return made, name


class FaultyAcceptor(ListeningSocket):
    def __init__(self, below: socket.socket, faults: Faults) -> None:
        super().__init__(FaultyDoor(below, faults))  # type: ignore[arg-type]
        self._faults = faults

    def accept(self) -> Any:
        sock, name = super().accept()
        return FaultySock(sock, self._faults), name


class FaultyPoller:
    def __init__(self, below: select.epoll, faults: Faults) -> None:
        self._below, self._faults, self.doors = below, faults, set[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def register(self, fd: int, mask: int) -> None:
        self._faults.strike("watch listener" if fd in self.doors else "epoll add")
        self._below.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        self._faults.strike("epoll modify")
        self._below.modify(fd, mask)

    def unregister(self, fd: int) -> None:
        self._faults.strike("unwatch listener" if fd in self.doors else "epoll delete")
        self._below.unregister(fd)


class Faulty(Served):
    """A hub whose calls fail as its `faults` say."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "server.client_timeout = 0\n")
        self.hub.clock = StandingClock()  # a pause ends when the test says so
        self.faults, self.lines = Faults(), list[tuple[str, dict[str, object]]]()
        self.poller = FaultyPoller(self.machine.poller, self.faults)
        self.hub._poller = self.hub._dispatcher._poller = self.machine.poller = self.poller  # type: ignore[assignment]
        waiting = self.hub._schedule._waiting_bytes

        def waiting_bytes(fd: int) -> int:
            self.faults.strike("waiting bytes")
            return int(waiting(fd))

        self.hub._schedule._waiting_bytes = waiting_bytes
        self.listener = socket.create_server(("127.0.0.1", 0))
        acceptor = FaultyAcceptor(self.listener, self.faults)
        self.hub.listen(Endpoint(acceptor, protocols.memcache(Dialect.MEMCACHED)))
        self.poller.doors.add(self.listener.fileno())

    def settle(self, turns: int = 4) -> None:
        for _ in range(turns):
            self.hub.turn(self.machine.poller.poll(0.002))

    def serves(self, wire: Wire) -> bool:
        wire.say(b"version\r\n")
        self.settle()
        return bool(wire.line().startswith(b"VERSION "))


@contextmanager
def faulty(folder: Path) -> Iterator[Faulty]:
    made = Faulty(folder)
    with closing(made.hub):
        yield made


def reach(it: Faulty, call: str, victim: Wire) -> None:
    """Have the server make `call` for the client `victim`, which is connected or is about to be."""
    if call in ("recv", "send", "waiting bytes"):
        victim.say(b"version\r\n")
    elif call == "shutdown":
        victim.say(b"quit\r\n")
    elif call in ("close", "epoll delete"):
        victim.sock.shutdown(socket.SHUT_RDWR)
    elif call == "epoll modify":
        it.faults.armed["send"] = errno.EAGAIN
        victim.say(b"version\r\n")
    if call == "waiting bytes":  # asked where there is no time for all
        it.hub._schedule.postponed[it.newest_fd()] = 0


@pytest.mark.parametrize("call", OF_CLIENTS)
def test_a_failed_call_on_a_clients_socket_costs_at_most_that_client(tmp_path: Path, call: str) -> None:
    costs, names = TABLE[call]
    with faulty(tmp_path) as it, it.connect() as bystander:
        it.settle()
        for code in errnos(names):
            it.faults.struck = 0
            connects = call in ("set up", "epoll add")
            if connects:
                it.faults.armed[call] = code
            with it.connect() as victim:
                it.settle()
                if not connects:
                    it.faults.armed[call] = code
                    reach(it, call, victim)
                    it.settle()
                assert it.faults.struck, f"{call} was not called"
                it.faults.armed.clear()
                it.settle()
                assert it.serves(bystander), errno.errorcode[code]
                assert len(it.hub._connections) == (2 if costs is Costs.NOTHING else 1), errno.errorcode[code]
            it.settle()
        with it.connect() as another:
            it.settle()
            assert it.serves(another)


@pytest.mark.parametrize("call", OF_LISTENERS)
def test_a_failed_call_on_a_listener_pauses_it_and_is_not_tried_in_every_turn(tmp_path: Path, call: str) -> None:
    with faulty(tmp_path) as it, it.connect() as bystander:
        it.settle()
        door = it.hub._listeners[-1]
        for code in errnos(TABLE[call][1]):
            it.faults.struck = 0
            it.faults.armed[call] = code
            if call == "unwatch listener":
                it.faults.armed["accept"] = errno.EMFILE
            elif call == "watch listener":
                door._pause(0, 0, "accept.failed", "as if it had failed")
                door.resume(0)
            with it.connect() as victim:
                it.settle(TURNS)
                assert 0 < it.faults.struck <= ACCEPTS_PER_TURN, errno.errorcode[code]
                assert not door.is_watched
                assert it.serves(bystander)
                it.faults.armed.clear()
                door.on_timer(0)  # the pause has ended
                it.settle()
                assert door.is_watched and it.serves(victim), errno.errorcode[code]
            it.settle()


@pytest.mark.parametrize("call", ["epoll add", "wrap", "epoll modify"])
def test_a_client_whose_handshake_cannot_be_watched_or_begun_is_dropped_alone(tmp_path: Path, call: str) -> None:
    class Secure(FaultySock):
        read_bytes = 0
        wants_write = True

        def handshake(self, count: int, /) -> bool:
            return False

    class Fake:
        timeout_ms = 1_000_000

        def wrap(self, sock: Any) -> Any:
            it.faults.strike("wrap")
            return Secure(sock, it.faults)

    with faulty(tmp_path) as it, it.connect() as bystander:
        it.settle()
        listener = it.hub._listeners[-1]
        listener.endpoint = replace(listener.endpoint, security=Fake())
        it.faults.armed[call] = errno.ENOMEM
        with it.connect() as victim:
            victim.say(b"hello")
            it.settle()
            assert it.faults.struck == 1 and len(it.hub.handshakes) == 0
            assert it.serves(bystander)


def test_a_thread_whose_priority_may_not_be_changed_runs_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: int) -> None:
        raise PermissionError(errno.EACCES, "forbidden")

    monkeypatch.setattr(os, "setpriority", forbidden)
    worker: WorkerThread[BackgroundTask] = WorkerThread("tasks", 10)
    ran: list[bool] = []
    worker.start(SimpleNamespace(run=lambda: ran.append(True)))  # type: ignore[arg-type]
    assert is_readable(worker.fd, 10)
    assert worker.finished() is not None and ran
    worker.close()


async def test_a_loop_goes_on_where_trio_cannot_watch_its_poller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_watch_left(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(trio.lowlevel, "wait_readable", no_watch_left)
    with faulty(tmp_path) as it, it.connect() as client:
        async with trio.open_nursery() as nursery:
            loop = Loop(it.hub, it.machine, GcPolicy())
            nursery.start_soon(loop.run)
            await trio.to_thread.run_sync(client.say, b"version\r\n")
            assert (await trio.to_thread.run_sync(client.line)).startswith(b"VERSION ")
            loop.stop()
