"""Clients that say nothing or read nothing for too long, and what a reload changes for those that are there.

The hub and its sockets are real, the clock is stepped.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import Config, parse
from staniel.broker.session import ProtocolSpec
from staniel.journal.disk.os_fs import OsFs
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from staniel.server.hub import Hub
from staniel.server.machine import SystemMachine
from tests.support.process import until
from tests.support.ready import is_readable

TIMEOUT = "[server]\nclient_timeout = 1000\n"
MEMCACHE = protocols.memcache(Dialect.MEMCACHED)


class Clock:
    ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class Served:
    """A hub without a loop. `text`: the configuration, which a reload reads again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = ""
        self.clock = Clock()
        self.stack = ExitStack()

    def start(self, text: str) -> Served:
        self.text = text
        self.broker = Broker(self.load(), OsFs(), load=self.load)
        self.broker.recover(self.clock.ms)
        self.hub = Hub(self.broker, SystemMachine(self.clock), 100)
        self.stack.callback(self.hub.close)
        return self

    def load(self) -> Config:
        return parse(self.text.encode(), str(self.folder))

    def client(self, wire: ProtocolSpec = MEMCACHE) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.settimeout(30)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        self.stack.enter_context(theirs)
        limits = Limits(16_384, self.broker.config.item_bytes_max)
        self.hub.admit(ours, "", wire, limits, self.clock.ms)
        return theirs

    def turns(self, ms: int = 0, count: int = 10, wait_seconds: float = 0.005) -> None:
        """Let `ms` pass at once, then serve. A turn waits a little for what the thread of syncs has to say."""
        self.clock.ms += ms
        for _ in range(count):
            self.hub.turn(self.hub._poller.poll(wait_seconds))  # type: ignore[attr-defined]

    def pass_time(self, ms: int, step_ms: int = 100) -> None:
        """Let the clock's time pass: what the sockets hold is ready at once, so nothing is waited for."""
        for _ in range(0, ms, step_ms):
            self.turns(step_ms, 2, 0)

    def asks(self, client: socket.socket, request: bytes) -> bytes:
        client.sendall(request)

        def is_answered() -> bool:
            self.turns(count=1)
            return is_readable(client)

        assert until(is_answered, rest=0)
        return client.recv(1 << 16)

    @property
    def connections(self) -> int:
        return self.broker.counters.curr_connections


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path)
    with it.stack:
        yield it


def test_a_reload_that_takes_the_time_out_back_hangs_up_on_nobody(served: Served) -> None:
    served.start(TIMEOUT).client()
    served.text = ""
    served.hub.reload()
    served.pass_time(5000)
    assert served.connections == 1


def test_a_reload_that_gives_or_shortens_one_holds_for_clients_that_are_there(served: Served) -> None:
    quiet = served.start("").client()
    served.pass_time(5000)
    served.text = "[server]\nclient_timeout = 60000\n"
    served.hub.reload()
    served.pass_time(2000)
    assert served.connections == 1
    served.text = TIMEOUT
    served.hub.reload()
    served.pass_time(1500)
    assert served.connections == 0 and quiet.recv(1) == b""


