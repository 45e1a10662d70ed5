"""Pool: clients that threads or tasks share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from staniel.client import Busy, Client, ConnectionLost, Pool
from staniel.client.aio import Client as AioClient
from staniel.client.aio import Pool as AioPool
from tests.client.fake_server import HANG_UP, playing
from tests.client.kinds import each_kind, each_loop, play
from tests.support.process import Server, until
from tests.support.wire import drain, stats

Make = Callable[..., Any]


def test_threads_share_a_few_connections(server: Server) -> None:
    def work(number: int) -> None:
        for each in range(20):
            with pool.client(wait_s=60) as client:
                client.put("jobs", b"%d-%d" % (number, each))
                item = client.open("jobs")
                assert item is not None
                client.confirm(item)

    with Pool(*server.address, max_clients=3) as pool:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert drain(server.address, "jobs") == []
    assert 1 <= int(stats(server.address)["total_connections"]) <= 3 + 2  # and those of drain and stats


@each_loop
def test_tasks_share_a_few_connections(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async def work(number: int) -> None:
            for each in range(20):
                async with pool.client(wait_s=60) as client:
                    await client.put("jobs", b"%d-%d" % (number, each))
                    await client.confirm(await client.open("jobs"))

        async with make(*server.address, max_clients=3) as pool, anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(work, number)

    play(kind, body, of="Pool")
    assert drain(server.address, "jobs") == []
    assert 1 <= int(stats(server.address)["total_connections"]) <= 3 + 2


@each_kind
def test_a_client_is_used_again_and_the_pool_is_no_larger_than_asked(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, max_clients=1) as pool:
            async with pool.client() as first:
                await first.put("jobs", b"a")
                with pytest.raises(Busy, match="all 1 clients of the pool are lent"):
                    async with pool.client(wait_s=0.01):
                        pass
            async with pool.client() as second:
                assert second == first
        with pytest.raises(ValueError, match="closed"):
            async with pool.client():
                pass

    play(kind, body, of="Pool")


@each_kind
def test_a_client_that_comes_back_with_an_open_item_is_closed_and_the_item_is_back(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as pool:
            async with pool.client() as client:
                await client.put("jobs", b"a")
                assert await client.open("jobs") is not None
            async with pool.client() as other:
                assert other != client
                item = await other.get("jobs", wait_s=10)
                assert item.data == b"a"

    play(kind, body, of="Pool")


def test_a_connection_that_the_server_has_closed_is_not_lent(server: Server) -> None:
    with Pool(*server.address) as pool:
        with pool.client() as client:
            client.put("jobs", b"a")
        server.restart()
        pool._make = lambda: type(client)(*server.address)  # it listens on another port
        with pool.client() as other:
            assert other is not client
            assert other.get("jobs") is not None


@each_loop
def test_a_connection_that_the_server_has_closed_is_not_lent_to_a_task(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address) as pool:
            async with pool.client() as client:
                await client.put("jobs", b"a")
            server.restart()
            pool._make = lambda: AioClient(*server.address)
            async with pool.client() as other:
                assert other is not client
                assert await other.get("jobs") is not None

    play(kind, body, of="Pool")


@each_kind
def test_a_connection_that_was_lost_in_use_is_replaced(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, max_clients=1) as pool:
            with pytest.raises(ConnectionLost):
                async with pool.client() as client:
                    await client.version()
            async with pool.client() as client:
                assert await client.version() == "2"

    with playing(HANG_UP, b"VERSION 2\r\n") as server:
        play(kind, body, of="Pool")


@each_kind
def test_a_server_that_is_not_there_takes_no_place_in_the_pool(kind: str) -> None:
    async def body(make: Make) -> None:
        pool = make("127.0.0.1", 1, max_clients=1)
        for _ in range(3):
            with pytest.raises(ConnectionLost, match="no connection"):
                async with pool.client():
                    pass

    play(kind, body, of="Pool")


def test_a_thread_gets_the_client_that_comes_back(server: Server) -> None:
    with Pool(*server.address, max_clients=1) as pool:
        heard: list[str] = []

        def wait() -> None:
            with pool.client(wait_s=60) as client:
                heard.append(client.version())

        with pool.client() as client:
            thread = threading.Thread(target=wait)
            thread.start()
            assert not heard and client.version()
        thread.join()
        assert len(heard) == 1


@each_loop
def test_tasks_get_the_client_in_the_order_in_which_they_asked(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        heard: list[int] = []

        async def wait(number: int) -> None:
            async with pool.client(wait_s=60) as client:
                await client.version()
                heard.append(number)

        async with make(*server.address, max_clients=1) as pool:
            async with anyio.create_task_group() as tasks, pool.client():
                for number in range(5):
                    tasks.start_soon(wait, number)
                    await anyio.wait_all_tasks_blocked()
            assert heard == [0, 1, 2, 3, 4]

    play(kind, body, of="Pool")


@each_loop
def test_a_cancelled_wait_or_use_keeps_no_place(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.address, max_clients=1) as pool:

            async def use() -> None:
                async with pool.client(wait_s=60) as client:
                    await client.get("empty", wait_s=60)

            for steps in range(25):
                async with anyio.create_task_group() as tasks:
                    for _ in range(3):
                        tasks.start_soon(use)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                async with pool.client(wait_s=0) as client:
                    assert await client.version()

    play(kind, body, of="Pool")


@each_loop
def test_a_pool_that_is_closed_tells_the_tasks_that_wait(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        told: list[str] = []

        async def wait() -> None:
            try:
                async with pool.client(wait_s=60):
                    pass
            except ValueError as error:
                told.append(str(error))

        pool = make(*server.address, max_clients=1)
        async with anyio.create_task_group() as tasks, pool.client() as client:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await pool.close()
            while not told:
                await anyio.lowlevel.checkpoint()
            assert await client.version()
        assert told == ["the pool is closed; make another"]
        assert client._connection.why == "closed by this program"

    play(kind, body, of="Pool")


def test_a_pool_that_is_closed_tells_the_threads_that_wait(server: Server) -> None:
    told: list[str] = []

    def wait() -> None:
        try:
            with pool.client(wait_s=60):
                pass
        except ValueError as error:
            told.append(str(error))

    pool = Pool(*server.address, max_clients=1)
    with pool.client() as client:
        thread = threading.Thread(target=wait)
        thread.start()
        pool.close()
        thread.join(60)
        assert client.version()
    assert told == ["the pool is closed; make another"]
    assert client._connection.why == "closed by this program"


def test_a_forked_process_has_a_pool_of_its_own(server: Server) -> None:
    with Pool(*server.address) as pool:
        with pool.client() as client:
            client.put("jobs", b"a")
        child = os.fork()
        if child == 0:
            with pool.client() as own:
                own.put("jobs", b"b")
            os._exit(0 if own is not client else 1)
        assert os.waitpid(child, 0)[1] == 0
        with pool.client() as again:
            assert again is client
            assert until(lambda: again.version())
    assert drain(server.address, "jobs") == [b"a", b"b"]


def test_a_client_that_comes_back_while_a_thread_uses_it_is_closed(server: Server) -> None:
    told: list[str] = []

    def wait(client: Client) -> None:
        try:
            client.get("jobs", wait_s=60)
        except ConnectionLost as lost:
            told.append(str(lost))

    with Pool(*server.address) as pool:
        with pool.client() as client:
            thread = threading.Thread(target=wait, args=(client,))
            thread.start()
            assert until(lambda: stats(server.address).get("queue_jobs_waiters") == "1")
        with pool.client() as other:
            assert other.version()
        thread.join(60)
    assert told == ["closed by this program"]


def test_a_client_that_a_forked_process_had_borrowed_before_is_not_lent_there(server: Server) -> None:
    with Pool(*server.address) as pool, pool.client() as client:
        client.put("jobs", b"a")
        child = os.fork()
        if child == 0:
            try:
                with pool.client() as own:  # the child's pool begins with it
                    own.put("jobs", b"b")
                pool._take_back(client)  # the end of a block that began before the fork
                with pool.client() as again:
                    again.put("jobs", b"c")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert client.version()
    assert drain(server.address, "jobs") == [b"a", b"b", b"c"]


@each_loop
def test_a_forked_process_has_a_pool_of_its_own_on_a_loop_of_its_own(server: Server, kind: str) -> None:
    """The loop's epoll is shared with the child, which must not take the parent's sockets out of it."""

    async def of_child(pool: AioPool, client: object) -> None:
        async with pool.client() as own:
            await own.put("jobs", b"b")
        os._exit(0 if own is not client else 1)

    async def body(make: Make) -> None:
        async with make(*server.address) as pool:
            async with pool.client() as client:
                await client.put("jobs", b"a")
            child = os.fork()
            if child == 0:
                try:
                    in_thread = threading.Thread(
                        target=lambda: anyio.run(of_child, pool, client, backend=kind), daemon=True
                    )
                    in_thread.start()
                    in_thread.join(60)
                finally:
                    os._exit(2)
            assert await anyio.to_thread.run_sync(os.waitpid, child, 0) == (child, 0)
            async with pool.client() as again:
                assert again is client
                assert await again.version()

    play(kind, body, of="Pool")
    assert drain(server.address, "jobs") == [b"a", b"b"]


@pytest.mark.parametrize("options", [{"max_clients": 0}, {"user": "a b", "secret": "x"}])
@pytest.mark.parametrize("kind", [Pool, AioPool])
def test_what_cannot_be_a_pool_is_refused_at_once(kind: Make, options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        kind("127.0.0.1", 1, **options)
