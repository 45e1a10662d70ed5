"""One hub, its own machine, real sockets: events of one turn in the order that does most harm."""

from __future__ import annotations

import itertools
import select
import shutil
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.broker import SETTLE_NS, SETTLED_PER_TURN, Broker
from staniel.broker.config.load import parse
from staniel.broker.latencies import Histogram
from staniel.broker.session import REQUESTS_PER_LOOK, REQUESTS_PER_TURN
from staniel.broker.share import STEP_NS
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.group_commit import Sync
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item
from staniel.server import connection, hub, pending_bytes, read_schedule
from staniel.server.clock import ServerClock
from staniel.server.connection import Connection, ConnectionState
from staniel.server.disk_work import SyncLatency
from staniel.server.hub import FREE_SHARE_NS, SHARE_NS, Hub
from staniel.server.listener import ACCEPTS_PER_TURN, Endpoint
from staniel.server.machine import ListeningSocket, SystemMachine
from staniel.server.read_schedule import Event
from tests.support.process import running
from tests.support.ready import is_readable
from tests.support.thrift_calls import call, hear
from tests.support.wire import Wire

SMALL = 'default.max_memory_size = "16KB"\ndefault.max_journal_size = "64KB"\n'
THREE = b"".join(b"set q 0 0 1\r\n%d\r\n" % number for number in range(3))
CLIENTS = 6
SECONDS = 1.5
READY_SECONDS_MAX = 60.0  # a thread may have to sync files on a busy disk
SECONDS_NS = 1_500_000_000


