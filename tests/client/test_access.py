"""The trio client of a server on TLS that has users, and of one that has none."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

import staniel.client
from staniel.client import ConnectionLost, Refused
from staniel.protocol.client.login import login
from tests.support.guarded import PASSWORD, TOKEN, Guarded, guarded
from tests.support.process import Server

LOCAL = "127.0.0.1"


@pytest.fixture(params=["memcached", "kestrel"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Guarded]:
    with guarded(tmp_path, request.param) as made:
        yield made


def trusting(place: Guarded) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(place.ca))


@pytest.mark.parametrize("secret", [PASSWORD, TOKEN])
async def test_a_user_logs_in_under_tls(place: Guarded, secret: str) -> None:
    large = bytes(range(256)) * 4000
    async with staniel.client.connect(
        LOCAL, place.server.second_port, tls=trusting(place), user="analyst", secret=secret
    ) as client:
        await client.put("jobs", large)
        async with client.reserve("jobs") as item:
            assert item is not None and item.data == large
        with pytest.raises(Refused, match="user analyst may not write to other"):
            await client.put("other", b"a")


async def test_a_certificate_is_a_login(place: Guarded) -> None:
    context = trusting(place)
    context.load_cert_chain(place.client.certificate, place.client.key)
    for user, secret in (("", ""), ("analyst", "wrong")):  # nobody asks for the second one
        async with staniel.client.connect(
            LOCAL, place.server.second_port, tls=context, user=user, secret=secret
        ) as client:
            await client.put("jobs", b"a")
            assert await client.get("jobs") is not None


async def test_who_is_not_let_in_is_told_why(place: Guarded) -> None:
    for secret in ("wrong", TOKEN[:-1]):
        with pytest.raises(Refused, match="authentication failure"):
            async with staniel.client.connect(*place.server.address, user="analyst", secret=secret):
                pass
    async with staniel.client.connect(*place.server.address) as client:
        with pytest.raises(Refused, match="unauthenticated"):
            await client.get("jobs")


async def test_a_server_that_cannot_be_trusted_is_not_talked_to(place: Guarded) -> None:
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        async with staniel.client.connect(LOCAL, place.server.second_port, tls=ssl.create_default_context()):
            pass
    with pytest.raises(ConnectionLost):
        async with staniel.client.connect(*place.server.address, tls=trusting(place)):
            pass


async def test_a_server_without_users_is_told_no_secret(server: Server) -> None:
    async with staniel.client.connect(*server.address, user="analyst", secret=PASSWORD) as client:
        assert "queue_login_items" not in await client.stats()
        await client.put("jobs", b"a")


async def test_a_handshake_that_does_not_end_is_too_slow(autojump_clock: trio.testing.MockClock) -> None:
    (silent,) = await trio.open_tcp_listeners(0, host=LOCAL)
    async with silent:
        port = silent.socket.getsockname()[1]
        with pytest.raises(ConnectionLost, match="too slow"):
            async with staniel.client.connect(LOCAL, port, tls=ssl.create_default_context()):
                pass


@pytest.mark.parametrize(
    ("user", "secret"), [("", "secret"), ("a b", "secret"), ("a", ""), ("a", "two words"), ("a", "x" * 1000)]
)
async def test_a_login_that_cannot_be_said_is_a_value_error_without_the_secret(user: str, secret: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        async with staniel.client.connect(LOCAL, 1, user=user, secret=secret):
            pass
    assert not secret or secret not in str(caught.value)


async def test_a_context_that_is_none_of_a_client_leaves_no_socket_behind() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host=LOCAL)
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(ConnectionLost, match="PROTOCOL_TLS_SERVER"):
            async with staniel.client.connect(LOCAL, port, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)):
                pass
        async with await listener.accept() as stream:
            assert await stream.receive_some(1) == b""


async def test_a_port_where_nothing_listens_is_named_in_the_systems_words() -> None:
    with pytest.raises(ConnectionLost, match=rf"^no connection to {LOCAL}:1: all attempts to connect .* failed$"):
        async with staniel.client.connect(LOCAL, 1):
            pass


async def test_a_secret_of_any_bytes_is_not_shown(server: Server) -> None:
    secret = "x" * 20 + "\udcff"  # as a file is read whose bytes are no text
    async with staniel.client.connect(*server.address, user="analyst", secret=secret):
        pass
    assert login("a", secret.encode("utf-8", "surrogateescape")).data == b"a " + b"x" * 20 + b"\xff"


def test_names_and_secrets_are_utf_8() -> None:
    assert login("jürgen", b"geheim").data == "jürgen geheim".encode()
