"""pylibmc 1.6, which is libmemcached: blanks before line ends, `gets` for every get once cas is switched on."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server

pytestmark = pytest.mark.programs("python:pylibmc")


def connected(server: Server, **behaviors: Any) -> Any:
    pylibmc = importlib.import_module("pylibmc")
    return pylibmc.Client([f"127.0.0.1:{server.port}"], behaviors={"receive_timeout": 5_000_000, **behaviors})


@pytest.mark.parametrize("cas", [False, True])
def test_items_come_back_in_the_order_they_were_set(server: Server, cas: bool) -> None:
    client = connected(server, cas=cas)
    for number in range(10):
        assert client.set("jobs", str(number))
    assert [client.get("jobs") for _ in range(11)] == [*map(str, range(10)), None]


@pytest.mark.parametrize("cas", [False, True])
def test_a_read_is_opened_closed_and_aborted(server: Server, cas: bool) -> None:
    client = connected(server, cas=cas)
    client.set("jobs", "a")
    client.set("jobs", "b")
    assert client.get("jobs/open") == "a"
    assert client.get("jobs/abort") is None
    assert client.get("jobs/open") == "a"
    assert client.get("jobs/close/open") == "b"
    assert client.get("jobs/close") is None
    assert client.get("jobs") is None


def test_a_wait_ends_when_its_time_is_over_or_an_item_comes(server: Server) -> None:
    client = connected(server)
    with takes_about(WAIT_MS):
        assert client.get(f"jobs/t={WAIT_MS}") is None
    with item_for_the_waiter(server, "jobs", b"here"):
        assert client.get("jobs/t=4000") == b"here"


def test_sets_without_an_answer_leave_the_next_answers_in_step(server: Server) -> None:
    pylibmc = importlib.import_module("pylibmc")
    client = connected(server)
    client.behaviors = {"_noreply": True}
    for number in range(10):
        client.set("jobs", str(number))
    client.behaviors = {"_noreply": False}
    assert [client.get("jobs/t=2000") for _ in range(10)] == [*map(str, range(10))]
    assert isinstance(client, pylibmc.Client)


def test_several_keys_give_one_item_of_each(server: Server) -> None:
    client = connected(server)
    client.set_multi({"a": "1", "b": "2"})
    assert client.get_multi(["a", "b", "empty"]) == {"a": "1", "b": "2"}


def test_delete_and_flush_all_empty_queues(server: Server) -> None:
    client = connected(server)
    client.set("a", "1")
    client.set("b", "2")
    assert client.delete("a")
    assert not client.delete("a")
    assert client.flush_all()
    assert client.get("b") is None


def test_the_numbers_can_be_asked_for(server: Server) -> None:
    client = connected(server)
    client.set("jobs", "four")
    [(_, numbers)] = client.get_stats()
    # libmemcached keeps the numbers that it knows, and drops a queue's own.
    assert (numbers["curr_items"], numbers["bytes"]) == (b"1", b"4")


def test_what_a_queue_cannot_do_is_refused_without_giving_up_the_server(server: Server) -> None:
    pylibmc = importlib.import_module("pylibmc")
    client = connected(server)
    client.set("jobs", "a")
    for wrong in (lambda: client.add("jobs", "x"), lambda: client.incr("jobs"), lambda: client.replace("jobs", "x")):
        with pytest.raises(pylibmc.Error):
            wrong()
    assert client.get("jobs") == "a"


def test_typed_values_keep_their_type_after_the_server_was_killed(server: Server) -> None:
    values = ["text", 42, True, b"bytes", {"a": [1, 2]}]
    client = connected(server)
    for value in values:
        assert client.set("jobs", value)
    client.disconnect_all()
    server.restart()
    client = connected(server)
    assert [client.get("jobs") for _ in values] == values