class Served:
    """A hub that is turned by hand. `order`: which descriptors' events come first in a turn."""

    def __init__(self, folder: Path, config: str) -> None:
        broker = Broker(parse(f'server.spool = "{folder}/spool"\n{config}'.encode(), ""), OsFs())
        self.machine = SystemMachine(ServerClock())
        self.spent_ns = 0  # by serving one client, as far as the hub knows
        self._elapsed_ns = itertools.count()
        self.machine.elapsed_ns = lambda: next(self._elapsed_ns) * self.spent_ns  # type: ignore[method-assign]
        self.step_ns = 0  # by each piece of work between two looks at the clock
        self._steps = itertools.count()  # its own: a look at one clock does not move the other
        self.machine.step_ns = lambda: next(self._steps) * self.step_ns  # type: ignore[method-assign]
        broker.recover(self.machine.clock.now_ms())
        self.hub = Hub(broker, self.machine, 100)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.hub.listen(Endpoint(ListeningSocket(self.listener), protocols.memcache(Dialect.MEMCACHED)))
        self.sync_fd, self.task_fd = self.machine.syncs.fd, self.machine.tasks.fd

    def pass_ns(self, ns: int) -> None:
        """So much time, as far as the hub knows."""
        for _ in range(ns // self.spent_ns):
            next(self._elapsed_ns)

    def ready(self, *wanted: int) -> list[tuple[int, int]]:
        """The events, once these descriptors are among them."""
        give_up = time.monotonic() + READY_SECONDS_MAX
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
        thread.join(60)
        assert not thread.is_alive(), "a turn waits for ever"

    def line(self, wire: Wire) -> bytes:
        """Turn until this client has a line, and return it. A disk may take longer for a sync than one turn waits."""
        while not wire.has_line and not is_readable(wire.sock):
            self.turn()
        return wire.line()

    def turn_alone(self, fd: int) -> None:
        """With the events of this descriptor, as if no sync had ended meanwhile."""
        self.hub.turn([event for event in self.ready(fd) if event[0] == fd])

    def connect(self) -> Wire:
        wire = Wire(self.listener.getsockname())
        wire.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return wire

    def connect_many(self, count: int) -> list[Wire]:
        """Clients that have been let in, in their order."""
        wires = []
        for _ in range(count):
            wires.append(self.connect())
            self.turn(self.listener.fileno())
        return wires

    def prioritize(self, events: list[Event]) -> tuple[list[Event], dict[int, int], list[Connection]]:
        writers: list[Connection] = []
        return *self.hub._schedule.prioritize(events, self.hub._pending.pressing, writers), writers

    def newest_fd(self) -> int:
        return list(self.hub._connections)[-1]


@contextmanager
def served(folder: Path, config: str = "") -> Iterator[Served]:
    made = Served(folder, config)
    with closing(made.hub):
        yield made


def test_the_hub_knows_when_each_client_was_last_active(tmp_path: Path) -> None:
    with served(tmp_path) as hub:
        first, second = hub.connect_many(2)
        with first, second:
            (one, two), broker = hub.hub._of_session, hub.hub.broker
            for connection in hub.hub._connections.values():
                connection.active_ms = 5
            first.say(b"version\r\n")
            hub.turn(next(iter(hub.hub._connections)))
            assert broker.active_ms_of(one) > 5 and broker.active_ms_of(two) == 5
            hub.hub.drop(hub.hub._of_session[two], 9)
            assert broker.active_ms_of(two) == 0


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


def test_a_full_server_stops_though_one_of_its_clients_has_gone_meanwhile(tmp_path: Path) -> None:
    with served(tmp_path) as it, it.connect() as first, it.connect():
        it.hub.connection_limits.max_connections = 1
        it.turn(it.listener.fileno())
        assert len(it.hub._connections) == 1 and not it.hub._listeners[0].is_watched
        first.say(b"set q 0 0 1\r\na\r\n")
        it.turn(it.newest_fd())  # its answer waits for the thread now
        assert it.hub._holding
        first.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.sock.close()
    assert not it.hub._connections


def test_a_delete_in_the_turn_in_which_a_task_has_ended_is_answered(tmp_path: Path) -> None:
    with served(tmp_path, SMALL) as hub, hub.connect() as client:
        hub.turn(hub.listener.fileno())
        fd = hub.newest_fd()
        give_up = time.monotonic() + READY_SECONDS_MAX  # the first task waits for syncs
        while time.monotonic() < give_up:
            client.say(b"set q 0 0 1000\r\n" + bytes(1000) + b"\r\n")
            hub.turn(fd)
            maintenance = hub.hub.broker.maintenance
            # At work may also mean that it waits for a sync, which this turn would have to see.
            if maintenance.is_at_work(hub.hub.broker.queues.by_name["q"]) and maintenance.tasks._running:
                break
        else:
            raise AssertionError("no task has begun")
        hub.ready(hub.task_fd)
        client.say(b"delete q\r\nversion\r\n")
        hub.turn(fd, hub.task_fd)
        while (line := hub.line(client)) == b"STORED":
            pass
        assert line == b"DELETED" and hub.line(client).startswith(b"VERSION ")
        assert hub.hub.broker.queues.find("q") is None


def test_a_delete_whose_client_leaves_before_a_task_has_ended_is_done(tmp_path: Path) -> None:
    with served(tmp_path, SMALL) as hub, hub.connect() as client:
        hub.turn(hub.listener.fileno())
        fd = hub.newest_fd()
        broker = hub.hub.broker
        while "q" not in broker.queues.by_name or not broker.maintenance.is_at_work(broker.queues.by_name["q"]):
            client.say(b"set q 0 0 1000 noreply\r\n" + bytes(1000) + b"\r\n")
            hub.turn(fd)
        client.say(b"delete q\r\n").end_sending()
        gone = hub.ready(fd)
        hub.hub.turn([each for each in gone if each[0] == fd])
        assert broker.queues.find("q") is not None
        hub.turn(hub.task_fd)
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
        hub.hub.admit(ours, "", protocols.thrift(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), 0)
        putting, waiting = list(hub.hub._connections)
        theirs.sendall(call("get", queue_name="q", max_items=10, timeout_msec=5000, auto_abort_msec=0))
        hub.turn(waiting)
        assert len(hub.hub.broker.queues.by_name["q"].waiters) == 1
        theirs.close()
        putter.say(THREE)
        hub.turn(putting, waiting)
        assert [item.data for item in hub.hub.broker.queues.by_name["q"].line.items()] == [b"0", b"1", b"2"]


def reset(wire: Wire) -> None:
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()


def data_of(hub: Served) -> list[bytes]:
    return [item.data for item in hub.hub.broker.queues.by_name["q"].line.items()]


FORMATS = {"": "", "libkestrel": 'default.journal_format = "libkestrel"\n'}


@pytest.mark.parametrize("journal", FORMATS)
@pytest.mark.parametrize("when", ["it cannot be sent", "during the sync", "the sync has ended"])
@pytest.mark.parametrize("wait", ["get q/t=5000", "get q/t=5000/n=2", "mg q/t=5000 v"])
def test_an_item_whose_answer_no_byte_has_left_of_goes_back_to_the_head(
    tmp_path: Path, wait: str, when: str, journal: str
) -> None:
    """The client is reset after the poller has spoken, so nobody knows of it when the item comes."""
    sync = 'default.sync_journal = "os"\n' if when == "it cannot be sent" else ""
    with served(tmp_path, FORMATS[journal] + sync) as hub:
        with hub.connect() as waiter, hub.connect() as putter:
            hub.turn(hub.listener.fileno())
            waiting, putting = list(hub.hub._connections)
            waiter.say(wait.encode() + b"\r\n")
            hub.turn(waiting)
            putter.say(THREE)
            events = hub.ready(putting)
            reset(waiter)
            hub.hub.turn([event for event in events if event[0] == putting])
            if when == "during the sync":
                hub.ready(waiting, hub.sync_fd)
                hub.turn_alone(waiting)
            elif when == "the sync has ended":
                hub.ready(hub.sync_fd)
                hub.turn_alone(hub.sync_fd)
            assert waiting not in hub.hub._connections and not hub.hub.broker.unsent.by_session
            if journal:  # there it goes back when the disk knows that it had gone
                assert data_of(hub) == ([b"2"] if "n=" in wait else [b"1", b"2"])
                assert hub.hub._syncs.running or not hub.hub.is_idle
                while len(data_of(hub)) < 3:
                    hub.turn()
            assert data_of(hub) == [b"0", b"1", b"2"]
            hub.turn()  # at once: what goes back is to be written
        killed = OsFs()
        folder = tmp_path / "killed"
        shutil.copytree(tmp_path / "spool", folder, ignore=shutil.ignore_patterns("*.new"))  # the log is being made
        (folder / ".staniel" / "lock").unlink(missing_ok=True)
        again = Broker(parse(f'server.spool = "{folder}"\n{FORMATS[journal]}'.encode(), ""), killed)
        again.recover(hub.machine.clock.now_ms())
        found = [item.data for item in again.queues.by_name["q"].line.items()]
        if journal:  # there an id says where an item stands after a start
            assert found == ([b"2", b"0", b"1"] if "n=" in wait else [b"1", b"2", b"0"])
        else:
            assert found == [b"0", b"1", b"2"]
        again.shutdown(hub.machine.clock.now_ms())


def test_several_items_of_a_thrift_get_go_back_in_their_order_and_the_next_who_waits_gets_the_first(
    tmp_path: Path,
) -> None:
    with served(tmp_path) as hub, hub.connect() as putter, hub.connect() as other:
        hub.turn(hub.listener.fileno())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hub.hub.admit(ours, "", protocols.thrift(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), 0)
        putting, waiting_too, waiting = list(hub.hub._connections)
        putter.say(THREE)
        hub.turn(putting)
        theirs.sendall(call("get", queue_name="q", max_items=10, timeout_msec=0, auto_abort_msec=0))
        hub.turn_alone(waiting)
        assert data_of(hub) == []
        other.say(b"get q/t=5000\r\n")
        hub.turn_alone(waiting_too)
        theirs.close()
        hub.turn_alone(waiting)
        assert data_of(hub) == [b"1", b"2"]
        while hub.hub._holding or hub.hub._syncs.running or hub.hub.broker.unsettled:
            hub.turn()
        assert other.line() == b"VALUE q/t=5000 0 1"


def test_an_item_that_its_client_has_got_does_not_come_back_because_later_answers_cannot_leave(tmp_path: Path) -> None:
    with served(tmp_path) as hub, hub.connect() as waiter, hub.connect() as putter:
        hub.turn(hub.listener.fileno())
        waiting, putting = list(hub.hub._connections)
        waiter.say(b"get q/t=5000\r\n")
        hub.turn(waiting)
        putter.say(THREE)
        hub.turn(putting)
        hub.ready(hub.sync_fd)
        waiter.say(b"set q 0 0 1\r\n9\r\n")
        hub.turn(hub.sync_fd, waiting)  # the item leaves, and in the same turn there is something new to hold
        assert waiter.line() == b"VALUE q/t=5000 0 1"
        reset(waiter)
        while waiting in hub.hub._connections:
            hub.turn()
        assert data_of(hub) == [b"1", b"2", b"9"]


LONG = bytes(900_000)  # more than leaves in one turn, and less than ends it


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize(
    "asked",
    [
        "get long\r\nget q/n=3",
        "get long\r\nget q/t=5000/n=3",
        "get q/n=4",
        "get long q q q",
        "gets long q/t=50 q none q",
    ],
)
def test_an_item_comes_back_if_only_what_was_answered_before_it_has_begun_to_leave(
    tmp_path: Path, asked: str, sync: str
) -> None:
    first = "q" if asked == "get q/n=4" else "long"
    with served(tmp_path, f'default.sync_journal = "{sync}"\n') as hub, hub.connect() as reader:
        hub.turn(hub.listener.fileno())
        reading, queues, now_ms = hub.newest_fd(), hub.hub.broker.queues, hub.machine.clock.now_ms()
        for queue, data in (first, LONG), ("q", b"0"), ("q", b"1"), ("q", b"2"):
            assert queues.make(queue, now_ms).add(Item(data, now_ms), now_ms)
        reader.say(asked.encode() + b"\r\n")
        hub.turn(reading)
        while not hub.hub._counters.bytes_written:
            hub.turn()
        assert data_of(hub) == []
        reset(reader)
        while reading in hub.hub._connections:
            hub.turn()
        assert data_of(hub) == [b"0", b"1", b"2"]
        assert not hub.hub.broker.unsent.by_session


def test_what_one_who_leaves_had_open_is_not_handed_to_another_who_leaves_in_the_same_turn(tmp_path: Path) -> None:
    with served(tmp_path, 'default.sync_journal = "os"\n') as hub:
        holder, waiter = hub.connect_many(2)
        holding, waiting = list(hub.hub._connections)
        holder.say(b"set q 0 0 1\r\nx\r\nget q/open\r\nget r/t=60000\r\n")
        hub.turn(holding)
        waiter.say(b"get q/t=60000\r\n")
        hub.turn(waiting)
        holder.sock.close()
        waiter.sock.close()
        hub.turn(holding, waiting)
        assert not hub.hub._connections and not hub.hub.broker.counters.finished_but_add
        assert data_of(hub) == [b"x"]


def test_newcomers_are_let_in_some_a_turn(tmp_path: Path) -> None:
    with served(tmp_path) as hub, ExitStack() as stack:
        clients = [stack.enter_context(hub.connect()) for _ in range(2 * ACCEPTS_PER_TURN + 1)]
        inside = []
        for _ in range(3):
            hub.turn(hub.listener.fileno())
            inside.append(len(hub.hub._connections))
        assert inside == [ACCEPTS_PER_TURN, 2 * ACCEPTS_PER_TURN, len(clients)]


@pytest.mark.parametrize("ends", ["leaves", "is answered"])
def test_a_thrift_get_has_taken_nothing_before_it_is_answered(tmp_path: Path, ends: str) -> None:
    with served(tmp_path) as hub, hub.connect() as putter:
        hub.turn(hub.listener.fileno())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        hub.hub.admit(ours, "", protocols.thrift(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), 0)
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
        while not is_readable(theirs):
            hub.turn(hub.sync_fd)  # the first sync may have begun before the last put
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
        assert len(hub.hub.broker.timers) == 0


def test_a_flag_without_an_end_means_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as hub:
        hub.hub.turn([(hub.sync_fd, select.EPOLLIN), (hub.task_fd, select.EPOLLIN), (999, select.EPOLLHUP)])


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
        wires = it.connect_many(3)
        fds = list(it.hub._connections)
        for wire, fd in zip(wires, fds, strict=True):
            wire.say(b"version\r\n")
            it.turn(fd)  # it is not new any more
            assert wire.line()
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
        wires = it.connect_many(3)
        for wire in wires:
            wire.say(b"get ab\r\n" * 250)
        it.turn(*it.hub._connections)
        it.spent_ns = SHARE_NS + 1
        left = [len(connection.session.backlog) for connection in it.hub._connections.values()]
        for _ in range(6):
            it.hub.turn([])
        gone = [was - len(one.session.backlog) for was, one in zip(left, it.hub._connections.values(), strict=True)]
        assert gone == [2 * REQUESTS_PER_TURN] * 3
        for wire in wires:
            wire.sock.close()


def test_who_asks_on_while_a_sync_lasts_is_not_listened_to_once_a_megabyte_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as it, it.connect() as wire:
        it.turn(it.listener.fileno())
        fd, now_ms, size, many = it.newest_fd(), it.machine.clock.now_ms(), 50_000, 40
        queue = it.hub.broker.queues.make("q", now_ms)
        for _ in range(many):
            queue.add(Item(bytes(size), now_ms, 0), now_ms)
        started: list[Sync] = []
        with monkeypatch.context() as slow:
            slow.setattr(SyncLatency, "is_brief", False)
            slow.setattr(it.machine.syncs, "start", started.append)
            it.hub.turn([])  # what was put is written, and its sync begins
            connection = it.hub._connections[fd]
            asked = 0
            while connection.events & select.EPOLLIN and asked < many:
                wire.say(b"get q\r\n")
                it.hub.turn(it.ready(fd))
                asked += 1
        owed, held_bytes = sum(len(data) for _, data in connection.held), connection.held_bytes
        is_known = connection in it.hub._pending.tracked
        it.machine.syncs.start(started[0])
        assert 1 << 20 <= owed == held_bytes <= (1 << 20) + 2 * size and is_known
        wire.sock.setblocking(False)
        heard = b""
        while heard.count(b"END\r\n") < asked:
            it.turn()
            with suppress(BlockingIOError):
                heard += wire.sock.recv(1 << 20)
        assert connection.held_bytes == 0 and len(heard) > asked * size and connection.events & select.EPOLLIN


def test_long_replies_that_wait_for_a_sync_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SyncLatency, "is_brief", False)
    with served(tmp_path, 'server.max_pending_size_total = "1MB"\n') as it:
        queue = it.hub.broker.queues.make("q", 0)
        for number in range(40):
            queue.add(Item(bytes(60_000), number + 1, 0), 0)
        wires = it.connect_many(5)
        for _ in range(8):
            for fd, wire in zip(list(it.hub._connections), wires, strict=False):
                wire.say(b"get q\r\n")
                it.turn_alone(fd)
            if len(it.hub._connections) < 5:
                break
        owed = [connection.owed_bytes for connection in it.hub._connections.values()]
        assert len(owed) == 4 and sum(owed) == it.hub._pending.total_bytes < 1 << 20
        for wire in wires:
            wire.sock.close()


