"""emcache 1.3: asyncio, `noreply`, flags as numbers, a pool that must be one connection for reliable reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import emcache
import pytest

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server

Talk = Callable[[emcache.Client], Awaitable[None]]


def talk(server: Server, conversation: Talk) -> None:
    async def run() -> None:
        host = emcache.MemcachedHostAddress("127.0.0.1", server.port)
        client = await emcache.create_client([host], timeout=30, max_connections=1, min_connections=1)
        try:
            await asyncio.wait_for(conversation(client), 10)
        finally:
            await client.close()

    asyncio.run(run())


async def value_of(client: emcache.Client, key: bytes) -> bytes | None:
    item = await client.get(key)
    return None if item is None else item.value


@pytest.mark.parametrize("noreply", [True, False])
def test_items_come_back_in_the_order_they_were_set(server: Server, noreply: bool) -> None:
    async def conversation(client: emcache.Client) -> None:
        for number in range(10):
            await client.set(b"jobs", b"%d" % number, noreply=noreply)
        found = [await value_of(client, b"jobs") for _ in range(11)]
        assert found == [*(b"%d" % number for number in range(10)), None]

    talk(server, conversation)


def test_a_read_is_opened_closed_and_aborted(server: Server) -> None:
    async def conversation(client: emcache.Client) -> None:
        await client.set(b"jobs", b"a")
        await client.set(b"jobs", b"b")
        assert await value_of(client, b"jobs/open") == b"a"
        assert await value_of(client, b"jobs/abort") is None
        assert await value_of(client, b"jobs/open") == b"a"
        assert await value_of(client, b"jobs/close/open") == b"b"
        assert await value_of(client, b"jobs/close") is None
        assert await value_of(client, b"jobs") is None

    talk(server, conversation)


def test_a_wait_ends_when_its_time_is_over_or_an_item_comes(server: Server) -> None:
    async def conversation(client: emcache.Client) -> None:
        with takes_about(WAIT_MS):
            assert await value_of(client, b"jobs/t=%d" % WAIT_MS) is None
        with item_for_the_waiter(server, "jobs", b"here"):
            assert await value_of(client, b"jobs/t=4000") == b"here"

    talk(server, conversation)


def test_several_keys_give_one_item_of_each(server: Server) -> None:
    async def conversation(client: emcache.Client) -> None:
        await client.set(b"a", b"1")
        await client.set(b"b", b"2")
        found = await client.get_many([b"a", b"b", b"empty"])
        assert {key: item.value for key, item in found.items()} == {b"a": b"1", b"b": b"2"}

    talk(server, conversation)


def test_delete_flush_all_version_and_stats(server: Server) -> None:
    host = emcache.MemcachedHostAddress("127.0.0.1", server.port)

    async def conversation(client: emcache.Client) -> None:
        await client.set(b"a", b"1")
        await client.set(b"b", b"22")
        await client.delete(b"a")
        with pytest.raises(emcache.NotFoundCommandError):
            await client.delete(b"a")
        assert (await client.stats(host))["queue_b_bytes"] == "2"
        await client.flush_all(host)
        assert await value_of(client, b"b") is None
        assert (await client.version(host)).count(".") >= 2

    talk(server, conversation)


def test_what_a_queue_cannot_do_is_refused_and_the_next_answer_is_the_right_one(server: Server) -> None:
    async def conversation(client: emcache.Client) -> None:
        await client.set(b"jobs", b"a")
        with pytest.raises(emcache.CommandError):
            await client.add(b"jobs", b"x")
        assert await value_of(client, b"jobs") == b"a"

    talk(server, conversation)


def test_flags_are_there_after_the_server_was_killed(server: Server) -> None:
    async def put(client: emcache.Client) -> None:
        await client.set(b"jobs", b"a", flags=7)
        await client.set(b"jobs", b"b", flags=2**16)

    async def take(client: emcache.Client) -> None:
        found = [await client.get(b"jobs", return_flags=True) for _ in range(2)]
        assert [(item.value, item.flags) for item in found if item] == [(b"a", 7), (b"b", 2**16)]

    talk(server, put)
    server.restart()
    talk(server, take)
