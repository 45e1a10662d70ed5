"""pymemcache 4: does not wait for answers to its sets, and waits strictly for every other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pymemcache import serde
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError

from tests.foreign_clients.waiting import WAIT_MS, item_for_the_waiter, takes_about
from tests.support.process import Server, until
from tests.support.wire import stats

Connect = Callable[..., Client]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    made = []

    def connect(**options: object) -> Client:
        client = Client(server.address, timeout=30, **options)
        made.append(client)
        return client

    yield connect
    for client in made:
        client.close()


@pytest.mark.parametrize("noreply", [True, False])
def test_items_come_back_in_the_order_they_were_set(connect: Connect, noreply: bool) -> None:
    client = connect(default_noreply=noreply)
    for number in range(20):
        assert client.set("jobs", b"%d" % number)
    assert [client.get("jobs") for _ in range(21)] == [*(b"%d" % number for number in range(20)), None]


def test_a_read_is_opened_closed_and_aborted(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set("jobs", b"a")
    client.set("jobs", b"b")
    assert client.get("jobs/open") == b"a"
    assert client.get("jobs/abort") is None
    assert client.get("jobs/open") == b"a"
    assert client.get("jobs/close/open") == b"b"
    assert client.get("jobs/close") is None
    assert client.get("jobs") is None


def test_open_reads_are_ended_by_their_ids_in_any_order(connect: Connect) -> None:
    client, other = connect(default_noreply=False), connect(default_noreply=False)
    for data in (b"a", b"b", b"c"):
        client.set("jobs", data)
    ids = [client.gets("jobs/open")[1] for _ in range(3)]
    assert client.delete(b"jobs/id=" + ids[1]) is True
    assert client.delete(b"jobs/id=" + ids[1]) is False
    assert client.touch(b"jobs/id=" + ids[0]) is True
    assert client.touch(b"jobs/id=" + ids[2] + b"/abort") is True
    with pytest.raises(MemcacheClientError, match="open on another connection"):
        other.delete(b"jobs/id=" + ids[0])
    client.close()
    assert [other.get("jobs") for _ in range(3)] == [b"a", b"c", None]


def test_an_open_read_of_a_client_that_goes_away_is_somebody_elses(server: Server, connect: Connect) -> None:
    worker, other = connect(), connect()
    worker.set("jobs", b"a", noreply=False)
    assert worker.get("jobs/open") == b"a"
    worker.close()
    assert other.get(f"jobs/t={5000}") == b"a"


def test_a_wait_ends_without_an_item_when_its_time_is_over(connect: Connect) -> None:
    with takes_about(WAIT_MS):
        assert connect().get(f"jobs/t={WAIT_MS}/open") is None


def test_a_wait_ends_with_the_item_that_comes(server: Server, connect: Connect) -> None:
    with item_for_the_waiter(server, "jobs", b"here"):
        assert connect().get("jobs/t=4000/open") == b"here"


def test_several_keys_give_one_item_of_each(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set_many({"a": b"1", "b": b"2"})
    assert client.get_many(["a", "b", "empty"]) == {"a": b"1", "b": b"2"}
    client.set("a", b"3")
    value, unique = client.gets("a")
    assert value == b"3" and unique is not None


def test_a_deleted_queue_is_empty_and_unknown(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set("jobs", b"a")
    assert client.delete("jobs") is True
    assert client.delete("jobs") is False
    assert client.get("jobs") is None


def test_flush_all_empties_every_queue(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set_many({"a": b"1", "b": b"2"})
    assert client.flush_all() is True
    assert client.get_many(["a", "b"]) == {}


def test_the_server_tells_its_version_and_its_numbers(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set("jobs", b"four")
    assert client.version().count(b".") >= 2
    numbers = client.stats()
    assert numbers[b"curr_items"] == 1
    assert numbers[b"queue_jobs_bytes"] == 4


def test_an_item_may_say_when_it_expires(server: Server, connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set("jobs", b"old", expire=-1)
    client.set("jobs", b"long", expire=3600)
    assert client.get("jobs") == b"long"


def test_what_a_queue_cannot_do_is_refused_and_the_next_answer_is_the_right_one(connect: Connect) -> None:
    client = connect(default_noreply=False)
    client.set("jobs", b"a")
    for wrong in (
        lambda: client.add("jobs", b"x"),
        lambda: client.replace("jobs", b"x"),
        lambda: client.append("jobs", b"x"),
        lambda: client.cas("jobs", b"x", b"1"),
        lambda: client.incr("jobs", 1),
    ):
        with pytest.raises(MemcacheClientError):
            wrong()
    assert client.get("jobs") == b"a"


def test_refusals_nobody_waits_for_leave_the_answers_in_step(connect: Connect) -> None:
    client = connect()
    client.add("jobs", b"x")
    client.touch("jobs", 1)
    client.set("jobs", b"a")
    assert client.get("jobs") == b"a"


def test_typed_values_keep_their_type_after_the_server_was_killed(server: Server, connect: Connect) -> None:
    values = [b"bytes", "text", 42, {"a": [1, 2.5]}]
    client = connect(serde=serde.pickle_serde)
    for value in values:
        client.set("jobs", value, noreply=False)
    client.close()
    server.restart()
    client = connect(serde=serde.pickle_serde)
    assert [client.get("jobs") for _ in values] == values


def test_a_key_with_a_blank_never_leaves_the_client(connect: Connect) -> None:
    with pytest.raises(MemcacheIllegalInputError):
        connect().get("jobs open")


def test_sets_without_an_answer_are_stored_although_the_client_leaves_at_once(server: Server, connect: Connect) -> None:
    client = connect()
    for number in range(100):
        client.set("jobs", b"%d" % number)
    client.quit()
    assert until(lambda: stats(server.address).get("queue_jobs_items") == "100")
