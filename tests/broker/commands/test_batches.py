"""Commands that visit many queues or drop many items let others go first, and are answered once, in their order."""

from __future__ import annotations

import operator
from itertools import pairwise

import pytest

from staniel.broker import protocols
from staniel.broker.commands.batches import QUEUES_PER_TURN
from staniel.broker.commands.puts import TARGETS_AT_ONCE, WIDE_PER_TURN
from staniel.broker.commands.thrift import LEASES_PER_TURN
from staniel.broker.session import SessionState
from staniel.broker.version import WIRE_VERSION
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item
from staniel.queues.queue import COUNTED_PER_TURN, SWEEP_MAX
from staniel.sim.disk.durable import Crash
from tests.support.streams import LIB
from tests.support.thrift_calls import call, hear
from tests.support.world import Client, World

MANY = 3 * QUEUES_PER_TURN + 1
MANY_ITEMS = 4 * COUNTED_PER_TURN
EXPIRED = 2 * SWEEP_MAX + 7


def many_queues(world: World) -> None:
    client = world.client()
    for number in range(MANY):
        client.puts("x", f"q{number}")
    world.sync()


def turns_until_heard(world: World, *lines: str) -> tuple[int, str]:
    """How many turns a client's request took, and all that it was told."""
    client, turns, heard = world.client(), 1, ""
    client.says(*lines)
    world.sync()
    while client.session.wants_turn:
        world.turn()
        world.sync()
        turns += 1
    heard += client.hears()
    return turns, heard


def test_statistics_of_many_queues_take_several_turns_and_are_one_answer() -> None:
    world = World()
    many_queues(world)
    turns, heard = turns_until_heard(world, "stats", "version")
    assert turns >= MANY // QUEUES_PER_TURN
    assert all(f"STAT queue_q{number}_items 1 " in heard for number in range(MANY))
    head, version = heard.split(" END ")
    assert head.startswith("STAT uptime") and version.startswith("VERSION")


def test_short_statistics_leave_in_one_piece_however_many_turns_they_took() -> None:
    world = World()
    many_queues(world)
    client = world.client()
    client.says("stats")
    world.sync()
    heard = [client.hears()]
    while client.session.wants_turn:
        world.turn()
        world.sync()
        heard.append(client.hears())
    assert len(heard) > 1 and heard[-1].endswith("END") and not any(heard[:-1])


def test_flushing_many_queues_takes_several_turns_and_others_are_served_between() -> None:
    world = World()
    many_queues(world)
    other = world.client()
    turns, heard = turns_until_heard(world, "flush_all", "get q0")
    assert turns >= MANY // QUEUES_PER_TURN and heard == "OK END"
    assert not any(len(queue.line) for queue in world.broker.queues)
    other.puts("y")
    world.sync()
    assert other.hears() == "STORED"


@pytest.mark.parametrize("settings", ["", LIB])
def test_a_queue_that_is_deleted_while_all_are_flushed_is_left_out(settings: str) -> None:
    world = World(settings)
    many_queues(world)
    client, other = world.client(), world.client()
    client.says("flush_all")
    other.says(f"delete q{MANY - 1}")
    world.sync()
    assert other.hears() == "DELETED" and client.session.wants_turn
    while client.session.wants_turn:
        world.turn()
        world.sync()
    assert client.hears() == "OK"


def fill(world: World, name: str, count: int) -> None:
    queue = world.broker.queues.make(name, world.now_ms)
    for _ in range(count):
        queue.add(Item(b"x", world.now_ms), world.now_ms)


@pytest.mark.parametrize("request_line", ["flush q", "flush_all"])
def test_a_flush_of_many_items_takes_several_turns_and_all_that_is_there_at_its_end(request_line: str) -> None:
    world = World()
    fill(world, "q", 6 * COUNTED_PER_TURN)
    queue = world.broker.queues.by_name["q"]
    client, other = world.client(), world.client()
    client.says(request_line, "get q")
    other.puts("late", "q")
    assert len(queue.line) == 6 * COUNTED_PER_TURN + 1
    turns = 1
    while client.session.wants_turn:
        world.turn()
        turns += 1
    world.sync()
    heard = client.hears()
    assert turns >= 3 and heard in ("END END", "OK END"), heard
    assert not len(queue.line)


def test_a_flush_ends_though_more_is_put_in_every_turn_than_is_counted() -> None:
    world = World("default.sync_journal = 'os'")
    fill(world, "q", 3 * COUNTED_PER_TURN)
    client, turns = world.client(), 0
    client.sends(b"flush q\r\n")
    while client.session.wants_turn and turns < 10:
        fill(world, "q", COUNTED_PER_TURN + 100)
        world.turn()
        turns += 1
    world.sync()
    assert turns < 10 and client.hears() == "END"


