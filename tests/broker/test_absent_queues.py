"""Reading from a queue that nobody has made: it is empty, it can be waited for, and it costs nothing."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.session import SessionState
from staniel.protocol.memcache.requests import Dialect
from staniel.sim.disk.durable import Crash
from staniel.sim.world import end_operations
from tests.support.thrift_calls import call
from tests.support.world import Client, World


def files(world: World) -> set[str]:
    return {name for name, _ in world.disk.list("s") if not name.startswith(".")}


def speaks(world: World, wire: protocols.ProtocolSpec) -> Client:
    client = Client(world, wire)
    world.clients.append(client)
    return client


@pytest.mark.parametrize(
    "get",
    ["get q", "get q/t=1", "get q/open", "get q/peek", "get q/close/open", "get q/n=5", "gets q", "get q r", "mg q v"],
)  # fmt: skip
def test_a_read_makes_neither_a_queue_nor_a_file(get: str) -> None:
    world = World()
    client = world.client().says(get)
    world.turn(20)
    assert client.hears() in ("END", "EN")
    assert not len(world.broker.queues) and not files(world) and not list(world.broker.queues.waiters_by_name)


@pytest.mark.parametrize(
    ("get", "answer"),
    [
        ("get q/t=1000", "VALUE q/t=1000 0 1 x END"),
        ("get q/t=1000/open", "VALUE q/t=1000/open 0 1 x END"),
        ("get q/t=1000/peek", "VALUE q/t=1000/peek 0 1 x END"),
        ("get q/t=1000/n=2", "VALUE q/t=1000/n=2 0 1 x END"),
        ("monitor q 1000 1", "VALUE q 0 1 x END END"),
        ("mg q/t=1000 v", "VA 1 x"),
    ],
)
def test_a_put_finds_who_waits(get: str, answer: str) -> None:
    world = World()
    client = world.client().says(get)
    assert list(world.broker.queues.waiters_by_name) == [("q", 1)] and not files(world)
    world.client().puts("x")
    assert client.hears() == "", "the answer waits for the disk, as the item does"
    world.sync()
    assert client.hears() == answer and not list(world.broker.queues.waiters_by_name)


def test_those_who_wait_are_served_in_their_order_and_opened_items_are_theirs() -> None:
    world = World("default.keep_journal = false")
    first, second, third = (world.client().says("get q/t=1000/open") for _ in range(3))
    second.hangs_up()
    world.client().puts("a").puts("b")
    assert "a" in first.hears() and "b" in third.hears()
    first.says("get q/close")
    third.hangs_up()
    assert world.items() == [b"b"]


def test_a_delete_ends_the_wait() -> None:
    world = World()
    client = world.client().says("get q/t=1000", "version")
    assert world.client().says("delete q").hears() == "DELETED"
    world.turn()
    assert client.hears().startswith("END VERSION") and not list(world.broker.queues.waiters_by_name)
    assert world.client().says("delete q").hears() == "NOT_FOUND"


def test_a_wait_that_ends_leaves_nothing_behind() -> None:
    world = World()
    gone = world.client().says("get a/t=1000")
    late = world.client().says("get b/t=5")
    gone.hangs_up()
    world.turn(20)
    assert late.hears() == "END" and not list(world.broker.queues.waiters_by_name) and not len(world.broker.timers)


def test_a_queue_that_comes_by_a_move_is_found_too() -> None:
    world = World("default.keep_journal = false")
    waiter = world.client().says("get there/t=1000")
    world.client().puts("x").says("move q there")
    end_operations(world)
    assert waiter.hears() == "VALUE there/t=1000 0 1 x END"


def test_an_alias_that_comes_by_a_reload_ends_the_wait() -> None:
    world = World()
    client = world.client().says("get q/t=1000")
    world.config = 'aliases.q = ["a"]'
    world.client().says("reload")
    assert client.hears() == "END"


def test_a_shutdown_answers_who_waits() -> None:
    world = World()
    client = world.client().says("get q/t=1000")
    world.broker.shutdown(world.now_ms)
    client.collect(world.broker.group.durable)
    assert client.hears() == "END"


def test_reading_a_fan_out_child_makes_it() -> None:
    world = World()
    assert world.client().says("get q+a").hears() == "END"
    world.client().puts("x")
    assert world.items("q+a") == [b"x"] and files(world) == {"q", "q+a"}


def test_names_that_no_queue_can_have_are_refused_all_the_same() -> None:
    assert World().client().says("get a.b").hears().startswith("CLIENT_ERROR a queue name")


def test_kestrels_way_is_the_rule_for_its_dialect_and_the_other_protocols() -> None:
    for wire in (protocols.memcache(Dialect.KESTREL), protocols.memcache(Dialect.MEMCACHED, create_on_read=True)):
        world = World()
        speaks(world, wire).says("get q")
        assert files(world) == {"q"}
    world = World()
    speaks(world, protocols.text(Dialect.MEMCACHED)).says("get q")
    speaks(world, protocols.thrift(Dialect.MEMCACHED)).sends(
        call("get", queue_name="r", max_items=1, timeout_msec=0, auto_abort_msec=0)
    )
    assert files(world) == {"q", "r"}


def test_text_and_thrift_can_do_without() -> None:
    world = World()
    text = speaks(world, protocols.text(Dialect.MEMCACHED, create_on_read=False)).says("get q 1000")
    thrift = speaks(world, protocols.thrift(Dialect.MEMCACHED, create_on_read=False))
    thrift.sends(call("get", queue_name="q", max_items=1, timeout_msec=1000, auto_abort_msec=0))
    assert not files(world) and list(world.broker.queues.waiters_by_name) == [("q", 2)]
    world.client().puts("a").puts("b")
    world.sync()
    world.sync()
    assert text.hears() == ":a" and thrift._heard.count(b"b") >= 1


def test_an_item_handed_to_who_waited_is_gone_after_a_crash() -> None:
    world = World()
    client = world.client().says("get q/t=1000")
    world.client().puts("x")
    world.sync()
    assert " x END" in client.hears()
    assert world.crash(Crash.DROP).items() == []


def test_the_end_of_a_wait_for_a_deleted_queue_is_as_safe_as_the_deletion_whatever_others_read_meanwhile() -> None:
    world = World()
    world.client().puts("x")
    world.sync()
    world.client().says("delete q")
    reader = world.client().says("get q/t=20")
    assert world.client().says("get other").hears() == "END"
    world.turn(40)
    assert reader.hears() == "" and reader.session.state is SessionState.READY
    world.sync()
    assert reader.hears() == "END"


def test_what_a_text_client_has_waited_for_has_nothing_to_do_with_what_it_reads_then() -> None:
    world = World()
    reader = speaks(world, protocols.text(Dialect.MEMCACHED, create_on_read=False))
    reader.sends(b"get made 1000\n")
    world.client().puts("x", "made")
    world.sync()
    assert reader.hears() == ":x"
    made = world.broker.queues.by_name["made"]
    misses = made.counters.get_items_miss
    made.line.read_error = OSError(5, "broken", "made")
    reader.sends(b"get other\n")
    world.turn()
    assert reader.hears() == "*" and made.counters.get_items_miss == misses
