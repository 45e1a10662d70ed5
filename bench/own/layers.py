"""The layers of the server driven by themselves, and the hub as a whole, for `core.py`, which counts their cost.

A meter is told when the counted part begins and ends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.broker.session import ProtocolSpec, Session
from staniel.journal.disk.fs import File, Region
from staniel.journal.disk.os_fs import OsFile, OsFs, OsRegion
from staniel.journal.redo.log import LogState
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.item_reply import append_item
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect, Request
from staniel.queues.changes import Added
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import NoJournal
from staniel.queues.item import Item
from staniel.queues.queue import Queue
from staniel.server.client_socket import client_socket
from staniel.server.clock import ServerClock
from staniel.server.disk_work import SyncLatency
from staniel.server.hub import Hub
from staniel.server.machine import SystemMachine

NOW_MS = 1_700_000_000_000
DATA = bytes(33 + 7 * at % 94 for at in range(1024))
PUT = b"set jobs 0 0 1024\r\n%b\r\n" % DATA
PUT_OWN = PUT.replace(b"jobs", b"jo%d")
GET = b"get jobs\r\n"
RELIABLE = b"get jobs/close/open\r\n"
TEXT_PUT = b"put jobs:\n%b\n\n" % DATA
TEXT_GET = b"get jobs\n"
STORED = b"STORED\r\n"
LEASED = b"+OK 1\r\n00000000-0000-4000-8000-000000000000 jobs 600000 1024\r\n%b\r\n" % DATA
LIBKESTREL = '[default]\njournal_format = "libkestrel"'
REDO = 'server.redo_log = "16MB"'
USERS = """[users.me]
roles = ["read", "write"]
queues = ["jobs"]
password_hash = "scrypt$1$1$1$c2VjcmV0Li4uLi4uLi4uLg==$tsLVQyrisk1Ja91BJT0ke1p2AFWoGzKJcNx+5y089rU="
"""
LOGIN = b"set x 0 0 9\r\nme secret\r\n"
LIMITED = """
server.max_connections = 10000
server.max_connections_per_address = 1000
server.client_timeout = "1m"
server.stall_timeout = "1m"
server.max_queues = 1000
server.max_pending_size_total = "64MB"
default.max_items = 1000000
default.max_size = "1GB"
default.max_item_size = "1MB"
default.max_open_reads = 10000
default.max_waiters = 1000
"""
UNLIMITED = """
server.stall_timeout = "none"
server.max_queues = "none"
server.max_pending_size_total = "none"
default.max_open_reads = "none"
"""
BEHIND = "[default]\nmax_memory_size = 65536"
COUNT = 400
CONNECTIONS = 20
LIMITS = Limits(1 << 16, 1 << 27)


class Meter(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...


Work = Callable[[Meter], int]
"""A function that does a number of operations, with the meter on for the counted parts, and returns their number."""

Layer = Callable[[str], AbstractContextManager[Work]]
"""A set-up in an empty folder."""


class UnsyncedFile(OsFile):
    """A file whose sync does nothing, because a sync takes the kernel's time and the disk's, and none of ours."""

    def sync(self) -> None:
        pass


class UnsyncedRegion(OsRegion):
    """A region whose sync does nothing."""

    def sync(self) -> None:
        self.staged_bytes = 0


class UnsyncedFs(OsFs):
    def append(self, path: str) -> File:
        return UnsyncedFile(path)

    def overwrite(self, path: str) -> Region:
        return UnsyncedRegion(path)

    def sync_all(self, folder: str) -> None:
        pass


def simple(step: Callable[[], object]) -> Work:
    def work(meter: Meter) -> int:
        meter.start()
        for _ in range(COUNT):
            step()
        meter.stop()
        return COUNT

    return work


def parsing(data: bytes, requests: int) -> Layer:
    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        parser = MemcacheParser(Dialect.MEMCACHED, LIMITS)

        def work(meter: Meter) -> int:
            meter.start()
            for _ in range(COUNT // requests):
                assert len(parser.feed(data)) == requests
            meter.stop()
            return COUNT // requests * requests

        yield work

    return layer


@contextmanager
def queue_put_take(folder: str) -> Iterator[Work]:
    queue = Queue("jobs", QueueConfig(), NoJournal(), NOW_MS)
    item = Item(DATA, NOW_MS)
    yield simple(lambda: (queue.add(item, NOW_MS), queue.remove_head(NOW_MS)))


@contextmanager
def queue_open_confirm(folder: str) -> Iterator[Work]:
    queue = Queue("jobs", QueueConfig(), NoJournal(), NOW_MS)
    item = Item(DATA, NOW_MS)

    def cycle_item() -> None:
        queue.add(item, NOW_MS)
        taken = queue.open(NOW_MS)
        assert taken is not None
        queue.confirm(taken)

    yield simple(cycle_item)


def served_broker(folder: str, sync: str, more: str = "") -> Broker:
    """Return a broker; `more` has lines of the configuration file."""
    config = parse(f'server.spool = "spool"\n{more}\n'.encode(), folder).overridden(sync=sync)
    broker = Broker(config, UnsyncedFs())
    broker.recover(NOW_MS)
    return broker


@contextmanager
def journal_add(folder: str) -> Iterator[Work]:
    broker = served_broker(folder, "1s")
    journal = broker.queues.make("jobs", NOW_MS).journal
    change = Added(Item(DATA, NOW_MS))

    def work(meter: Meter) -> int:
        meter.start()
        for _ in range(COUNT):
            journal.record(change)
        meter.stop()
        broker.commit(NOW_MS)
        return COUNT

    yield work


def committing(batch: int) -> Layer:
    """Return a layer that records and writes batches. The figure is the share of one item."""

    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        broker = served_broker(folder, "1s")
        journal = broker.queues.make("jobs", NOW_MS).journal
        change = Added(Item(DATA, NOW_MS))

        def work(meter: Meter) -> int:
            meter.start()
            for _ in range(COUNT // batch):
                for _ in range(batch):
                    journal.record(change)
                broker.commit(NOW_MS)
            meter.stop()
            return COUNT // batch * batch

        yield work

    return layer


def in_session(*requests: Request) -> Layer:
    """Return a layer whose operation is all of these requests, in a broker that does not write its journal
    meanwhile.
    """

    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        broker = served_broker(folder, "1s")
        session = Session(broker, protocols.memcache(Dialect.MEMCACHED))
        session.execute([Set("jobs", DATA)], NOW_MS)
        batch: list[Request] = list(requests)

        def execute_batch() -> None:
            session.execute(batch, NOW_MS)
            session.clear_out()

        work = simple(execute_batch)

        def committed(meter: Meter) -> int:
            count = work(meter)
            broker.commit(NOW_MS)
            return count

        yield committed

    return layer


@contextmanager
def reply_item(folder: str) -> Iterator[Work]:
    get = Get(b"jobs", "jobs")

    def append_reply() -> None:
        out: list[bytes] = []
        append_item(out, get, DATA, 0, 1)
        b"".join(out)

    yield simple(append_reply)


@contextmanager
def take_read_behind(folder: str) -> Iterator[Work]:
    """Take from a queue with a sixth of its items in memory."""
    broker = served_broker(folder, "1s", BEHIND)
    queue = broker.queues.make("jobs", NOW_MS)

    def work(meter: Meter) -> int:
        for _ in range(COUNT):
            queue.add(Item(DATA, NOW_MS), NOW_MS)
        broker.commit(NOW_MS)
        meter.start()
        for _ in range(COUNT):
            queue.remove_head(NOW_MS)
        meter.stop()
        broker.commit(NOW_MS)
        assert not len(queue.line)
        return COUNT

    yield work


class Brief(SyncLatency):
    """A disk that is always fast enough for the hub to wait for it, even if valgrind slows everything down."""

    is_brief = True


class TurnClock(ServerClock):
    """A clock that advances by a millisecond at each call, once a turn, so that the timers' work does not depend on how
    busy the machine is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = super().now_ms()

    def now_ms(self) -> int:
        self._now_ms += 1
        return self._now_ms