def test_a_flush_of_many_items_leaves_all_or_nothing_behind() -> None:
    world = World("default.sync_journal = 'always'")
    fill(world, "q", MANY_ITEMS)
    world.turn()
    world.sync()
    client = world.client()
    client.says("flush q")
    assert client.session.wants_turn and not client.hears()
    assert len(world.crash(Crash.DROP).broker.queues.by_name["q"].line) == MANY_ITEMS
    while client.session.wants_turn:
        world.turn()
    world.sync()
    assert client.hears() == "END"
    assert not len(world.crash(Crash.DROP).broker.queues.by_name["q"].line)


def test_a_flush_ends_though_its_queue_is_deleted_meanwhile() -> None:
    for line in ("flush q", "flush_all"):
        world = World()
        fill(world, "q", MANY_ITEMS)
        client, other = world.client(), world.client()
        client.says(line, "version")
        assert client.session.wants_turn
        other.says("delete q")
        while client.session.wants_turn:
            world.turn()
        world.sync()
        assert client.hears().endswith(f" VERSION {WIRE_VERSION}")


def expired_before(world: World, live: bytes) -> None:
    """Queue q holds many items that have expired, and a live one behind them."""
    queue = world.broker.queues.make("q", world.now_ms)
    for _ in range(EXPIRED):
        queue.add(Item(b"old", world.now_ms, world.now_ms + 1), world.now_ms)
    queue.add(Item(live, world.now_ms), world.now_ms)
    world.now_ms += 10


def test_an_item_behind_many_expired_ones_is_found_a_few_turns_later() -> None:
    for get in ("get q", "get q/open", "get q/peek", "get q/t=1000"):
        world = World("server.expiration_timer_frequency = 'none'")
        expired_before(world, b"live")
        turns, heard = turns_until_heard(world, get, "version")
        assert turns > 1 and " live END VERSION" in heard, get


def test_flush_expired_drops_all_that_has_expired_and_counts_it() -> None:
    world = World("server.expiration_timer_frequency = 'none'")
    expired_before(world, b"live")
    turns, heard = turns_until_heard(world, "flush_expired q", "get q")
    assert turns > 1 and heard.startswith(f"{EXPIRED} VALUE q 0 4 live")


def test_flush_all_expired_heeds_the_sweep_limit_of_each_queue() -> None:
    world = World("server.expiration_timer_frequency = 'none'\nqueues.q.max_expire_sweep = 5")
    expired_before(world, b"live")
    assert turns_until_heard(world, "flush_all_expired")[1] == "5"


def test_what_the_timer_has_not_dropped_yet_is_dropped_soon_after() -> None:
    world = World()
    expired_before(world, b"live")
    world.turn()
    for _ in range(5):
        world.turn(10)
    assert [*map(len, (world.broker.queues.by_name["q"].line,))] == [1]


def full_of_large_items(world: World, count: int) -> None:
    client = world.client()
    for _ in range(count):
        client.sends(b"set q 0 0 600000\r\n%b\r\n" % bytes(600_000))
    world.turn()
    world.sync()


def some_turns(world: World) -> None:
    """No time passes."""
    for _ in range(3):
        world.turn()
        world.sync()


def test_a_monitor_put_off_while_its_queue_is_deleted_ends() -> None:
    world = World()
    full_of_large_items(world, 4)
    reader, other = world.client(), world.client()
    reader.sends(b"monitor q 1000 4\r\nversion\r\n")
    assert reader.session.wants_turn  # it has others go first
    other.sends(b"delete q\r\n")
    some_turns(world)
    assert reader.hears().endswith("END VERSION " + WIRE_VERSION)
    assert len(world.broker.timers) == 0


@pytest.mark.parametrize("get", ["get q", "get q/n=3", "mg q v"])
def test_a_get_put_off_while_its_queue_is_deleted_ends(get: str) -> None:
    world = World("server.expiration_timer_frequency = 'none'")
    expired_before(world, b"live")
    reader = world.client()
    reader.sends(f"{get}\r\nversion\r\n".encode())
    assert reader.session.wants_turn
    world.client().sends(b"delete q\r\n")
    some_turns(world)
    assert reader.hears() == ("EN" if "mg" in get else "END") + " VERSION " + WIRE_VERSION
    assert len(world.broker.timers) == 0


@pytest.mark.parametrize("get", ["get q/t=1000", "get q/t=1000/n=3", "mg q/t=1000 v"])
@pytest.mark.parametrize("end", ["time", "put", "delete"])
def test_one_that_waits_then_waits_for_a_queue_of_that_name_and_not_for_the_dead_one(get: str, end: str) -> None:
    world = World("server.expiration_timer_frequency = 'none'")
    expired_before(world, b"live")
    reader, other = world.client(), world.client()
    reader.sends(f"{get}\r\nversion\r\n".encode())
    assert reader.session.wants_turn
    other.sends(b"delete q\r\n")
    some_turns(world)
    assert list(world.broker.queues.waiters_by_name) == [("q", 1)] and not reader.hears()
    if end == "time":
        world.turn(1100)
    elif end == "put":
        other.puts("new")
    else:
        other.says("delete q")
    some_turns(world)
    heard = reader.hears()
    assert heard.endswith(" VERSION " + WIRE_VERSION) and ("new" in heard) is (end == "put")
    assert not list(world.broker.queues.waiters_by_name) and len(world.broker.timers) == 0


