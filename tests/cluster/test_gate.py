"""The gate of a leader's replies, without a server: which record a reply waits for, and what becomes of it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from staniel.server.cluster import gate as gate_module
from staniel.server.cluster.gate import Gate, GatedSock
from staniel.server.cluster.reactor import Reactor


class Records:
    """The records of a leader: `pending` become records when they are taken."""

    def __init__(self) -> None:
        self.last = self.pending = 0
        self.rounds: list[int] = []
        self.gate = Gate(Reactor(), lambda: self.last, self._ask_round, self._take_changes)

    def _ask_round(self) -> int:
        self.rounds.append(self.last + 1)
        return self.last + 1

    def _take_changes(self) -> None:
        self.last, self.pending = self.last + self.pending, 0

    def client(self) -> tuple[GatedSock, socket.socket]:
        """Connect a client. Return the server's side and its own."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        return GatedSock(self.gate, ours), theirs


@pytest.fixture
def records() -> Records:
    return Records()


def heard(sock: socket.socket) -> bytes | None:
    """What has come; None if nothing has, b"" at the end."""
    try:
        return sock.recv(1000)
    except BlockingIOError:
        return None


def test_a_reply_waits_for_the_record_of_its_request(records: Records) -> None:
    served, client = records.client()
    with closing(served), closing(client):
        client.send(b"set")
        assert served.recv(100) == b"set"
        records.pending = 1
        assert served.send(b"STORED") == 6
        assert (records.last, records.rounds, heard(client)) == (1, [], None)
        records.gate.release(1)
        assert heard(client) == b"STORED"


def test_a_reply_that_rests_on_no_record_waits_for_a_round(records: Records) -> None:
    records.last = records.gate.answered = 7
    served, client = records.client()
    with closing(served), closing(client):
        client.send(b"get")
        served.recv(100)
        served.send(b"END")
        assert (records.rounds, heard(client)) == ([8], None)
        records.gate.release(7)
        assert heard(client) is None
        records.gate.release(8)
        assert heard(client) == b"END"


def test_an_answered_record_that_was_written_after_the_request_is_a_round(records: Records) -> None:
    served, client = records.client()
    with closing(served), closing(client):
        client.send(b"get")
        served.recv(100)
        records.last = records.gate.answered = 1  # another client's
        served.send(b"END")
        assert heard(client) == b"END"


def test_what_a_deposed_leader_holds_never_leaves(records: Records) -> None:
    served, client = records.client()
    with closing(client):
        client.send(b"get")
        served.recv(100)
        served.send(b"END")
        records.gate.drop_all()
        assert heard(client) == b""
        records.gate.release(100)
        assert heard(client) == b""


def test_a_socket_that_the_hub_closes_is_closed_when_its_replies_have_left(records: Records) -> None:
    served, client = records.client()
    with closing(client):
        client.send(b"get")
        served.recv(100)
        served.send(b"END")
        served.shutdown(socket.SHUT_WR)
        served.close()
        assert heard(client) is None
        records.gate.release(1)
        assert heard(client) == b"END"
        assert heard(client) == b""


def test_clients_that_have_gone_do_not_take_all_descriptors(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "CLOSING_MAX", 2)
    pairs = [records.client() for _ in range(3)]
    for served, client in pairs:
        client.send(b"get")
        served.recv(100)
        served.send(b"END")
        served.close()
    assert [heard(client) for _, client in pairs] == [b"", None, None]
    records.gate.release(1)
    assert [heard(client) for _, client in pairs] == [b"", b"END", b"END"]
    for _, client in pairs:
        client.close()


def test_a_reply_that_the_socket_does_not_take_at_once_leaves_later(records: Records) -> None:
    served, client = records.client()
    with closing(served), closing(client):
        client.send(b"get")
        served.recv(100)
        data = bytes(2 << 20)
        assert served.send(data) == len(data)
        records.gate.release(1)
        came = 0
        while came < len(data):
            came += len(heard(client) or b"")
            records.gate.reactor.handle_events(0)
        assert came == len(data)