class Crowd:
    """A hub with clients in the same process: they send between two ticks, and their work is not counted."""

    def __init__(
        self, folder: str, sync: str, connections: int, stack: ExitStack, more: str, protocol: ProtocolSpec
    ) -> None:
        self.machine = SystemMachine(TurnClock())
        # This clock stands still, and is as cheap to call as the real one.
        self.machine.elapsed_ns = self.machine.step_ns = (0).bit_length
        self.hub = Hub(served_broker(folder, sync, more), self.machine, 1000)
        stack.callback(self.hub.close)
        self.hub._syncs.latency_of_one = self.hub._syncs.latency_of_several = Brief()
        self.machine.syncs.is_cheap = False  # makes each sync in the turn: when a turn notices its end would vary
        self.poller = self.machine.poller
        self._begin_redo_log()
        self.clients: list[socket.socket] = []
        for _ in range(connections):
            ours, theirs = socket.socketpair()
            stack.callback(theirs.close)
            ours.setblocking(False)
            self.hub.admit(client_socket(ours), "", protocol, LIMITS, self.machine.clock.now_ms())
            self.clients.append(theirs)
        if self.hub.broker.users.by_name:
            self._log_in(self.clients[:1])  # the password is remembered from then on
            self._log_in(self.clients[1:])

    def _log_in(self, clients: list[socket.socket]) -> None:
        for client in clients:
            client.sendall(LOGIN)
        heard = 0
        while heard < len(STORED) * len(clients):
            self.hub.turn(self.poller.poll(1))
            heard += sum(self.hear(client) for client in clients)

    def _begin_redo_log(self) -> None:
        redo = self.hub.broker.group.redo
        if redo.state is LogState.DORMANT:
            redo.schedule_creation()
        while redo.is_due or redo.running:
            self.hub.turn(self.poller.poll(0))

    def ask(self, meter: Meter, request: bytes, answer_bytes: int) -> None:
        """Let each client send a request once, and get a reply. A `%d` in the request becomes the client's number."""
        self.ask_each(
            meter, [request.replace(b"%d", b"%d" % at) for at in range(10, 10 + len(self.clients))], answer_bytes
        )

    def ask_each(self, meter: Meter, requests: list[bytes], answer_bytes: int) -> None:
        """Let each client send a request of its own."""
        for client, request in zip(self.clients, requests, strict=True):
            client.sendall(request)
        heard = 0
        while heard < answer_bytes * len(self.clients):
            meter.start()
            self.hub.turn(self.poller.poll(0))
            meter.stop()
            heard += sum(self.hear(client) for client in self.clients)

    def hear(self, client: socket.socket) -> int:
        try:
            return len(client.recv(1 << 20, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return 0


class Unmetered:
    def start(self) -> None:
        pass

    stop = start


def answer(key: bytes) -> int:
    return len(b"VALUE %b 0 1024\r\n%b\r\nEND\r\n" % (key, DATA))


def served(
    sync: str,
    request: bytes,
    answer_bytes: int,
    *,
    fill: int = 0,
    connections: int = CONNECTIONS,
    pipeline: int = 1,
    more: str = "",
) -> Layer:
    """Return a layer of ticks of the hub. `fill` items are put before each counted request, or got after it (-1)."""

    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        with ExitStack() as stack:
            crowd = Crowd(folder, sync, connections, stack, more, protocols.memcache(Dialect.MEMCACHED))
            rounds = max(1, COUNT // (connections * pipeline))

            def work(meter: Meter) -> int:
                silent = Unmetered()
                for _ in range(rounds):
                    for _ in range(pipeline if fill > 0 else 0):
                        crowd.ask(silent, PUT, len(STORED))
                    crowd.ask(meter, request * pipeline, answer_bytes * pipeline)
                    for _ in range(pipeline if fill < 0 else 0):
                        crowd.ask(silent, GET, answer(b"jobs"))
                return rounds * connections * pipeline

            yield work

    return layer


class JobIds:
    """A generator of UUIDs of version 4, one after the other."""

    def __init__(self) -> None:
        self.next = 0

    def __call__(self) -> bytes:
        self.next += 1
        return b"00000000-0000-4000-8000-%012x" % self.next


def add_of(job: bytes) -> bytes:
    return b"add %b jobs 600000 86400000 1024\r\n%b\r\n" % (job, DATA)


def jobs_served(adds: bool) -> Layer:
    """Return a layer of ticks of the hub for workq's clients: adds, or leases each with the delete of the job
    before.
    """

    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        with ExitStack() as stack:
            crowd = Crowd(folder, "1s", CONNECTIONS, stack, "[workq]\nport = 22199", protocols.workq())
            new_id = JobIds()

            def work(meter: Meter) -> int:
                for _ in range(COUNT // CONNECTIONS):
                    jobs = [new_id() for _ in crowd.clients]
                    crowd.ask_each(meter if adds else Unmetered(), [add_of(job) for job in jobs], len(b"+OK\r\n"))
                    if not adds:
                        leases = [b"lease jobs 1\r\ndelete %b\r\n" % job for job in jobs]
                        crowd.ask_each(meter, leases, len(LEASED) + len(b"+OK\r\n"))
                return COUNT

            yield work

    return layer


def text_served(counts_puts: bool) -> Layer:
    """Return a layer of ticks of the hub for clients of the text protocol: each puts an item and gets one, and one of
    the two counts. A get confirms the one before.
    """

    @contextmanager
    def layer(folder: str) -> Iterator[Work]:
        with ExitStack() as stack:
            crowd = Crowd(folder, "1s", CONNECTIONS, stack, "", protocols.text(Dialect.KESTREL))

            def work(meter: Meter) -> int:
                put, get = (meter, Unmetered()) if counts_puts else (Unmetered(), meter)
                for _ in range(COUNT // CONNECTIONS):
                    crowd.ask(put, TEXT_PUT, len(b"+1\n"))
                    crowd.ask(get, TEXT_GET, len(b":%b\n" % DATA))
                return COUNT

            yield work

    return layer


LAYERS: dict[str, Layer] = {
    "parse a put": parsing(PUT, 1),
    "parse a get": parsing(GET, 1),
    "parse a put, 20 in a read": parsing(PUT * 20, 20),
    "parse a get, 20 in a read": parsing(GET * 20, 20),
    "queue: add and take": queue_put_take,
    "queue: add, open, confirm": queue_open_confirm,
    "journal: record an item": journal_add,
    "journal: record and write, 1 a batch": committing(1),
    "journal: record and write, 20 a batch": committing(20),
    "session: put and get": in_session(Set("jobs", DATA), Get(b"jobs", "jobs")),
    "session: put, open, close": in_session(Set("jobs", DATA), Get(b"jobs/close/open", "jobs", open=True, close=True)),
    "reply with an item": reply_item,
    "hub: put": served("1s", PUT, len(STORED), fill=-1),
    "hub: get": served("1s", GET, answer(b"jobs"), fill=1),
    "hub: reliable get": served("1s", RELIABLE, answer(b"jobs/close/open"), fill=1),
    "hub: put, limited": served("1s", PUT, len(STORED), fill=-1, more=LIMITED),
    "hub: get, limited": served("1s", GET, answer(b"jobs"), fill=1, more=LIMITED),
    "hub: reliable get, limited": served("1s", RELIABLE, answer(b"jobs/close/open"), fill=1, more=LIMITED),
    "hub: put, unlimited": served("1s", PUT, len(STORED), fill=-1, more=UNLIMITED),
    "hub: get, unlimited": served("1s", GET, answer(b"jobs"), fill=1, more=UNLIMITED),
    "hub: reliable get, unlimited": served("1s", RELIABLE, answer(b"jobs/close/open"), fill=1, more=UNLIMITED),
    "hub: put, of a user": served("1s", PUT, len(STORED), fill=-1, more=USERS),
    "hub: get, of a user": served("1s", GET, answer(b"jobs"), fill=1, more=USERS),
    "hub: reliable get, of a user": served("1s", RELIABLE, answer(b"jobs/close/open"), fill=1, more=USERS),
    "hub: put, 20 in flight, of a user": served(
        "1s", PUT, len(STORED), fill=-1, connections=5, pipeline=20, more=USERS
    ),
    "hub: get, 20 in flight, of a user": served(
        "1s", GET, answer(b"jobs"), fill=1, connections=5, pipeline=20, more=USERS
    ),
    "hub: put, 20 in flight": served("1s", PUT, len(STORED), fill=-1, connections=5, pipeline=20),
    "hub: get, 20 in flight": served("1s", GET, answer(b"jobs"), fill=1, connections=5, pipeline=20),
    "hub: put, always": served("always", PUT, len(STORED), fill=-1),
    "hub: get, always": served("always", GET, answer(b"jobs"), fill=1),
    "hub: put, redo log": served("1s", PUT, len(STORED), fill=-1, more=REDO),
    "hub: put, always, redo log": served("always", PUT, len(STORED), fill=-1, more=REDO),
    "hub: put, always, a queue each, redo log": served("always", PUT_OWN, len(STORED), more=REDO),
    "hub: put, always, a queue each": served("always", PUT_OWN, len(STORED)),
    "hub: put, libkestrel": served("1s", PUT, len(STORED), fill=-1, more=LIBKESTREL),
    "hub: get, libkestrel": served("1s", GET, answer(b"jobs"), fill=1, more=LIBKESTREL),
    "hub: put, libkestrel, always": served("always", PUT, len(STORED), fill=-1, more=LIBKESTREL),
    "hub: add a job": jobs_served(adds=True),
    "hub: lease and delete a job": jobs_served(adds=False),
    "hub: put, text": text_served(counts_puts=True),
    "hub: get, text": text_served(counts_puts=False),
    "queue: take, read behind": take_read_behind,
    "hub: put, always, 1 connection": served("always", PUT, len(STORED), fill=-1, connections=1),
}
"""The layers by the name of the row."""
