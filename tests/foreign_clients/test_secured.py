"""Clients as they are, with TLS and with a password: pymemcache's `tls_context`, emcache's both."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings
from collections.abc import Iterator
from pathlib import Path

import emcache
import pytest
from emcache.client_errors import AuthenticationError
from pymemcache.client.base import Client

from staniel.broker.passwords import hash_password
from tests.support.certificates import Authority
from tests.support.process import Server, running

HASH = hash_password(b"a-secret", bytes(range(16)))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """emcache leaves its transports to the collector, and an error that it raises holds them until the test is over."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> str:
    files = authority.issue("server")
    return f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n[memcache]\ntls_port = 0\n'


@pytest.fixture
def secret(tmp_path: Path, tls: str) -> Iterator[Server]:
    user = f'[users.me]\nroles = ["read", "write"]\nqueues = ["jobs"]\npassword_hash = "{HASH}"\n'
    with running(tmp_path / "server", config=tls + user) as started:
        yield started


def test_pymemcache_over_tls(authority: Authority, tmp_path: Path, tls: str) -> None:
    context = ssl.create_default_context(cafile=str(authority.path))
    with running(tmp_path / "server", config=tls) as server:
        client = Client(("localhost", server.second_port), tls_context=context, timeout=30)
        for number in range(50):
            client.set("jobs", b"%d" % number, noreply=bool(number % 2))
        assert [client.get("jobs") for _ in range(51)] == [*(b"%d" % number for number in range(50)), None]
        client.set("jobs", b"x" * 1_000_000, noreply=False)
        assert client.get("jobs") == b"x" * 1_000_000
        client.close()


def talk(server: Server, password: str, *, secure: bool, authority: Authority) -> bytes | None:
    async def run() -> bytes | None:
        port = server.second_port if secure else server.port
        client = await emcache.create_client(
            [emcache.MemcachedHostAddress("localhost", port)],
            timeout=30,
            max_connections=1,
            username="me",
            password=password,
            ssl=secure,
            ssl_extra_ca=str(authority.path) if secure else None,
        )
        try:
            await client.set(b"jobs", b"a")
            item = await client.get(b"jobs")
            return None if item is None else item.value
        finally:
            await client.close()

    return asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.parametrize("secure", [False, True])
def test_emcache_logs_in(secret: Server, authority: Authority, secure: bool) -> None:
    assert talk(secret, "a-secret", secure=secure, authority=authority) == b"a"


def test_emcache_understands_a_refusal(secret: Server, authority: Authority) -> None:
    with pytest.raises((AuthenticationError, asyncio.TimeoutError)):
        talk(secret, "wrong", secure=False, authority=authority)
