"""The connections between members: strangers keep none out, and with TLS only members of the authority are heard."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from staniel.broker.config.schema import ClusterSettings
from staniel.broker.config.toml import ConfigError
from staniel.cluster.frames import HEAD
from staniel.cluster.messages import GREETING, Acknowledge, Hello, Message, Piece, encode_message
from staniel.server.cluster.links import (
    LINKS_MAX,
    STRANGER_BYTES_MAX,
    STRANGER_MS,
    STRANGERS_MAX,
    STRANGERS_PER_ADDRESS,
    Links,
)
from staniel.server.cluster.member_tls import MemberSecurity
from staniel.server.cluster.reactor import Reactor
from tests.support.certificates import Authority, Files, self_signed
from tests.support.transcripts import free_port

A, B = b"a" * 16, b"b" * 16
HELLO = Message(A, B, 1, Hello((), 0, 0, False))


class End:
    """A member's connections, without the member: it takes each message unless it is an Acknowledge."""

    def __init__(self, security: MemberSecurity | None = None) -> None:
        self.reactor = Reactor()
        self.messages: list[Message] = []
        self.reasons: list[str] = []
        self.links = Links(self.reactor, 5000, self._take, lambda number, why: self.reasons.append(why), lambda: None)
        self.links.security = security
        self.now_ms = 0

    def _take(self, number: int, message: Message) -> None:
        if isinstance(message.body, Acknowledge):
            self.links.close(number)
        else:
            self.messages.append(message)

    def listen(self) -> int:
        port = free_port()
        self.links.listen(f"127.0.0.1:{port}")
        return port

    def turn(self) -> None:
        self.reactor.handle_events(self.now_ms)

    def close(self) -> None:
        self.links.close_all()
        self.turn()


def run(ends: list[End], holds: Callable[[], object]) -> None:
    """Handle events until something holds."""
    for _ in range(2000):
        for end in ends:
            end.turn()
        if holds():
            return
        select.select([end.reactor.fileno() for end in ends], [], [], 0.01)
    raise AssertionError([(end.messages, end.reasons) for end in ends])


@pytest.fixture
def end() -> Iterator[End]:
    with closing(End()) as end:
        yield end


@pytest.fixture
def idle() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect(stack: ExitStack, end: End, port: int, host: str = "127.0.0.1") -> socket.socket:
    """Connect from an address of this machine, and have it accepted."""
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), source_address=(host, 0)))
    end.turn()
    return sock


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while data := sock.recv(1000):
            assert GREETING.startswith(data)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def test_idle_connections_keep_no_member_out(end: End, idle: ExitStack) -> None:
    port = end.listen()
    socks = [connect(idle, end, port, f"127.0.0.{2 + at // 2}") for at in range(2 * LINKS_MAX)]
    run([end], lambda: sum(map(is_open, socks)) == STRANGERS_MAX)
    assert all(map(is_open, socks[-STRANGERS_MAX:]))  # the oldest had to go
    member = connect(idle, end, port)
    member.sendall(GREETING + encode_message(HELLO))
    run([end], lambda: end.messages == [HELLO])
    more = [connect(idle, end, port, f"127.0.0.{2 + at // 2}") for at in range(2 * LINKS_MAX)]
    run([end], lambda: sum(map(is_open, more)) == STRANGERS_MAX)
    assert is_open(member)


def test_one_address_has_few_connections_that_say_nothing(end: End, idle: ExitStack) -> None:
    port = end.listen()
    other = connect(idle, end, port, "127.0.0.2")
    socks = [connect(idle, end, port) for _ in range(3 * STRANGERS_PER_ADDRESS)]
    run([end], lambda: sum(map(is_open, socks)) == STRANGERS_PER_ADDRESS)
    assert is_open(other)


def test_a_connection_that_says_nothing_has_little_time(end: End, idle: ExitStack) -> None:
    port = end.listen()
    stranger, member = connect(idle, end, port), connect(idle, end, port)
    member.sendall(GREETING + encode_message(HELLO))
    run([end], lambda: end.messages)
    end.links.drop_late(STRANGER_MS - 1)
    assert is_open(stranger)
    end.links.drop_late(STRANGER_MS)
    run([end], lambda: not is_open(stranger))
    assert is_open(member)


