"""A member that does not lead takes orders over its spool's socket from its own user's programs alone."""

from __future__ import annotations

import os
import select
import socket
from contextlib import closing

import pytest

from staniel.broker import protocols
from staniel.broker.session import ProtocolSpec
from staniel.server.cluster.reactor import Reactor
from staniel.server.cluster.refuser import Refuser


@pytest.fixture
def admin() -> ProtocolSpec:
    return protocols.http(loads=True)


@pytest.mark.parametrize(("uids", "heard"), [({os.geteuid()}, b"served"), ({os.geteuid() + 1}, b"")])
@pytest.mark.parametrize("is_of_spool", [True, False])
def test_the_socket_of_the_spool_is_for_its_users(
    admin: ProtocolSpec, uids: set[int], heard: bytes, *, is_of_spool: bool
) -> None:
    reactor = Reactor()
    refuser = Refuser(reactor, lambda: "", lambda data, *_: b"served" if data else None, frozenset(uids))
    with closing(socket.socket(socket.AF_UNIX)) as listening, closing(socket.socket(socket.AF_UNIX)) as client:
        listening.bind(f"\0staniel-test-{os.getpid()}-{is_of_spool}-{len(heard)}")
        listening.listen()
        refuser.listen([(listening, admin)], listening if is_of_spool else None)
        client.connect(listening.getsockname())
        client.send(b"POST /cluster/init HTTP/1.1\r\n\r\n")
        while not select.select([client], [], [], 0)[0]:
            reactor.handle_events(0)
        try:
            came = client.recv(100)
        except ConnectionResetError:  # it is closed with the order unread
            came = b""
        assert came == (heard if is_of_spool else b"served")
        refuser.close()
        reactor.handle_events(0)  # closes what was dropped


def test_a_reply_that_is_larger_than_a_socket_takes_arrives_whole(admin: ProtocolSpec) -> None:
    reactor, whole = Reactor(), b"x" * (16 << 20)
    refuser = Refuser(reactor, lambda: "", lambda *_: whole, frozenset())
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        refuser.listen([(listening, admin)], None)
        with closing(socket.create_connection(listening.getsockname())) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            client.setblocking(False)
            came, has_ended = 0, False
            while not has_ended:
                reactor.handle_events(0)
                if select.select([client], [], [], 0.01)[0]:
                    data = client.recv(1 << 20)
                    came, has_ended = came + len(data), not data
            assert came == len(whole)
        refuser.close()
        reactor.handle_events(0)
