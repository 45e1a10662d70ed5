"""The rows of docs/libraries.md: what the defaults of each library do to a queue, and what the right line does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient

from tests.support.process import Server, running, until

FULL = "[queues.small]\nmax_items = 2\n"
SETS = 4  # of which two find room
Made = TypeVar("Made")
to_close: list[Callable[[], object]] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while to_close:
        to_close.pop()()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=FULL) as server:
        yield server


def kept(client: Made, close: str = "close") -> Made:
    """Return the client, which is closed when the test has ended."""
    to_close.append(getattr(client, close))
    return client


def careful(server: Server) -> Client:
    return kept(Client(server.address, default_noreply=False, timeout=60))


def python_memcached(server: Server) -> Any:
    import memcache

    return kept(memcache.Client([address(server)]), "disconnect_all")


def libmemcached(server: Server) -> Any:
    import pylibmc

    return kept(pylibmc.Client([address(server)]), "disconnect_all")


def fill(server: Server, count: int = 5) -> None:
    client = careful(server)
    for number in range(count):
        assert client.set("jobs", b"%d" % number)


def left(server: Server, queue: str = "jobs") -> list[bytes]:
    client, found = careful(server), []
    while (data := client.get(queue)) is not None:
        found.append(data)
    return found


def address(server: Server) -> str:
    host, port = server.address
    return f"{host}:{port}"


def test_pymemcache_takes_a_refused_put_for_stored_and_the_server_says_so(small: Server) -> None:
    client = kept(Client(small.address))
    assert [client.set("small", b"x") for _ in range(SETS)] == [True] * SETS
    assert until(lambda: len(left(small, "small")) == 2)
    assert until(lambda: "refusal.unheard" in small.stderr and 'why="the queue is full"' in small.stderr)
    assert careful(small).stats()[b"noreply_refused"] == 2


def test_pymemcache_that_waits_is_told(small: Server) -> None:
    client = careful(small)
    assert [client.set("small", b"x") for _ in range(SETS)] == [True, True, False, False]


@pytest.mark.parametrize(("share", "comes_back"), [(True, [b"1", b"2"]), (False, [b"0", b"2"])])
def test_two_workers_on_one_pooled_connection_confirm_each_others_items(
    server: Server, share: bool, comes_back: list[bytes]
) -> None:
    fill(server, 3)
    pools = [kept(PooledClient(server.address, max_pool_size=1, default_noreply=False, timeout=60)) for _ in "ab"]
    slow, quick = pools[0], pools[0 if share else 1]
    assert slow.get("jobs/open") == b"0" and quick.get("jobs/open") == b"1"
    quick.get("jobs/close")
    for pool in pools:
        pool.close()
    assert until(lambda: careful(server).stats()[b"queue_jobs_open_transactions"] == 0)
    assert left(server) == comes_back


def test_a_hash_client_asks_another_server_for_the_read_of_a_queue(tmp_path: Path) -> None:
    with running(tmp_path / "a") as one, running(tmp_path / "b") as two:
        client = kept(HashClient([one.address, two.address], default_noreply=False, timeout=60))
        names = [f"jobs{number}" for number in range(20)]
        for name in names:
            client.set(name, b"x")
        assert 0 < sum(client.get(f"{name}/open") is None for name in names) < 20


PYLIBMC = pytest.mark.programs("python:pylibmc")


@pytest.mark.parametrize(
    "get",
    [
        lambda server: careful(server).get_many(["jobs", "jobs"]),
        lambda server: python_memcached(server).get_multi(["jobs", "jobs"]),
        pytest.param(lambda server: libmemcached(server).get_multi(["jobs", "jobs"]), marks=PYLIBMC),
    ],
)
def test_a_get_of_one_name_twice_keeps_the_last_item_alone(
    server: Server, get: Callable[[Server], dict[str, object]]
) -> None:
    fill(server)
    assert len(get(server)) == 1 and left(server) == [b"2", b"3", b"4"]


def test_python_memcached_says_that_a_put_is_refused(small: Server) -> None:
    client = python_memcached(small)
    assert [bool(client.set("small", "x")) for _ in range(SETS)] == [True, True, False, False]
    assert not client.set("a.b", "x")


@PYLIBMC
def test_pylibmc_says_that_a_queue_is_full_and_raises_for_an_illegal_name(small: Server) -> None:
    import pylibmc

    client = libmemcached(small)
    assert [client.set("small", "x") for _ in range(SETS)] == [True, True, False, False]
    with pytest.raises(pylibmc.Error):
        client.set("a.b", "x")


def test_aiomcache_loses_the_item_of_a_cancelled_wait(server: Server) -> None:
    import aiomcache

    async def run() -> list[bytes | None]:
        client = aiomcache.Client(*server.address, pool_size=1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.get(b"late/t=5000"), 0.2)
        assert await asyncio.to_thread(careful(server).set, "late", b"lost")
        found = [await client.get(b"jobs") for _ in range(2)]
        await client.close()
        return found

    fill(server, 2)
    found = asyncio.run(run())
    assert left(server, "late") == [] and b"lost" not in found


def test_emcache_says_that_a_queue_is_full_and_takes_no_late_answer_for_another(small: Server) -> None:
    import emcache

    async def run() -> bytes:
        client = await emcache.create_client([emcache.MemcachedHostAddress(*small.address)])
        for _ in range(2):
            await client.set(b"small", b"x")
        with pytest.raises(emcache.StorageCommandError):
            await client.set(b"small", b"x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.get(b"late/t=5000/open"), 0.2)
        assert await asyncio.to_thread(careful(small).set, "late", b"kept")
        found = await client.get(b"jobs")
        await client.close()
        return found.value

    fill(small, 1)
    assert asyncio.run(run()) == b"0"
    assert until(lambda: left(small, "late") == [b"kept"])


def test_refuse_makes_the_careless_fail_and_loses_nothing(tmp_path: Path) -> None:
    config = '[memcache]\nrefuse = ["noreply", "multi_get", "delete", "flush_all"]\n'
    with running(tmp_path, config=config) as server:
        fill(server)
        client = careful(server)
        for harm in (lambda: client.get_many(["jobs", "jobs"]), lambda: client.delete("jobs"), client.flush_all):
            with pytest.raises(Exception, match="is refused here"):
                harm()
        careless = kept(Client(server.address, timeout=60))
        careless.set("jobs", b"x")
        with pytest.raises(Exception, match="noreply is refused here"):
            careless.get("jobs")
        assert left(server) == [b"0", b"1", b"2", b"3", b"4"]
