"""Each limit of docs/limits.md on real sockets: what the client gets, what the operator sees, and that it is over by
itself.
"""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from staniel.broker.limits_reached import LIMITS, LimitsReached
from staniel.server.connection_limits import ConnectionLimits, address_of
from tests.server.admin.asking import Operator, SpoolConnection
from tests.support.certificates import Authority
from tests.support.process import Server, running, until
from tests.support.thrift_calls import call, hear
from tests.support.wire import Wire, stats

EVERY = "[admin]\nport = 0\n[text]\nport = 0\n[workq]\nport = 0\n[thrift]\nport = 0\n"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def ports(server: Server) -> dict[str, int]:
    """Of the listeners of EVERY."""
    found = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", server.greeting)]
    return dict(zip(("memcache", "text", "workq", "admin", "thrift"), found, strict=True))


def admin_port(server: Server) -> int:
    return int(re.findall(r"127\.0\.0\.1:(\d+)", server.greeting)[-1])


def reached(server: Server, limit: str) -> int:
    """As the operators' socket tells."""
    metrics = Operator(server.spool).ask("GET", "/metrics").body.decode()
    found = re.search(rf'^staniel_limits_reached_total{{limit="{limit}"}} (\d+)$', metrics, re.MULTILINE)
    assert found, metrics
    return int(found[1])


def lines(server: Server, limit: str) -> list[str]:
    return [line for line in server.stderr.splitlines() if "limit.reached" in line and f"why={limit}" in line]


def is_served(wire: Wire, seconds_max: float = 60.0) -> bool:
    wire.sock.settimeout(seconds_max)
    try:
        return wire.ask(b"version").startswith(b"VERSION ")
    except TimeoutError:
        return False


def reload_with(server: Server, config: str) -> None:
    count = server.stderr.count("config.reloaded")
    server.config.write_text(config)
    server.signal(signal.SIGHUP)
    assert until(lambda: server.stderr.count("config.reloaded") > count)


def told(address: tuple[str, int]) -> bytes:
    """All that a client hears who asks for nothing."""
    with Wire(address) as wire:
        return wire.rest()


def ask_thrift(sock: socket.socket, frame: bytes) -> Any:
    sock.sendall(frame)
    with sock.makefile("rb") as stream:
        length = stream.read(4)
        return hear(length + stream.read(int.from_bytes(length, "big")))[2]


# connections


def test_operators_are_served_when_clients_have_used_up_the_connections(tmp_path: Path, stack: ExitStack) -> None:
    with running(tmp_path, config="[server]\nmax_connections = 2\n[admin]\nport = 0\n") as server:
        inside = [stack.enter_context(Wire(server.address)) for _ in range(2)]
        assert all(is_served(wire) for wire in inside)
        late = stack.enter_context(Wire(server.address))
        assert not is_served(late, 0.3)
        for operator in (Operator(admin_port(server)), Operator(server.spool)):
            assert operator.ask("GET", "/api/server").json["connections"] == 3
            reasons = operator.ask("GET", "/health/ready").json["reasons"]
            assert [each["name"] for each in reasons] == ["connections_full"]
        assert reached(server, "max_connections") == 1, "operators who come and go cost the others no try"
        assert "connections.full" in server.stderr
        inside[0].sock.close()
        assert late.line().startswith(b"VERSION ")
        assert until(lambda: not Operator(server.spool).ask("GET", "/health/ready").json["reasons"][1:])


def test_a_flood_of_the_operators_port_leaves_the_socket_of_the_spool(tmp_path: Path, stack: ExitStack) -> None:
    config = "[server]\nmax_connections = 2\nreserved_connections = 3\n[admin]\nport = 0\n"
    with running(tmp_path, config=config) as server:
        address = ("127.0.0.1", admin_port(server))
        flood = [stack.enter_context(closing(socket.create_connection(address, 30))) for _ in range(6)]
        assert until(lambda: Operator(server.spool).ask("GET", "/api/server").json["connections"] == 2 + 3 + 1)
        spool = [SpoolConnection(server.spool) for _ in range(3)]
        for each in spool:
            stack.enter_context(closing(each))
            each.request("GET", "/health/live")
            assert each.getresponse().read()
        assert not is_served(stack.enter_context(Wire(server.address)), 0.3)
        for each in (*flood, *spool):
            each.close()
        assert is_served(stack.enter_context(Wire(server.address)))


def test_a_reload_takes_over_the_limit_of_connections_and_drops_none(tmp_path: Path, stack: ExitStack) -> None:
    with running(tmp_path, config="[server]\nmax_connections = 1\n") as server:
        first, second, third = (stack.enter_context(Wire(server.address)) for _ in range(3))
        assert is_served(first) and not is_served(second, 0.3)
        reload_with(server, "[server]\nmax_connections = 2\n")
        assert second.line().startswith(b"VERSION ")
        reload_with(server, "[server]\nmax_connections = 1\n")
        assert is_served(first) and is_served(second) and not is_served(third, 0.3)