def test_a_stranger_may_not_send_what_its_frame_claims(end: End, idle: ExitStack) -> None:
    port = end.listen()
    stranger = connect(idle, end, port)
    stranger.sendall(GREETING + HEAD.pack(4 << 20, 0) + bytes(STRANGER_BYTES_MAX))
    run([end], lambda: end.reasons)
    assert end.reasons == ["it has sent too much before its first message"]


def test_a_message_that_is_not_taken_makes_no_member(end: End, idle: ExitStack) -> None:
    port = end.listen()
    stranger = connect(idle, end, port)
    stranger.sendall(GREETING + encode_message(Message(A, B, 1, Acknowledge(0, 0))))
    run([end], lambda: not is_open(stranger))


# TLS


def settings(authority: Authority, files: Files) -> ClusterSettings:
    return ClusterSettings(certificate=str(files.certificate), key=str(files.key), ca=str(authority.path))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "members")


def test_members_with_certificates_of_one_authority_hear_each_other(authority: Authority) -> None:
    ours, theirs = (MemberSecurity(settings(authority, authority.issue(name))) for name in ("m1", "m2"))
    with closing(End(ours)) as leader, closing(End(theirs)) as follower:
        port = leader.listen()
        number = follower.links.add(socket.create_connection(("127.0.0.1", port)))
        follower.links.send(number, HELLO)
        run([leader, follower], lambda: leader.messages == [HELLO])
        piece = Message(A, A, 1, Piece(bytes(1 << 20)))
        for _ in range(8):  # more than sockets take at once
            leader.links.send(1, piece)
            follower.links.send(number, piece)
        run([leader, follower], lambda: len(leader.messages) == 9 and len(follower.messages) == 8)
        assert leader.messages[1:] == follower.messages == [piece] * 8
        assert leader.links.unsent_bytes(1) == follower.links.unsent_bytes(number) == 0


@pytest.mark.parametrize("kind", ["plain", "none", "foreign"])
def test_a_stranger_without_a_certificate_of_the_authority_is_not_heard(
    authority: Authority, tmp_path: Path, kind: str
) -> None:
    with closing(End(MemberSecurity(settings(authority, authority.issue("m1"))))) as leader:
        port = leader.listen()
        sock = socket.create_connection(("127.0.0.1", port))
        if kind != "plain":
            context = ssl.create_default_context(cafile=str(authority.path))
            if kind == "foreign":
                files = self_signed(tmp_path, "stranger")
                context.load_cert_chain(files.certificate, files.key)
            sock.setblocking(False)
            sock = context.wrap_socket(sock, server_hostname="localhost", do_handshake_on_connect=False)
            run([leader], lambda: has_shaken(sock))
        with closing(sock):
            try:
                sock.send(GREETING + encode_message(HELLO))
            except OSError:
                pass  # it was refused already
            run([leader], lambda: leader.reasons)
        assert leader.messages == []


def has_shaken(sock: socket.socket) -> bool:
    assert isinstance(sock, ssl.SSLSocket)
    try:
        sock.do_handshake()
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return False
    except OSError:
        return True
    return True


def test_a_member_does_not_follow_a_leader_of_another_authority(authority: Authority, tmp_path: Path) -> None:
    others = Authority(tmp_path, "others")
    ours, theirs = (
        MemberSecurity(settings(authority, authority.issue("m1"))),
        MemberSecurity(settings(others, others.issue("m2"))),
    )
    with closing(End(ours)) as leader, closing(End(theirs)) as follower:
        port = leader.listen()
        number = follower.links.add(socket.create_connection(("127.0.0.1", port)))
        follower.links.send(number, HELLO)
        run([leader, follower], lambda: follower.reasons)
        assert "certificate" in follower.reasons[0]
        assert leader.messages == []


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue("m1")
    for name in ("certificate", "key", "ca"):
        values = {"certificate": str(files.certificate), "key": str(files.key), "ca": str(authority.path)}
        values[name] = str(tmp_path / "missing")
        with pytest.raises(ConfigError, match=rf"cluster\.{name}.*missing"):
            MemberSecurity(ClusterSettings(**values))
