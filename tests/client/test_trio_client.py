"""A program for trio against a real server: what it sees, and where its items are afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

import staniel.client
from staniel.client import Busy, ConnectionLost, Full, Item, NotAllStored, Refused
from staniel.client.aio import Client
from tests.support.process import Server, running
from tests.support.wire import drain

PATIENCE = 60.0
SHORT = 0.05


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    async with staniel.client.connect(*server.address) as client:
        yield client


async def drained(server: Server, queue: str) -> list[bytes]:
    """Every item left in a queue, for another client."""
    found = []
    async with client_of(server) as client:
        while (item := await client.get(queue, wait_s=SHORT)) is not None:
            found.append(item.data)
    return found


async def test_items_come_back_in_order_with_flags_and_rising_ids(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a\r\nEND\r\n", flags=7)
        await client.put("jobs", b"")
        first, second = await client.get("jobs"), await client.get("jobs")
        assert first is not None and second is not None
        assert (first.data, first.flags, second.data, second.flags) == (b"a\r\nEND\r\n", 7, b"", 0)
        assert first.id is not None and second.id is not None and first.id < second.id
        assert await client.get("jobs") is None


async def test_many_puts_keep_their_order(server: Server) -> None:
    items = [b"%d" % number for number in range(1300)]
    async with client_of(server) as client:
        await client.put_many("jobs", items)
    assert drain(server.address, "jobs") == items


async def test_a_get_waits_for_an_item_that_comes_later(server: Server, nursery: trio.Nursery) -> None:
    async def put_once_somebody_waits() -> None:
        async with client_of(server) as other:
            while (await other.stats()).get("queue_jobs_waiters") != "1":
                pass
            await other.put("jobs", b"late")

    async with client_of(server) as waiter:
        nursery.start_soon(put_once_somebody_waits)
        item = await waiter.get("jobs", wait_s=PATIENCE)
    assert item is not None and item.data == b"late"


async def test_a_peek_leaves_the_item_where_it_is(server: Server) -> None:
    async with client_of(server) as client:
        assert await client.peek("jobs") is None
        await client.put("jobs", b"a")
        peeked = await client.peek("jobs")
        assert peeked == Item(b"a", 0, peeked.id if peeked else None, b"jobs/peek")
    assert await drained(server, "jobs") == [b"a"]


async def test_a_reservation_that_ends_well_closes_the_item(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        async with client.reserve("jobs") as item:
            assert item is not None and item.data == b"a"
            assert (await client.stats())["queue_jobs_open_transactions"] == "1"
        assert (await client.stats())["queue_jobs_open_transactions"] == "0"
    assert await drained(server, "jobs") == []


async def test_a_reservation_of_an_empty_queue_is_none_and_closes_nothing(server: Server) -> None:
    async with client_of(server) as client:
        async with client.reserve("jobs", wait_s=SHORT) as item:
            assert item is None
        await client.put("jobs", b"a")
    assert await drained(server, "jobs") == [b"a"]


async def test_an_exception_hands_the_item_back_and_the_connection_goes_on(server: Server) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b"])
        with pytest.raises(ZeroDivisionError):
            async with client.reserve("jobs"):
                raise ZeroDivisionError
        async with client.reserve("jobs") as item:
            assert item is not None and item.data == b"a"
    assert await drained(server, "jobs") == [b"b"]


async def test_cancelled_work_hands_the_item_back_and_the_connection_goes_on(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        with trio.CancelScope() as scope:
            async with client.reserve("jobs"):
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught
        again = await client.get("jobs")
        assert again is not None and again.data == b"a"


async def test_a_cancellation_that_comes_after_the_work_does_not_stop_the_close(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        with trio.CancelScope() as scope:
            async with client.reserve("jobs"):
                scope.cancel()
        assert (await client.stats())["queue_jobs_open_transactions"] == "0"
    assert await drained(server, "jobs") == []


async def test_a_get_cancelled_while_it_waits_closes_the_connection_and_takes_nothing(server: Server) -> None:
    async with client_of(server) as client, client_of(server) as other:
        async with trio.open_nursery() as children:
            children.start_soon(partial(client.get, "jobs", wait_s=PATIENCE))
            while (await other.stats()).get("queue_jobs_waiters") != "1":
                pass
            children.cancel_scope.cancel()
        with pytest.raises(ConnectionLost, match="cut off"):
            await client.version()
        await other.put("jobs", b"a")
    assert await drained(server, "jobs") == [b"a"]


async def test_two_reservations_of_one_queue_end_each_with_its_own_item(server: Server) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b"])
        with pytest.raises(ZeroDivisionError):
            await break_off_the_first_of_two(client)
    assert await drained(server, "jobs") == [b"a"]


async def break_off_the_first_of_two(client: Client) -> None:
    async with client.reserve("jobs") as first:
        async with client.reserve("jobs") as second:
            assert first is not None and second is not None and (first.data, second.data) == (b"a", b"b")
        raise ZeroDivisionError


async def test_a_second_task_is_told_that_the_connection_is_in_use(server: Server) -> None:
    async with client_of(server) as client, client_of(server) as other:
        async with trio.open_nursery() as children:
            children.start_soon(partial(client.get, "jobs", wait_s=PATIENCE))
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Busy):
                await client.version()
            await other.put("jobs", b"a")
        assert await client.version()


async def test_the_end_of_a_reservation_waits_for_another_tasks_turn_and_closes_its_own_item(server: Server) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b", b"c"])
        async with trio.open_nursery() as children, client.reserve("jobs") as first:
            children.start_soon(partial(client.get, "other", wait_s=SHORT))
            await trio.testing.wait_all_tasks_blocked()
        assert first is not None and first.data == b"a"
        with pytest.raises(ZeroDivisionError):
            async with client.reserve("jobs"):
                raise ZeroDivisionError
        assert (await client.stats())["queue_jobs_open_transactions"] == "0"
    assert await drained(server, "jobs") == [b"b", b"c"]


async def test_a_reservation_that_gets_no_turn_in_time_is_handed_back_and_the_client_says_so(
    server: Server, short_timeouts: None
) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b"])
        async with trio.open_nursery() as children:
            with pytest.raises(ConnectionLost) as lost:
                await reserve_and_start_another(client, children)
        assert lost.value.item is not None and lost.value.item.data == b"a"
        with pytest.raises(ConnectionLost, match="could not be confirmed"):
            await client.version()
    assert await drained(server, "jobs") == [b"a", b"b"]


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.client.aio.client.SETTLE_SECONDS", SHORT)


async def reserve_and_start_another(client: Client, children: trio.Nursery) -> None:
    async with client.reserve("jobs"):
        children.start_soon(ignoring_a_lost_connection, client)
        await trio.testing.wait_all_tasks_blocked()


async def ignoring_a_lost_connection(client: Client) -> None:
    with suppress(ConnectionLost):
        await client.get("other", wait_s=PATIENCE)


@pytest.mark.parametrize("wait_s", [float("inf"), float("nan"), -1, 3e6])
async def test_a_wait_that_cannot_be_said_is_a_value_error(server: Server, wait_s: float) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        for attempt in (client.get, client.peek):
            with pytest.raises(ValueError, match="a wait is a number of seconds"):
                await attempt("jobs", wait_s=wait_s)
        with pytest.raises(ValueError, match="a wait is a number of seconds"):
            async with client.monitor("jobs", wait_s=wait_s):
                pass
        assert (await client.stats())["queue_jobs_open_transactions"] == "0"


async def test_what_is_no_name_or_no_life_is_a_value_error(server: Server) -> None:
    async with client_of(server) as client:
        for name in ("jobs/open", "a b", "", "a\r\nflush_all"):
            for attempt in (partial(client.put, data=b"x"), partial(client.put_many, items=[b"x"]), client.get,
                            client.delete, client.flush):  # fmt: skip
                with pytest.raises(ValueError):
                    await attempt(name)
            with pytest.raises(ValueError):
                async with client.monitor(name, wait_s=1):
                    pass
        for ttl_s in (float("inf"), float("nan"), 0):
            with pytest.raises(ValueError, match="ttl_s"):
                await client.put("jobs", b"x", ttl_s=ttl_s)
        assert await client.version()


async def test_a_refusal_carries_the_servers_text_and_the_connection_goes_on(server: Server) -> None:
    async with client_of(server) as client:
        with pytest.raises(Refused, match="CLIENT_ERROR a queue name cannot hold"):
            await client.put("a~b", b"")
        with pytest.raises(Refused, match="CLIENT_ERROR a queue name cannot hold"):
            await client.get("a~b")
        assert await client.version()


async def test_a_full_queue_stores_nothing_and_says_which(tmp_path: Path) -> None:
    with running(tmp_path / "small", config="[queues.jobs]\nmax_items = 2\n") as server:
        async with client_of(server) as client:
            await client.put("jobs", b"0")
            with pytest.raises(NotAllStored) as error:
                await client.put_many("jobs", [b"1", b"2", b"3"])
            assert list(error.value.refused) == [1, 2]
            with pytest.raises(Full):
                await client.put("jobs", b"4")
        assert await drained(server, "jobs") == [b"0", b"1"]


async def test_flush_empties_and_delete_says_whether_there_was_a_queue(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        await client.flush("jobs")
        assert await client.get("jobs") is None
        assert await client.delete("jobs") is True
        assert await client.delete("jobs") is False
        assert (await client.stats())["version"] == await client.version()


async def test_a_killed_server_is_a_lost_connection_and_the_item_is_back(server: Server) -> None:
    async with client_of(server) as client:
        await client.put("jobs", b"a")
        with pytest.raises(ConnectionLost) as error:
            async with client.reserve("jobs"):
                server.restart()
        assert error.value.item is not None and error.value.item.data == b"a"
        with pytest.raises(ConnectionLost):
            await client.put("jobs", b"b")
    assert await drained(server, "jobs") == [b"a"]


async def test_a_port_without_a_server_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost, match="no connection to"):
        async with staniel.client.connect("127.0.0.1", 1):
            pass


async def test_a_monitor_closes_what_its_loop_was_given(server: Server) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b", b"c"])
        async with client.monitor("jobs", wait_s=1, max_items=2) as items:
            assert [item.data async for item in items] == [b"a", b"b"]
        assert (await client.stats())["queue_jobs_open_transactions"] == "0"
    assert await drained(server, "jobs") == [b"c"]


async def test_leaving_a_monitor_early_hands_the_rest_back(server: Server) -> None:
    async with client_of(server) as client:
        await client.put_many("jobs", [b"a", b"b", b"c"])
        async with client.monitor("jobs", wait_s=1, max_items=3) as items:
            async for item in items:
                assert item.data == b"a"
                break
    assert await drained(server, "jobs") == [b"b", b"c"]