def test_a_backlog_that_waits_for_held_replies_goes_on_once_they_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "UNSENT_BYTES_MAX", 10)
    monkeypatch.setattr(SyncLatency, "is_brief", False)
    count = 3 * REQUESTS_PER_TURN
    with served(tmp_path) as it, it.connect() as wire:
        it.turn(it.listener.fileno())
        wire.say(b"set q 0 0 1\r\nx\r\n" * count)
        assert [it.line(wire) for _ in range(count)] == [b"STORED"] * count


def test_two_clients_that_wake_one_another_do_not_keep_a_turn(tmp_path: Path) -> None:
    with served(tmp_path, "default.keep_journal = false\n") as it, it.connect() as one, it.connect() as other:
        while len(it.hub._connections) < 2:
            it.turn(it.listener.fileno())
        count = 1000
        one.say(b"get there/t=5000\r\nset back 0 0 1\r\nx\r\n" * count)
        other.say(b"set there 0 0 1\r\nx\r\nget back/t=5000\r\n" * count)
        counters, done = it.hub.broker.counters, [0]
        while done[-1] < 2 * count:
            it.turn()
            done.append(counters.cmd_get)
            assert done[-1] > 0 and len(done) < 1000
        assert max(later - before for before, later in itertools.pairwise(done)) <= SETTLED_PER_TURN + REQUESTS_PER_TURN


