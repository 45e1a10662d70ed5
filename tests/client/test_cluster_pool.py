"""ClusterPool: clients of a cluster that threads or tasks share."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from staniel.client import Busy, ClusterPool, NoLeader, NotOpen
from staniel.client.servers import Address
from tests.client.fake_server import Answer, FakeServer, Last, playing, scripted
from tests.client.fake_server import item as item_of
from tests.client.kinds import each_kind, play
from tests.support.process import running
from tests.support.wire import drain

Make = Callable[..., Any]
STORED, END, DELETED = b"STORED\r\n", b"END\r\n", b"DELETED\r\n"


def names(leader: Address) -> bytes:
    return b"SERVER_ERROR not the leader: %b:%d\r\n" % (leader[0].encode(), leader[1])


def set_script(server: FakeServer, *answers: Answer) -> None:
    server._script = iter(answers)


def begin_with(pool: Any, *members: Address) -> None:
    inner = getattr(pool, "blocking", pool)
    inner._make()._cluster.members = list(members)


@each_kind
def test_all_clients_of_a_pool_ask_the_leader_that_one_has_found(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address], leader_wait_s=0) as pool:
            async with pool.client() as first, pool.client() as second:
                await first.put("q", b"a")
                await second.flush("q")
                assert first != second
            async with pool.client() as again:
                assert again in (first, second)
                assert (await again.get("q")).server == leader.address

    # the fake leader serves one connection at a time: each client closes before the next is asked
    with scripted([], []) as (follower, leader):
        set_script(follower, names(leader.address))
        set_script(leader, Last(STORED), Last(END), item_of(b"a", b"q"), DELETED)
        play(kind, body, of="ClusterPool")
        assert (len(follower.heard), len(leader.heard)) == (1, 4)


@each_kind
def test_a_pool_follows_a_leader_that_changes(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([old.address, new.address], leader_wait_s=0, max_clients=1) as pool:
            begin_with(pool, old.address, new.address)
            async with pool.client() as client:
                await client.put("q", b"a")
                with pytest.raises(Busy, match="all 1 clients of the pool are lent"):
                    async with pool.client(wait_s=0.01):
                        pass
            async with pool.client() as client:
                item = await client.open("q")
                with pytest.raises(NotOpen):
                    await client.confirm(item)
                await client.put("q", b"b")
            async with pool.client() as client:
                await client.put("q", b"c")

    with scripted([], [STORED, STORED]) as (old, new):
        set_script(old, STORED, item_of(b"a", b"q"), names(new.address), names(new.address))
        play(kind, body, of="ClusterPool")
        assert len(new.heard) == 2


@each_kind
def test_a_connection_that_the_leader_has_closed_is_made_again_and_no_member_is_searched(kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address], leader_wait_s=0) as pool:
            async with pool.client() as client:
                await client.put("q", b"a")
            assert leader.is_left.wait(60)
            async with pool.client() as again:
                assert again == client
                await again.put("q", b"b")

    with playing(Last(STORED), STORED) as leader:
        play(kind, body, of="ClusterPool")


@each_kind
def test_a_client_that_comes_back_with_an_open_item_is_closed(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([leader.address], max_clients=2) as pool:
            async with pool.client() as client:
                await client.put_many("jobs", [b"a", b"b"])
                assert (await client.open("jobs")).data == b"a"
            async with pool.client() as other:
                assert other != client
                assert (await other.get("jobs", wait_s=10)).data == b"a"
        with pytest.raises(ValueError, match="closed"):
            async with pool.client():
                pass

    with running(tmp_path) as leader:
        play(kind, body, of="ClusterPool")
        assert drain(leader.address, "jobs") == [b"b"]


def test_threads_share_the_clients_of_a_cluster(tmp_path: Path) -> None:
    def work(number: int) -> None:
        for each in range(10):
            with pool.client(wait_s=60) as client:
                client.put("jobs", b"%d-%d" % (number, each))
                item = client.open("jobs")
                assert item is not None
                client.confirm(item)

    with running(tmp_path) as leader, ClusterPool([leader.address], max_clients=2) as pool:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert drain(leader.address, "jobs") == []


def test_what_cannot_be_a_pool_of_a_cluster_is_refused_at_once() -> None:
    for members, options in (([], {}), ([("a", 1)] * 2, {}), ([("a", 1)], {"max_clients": 0})):
        with pytest.raises(ValueError):
            ClusterPool(members, **options)
    with (
        ClusterPool([("127.0.0.1", 1)], leader_wait_s=0) as pool,
        pool.client() as client,
        pytest.raises(NoLeader),
    ):
        client.put("q", b"")
