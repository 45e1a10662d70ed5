"""Requests of operators to a member: no bytes of a client end it; those about the cluster alone are served there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from staniel.broker.broker import admin_access
from staniel.broker.config.load import parse
from staniel.broker.users import Users
from staniel.cluster.status import Accepted, MemberStatus, Refused
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster.admin import HEAD_BYTES_MAX, AdminSock, Guard, MemberAdmin, Orders
from staniel.server.cluster.gate import Gate
from staniel.server.cluster.reactor import Reactor

LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


def no_status() -> MemberStatus:
    raise AssertionError("nothing asks for it")


def hand_over(to: str) -> Accepted | Refused:
    return Refused(f"no other member in sync is {to!r}")


def remove(member: str) -> Accepted | Refused:
    return Accepted(member)


@pytest.fixture
def admin() -> MemberAdmin:
    guard = guard_of("")
    return MemberAdmin(Orders(no_status, lambda: Accepted("00"), hand_over, remove, lambda: ("", ""), lambda: guard))


def guard_of(settings: str) -> Guard:
    config = parse(f"[admin]\nport = 0\n{settings}".encode(), "/")
    return Guard(admin_access(config, OsFs()), Users(config, OsFs(), frozenset()))


def order(body: bytes, length: bytes = b"") -> bytes:
    head = b"POST /cluster/handover HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %s"
    return head % (length or b"%d" % len(body)) + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    "data",
    [
        order(b"", b"9" * 5000),
        order(b"", b"0" * 5000),
        order(b"", b"-1"),
        order(b"", b"\xb2"),  # a digit to Python, and no number
        order(b"", b"16385"),
        order(b'{"to": "\xff"}'),
        order(b'{"to": "\\ud800"}'),
        order(b'{"x": ' + b"[" * 16_000),
        b"POST /cluster/init HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n",
        b"POST /cluster/init HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX,
    ],
    ids=lambda data: str(data[:70]),
)
def test_bytes_that_are_no_request_are_refused(admin: MemberAdmin, data: bytes) -> None:
    reply = admin.reply(data, is_of_spool=False)
    assert reply is not None and reply.startswith(b"HTTP/1.1 400 ")


def test_a_request_is_served_once_it_is_whole(admin: MemberAdmin) -> None:
    data = order(b'{"to": "b"}')
    assert [admin.reply(data[:end], is_of_spool=False) for end in range(len(data))] == [None] * len(data)
    reply = admin.reply(data, is_of_spool=False)
    assert reply is not None and b"no other member in sync is 'b'" in reply


def test_a_member_is_removed_by_its_name(admin: MemberAdmin) -> None:
    head = b"POST /cluster/remove HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d"
    said = []
    for body in (b'{"member": "m3"}', b"{}", b'{"member": 3}', b'{"to": "m3"}'):
        reply = admin.reply(head % len(body) + b"\r\n\r\n" + body, is_of_spool=False)
        assert reply is not None
        said.append((reply.split()[1], b"m3" in reply))
    assert said == [(b"202", True), (b"400", False), (b"400", False), (b"400", False)]


def test_a_certificate_gives_the_rights_of_its_user() -> None:
    users = '[users.ops]\nroles = ["admin"]\ncertificates = ["ops.example"]\n'
    users += '[users.app]\nroles = ["read"]\nqueues = ["*"]\ncertificates = ["app.example"]\n'
    guard = guard_of(users)
    admin = MemberAdmin(Orders(no_status, lambda: Accepted("00"), hand_over, remove, lambda: ("", ""), lambda: guard))
    init = b"POST /cluster/init HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\r\n"
    status = {}
    for names in ((), ("ops.example",), ("app.example",), ("other.example",)):
        reply = admin.reply(init, False, names)
        assert reply is not None
        status[names] = reply.split()[1]
    assert list(status.values()) == [b"401", b"202", b"403", b"401"]


class Operator:
    """An operator's connection to a leader: `served` is what the hub reads, `sock` the operator's side."""

    def __init__(self, admin: MemberAdmin) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        gate = Gate(Reactor(), lambda: 5, lambda: 6, lambda: None)
        self.served = AdminSock(gate, ours, admin, is_of_spool=False)

    def says(self, data: bytes) -> bytes | None:
        """Return what the hub reads of it; None if nothing."""
        self.sock.send(data)
        return self.hub_reads()

    def hub_reads(self) -> bytes | None:
        try:
            return self.served.recv(64 << 10)
        except BlockingIOError:
            return None


@pytest.fixture
def operator(admin: MemberAdmin) -> Iterator[Operator]:
    operator = Operator(admin)
    with closing(operator.served), closing(operator.sock):
        yield operator


def test_whether_a_leader_lives_waits_for_no_record(operator: Operator) -> None:
    assert operator.says(LIVE[:7]) is None
    assert operator.says(LIVE[7:]) == b""
    assert operator.sock.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("last", [b"P", b"G", LIVE, b"GET /cluster HTTP/1.1\r\n\r\n"])
def test_the_end_of_a_body_is_no_request_about_the_cluster(operator: Operator, last: bytes) -> None:
    head = b"PUT /queues/q HTTP/1.1\r\nContent-Length: 100\r\n\r\n"
    assert operator.says(head) == head
    assert operator.says(last) == last
    with pytest.raises(BlockingIOError):
        operator.sock.recv(1000)


def test_the_hub_gets_what_turns_out_to_be_its_own(operator: Operator) -> None:
    assert operator.says(b"G") is None
    assert operator.says(b"ET /metrics HTTP/1.1\r\n\r\n") == b"GET /metrics HTTP/1.1\r\n\r\n"


@pytest.mark.parametrize(("part", "left"), [(b"GET /", b"GET /"), (b"GET /cluster HTTP", b"")])
def test_a_stream_that_ends_within_its_first_request_ends(operator: Operator, part: bytes, left: bytes) -> None:
    assert operator.says(part) is None
    operator.sock.shutdown(socket.SHUT_WR)
    assert operator.hub_reads() == left
    assert operator.hub_reads() == b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Host: example.org", b"421"),
        (b"Host: localhost\r\nOrigin: http://example.org", b"403"),
        (b"Host: localhost\r\nContent-Type: text/plain", b"415"),
        (b"Host: localhost\r\nContent-Type: application/json", b"202"),
    ],
)
def test_web_pages_of_others_give_no_orders(admin: MemberAdmin, head: bytes, status: bytes) -> None:
    reply = admin.reply(b"POST /cluster/init HTTP/1.1\r\n%s\r\n\r\n" % head, is_of_spool=False)
    assert reply is not None and reply.split()[1] == status


def test_replies_of_a_scrape_wait_for_no_record_and_what_follows_them_does(operator: Operator) -> None:
    scrape = b"GET /metrics HTTP/1.1\r\n\r\n"
    for _ in range(2):
        assert operator.says(scrape) == scrape
        operator.served.send(b"figures")
        assert operator.sock.recv(100) == b"figures"
    other = b"GET /api/queues HTTP/1.1\r\n\r\n"
    assert operator.says(other) == other
    operator.served.send(b"queues")
    assert operator.says(scrape) == scrape
    operator.served.send(b"figures")
    with pytest.raises(BlockingIOError):
        operator.sock.recv(100)
    operator.served.break_off()
