"""A member that does not lead takes orders over its spool's socket from its own user's programs alone, and refuses
clients in the words of their protocol.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import closing
from io import BytesIO
from random import Random

import pytest
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType

from staniel.broker import protocols
from staniel.broker.session import ProtocolSpec
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.thrift.frames import Frames, framed
from staniel.protocol.thrift.replies import CAN_UPGRADE, refusal
from staniel.protocol.thrift.service import read_head, service, write_message
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


CALL = write_message("put", TMessageType.CALL, 7, service.get_version_args())
QUESTION = write_message(CAN_UPGRADE, TMessageType.CALL, 7, service.get_version_args())


def replies_of(data: bytes) -> list[tuple[str, int, str]]:
    """Read exceptions: the method, the type and the text of each."""
    frames = Frames()
    frames.feed(data)
    found = []
    while isinstance(frame := frames.next(), bytes):
        head = read_head(frame, 0)
        assert (head.kind, head.seqid) == (TMessageType.EXCEPTION, 7)
        told = TApplicationException()
        TBinaryProtocol(BytesIO(frame[head.end :])).read_struct(told)
        found.append((head.method, told.type, told.message))
    return found


def test_a_thrift_client_is_told_in_its_own_words_also_behind_the_question_of_finagle() -> None:
    reactor = Reactor()
    refuser = Refuser(reactor, lambda: "10.0.0.1:22133", lambda *_: b"", frozenset())
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        refuser.listen([(listening, protocols.thrift(Dialect.KESTREL))], None)
        with closing(socket.create_connection(listening.getsockname())) as client:
            came = b""
            for asked in (framed(QUESTION), framed(CALL + b"x" * 1000)[:40]):  # an item need not come whole
                client.sendall(asked)
                while not select.select([client], [], [], 0.01)[0]:
                    reactor.handle_events(0)
                came += client.recv(1 << 16)
            while not select.select([client], [], [], 0.01)[0]:
                reactor.handle_events(0)
            assert client.recv(1) == b""
        refuser.close()
        reactor.handle_events(0)
    question, refused = replies_of(came)
    assert question == (CAN_UPGRADE, TApplicationException.UNKNOWN_METHOD, f"Invalid method name: '{CAN_UPGRADE}'")
    text = "Internal error processing put: not the leader: 10.0.0.1:22133"
    assert refused == ("put", TApplicationException.INTERNAL_ERROR, text)


@pytest.mark.parametrize(
    ("asked", "reply"),
    [
        (b"", None),
        (framed(CALL)[:9], None),
        (framed(QUESTION)[:-20], None),
        (framed(QUESTION) + framed(CALL)[:6], None),
        (b"\xff\xff\xff\xffabcd", (b"", True)),
        (framed(b"GET / HTTP/1.1"), (b"", True)),
    ],
)
def test_what_is_no_call_of_thrift_has_no_reply(asked: bytes, reply: tuple[bytes, bool] | None) -> None:
    assert refusal(asked, "why") == reply


def test_any_bytes_of_a_thrift_client_are_refused_or_waited_for() -> None:
    rng = Random(5)
    good = framed(QUESTION) + framed(CALL)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        refusal(bytes(data[: rng.randrange(len(data))]), "why")