def test_one_address_has_its_share_and_each_protocol_says_so(tmp_path: Path, stack: ExitStack) -> None:
    config = f"[server]\nmax_connections_per_address = 2\nreserved_connections = 1\n{EVERY}"
    with running(tmp_path, config=config) as server:
        inside = [stack.enter_context(Wire(server.address)) for _ in range(2)]
        assert all(is_served(wire) for wire in inside)
        began_s = time.monotonic()
        where, why = ports(server), b"too many connections (max_connections_per_address)"
        wanted = {
            "memcache": b"SERVER_ERROR " + why + b"\r\n",
            "text": b"-" + why + b"\n",
            "workq": b"-SERVER-ERROR " + why + b"\r\n",
            "thrift": b"",
        }
        for name, words in wanted.items():
            assert told(("127.0.0.1", where[name])) == words, name
        other = stack.enter_context(closing(socket.create_connection(server.address, 30, ("127.0.0.2", 0))))
        other.sendall(b"version\r\n")
        assert other.recv(100).startswith(b"VERSION ")
        operator = stack.enter_context(closing(socket.create_connection(("127.0.0.1", where["admin"]), 30)))
        operator.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert operator.recv(1000).startswith(b"HTTP/1.1 200 "), "it has reserved_connections more"
        refused = Operator(where["admin"]).ask("GET", "/health/live")
        assert (refused.status, refused.json["error"].encode()) == (503, why)
        assert reached(server, "max_connections_per_address") == 5
        for _ in range(50):
            told(server.address)
        windows = 1 + int(time.monotonic() - began_s) // 10
        assert 1 <= len(lines(server, "max_connections_per_address")) <= windows, "no more than one in ten seconds"
        inside[0].sock.close()
        operator.close()
        assert until(lambda: Operator(server.spool).ask("GET", "/api/server").json["connections"] == 3)
        assert is_served(stack.enter_context(Wire(server.address)))


def test_unix_sockets_are_of_no_address(tmp_path: Path, stack: ExitStack) -> None:
    config = "[server]\nmax_connections_per_address = 1\n[text]\nlisten = ['unix:s']\n"
    with running(tmp_path, config=config):
        for _ in range(3):
            sock = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            sock.connect(str(tmp_path / "s"))
            sock.sendall(b"version\n")
            assert sock.recv(100).startswith(b":")


def test_a_client_under_tls_is_refused_before_its_handshake(tmp_path: Path, stack: ExitStack) -> None:
    files = Authority(tmp_path).issue("server")
    config = "[server]\nmax_connections_per_address = 1\n"
    tls = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n[memcache]\ntls_port = 0\n'
    with running(tmp_path, config=config + tls) as server:
        address = ("127.0.0.1", server.second_port)
        half = stack.enter_context(closing(socket.create_connection(address, 30)))
        half.sendall(b"\x16")
        assert until(lambda: told(address) == b""), "a handshake under way counts, too"
        half.close()
        assert until(lambda: is_served(stack.enter_context(Wire(server.address))))
        assert reached(server, "max_connections_per_address") >= 1


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("192.0.2.1:40712", "192.0.2.1"),
        ("[::ffff:192.0.2.1]:40712", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2:ffff::1]:2", "2001:db8:1:2::/64"),
        ("[2001:db8:1:3::1]:2", "2001:db8:1:3::/64"),
        ("[fe80::1%eth0]:2", "fe80::/64"),
        ("[::1]:2", "::/64"),
        ("unix:pid=1,uid=2", ""),
        ("gone", ""),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(client: str, address: str) -> None:
    assert address_of(client) == address


def test_an_address_without_connections_is_forgotten() -> None:
    counts = ConnectionLimits(100, LimitsReached(lambda *_, **__: None))
    for _ in range(3):
        counts.add("192.0.2.1:1")
    counts.add("unix:pid=1,uid=2")
    assert (len(counts._counts), counts.count("192.0.2.1:7")) == (1, 3)
    for _ in range(3):
        counts.remove("192.0.2.1:1", 0)
    assert (len(counts._counts), counts.count("192.0.2.1:7")) == (0, 0)


# what clients ask for