@pytest.mark.parametrize("end", [b"delete there\r\n", b"set there 0 0 1\r\nx\r\n" * 40])
def test_requests_behind_waits_that_end_together_wait_for_later_turns_once_this_one_is_long(
    tmp_path: Path, end: bytes
) -> None:
    with served(tmp_path, "default.keep_journal = false\n") as it:
        wires = it.connect_many(20)
        owner, *waiting = wires
        counters, fds = it.hub.broker.counters, list(it.hub._connections)
        it.hub.broker.queues.make("there", 0)
        for wire, fd in zip(waiting, fds[1:], strict=True):
            wire.say(b"get there/t=60000\r\n" + b"get elsewhere\r\n" * 60)
            it.turn(fd)
        owner.say(end)
        it.step_ns, done = SETTLE_NS, [counters.cmd_get]
        it.turn(fds[0])
        done.append(counters.cmd_get)
        while done[-1] < len(waiting) * 61:
            it.hub.turn([])
            done.append(counters.cmd_get)
            assert len(done) < 1000, done
        assert max(later - before for before, later in itertools.pairwise(done)) <= 2 * len(waiting)
        for wire in waiting:
            wire.sock.close()
        owner.sock.close()


def test_a_pipeline_of_requests_that_take_long_leaves_room_for_others(tmp_path: Path) -> None:
    with served(tmp_path) as it, it.connect() as wire:
        it.turn(it.listener.fileno())
        it.step_ns = STEP_NS
        wire.say(b"get here\r\n" * 60)
        it.turn(it.newest_fd())
        assert it.hub.broker.counters.cmd_get <= REQUESTS_PER_LOOK + 1
        for _ in range(100):
            it.hub.turn([])
        assert it.hub.broker.counters.cmd_get == 60 and [wire.line() for _ in range(60)] == [b"END"] * 60