def test_a_collecting_get_whose_queue_is_deleted_in_the_tick_of_its_first_item_ends() -> None:
    world = World()
    reader = Client(world, protocols.thrift(Dialect.MEMCACHED))
    world.clients.append(reader)
    reader.sends(call("get", queue_name="q", max_items=3, timeout_msec=1000, auto_abort_msec=0))
    assert reader.session.state is SessionState.PARKED
    other = world.client()
    other.sends(b"set q 0 0 1\r\nx\r\ndelete q\r\n")
    world.turn()
    world.sync()
    assert reader.session.state is SessionState.READY and len(world.broker.timers) == 0


def test_many_items_for_many_queues_are_put_some_a_turn_and_the_next_request_waits_one_turn_more() -> None:
    world = World()
    maker = world.client()
    for number in range(TARGETS_AT_ONCE + 1):
        maker.sends(f"get q+{number}\r\n".encode())
    world.sync()
    client, count = Client(world, protocols.text(Dialect.MEMCACHED)), 10 * WIDE_PER_TURN
    world.clients.append(client)
    client.sends(b"put q:\n" + b"x\n" * count + b"\nversion\n")
    put = [len(world.broker.queues.by_name["q+0"].line)]
    while client.session.wants_turn:
        world.turn()
        put.append(len(world.broker.queues.by_name["q+0"].line))
    world.sync()
    assert put[-1] == count and max(later - before for before, later in pairwise([0, *put])) == WIDE_PER_TURN
    assert len(put) == count // WIDE_PER_TURN + 1
    assert client.hears().startswith(f"+{count}\n:")


@pytest.mark.parametrize("method", ["confirm", "abort"])
def test_a_lease_is_ended_under_the_name_of_its_queue_alone(method: str) -> None:
    world = World()
    fill(world, "q", 1)
    client = Client(world, protocols.thrift(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(call("get", queue_name="q", max_items=1, timeout_msec=0, auto_abort_msec=60_000))
    world.turn()
    world.sync()
    for name, count in (("other", 0), ("q+child", 0), ("q", 1)):
        client._heard = b""
        client.sends(call(method, queue_name=name, ids=[1]))
        world.turn()
        world.sync()
        assert hear(client._heard)[2].success == count, name


@pytest.mark.parametrize("method", ["confirm", "abort"])
def test_very_many_leases_are_ended_some_a_turn_and_counted_once(method: str) -> None:
    world = World("server.max_open_transactions = 10000")
    count = 3 * LEASES_PER_TURN + 1
    fill(world, "q", count)
    queue = world.broker.queues.by_name["q"]
    items = queue.line.items()
    client = Client(world, protocols.thrift(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(call("get", queue_name="q", max_items=count, timeout_msec=0, auto_abort_msec=60_000))
    world.turn()
    world.sync()
    assert len(queue.open_reads) == count
    client._heard = b""
    client.sends(call(method, queue_name="q", ids=[*range(1, count + 1), -1]))
    opened = [count, len(queue.open_reads)]
    while client.session.wants_turn or queue.batched_aborts.groups:
        world.turn()
        opened.append(len(queue.open_reads))
    assert max(before - after for before, after in pairwise(opened)) <= LEASES_PER_TURN and not opened[-1]
    world.sync()
    assert hear(client._heard)[2].success == count
    left = queue.line.items()
    assert len(left) == (count if method == "abort" else 0) and all(map(operator.is_, left, items))


def test_who_asks_while_very_many_leases_are_aborted_gets_the_first_item() -> None:
    world = World("server.max_open_transactions = 10000")
    count = 3 * LEASES_PER_TURN + 1
    queue = world.broker.queues.make("q", world.now_ms)
    for number in range(count):
        queue.add(Item(b"%05d" % number, world.now_ms), world.now_ms)
    client, asker = Client(world, protocols.thrift(Dialect.MEMCACHED)), world.client()
    world.clients.append(client)
    client.sends(call("get", queue_name="q", max_items=count, timeout_msec=0, auto_abort_msec=60_000))
    world.turn()
    world.sync()
    client.sends(call("abort", queue_name="q", ids=[*range(1, count + 1)]))
    asker.sends(b"get q\r\n")
    for _ in range(6):
        world.turn()
        world.sync()
    assert asker.hears() == "VALUE q 0 5 00000 END"
    assert world.items() == [b"%05d" % number for number in range(1, count)]