def test_a_client_that_waits_is_not_silent(served: Served) -> None:
    client = served.start(TIMEOUT).client()
    client.sendall(b"get q/t=10000\r\n")
    served.pass_time(5000)
    assert served.connections == 1
    assert served.asks(served.client(), b"set q 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert client.recv(100).startswith(b"VALUE q/t=10000 0 1\r\nx")


@pytest.mark.parametrize("ends", ["with an item", "without one"])
@pytest.mark.parametrize("line", [b"get q/open/t=%d\r\n", b"get nothing\r\nget q/t=%d/open\r\nversion\r\n"])
def test_the_time_of_a_client_that_has_waited_begins_when_it_is_answered(
    served: Served, line: bytes, ends: str
) -> None:
    client = served.start(TIMEOUT).client()
    client.sendall(line % (1900 if ends == "without one" else 100_000))
    served.turns()
    served.pass_time(1900)
    if ends == "with an item":
        assert served.asks(served.client(), b"set q 0 0 1\r\nx\r\n") == b"STORED\r\n"
    served.turns(20)
    assert (b"VALUE q/" in client.recv(100)) is (ends == "with an item")
    served.pass_time(700)
    assert served.connections == 1 + (ends == "with an item")
    served.pass_time(600)
    assert served.connections == 0


def test_the_time_of_a_client_that_reads_slowly_begins_when_it_has_read_all(served: Served) -> None:
    served.start(TIMEOUT)
    reader = stopped_reader(served)
    left = 80 * (100_000 + len(b"VALUE large/peek 0 100000\r\n\r\nEND\r\n"))
    for _ in range(19):
        served.pass_time(100)
        left -= len(reader.recv(400_000))
    while left:
        served.turns(count=1)
        if is_readable(reader, 0):
            left -= len(reader.recv(left))
    served.pass_time(900)
    assert served.connections == 1
    served.pass_time(1200)
    assert served.connections == 0


def test_a_client_that_has_said_nothing_is_new_though_its_time_counts(served: Served) -> None:
    client = served.start(TIMEOUT).client()
    served.turns(500)
    (connection,) = served.hub._connections.values()
    assert connection.is_new
    assert served.asks(client, b"get q\r\n") == b"END\r\n" and not connection.is_new


def stopped_reader(served: Served) -> socket.socket:
    """A client that has an item open and is owed far more than the socket holds."""
    reader = served.client()
    assert served.asks(reader, b"set q 0 0 1\r\nx\r\n") == b"STORED\r\n"
    assert served.asks(reader, b"get q/open\r\n").startswith(b"VALUE")
    assert served.asks(reader, b"set large 0 0 100000\r\n" + b"x" * 100_000 + b"\r\n") == b"STORED\r\n"
    reader.sendall(b"get large/peek\r\n" * 80)
    served.turns()
    return reader


@pytest.mark.parametrize("how", ["stops", "stops and has closed its side", "stops and waits"])
def test_what_a_client_has_open_that_reads_no_more_comes_back(served: Served, how: str) -> None:
    served.start(TIMEOUT)
    reader = stopped_reader(served)
    if how == "stops and has closed its side":
        reader.shutdown(socket.SHUT_WR)
    elif how == "stops and waits":
        reader.sendall(b"get nothing/t=100000\r\n")
    served.pass_time(2500)
    assert served.connections == 0
    assert served.asks(served.client(), b"get q\r\n").startswith(b"VALUE q 0 1\r\nx")


def test_a_client_that_reads_slowly_is_served_as_long_as_it_takes(served: Served) -> None:
    served.start(TIMEOUT)
    reader = stopped_reader(served)
    for _ in range(12):
        served.pass_time(500)
        assert reader.recv(200_000)
    assert served.connections == 1


@pytest.mark.parametrize(
    ("wire", "request_line", "answer"),
    [
        (MEMCACHE, b"set q 0 0 2000\r\n%b\r\n", b"STORED\r\n"),
        (MEMCACHE, b"ms q 2000\r\n%b\r\n", b"HD\r\n"),
        (protocols.text(Dialect.MEMCACHED), b"put q:\n%b\n\n", b"+1\n"),
    ],
)
def test_a_larger_item_size_holds_for_clients_that_are_there(
    served: Served, wire: ProtocolSpec, request_line: bytes, answer: bytes
) -> None:
    served.start("[default]\nmax_item_size = 1000\n")
    client, request = served.client(wire), request_line % (b"x" * 2000)
    assert served.asks(client, request) != answer
    served.text = "[default]\nmax_item_size = 3000\n"
    served.hub.reload()
    assert served.asks(client, request) == answer


def test_a_client_that_stops_in_the_middle_of_a_request_is_dropped_and_a_slow_one_is_not(served: Served) -> None:
    stuck = served.start("[server]\nstall_timeout = 400\n").client()
    slow = served.client()
    stuck.sendall(b"set q 0 0 9\r\nab")
    slow.sendall(b"set q 0 0 9\r\n")
    served.turns()
    for _ in range(9):
        slow.sendall(b"x")
        served.pass_time(150, 50)
    assert stuck.recv(1) == b"" and served.connections == 1
    assert served.asks(slow, b"\r\n") == b"STORED\r\n"


@pytest.mark.parametrize("before", ["none", "1h"])
@pytest.mark.parametrize("comes", ["before the reload", "after it"])
def test_a_shorter_stall_timeout_holds_for_clients_that_are_there(served: Served, before: str, comes: str) -> None:
    first = served.start(f'[server]\nstall_timeout = "{before}"\n').client()
    first.sendall(b"set q 0 0 9\r\nab")
    served.turns()
    if comes == "after it":
        first.close()
        served.turns()
    served.text = "[server]\nstall_timeout = 400\n"
    served.hub.reload()
    if comes == "after it":
        served.client().sendall(b"set q 0 0 9\r\nab")
        served.turns()
    assert served.connections == 1
    served.pass_time(2000)
    assert served.connections == 0


def test_a_smaller_total_holds_for_clients_that_are_there(served: Served) -> None:
    served.start("").client().sendall(b"set q 0 0 9000\r\n" + bytes(8000))
    served.turns()
    served.text = "[server]\nmax_pending_size_total = 1000\n"
    served.hub.reload()
    served.pass_time(200)
    assert served.connections == 0


def test_a_longer_line_holds_for_clients_that_are_there(served: Served) -> None:
    client = served.start("[server]\nmax_line_size = 512\n").client()
    served.text = "[server]\nmax_line_size = 4096\n"
    served.hub.reload()
    assert served.asks(client, b"get" + b" " * 1000 + b"q" + b"\r\n") == b"END\r\n"