def test_who_owes_nothing_is_read_before_those_with_unfinished_requests(tmp_path: Path) -> None:
    with served(tmp_path) as it:
        wires = it.connect_many(4)
        *greedy, polite = wires
        fds = list(it.hub._connections)
        for wire in greedy:
            wire.say(b"set q 0 0 100\r\nx")
        it.turn(*fds[:3])
        it.spent_ns = SHARE_NS + 1
        for wire in greedy:
            wire.say(b"x")
        polite.say(b"version\r\n")
        it.hub.turn(it.ready(*fds))
        assert has_answer(polite)
        got = []
        for _ in range(3):
            got.append(sum(it.hub._connections[fd].begun_bytes for fd in fds[:3]))
            it.hub.turn(it.ready())
        assert got == [4, 5, 6]  # one of them a turn, each in its turn
        for wire in wires:
            wire.sock.close()


def test_who_sends_little_is_read_before_those_who_send_much_once_there_is_no_time_for_all(tmp_path: Path) -> None:
    much = b"get ab\r\n" * 2048  # whole lines in a read: nothing is owed
    with served(tmp_path, 'default.sync_journal = "os"\n') as it:
        wires = it.connect_many(4)
        *greedy, modest = wires
        fds = list(it.hub._connections)
        modest.say(b"version\r\n")
        it.turn(fds[3])
        assert has_answer(modest) and modest.line()
        for wire in greedy:
            wire.say(much)
        for fd in fds[:3]:
            it.turn_alone(fd)
        it.spent_ns = SHARE_NS + 1
        it.turn(*fds[:3])  # one of them; the others are late
        modest.say(b"version\r\n")
        it.turn(*fds[1:])
        assert has_answer(modest)
        for wire in wires:
            wire.sock.close()


@pytest.mark.parametrize("sync", ["os", "always"])
def test_who_has_finished_its_request_is_read_with_the_others_again(tmp_path: Path, sync: str) -> None:
    with served(tmp_path, f'default.sync_journal = "{sync}"\n') as it, it.connect() as wire:
        it.turn(it.listener.fileno())
        fd = it.newest_fd()
        ready = [(fd, select.EPOLLIN)]
        wire.say(b"set q 0 0 100\r\nx")
        it.turn_alone(fd)
        assert it.prioritize(ready) == ([], dict(ready), [])
        wire.say(b"x" * 99 + b"\r\n")
        it.turn_alone(fd)
        assert it.prioritize(ready) == (ready, {}, [])


