"""Commands that visit many queues or drop many items let others go first, and are answered once, in their order."""

from __future__ import annotations

from itertools import pairwise

from broker import wires
from broker.puts import LEGS_AT_ONCE, WIDE_A_TURN
from broker.rounds import QUEUES_A_TURN
from broker.session import SessionState
from broker.version import WIRE_VERSION
from protocol.dialect import Dialect
from queues.item import Item
from queues.sweep import SWEEP_MAX
from tests.protocol.thrift_feeding import call
from tests.sim.world import Client, World

MANY = 3 * QUEUES_A_TURN + 1
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
    assert turns >= MANY // QUEUES_A_TURN
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
    assert turns >= MANY // QUEUES_A_TURN and heard == "OK END"
    assert not any(len(queue.line) for queue in world.broker.queues)
    other.puts("y")
    world.sync()
    assert other.hears() == "STORED"


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
    assert len(world.broker.deadlines) == 0


def test_a_get_put_off_while_its_queue_is_deleted_ends() -> None:
    for get in ("get q/t=1000", "get q/t=1000/n=3"):
        world = World("server.expiration_timer_frequency = 'none'")
        expired_before(world, b"live")
        reader, other = world.client(), world.client()
        reader.sends(f"{get}\r\nversion\r\n".encode())
        assert reader.session.wants_turn
        other.sends(b"delete q\r\n")
        some_turns(world)
        assert reader.hears() == "END VERSION " + WIRE_VERSION, get
        assert len(world.broker.deadlines) == 0


def test_a_collecting_get_whose_queue_is_deleted_in_the_tick_of_its_first_item_ends() -> None:
    world = World()
    reader = Client(world, wires.thrift(Dialect.MEMCACHED))
    world.clients.append(reader)
    reader.sends(call("get", queue_name="q", max_items=3, timeout_msec=1000, auto_abort_msec=0))
    assert reader.session.state is SessionState.PARKED
    other = world.client()
    other.sends(b"set q 0 0 1\r\nx\r\ndelete q\r\n")
    world.turn()
    world.sync()
    assert reader.session.state is SessionState.READY and len(world.broker.deadlines) == 0


def test_many_items_for_many_queues_are_put_some_a_turn_and_the_next_request_waits_one_turn_more() -> None:
    world = World()
    maker = world.client()
    for number in range(LEGS_AT_ONCE + 1):
        maker.sends(f"get q+{number}\r\n".encode())
    world.sync()
    client, count = Client(world, wires.text(Dialect.MEMCACHED)), 10 * WIDE_A_TURN
    world.clients.append(client)
    client.sends(b"put q:\n" + b"x\n" * count + b"\nversion\n")
    put = [len(world.broker.queues.by_name["q+0"].line)]
    while client.session.wants_turn:
        world.turn()
        put.append(len(world.broker.queues.by_name["q+0"].line))
    world.sync()
    assert put[-1] == count and max(later - before for before, later in pairwise([0, *put])) == WIDE_A_TURN
    assert len(put) == count // WIDE_A_TURN + 1
    assert client.hears().startswith(f"+{count}\n:")