def test_requests_beyond_a_limit_are_counted_and_the_next_are_served(tmp_path: Path) -> None:
    config = "[server]\nmax_queues = 2\nmax_fanout_children = 1\nmax_open_transactions = 1\n"
    with running(tmp_path, config=config + "[queues.q]\nmax_items = 2\nmax_item_size = 10\n") as server:
        with Wire(server.address) as wire:
            assert [wire.put("q", b"x") for _ in range(3)] == [b"STORED", b"STORED", b"NOT_STORED"]
            assert wire.put("q", bytes(11)).startswith(b"CLIENT_ERROR object too large")
            assert wire.get("q/open") == b"x"
            assert wire.ask(b"get q/open").startswith(b"CLIENT_ERROR 1 reads of q are open on this connection")
            assert wire.ask(b"nonsense") == b"ERROR"
            assert wire.get("q+a") is None
            assert wire.ask(b"get q+b").startswith(b"SERVER_ERROR there are 2 queues")
            assert wire.put("r", b"x") == b"SERVER_ERROR there are 2 queues, no more can be made (max_queues)"
            assert wire.ask(b"delete q+a") == b"DELETED"
            assert wire.put("r", b"x") == b"STORED"
            assert wire.ask(b"get q/close") == b"END"
            assert wire.put("q", b"x") == b"STORED"
        found = {limit: count for limit in LIMITS if (count := reached(server, limit))}
        assert found == {
            "queue_full": 1,
            "max_item_size": 1,
            "max_open_transactions": 1,
            "invalid_requests": 1,
            "max_queues": 2,
        }
        assert len(lines(server, "max_queues")) == 1


@pytest.mark.parametrize(
    ("limit", "hold", "asks"),
    [
        (
            "max_open_reads",
            b"get q/open\r\n",
            {
                "memcache": (b"get q/open", b"get q/open/t=50", b"get q/open/n=2", b"monitor q 1 1"),
                "text": (b"get q", b"monitor q 50"),
            },
        ),
        (
            "max_waiters",
            b"get r/t=60000\r\n",
            {
                "memcache": (b"get r/t=50", b"get r/t=50/open", b"get r/t=50/n=2", b"monitor r 1 1"),
                "text": (b"get r 50", b"peek r 50", b"monitor r 50"),
            },
        ),
    ],
)
def test_a_crowd_at_one_queue_is_refused_in_each_protocol(
    tmp_path: Path, stack: ExitStack, limit: str, hold: bytes, asks: dict[str, tuple[bytes, ...]]
) -> None:
    """`r` is not there for memcache clients; text's and thrift's make it, and the wait goes on there."""
    crowd = "max_open_reads = 1\nmax_waiters = 1\n"
    with running(tmp_path, config=f"{EVERY}[queues.q]\n{crowd}[queues.r]\n{crowd}") as server:
        where, seen = ports(server), 0
        holder = stack.enter_context(Wire(server.address))
        assert holder.put("q", b"a") == holder.put("q", b"b") == b"STORED"
        holder.say(hold)
        if limit == "max_waiters":
            assert until(lambda: stats(server.address).get("queue_r_waiters") == "1")
        else:
            assert holder.line().startswith(b"VALUE q/open")
        for protocol, requests in asks.items():
            for request in requests:
                with Wire(("127.0.0.1", where[protocol])) as wire:
                    found = wire.ask(request)
                    assert found.startswith(b"-" if protocol == "text" else b"SERVER_ERROR "), request
                    assert found.endswith(b"(%b)" % limit.encode()), request
                    seen += 1
        name, opens_ms = ("q", 1000) if limit == "max_open_reads" else ("r", 0)
        with closing(socket.create_connection(("127.0.0.1", where["thrift"]), 30)) as sock:
            get = call("get", queue_name=name, max_items=1, timeout_msec=50, auto_abort_msec=opens_ms)
            assert limit in ask_thrift(sock, get).message
            assert reached(server, limit) == seen + 1
            assert len(lines(server, limit)) == 1
            holder.sock.close()
            assert until(lambda: stats(server.address)["curr_connections"] == "2")
            assert [item.data for item in ask_thrift(sock, get).success] == ([b"a"] if name == "q" else [])


def test_a_get_of_several_items_ends_at_the_last_one_that_may_be_open(tmp_path: Path) -> None:
    with running(tmp_path, config="[queues.q]\nmax_open_reads = 2\n") as server, Wire(server.address) as wire:
        for data in (b"a", b"b", b"c"):
            wire.put("q", data)
        wire.say(b"get q/open/n=3\r\n")
        heard = [wire.line() for _ in range(5)]
        assert heard == [b"VALUE q/open/n=3 0 1", b"a", b"VALUE q/open/n=3 0 1", b"b", b"END"]
        assert wire.ask(b"get q/open").startswith(b"SERVER_ERROR 2 items of q are open")
        assert wire.ask(b"get q/close/open").startswith(b"VALUE"), "one is closed first"


def test_every_limit_is_in_the_table_and_in_the_statistics(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    told = set(re.findall(r"`limit_(\w+)`", document))
    assert told == set(LIMITS)
    with running(tmp_path) as server:
        shown = {name.removeprefix("limit_") for name in stats(server.address) if name.startswith("limit_")}
        assert shown == set(LIMITS)
        assert all(reached(server, limit) == 0 for limit in LIMITS)