def test_long_replies_leave_some_a_turn_and_short_ones_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SENT_BYTES_PER_TURN", 100_000)
    with served(tmp_path, "default.keep_journal = false\n") as it:
        it.hub.broker.queues.make("q", 0).add(Item(bytes(70_000), 1, 0), 0)
        wires = it.connect_many(6)
        for wire in wires[:-1]:
            wire.say(b"get q/peek\r\n")
        wires[-1].say(b"version\r\n")
        it.turn(*it.hub._connections)
        waiting = [len(one.unsent) > 70_000 for one in it.hub._connections.values()]
        assert waiting == [False, False, True, True, True, False] and has_answer(wires[-1])
        it.turn(*list(it.hub._connections)[2:5])
        waiting = [len(one.unsent) > 70_000 for one in it.hub._connections.values()]
        assert waiting == [False, False, False, False, True, False]
        for wire in wires:
            wire.sock.close()


def test_a_long_item_is_shown_to_many_without_a_copy_and_counted_whole_until_it_has_left(tmp_path: Path) -> None:
    size = 8 << 20
    with served(tmp_path, "default.keep_journal = false\n") as it:
        it.hub.broker.queues.make("q", 0).add(Item(bytes(size), 1, 0), 0)
        wires = []
        for _ in range(3):
            wires.append(it.connect())
            it.turn(it.listener.fileno())
            wires[-1].say(b"get q/peek\r\n")
        for _ in range(12):
            it.turn()
        owed = [one for one in it.hub._connections.values() if one.unsent]
        data = it.hub.broker.queues.by_name["q"].line.in_memory[0].data
        assert len(owed) >= 3 and all(isinstance(one.unsent, memoryview) and one.unsent.obj is data for one in owed)
        assert all(one.unsent_bytes < size <= one.owed_bytes for one in owed)
        heard = b""
        while not heard.endswith(b"END\r\n"):
            it.turn()
            heard += wires[0].sock.recv(1 << 20) if has_answer(wires[0]) else b""
        assert heard == b"VALUE q/peek 0 %d\r\n" % size + bytes(size) + b"\r\nEND\r\n"
        for wire in wires:
            wire.sock.close()


def test_when_too_much_is_owed_some_debtors_are_dropped_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_bytes, "CUTS_PER_TURN", 1)
    monkeypatch.setattr(pending_bytes, "MORE_CUTS_PER_TURN", 2)
    with served(tmp_path, "server.max_pending_size_total = 8200\n") as it:
        wires = it.connect_many(12)
        for wire in wires:
            wire.say(b"set q 0 0 10000\r\n" + b"x" * 1000)
        it.turn(*it.hub._connections)
        assert len(it.hub._connections) == 10
        left = []
        for _ in range(5):
            time.sleep(0.02)  # an alarm has slots of 10 ms
            it.turn()
            left.append(len(it.hub._connections))
        assert left == [9, 8, 8, 8, 8]
        for wire in wires:
            wire.sock.close()


def has_answer(wire: Wire) -> bool:
    return is_readable(wire.sock, 0.2)


MUCH = b"get ab\r\n" * 1024  # whole lines that fill the first read: nothing is owed


@pytest.mark.parametrize("config", ["", 'server.client_timeout = "1h"\n'])
def test_who_begins_with_little_is_read_before_those_who_begin_with_much(tmp_path: Path, config: str) -> None:
    with served(tmp_path, config) as it:
        wires = it.connect_many(4)
        *greedy, modest = wires
        fds = list(it.hub._connections)
        for wire in greedy:
            wire.say(MUCH)
        events = it.ready(*fds[:3])
        it.spent_ns = SHARE_NS + 1
        it.hub.turn(events)  # one of them; the others are late
        modest.say(b"version\r\n")
        it.turn(*fds[1:])
        assert has_answer(modest)
        for wire in wires:
            wire.sock.close()


def test_who_sends_much_waits_for_the_next_turn_once_this_one_is_long_and_each_has_its_turn(tmp_path: Path) -> None:
    with served(tmp_path) as it:
        wires = it.connect_many(4)
        *greedy, modest = wires
        fds = list(it.hub._connections)
        modest.say(b"version\r\n")
        it.turn(fds[3])
        assert modest.line()
        connections = list(it.hub._connections.values())
        for connection in connections[:3]:
            connection.active_ms, connection.sends_much = 1, True
        for wire in greedy:
            wire.say(MUCH * 4)
        modest.say(b"version\r\n")
        events = it.ready(*fds)
        it.spent_ns = FREE_SHARE_NS + 1
        it.hub.turn(events)
        assert has_answer(modest) and [one.active_ms == 1 for one in connections[:3]] == [False, True, True]
        it.spent_ns = SHARE_NS + 1
        left, order = dict(zip(fds[:3], connections, strict=False)), list[int]()
        while left:
            for fd in [fd for fd, one in left.items() if one.active_ms > 1]:
                order.append(fds.index(fd))
                del left[fd]
            if left:
                it.turn(*left)
        assert order == [0, 1, 2]
        for wire in wires:
            wire.sock.close()


