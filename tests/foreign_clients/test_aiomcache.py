"""aiomcache 0.8 with a pool of one: what is opened must be closed on the same connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiomcache
import pytest
from aiomcache.exceptions import ClientException

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server

Talk = Callable[[aiomcache.Client], Awaitable[None]]


def talk(server: Server, conversation: Talk) -> None:
    async def run() -> None:
        client = aiomcache.Client("127.0.0.1", server.port, pool_size=1)
        try:
            await asyncio.wait_for(conversation(client), 10)
        finally:
            await client.close()

    asyncio.run(run())


def test_items_come_back_in_the_order_they_were_set(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        for number in range(10):
            assert await client.set(b"jobs", b"%d" % number)
        assert [await client.get(b"jobs") for _ in range(11)] == [*(b"%d" % number for number in range(10)), None]

    talk(server, conversation)


def test_a_read_is_opened_closed_and_aborted(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        await client.set(b"jobs", b"a")
        await client.set(b"jobs", b"b")
        assert await client.get(b"jobs/open") == b"a"
        assert await client.get(b"jobs/abort") is None
        assert await client.get(b"jobs/open") == b"a"
        assert await client.get(b"jobs/close/open") == b"b"
        assert await client.get(b"jobs/close") is None
        assert await client.get(b"jobs") is None

    talk(server, conversation)


def test_a_wait_ends_when_its_time_is_over_or_an_item_comes(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        with takes_about(WAIT_MS):
            assert await client.get(b"jobs/t=%d" % WAIT_MS) is None
        with item_for_the_waiter(server, "jobs", b"here"):
            assert await client.get(b"jobs/t=4000") == b"here"

    talk(server, conversation)


def test_several_keys_give_one_item_of_each(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        await client.set(b"a", b"1")
        await client.set(b"b", b"2")
        assert await client.multi_get(b"a", b"b", b"empty") == (b"1", b"2", None)

    talk(server, conversation)


def test_delete_flush_all_version_and_stats(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        await client.set(b"a", b"1")
        await client.set(b"b", b"22")
        assert await client.delete(b"a") is True
        assert await client.delete(b"a") is False
        assert (await client.stats())[b"queue_b_bytes"] == b"2"
        await client.flush_all()
        assert await client.get(b"b") is None
        assert (await client.version()).count(b".") >= 2

    talk(server, conversation)


def test_open_reads_are_ended_by_their_ids(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        await client.set(b"jobs", b"a")
        await client.set(b"jobs", b"b")
        _, first = await client.gets(b"jobs/open")
        _, second = await client.gets(b"jobs/open")
        assert await client.delete(b"jobs/id=%d" % second) is True
        assert await client.touch(b"jobs/id=%d" % first, 0) is True
        assert await client.delete(b"jobs/id=%d" % first) is True
        assert await client.get(b"jobs") is None

    talk(server, conversation)


def test_what_a_queue_cannot_do_is_refused_and_the_next_answer_is_the_right_one(server: Server) -> None:
    async def conversation(client: aiomcache.Client) -> None:
        await client.set(b"jobs", b"a")
        with pytest.raises(ClientException):
            await client.add(b"jobs", b"x")
        assert await client.touch(b"jobs", 1) is False
        assert await client.get(b"jobs") == b"a"

    talk(server, conversation)


def test_items_are_there_after_the_server_was_killed(server: Server) -> None:
    async def put(client: aiomcache.Client) -> None:
        await client.set(b"jobs", b"a")
        await client.set(b"jobs", b"b")
        assert await client.get(b"jobs/open") == b"a"

    async def take(client: aiomcache.Client) -> None:
        assert [await client.get(b"jobs") for _ in range(3)] == [b"a", b"b", None]

    talk(server, put)
    server.restart()
    talk(server, take)
