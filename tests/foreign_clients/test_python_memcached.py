"""python-memcached 1.62: a blank before each line end, and the type of a value in its flags."""

from __future__ import annotations

from collections.abc import Iterator

import memcache
import pytest

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server


def connected(server: Server) -> memcache.Client:
    return memcache.Client([f"127.0.0.1:{server.port}"], socket_timeout=30, dead_retry=0)


@pytest.fixture
def client(server: Server) -> Iterator[memcache.Client]:
    made = connected(server)
    yield made
    made.disconnect_all()


def test_items_come_back_in_the_order_they_were_set(client: memcache.Client) -> None:
    for number in range(10):
        assert client.set("jobs", str(number))
    assert [client.get("jobs") for _ in range(11)] == [*map(str, range(10)), None]


def test_a_read_is_opened_closed_and_aborted(client: memcache.Client) -> None:
    client.set("jobs", "a")
    client.set("jobs", "b")
    assert client.get("jobs/open") == "a"
    assert client.get("jobs/abort") is None
    assert client.get("jobs/open") == "a"
    assert client.get("jobs/close/open") == "b"
    assert client.get("jobs/close") is None
    assert client.get("jobs") is None


def test_a_wait_ends_when_its_time_is_over_or_an_item_comes(server: Server, client: memcache.Client) -> None:
    with takes_about(WAIT_MS):
        assert client.get(f"jobs/t={WAIT_MS}") is None
    with item_for_the_waiter(server, "jobs", b"here"):
        assert client.get("jobs/t=4000") == b"here"


def test_a_set_without_an_answer_leaves_the_next_answers_in_step(client: memcache.Client) -> None:
    for number in range(10):
        client.set("jobs", str(number), noreply=True)
    assert [client.get("jobs") for _ in range(10)] == [*map(str, range(10))]


def test_several_keys_give_one_item_of_each(client: memcache.Client) -> None:
    assert client.set_multi({"a": "1", "b": "2"}) == []
    assert client.get_multi(["a", "b", "empty"]) == {"a": "1", "b": "2"}


def test_delete_and_flush_all_empty_queues(client: memcache.Client) -> None:
    client.set("a", "1")
    client.set("b", "2")
    assert client.delete("a")
    assert not client.delete("a")
    client.flush_all()
    assert client.get("a") is None and client.get("b") is None


def test_the_numbers_can_be_asked_for(client: memcache.Client) -> None:
    client.set("jobs", "four")
    [(_, numbers)] = client.get_stats()
    assert numbers["queue_jobs_bytes"] == "4"


def test_what_a_queue_cannot_do_fails_and_the_next_answer_is_the_right_one(client: memcache.Client) -> None:
    client.set("jobs", "a")
    assert not client.add("jobs", "x")
    assert not client.replace("jobs", "x")
    assert not client.append("jobs", "x")
    assert not client.touch("jobs", 1)
    assert client.get("jobs") == "a"


def test_typed_values_keep_their_type_after_the_server_was_killed(server: Server) -> None:
    values = ["text", 42, 2**40, {"a": [1, 2]}, b"bytes"]
    client = connected(server)
    for value in values:
        assert client.set("jobs", value)
    client.disconnect_all()
    server.restart()
    client = connected(server)
    assert [client.get("jobs") for _ in values] == values
    client.disconnect_all()


def test_a_compressed_value_is_still_compressed_after_the_server_was_killed(server: Server) -> None:
    text = "compress me " * 500
    client = connected(server)
    assert client.set("jobs", text, min_compress_len=100)
    client.disconnect_all()
    server.restart()
    client = connected(server)
    assert client.get("jobs") == text
    client.disconnect_all()