@pytest.mark.parametrize("config", ['server.stall_timeout = "100ms"\n', 'server.client_timeout = "100ms"\n'])
def test_who_waits_behind_the_others_to_be_read_does_not_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    with served(tmp_path, config) as it:
        now_ms = it.machine.clock.now_ms()
        monkeypatch.setattr(it.machine.clock, "now_ms", lambda: now_ms)
        wires = it.connect_many(12)
        fds = list(it.hub._connections)
        for wire in wires:
            wire.say(b"set q 0 0 1000\r\nx")
        it.turn(*fds)
        it.spent_ns = SHARE_NS + 1  # one of them a turn from now on
        for turn in range(24):
            for wire in wires:
                wire.say(b"x")
            events = it.ready(*fds)
            monkeypatch.setattr(it.machine.clock, "now_ms", lambda at_ms=now_ms + 20 * turn: at_ms)
            it.hub.turn(events)
        assert {one.state for one in it.hub._connections.values()} == {ConnectionState.OPEN} and list(
            it.hub._connections
        ) == fds
        stuck = it.newest_fd()
        for turn in range(24, 60):
            for wire in wires[:-1]:
                wire.say(b"x")
            monkeypatch.setattr(it.machine.clock, "now_ms", lambda at_ms=now_ms + 20 * turn: at_ms)
            it.hub.turn(it.ready(*fds[:-1]))
        left = it.hub._connections.get(stuck)
        assert left is None or left.state is not ConnectionState.OPEN
        for wire in wires:
            wire.sock.close()


def test_who_sends_much_has_its_turn_though_not_all_who_are_ready_are_told_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "EVENTS_PER_TURN", 2)
    monkeypatch.setattr(read_schedule, "EVENTS_PER_TURN", 2)
    with served(tmp_path) as it:
        wires = it.connect_many(4)
        fds, connections = list(it.hub._connections), list(it.hub._connections.values())
        for wire in wires:
            wire.say(b"set q 0 0 100\r\nx")
        it.turn(*fds)
        it.spent_ns = SHARE_NS + 1
        for wire in wires:
            wire.say(b"x")
        it.ready(*fds)
        read = list[int]()
        for turn in range(8):
            before = [connection.begun_bytes for connection in connections]
            it.hub.turn([(fd, select.EPOLLIN) for fd in (fds[:2] if turn % 2 == 0 else fds[2:])])
            for at, connection in enumerate(connections):
                if connection.begun_bytes > before[at]:
                    read.append(at)
                    wires[at].say(b"x")
                    it.ready(fds[at])
        assert read == [0, 2, 1, 3] * 2
        for wire in wires:
            wire.sock.close()


def test_who_waits_to_be_sent_more_keeps_its_place_though_it_is_not_told_of_in_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "EVENTS_PER_TURN", 2)
    monkeypatch.setattr(read_schedule, "EVENTS_PER_TURN", 2)
    monkeypatch.setattr(read_schedule, "WRITERS_PER_TURN", 1)
    with served(tmp_path) as it:
        wires = it.connect_many(4)
        fds, connections = list(it.hub._connections), list(it.hub._connections.values())
        for connection in connections:
            connection.unsent = b"x" * 1000
            it.hub._pending.changed[connection] = None
        it.hub.turn([])
        served_in_order = list[int]()
        for turn in range(4):
            _, _, writers = it.prioritize([(fd, select.EPOLLOUT) for fd in (fds[:2] if turn % 2 == 0 else fds[2:])])
            served_in_order.extend(map(connections.index, writers))
        assert served_in_order == [0, 2, 1, 3]
        for wire in wires:
            wire.sock.close()


@pytest.mark.pure
def test_fewer_who_send_much_are_read_if_what_they_want_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as it:
        wires = it.connect_many(6)
        fds = list(it.hub._connections)
        for wire in wires:
            wire.say(b"set q 0 0 100\r\nx")
        it.turn(*fds)
        it.spent_ns = 10_000
        answer_all = Hub._answer_all

        def slowly(self: Hub, now_ms: int) -> None:
            answer_all(self, now_ms)
            it.pass_ns(1_000_000)

        read = []
        for answer in (answer_all, slowly, slowly):
            monkeypatch.setattr(Hub, "_answer_all", answer)
            for wire in wires:
                wire.say(b"x")
            before = it.hub.broker.counters.bytes_read
            it.turn(*fds)
            read.append(it.hub.broker.counters.bytes_read - before)
        assert read == [6, 6, 1]
        for wire in wires:
            wire.sock.close()


