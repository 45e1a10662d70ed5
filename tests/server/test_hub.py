"""One hub, its own machine, real sockets: events of one turn in the order that does most harm."""

from __future__ import annotations

import itertools
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from broker import wires
from broker.broker import Broker
from broker.config import parse
from broker.session import REQUESTS_A_TURN
from journal.fs import OsFs
from protocol.dialect import Dialect
from protocol.limits import Limits
from server.clock import SteadyClock
from server.hub import SHARE_NS, Hub
from server.machine import ListeningSocket, Machine
from tests.protocol.thrift_feeding import call, hear
from tests.server.process import running
from tests.server.wire import Wire

SMALL = 'default.max_memory_size = "16KB"\ndefault.max_journal_size = "64KB"\n'
THREE = b"".join(b"set q 0 0 1\r\n%d\r\n" % number for number in range(3))
CLIENTS = 6
SECONDS = 1.5


class Served:
    """A hub that is turned by hand. `order`: which descriptors' events come first in a turn."""

    def __init__(self, folder: Path, config: str) -> None:
        broker = Broker(parse(f'server.spool = "{folder}/spool"\n{config}'.encode(), ""), OsFs())
        self.machine = Machine(SteadyClock())
        self.spent_ns = 0  # by serving one client, as far as the hub knows
        self._elapsed_ns = itertools.count()
        self.machine.elapsed_ns = lambda: next(self._elapsed_ns) * self.spent_ns  # type: ignore[method-assign]
        broker.recover(self.machine.clock.now_ms())
        self.hub = Hub(broker, self.machine, 100)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hub.listen(ListeningSocket(self.listener), wires.memcache(Dialect.MEMCACHED))
        self.sync_fd, self.chore_fd = self.machine.syncs.fd, self.machine.chores.fd

    def ready(self, *wanted: int) -> list[tuple[int, int]]:
        """The events, once these descriptors are among them."""
        give_up = time.monotonic() + 10
        while time.monotonic() < give_up:
            events = self.machine.poller.poll(0.01)
            if set(wanted) <= {fd for fd, _ in events}:
                return sorted(events, key=lambda event: wanted.index(event[0]) if event[0] in wanted else len(wanted))
        raise AssertionError(f"{wanted} never came")

    def turn(self, *order: int) -> None:
        """In a thread of its own, so that one that waits for ever is a failure."""
        events = self.ready(*order) if order else self.machine.poller.poll(0.01)
        thread = threading.Thread(target=self.hub.turn, args=(events,), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "a turn waits for ever"

    def connect(self) -> Wire:
        wire = Wire(self.listener.getsockname())
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return wire

    def newest_fd(self) -> int:
        return list(self.hub._connections)[-1]


@contextmanager
def served(folder: Path, config: str = "") -> Iterator[Served]:
    made = Served(folder, config)
    with closing(made.hub):
        yield made


def test_a_newcomer_is_not_hung_up_on_by_the_end_of_another_client(tmp_path: Path) -> None:
    with served(tmp_path) as hub, hub.connect() as first:
        hub.turn(hub.listener.fileno())
        fd = hub.newest_fd()
        first.say(b"set q 0 0 1\r\na\r\n")
        hub.turn(fd)  # its answer waits for the thread now
        hub.ready(hub.sync_fd)
        first.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.sock.close()
        with hub.connect() as second:
            # The answer meets the reset, so the first client is dropped; then the second comes in; then the poller's
            # word that the first one is gone.
            hub.turn(hub.sync_fd, hub.listener.fileno(), fd)
            second.say(b"version\r\n")
            hub.turn(hub.newest_fd())
            assert second.line().startswith(b"VERSION ")
            assert len(hub.hub._connections) == 1


def test_a_delete_in_the_turn_in_which_a_chore_has_ended_is_answered(tmp_path: Path) -> None:
    with served(tmp_path, SMALL) as hub, hub.connect() as client:
        hub.turn(hub.listener.fileno())
        fd = hub.newest_fd()
        for _ in range(200):
            client.say(b"set q 0 0 1000\r\n" + bytes(1000) + b"\r\n")
            hub.turn(fd)
            if hub.hub.broker.upkeep.is_at_work(hub.hub.broker.queues.by_name["q"]):
                break
        hub.ready(hub.chore_fd)
        client.say(b"delete q\r\nversion\r\n")
        hub.turn(fd, hub.chore_fd)
        while True:
            hub.turn()
            if (line := client.line()) != b"STORED":
                break
        assert line == b"DELETED" and client.line().startswith(b"VERSION ")
        assert hub.hub.broker.queues.find("q") is None


def test_a_delete_whose_client_leaves_before_a_chore_has_ended_is_done(tmp_path: Path) -> None:
    with served(tmp_path, SMALL) as hub, hub.connect() as client:
        hub.turn(hub.listener.fileno())
        fd = hub.newest_fd()
        broker = hub.hub.broker
        while "q" not in broker.queues.by_name or not broker.upkeep.is_at_work(broker.queues.by_name["q"]):
            client.say(b"set q 0 0 1000 noreply\r\n" + bytes(1000) + b"\r\n")
            hub.turn(fd)
        client.say(b"delete q\r\n").end_sending()
        gone = hub.ready(fd)
        hub.hub.turn([each for each in gone if each[0] == fd])
        assert broker.queues.find("q") is not None
        hub.turn(hub.chore_fd)
        assert broker.queues.find("q") is None
        while hub.hub._connections:
            hub.turn()
        assert client.rest() == b"DELETED\r\n"


@pytest.mark.parametrize("leave", ["shut", "reset"])
@pytest.mark.parametrize("request_of", [b"get q/t=5000\r\n", b"get q/t=5000/n=10\r\n"])
def test_a_wait_whose_client_leaves_in_the_turn_of_the_put_takes_nothing(
    tmp_path: Path, leave: str, request_of: bytes
) -> None:
    with served(tmp_path) as hub, hub.connect() as waiter, hub.connect() as putter:
        hub.turn(hub.listener.fileno())
        waiting, putting = list(hub.hub._connections)
        waiter.say(request_of)
        hub.turn(waiting)
        if leave == "shut":
            waiter.end_sending()
        else:
            waiter.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            waiter.sock.close()
        putter.say(THREE)
        hub.turn(putting, waiting)
        assert [item.data for item in hub.hub.broker.queues.by_name["q"].line.items()] == [b"0", b"1", b"2"]


def test_a_thrift_wait_whose_client_leaves_in_the_turn_of_the_put_takes_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as hub, hub.connect() as putter:
        hub.turn(hub.listener.fileno())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hub.hub.admit(ours, "", wires.thrift(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), 0)
        putting, waiting = list(hub.hub._connections)
        theirs.sendall(call("get", queue_name="q", max_items=10, timeout_msec=5000, auto_abort_msec=0))
        hub.turn(waiting)
        assert len(hub.hub.broker.queues.by_name["q"].waiters) == 1
        theirs.close()
        putter.say(THREE)
        hub.turn(putting, waiting)
        assert [item.data for item in hub.hub.broker.queues.by_name["q"].line.items()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("ends", ["leaves", "is answered"])
def test_a_thrift_get_has_taken_nothing_before_it_is_answered(tmp_path: Path, ends: str) -> None:
    with served(tmp_path) as hub, hub.connect() as putter:
        hub.turn(hub.listener.fileno())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hub.hub.admit(ours, "", wires.thrift(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), 0)
        putting, waiting = list(hub.hub._connections)
        theirs.sendall(call("get", queue_name="q", max_items=4, timeout_msec=5000, auto_abort_msec=0))
        hub.turn(waiting)
        putter.say(THREE)
        hub.turn(putting)
        queue = hub.hub.broker.queues.by_name["q"]
        assert not len(queue.line) and len(queue.open_reads) == 3
        if ends == "leaves":
            theirs.close()
            hub.turn(waiting)
            assert [item.data for item in queue.line.items()] == [b"0", b"1", b"2"]
            return
        putter.say(b"set q 0 0 1\r\n3\r\n")
        hub.turn(putting)
        hub.turn(hub.sync_fd)
        found = hear(theirs.recv(1000))[2].success
        assert [item.data for item in found] == [b"0", b"1", b"2", b"3"]
        assert not len(queue.line) and not queue.open_reads
        theirs.close()


def test_a_closed_connection_is_not_kept_until_its_alarm(tmp_path: Path) -> None:
    with served(tmp_path, 'server.client_timeout = "1h"\n') as hub:
        for _ in range(20):
            with hub.connect() as client:
                hub.turn(hub.listener.fileno())
                client.say(b"version\r\n")
                hub.turn(hub.newest_fd())
            while hub.hub._connections:
                hub.turn()
        assert len(hub.hub.broker.deadlines) == 0


def test_a_flag_without_an_end_means_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as hub:
        hub.hub.turn([(hub.sync_fd, select.EPOLLIN), (hub.chore_fd, select.EPOLLIN), (999, select.EPOLLHUP)])


def puts_and_deletes(address: tuple[str, int], name: str, until: threading.Event, failures: list[str]) -> None:
    try:
        with Wire(address) as wire:
            while not until.is_set():
                for _ in range(40):
                    assert wire.put(name, bytes(1000)) == b"STORED"
                assert wire.ask(b"delete " + name.encode()) == b"DELETED"
    except (AssertionError, OSError) as failure:
        failures.append(repr(failure))


def test_deleting_queues_all_the_time_hangs_nobody_and_a_signal_still_ends_the_server(tmp_path: Path) -> None:
    over, failures = threading.Event(), list[str]()
    with running(tmp_path, config=SMALL) as server:
        crew = [
            threading.Thread(target=puts_and_deletes, args=(server.address, f"q{number}", over, failures))
            for number in range(CLIENTS)
        ]
        for each in crew:
            each.start()
        over.wait(SECONDS)
        over.set()
        for each in crew:
            each.join()
        assert failures == []
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_who_there_is_no_time_for_in_a_turn_comes_first_in_the_next_one(tmp_path: Path) -> None:
    with served(tmp_path) as it:
        wires = []
        for _ in range(3):
            wires.append(it.connect())
            it.turn(it.listener.fileno())
        fds = list(it.hub._connections)
        it.spent_ns = SHARE_NS + 1
        answered = []
        for wire in wires:
            wire.say(b"version\r\n")
        for _ in range(3):
            it.hub.turn(it.ready(*fds))
            (next_one,) = [at for at, wire in enumerate(wires) if at not in answered and has_answer(wire)]
            answered.append(next_one)
            wires[next_one].say(b"version\r\n")  # ready again, and listed before the others
        assert answered == [0, 1, 2]
        for wire in wires:
            wire.sock.close()


def test_backlogs_go_on_in_turn_when_there_is_no_time_for_all(tmp_path: Path) -> None:
    with served(tmp_path) as it:
        wires = []
        for _ in range(3):
            wires.append(it.connect())
            it.turn(it.listener.fileno())
        for wire in wires:
            wire.say(b"version\r\n" * 250)
        it.turn(*it.hub._connections)
        it.spent_ns = SHARE_NS + 1
        left = [len(connection.session.backlog) for connection in it.hub._connections.values()]
        for _ in range(6):
            it.hub.turn([])
        gone = [was - len(one.session.backlog) for was, one in zip(left, it.hub._connections.values(), strict=True)]
        assert gone == [2 * REQUESTS_A_TURN] * 3
        for wire in wires:
            wire.sock.close()


def has_answer(wire: Wire) -> bool:
    return bool(select.select([wire.sock], [], [], 0.2)[0])
