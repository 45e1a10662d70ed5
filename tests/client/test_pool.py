"""Pool: clients for threads."""

from __future__ import annotations

import os
import threading

import pytest

from staniel.client import Busy, ConnectionLost, Pool
from tests.client.fake_server import HANG_UP, playing
from tests.support.process import Server, until
from tests.support.wire import drain, stats


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


def test_a_client_is_used_again_and_the_pool_is_no_larger_than_asked(server: Server) -> None:
    with Pool(*server.address, max_clients=1) as pool:
        with pool.client() as first:
            first.put("jobs", b"a")
            with pytest.raises(Busy, match="all 1 clients of the pool are lent"), pool.client(wait_s=0.01):
                pass
        with pool.client() as second:
            assert second is first
    with pytest.raises(ValueError, match="closed"), pool.client():
        pass


def test_a_client_that_comes_back_with_an_open_item_is_closed_and_the_item_is_back(server: Server) -> None:
    with Pool(*server.address) as pool:
        with pool.client() as client:
            client.put("jobs", b"a")
            assert client.open("jobs") is not None
        with pool.client() as other:
            assert other is not client
            item = other.get("jobs", wait_s=10)
            assert item is not None and item.data == b"a"


def test_a_connection_that_the_server_has_closed_is_not_lent(server: Server) -> None:
    with Pool(*server.address) as pool:
        with pool.client() as client:
            client.put("jobs", b"a")
        server.restart()
        pool._make = lambda: type(client)(*server.address)  # it listens on another port
        with pool.client() as other:
            assert other is not client
            assert other.get("jobs") is not None


def test_a_connection_that_was_lost_in_use_is_replaced() -> None:
    with playing(HANG_UP, b"VERSION 2\r\n") as server, Pool(*server.address, max_clients=1) as pool:
        with pytest.raises(ConnectionLost), pool.client() as client:
            client.version()
        with pool.client() as client:
            assert client.version() == "2"


def test_a_server_that_is_not_there_takes_no_place_in_the_pool() -> None:
    pool = Pool("127.0.0.1", 1, max_clients=1)
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="no connection"), pool.client():
            pass


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


@pytest.mark.parametrize("options", [{"max_clients": 0}, {"user": "a b", "secret": "x"}])
def test_what_cannot_be_a_pool_is_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Pool("127.0.0.1", 1, **options)  # type: ignore[arg-type]