def test_who_reads_what_it_is_owed_is_sent_more_in_its_turn_and_read_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_schedule, "WRITERS_PER_TURN", 1)
    with served(tmp_path) as it:
        wires = it.connect_many(3)
        fds, connections = list(it.hub._connections), list(it.hub._connections.values())
        for connection in connections:
            connection.unsent = b"x" * 1000
            it.hub._pending.changed[connection] = None
        it.hub.turn([])
        both = select.EPOLLIN | select.EPOLLOUT
        served_in_order = list[int]()
        for _ in range(3):
            events, rear, (writer,) = it.prioritize([(fd, both) for fd in fds])
            assert not events and list(rear) == fds
            served_in_order.append(connections.index(writer))
        assert served_in_order == [0, 1, 2]
        for wire in wires:
            wire.sock.close()


def test_what_a_client_has_paid_is_not_counted_any_more(tmp_path: Path) -> None:
    with served(tmp_path, "default.keep_journal = false\n") as it:
        it.hub.broker.queues.make("q", 0).add(Item(bytes(8 << 20), 1, 0), 0)
        with it.connect() as wire:
            it.turn(it.listener.fileno())
            wire.say(b"get q/peek\r\n")
            heard = 0
            totals = set[bool]()
            while heard < 8 << 20:
                it.turn()
                totals.add(it.hub._pending.total_bytes > 0)
                heard += len(wire.sock.recv(1 << 20)) if has_answer(wire) else 0
            it.turn()
            assert totals >= {True} and it.hub._pending.total_bytes == 0 and not it.hub._pending.pressing


def timed(it: Served) -> dict[str, int]:
    """How many values each histogram has, the syncs' left out."""
    found = it.hub.broker.latencies
    return {name: sum(getattr(found, name).counts) for name in ("puts", "gets", "deliveries", "rests")}


def test_of_a_request_at_most_every_10_ms_the_answer_is_timed(tmp_path: Path) -> None:
    with served(tmp_path, 'default.sync_journal = "os"\n') as it:
        (wire,) = it.connect_many(1)
        (fd,) = it.hub._connections
        it.hub._samples.request_due_ns = 0
        for _ in range(3):  # no time passes
            wire.say(b"set q 0 0 1\r\nx\r\n")
            it.turn(fd)
            assert wire.line() == b"STORED"
        assert timed(it) == {"puts": 1, "gets": 0, "deliveries": 0, "rests": 0}
        it.spent_ns = hub.SAMPLE_NS
        wire.say(b"get q\r\n")
        it.turn(fd)
        assert timed(it) == {"puts": 1, "gets": 1, "deliveries": 0, "rests": 1}
        wire.say(b"get none\r\nset q 0 0 1\r\nx\r\n")  # which of them?
        it.turn(fd)
        assert timed(it) == {"puts": 1, "gets": 1, "deliveries": 0, "rests": 1}
        wire.sock.close()


def test_an_answer_that_waits_for_the_disk_is_timed_when_it_leaves(tmp_path: Path) -> None:
    with served(tmp_path, 'default.sync_journal = "always"\n') as it:
        (wire,) = it.connect_many(1)
        (fd,) = it.hub._connections
        it.hub._samples.request_due_ns = 0
        it.hub._syncs.latency_of_one.add(SECONDS_NS)  # so that the thread does it
        it.hub._syncs.latency_of_several.add(SECONDS_NS)
        wire.say(b"set q 0 0 1\r\nx\r\n")
        it.turn_alone(fd)
        assert timed(it)["puts"] == 0 and not has_answer(wire)
        it.spent_ns = 300_000_000
        while not has_answer(wire):
            it.turn(it.sync_fd)
        puts = it.hub.broker.latencies.puts
        assert sum(puts.counts) == 1 and puts.sum_ns >= 300_000_000
        assert sum(it.hub.broker.latencies.syncs.counts) >= 1
        wire.sock.close()


@pytest.mark.parametrize("option", ["", "/open"])
def test_a_wait_is_timed_from_the_coming_of_its_item(tmp_path: Path, option: str) -> None:
    with served(tmp_path, 'default.sync_journal = "os"\n') as it:
        reader, writer = it.connect_many(2)
        fds = list(it.hub._connections)
        it.spent_ns = hub.SAMPLE_NS
        reader.say(f"get q{option}/t=60000\r\n".encode())
        it.turn(fds[0])
        assert timed(it) == {"puts": 0, "gets": 0, "deliveries": 0, "rests": 0}
        writer.say(b"set q 0 0 1\r\nx\r\n")
        it.turn(fds[1])
        while not has_answer(reader):
            it.turn()
        assert timed(it) == {"puts": 1, "gets": 0, "deliveries": 1, "rests": 1}
        reader.sock.close()
        writer.sock.close()


def test_a_value_is_counted_in_the_bucket_of_the_next_larger_bound() -> None:
    histogram = Histogram((0.001, 0.01))
    for value_ns in (0, 1_000_000, 1_000_001, 10_000_001):
        histogram.add(value_ns)
    assert histogram.counts == [2, 1, 1] and histogram.sum_ns == 12_000_002
