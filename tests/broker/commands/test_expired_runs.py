"""Long runs of expired items at the head: none costs the others a turn or memory, and none hides what is behind it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from staniel.broker import broker, protocols, transfers
from staniel.broker.timers import SLOT_MS
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.interfaces import Reason
from staniel.queues.item import Item
from staniel.queues.queue import SEND_MAX, SWEEP_MAX, QueueState
from staniel.sim.disk.disk import CAPACITY_BYTES, Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS
from staniel.sim.world import World as SlowWorld
from tests.support.streams import all_of, fill, settle
from tests.support.thrift_calls import call
from tests.support.world import Client, World

MANY = 45_000
EXPIRING = 'queues.q.expire_to_queue = "late"\n'


def with_expired(count: int, size: int = 1, config: str = "") -> World:
    """`count` items of the same second, which is over."""
    world = World(config)
    queue = world.broker.queues.make("q", world.now_ms)
    data = b"x" * size
    for _ in range(count):
        queue.add(Item(data, world.now_ms, world.now_ms + 1000), world.now_ms)
    world.turn()
    settle(world)
    world.now_ms += 2500
    return world


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("get q", "VALUE q 0 4 live END"),
        ("get q/peek", "VALUE q/peek 0 4 live END"),
        ("get q/open", "VALUE q/open 0 4 live END"),
        ("get q nothing", "VALUE q 0 4 live END"),
        ("get q/close/open", "VALUE q/close/open 0 4 live END"),
        ("monitor q 1 1", "VALUE q 0 4 live END END"),
        ("mg q v", "VA 4 live"),
    ],
)
def test_items_behind_many_expired_ones_are_found_by_every_read(line: str, answer: str) -> None:
    world = with_expired(MANY, config='server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\n')
    world.broker.queues.by_name["q"].add(Item(b"live", world.now_ms), world.now_ms - 2500)
    client = world.client().says(line)
    for _ in range(10):
        world.turn()
    assert client.hears() == answer


def test_so_they_are_by_a_text_client_and_a_move() -> None:
    for ask, answer in ((b"get q\n", ":live"), (b"peek q\n", ":live"), (b"monitor q 5\n", ":live")):
        world = with_expired(MANY, config='server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\n')
        world.broker.queues.by_name["q"].add(Item(b"live", world.now_ms), world.now_ms - 2500)
        client = Client(world, protocols.text(Dialect.MEMCACHED))
        world.clients.append(client)
        client.sends(ask)
        for _ in range(10):
            world.turn()
        assert client.hears().startswith(answer), ask
    world = with_expired(MANY, config='server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\n')
    world.broker.queues.by_name["q"].add(Item(b"live", world.now_ms), world.now_ms - 2500)
    client = world.client().says("move q there")
    for _ in range(10):
        world.turn()
        world.sync()  # of the operation's file
    assert client.hears() == "MOVED 1"


@pytest.mark.parametrize("line", ["get q/n=3", "get q/n=3/open", "gets q"])
def test_so_they_are_by_a_get_of_several_items(line: str) -> None:
    world = with_expired(MANY, config='server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\n')
    world.broker.queues.by_name["q"].add(Item(b"live", world.now_ms), world.now_ms - 2500)
    client = world.client().says(line)
    for _ in range(10):
        world.turn()
    assert " 4 " in client.hears() and not len(world.broker.queues.by_name["q"].line)


@pytest.mark.parametrize(
    "request_",
    [
        call("get", queue_name="q", max_items=1, timeout_msec=0, auto_abort_msec=0),
        call("get", queue_name="q", max_items=3, timeout_msec=0, auto_abort_msec=1000),
        call("get", queue_name="q", max_items=3, timeout_msec=5, auto_abort_msec=0),
        call("peek", queue_name="q"),
    ],
    ids=["get", "get with leases", "get that waits", "peek"],
)
def test_so_they_are_by_a_thrift_client(request_: bytes) -> None:
    world = with_expired(MANY, config='server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\n')
    world.broker.queues.by_name["q"].add(Item(b"live", world.now_ms), world.now_ms - 2500)
    client = Client(world, protocols.thrift(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(request_)
    for _ in range(10):
        world.turn()
    world.turn(20)
    assert client._heard.count(b"live") == 1


@pytest.mark.parametrize("size", [10_000, 1])
def test_what_expires_into_another_queue_goes_in_slices_that_memory_holds(size: int) -> None:
    world = with_expired(2000, size, EXPIRING + 'default.max_memory_size = "1MB"\n')
    queue, late = (world.broker.queues.by_name[name] for name in ("q", "late"))
    most = pending = 0
    for _ in range(2000):
        before = len(late.line)
        world.turn(8)
        pending = max(pending, len(late.line) - before)
        most = max(most, queue.in_transfer_bytes)
        world.sync()
        if len(late.line) == 2000:
            break
    assert len(late.line) == 2000 and most <= transfers.ASIDE_BYTES_MAX and 0 < pending <= SEND_MAX
    settle(world)
    assert not len(world.crash(Crash.DROP).broker.queues.by_name["q"].line)


SENDERS = [f"q{number}" for number in range(6)]
ALL_EXPIRE = "".join(f'queues.{name}.expire_to_queue = "late"\n' for name in SENDERS)


def nearly_full(room_bytes: int) -> Disk:
    """The disk of a server that was killed: six queues have 900 KB each that is to go to another queue, and with what
    the reserve takes there is so much room for it.
    """
    world = World(ALL_EXPIRE)
    for name in SENDERS:
        queue = world.broker.queues.make(name, world.now_ms)
        for _ in range(90):
            queue.add(Item(bytes(10_000), world.now_ms, world.now_ms + 1000), world.now_ms)
        world.turn()
        settle(world)
    world.disk.capacity_bytes = world.disk.used_bytes - world.broker.group.ballast.bytes + room_bytes
    return world.disk.kill()


@pytest.mark.parametrize("when", ["during the start", "in service"])
@pytest.mark.parametrize("room_bytes", range(2_500_000, 6_000_000, 500_000))
def test_what_expires_into_another_queue_is_admitted_like_a_put_and_a_full_disk_ends_nothing(
    room_bytes: int, when: str
) -> None:
    disk = nearly_full(room_bytes)
    world = World(ALL_EXPIRE, disk, START_MS + (5000 if when == "during the start" else 0))
    world.turn(3000)
    for _ in range(10):
        world.turn(500)
        settle(world)
    late = world.broker.queues.by_name["late"].line
    assert 0 < len(late) < 540 and "disk.full" in world.events
    disk.capacity_bytes = CAPACITY_BYTES
    for _ in range(20):
        world.turn(500)
        settle(world)
    assert len(late) == 540 == len(world.crash(Crash.DROP).broker.queues.by_name["late"].line)


def test_items_whose_target_is_refused_do_not_pile_up_in_memory_and_are_told_of_seldom() -> None:
    world = with_expired(3000, 1000, EXPIRING)
    del world.broker.queues.by_name["late"]
    world.broker.queues.block("late", "it cannot be read")
    queue = world.broker.queues.by_name["q"]
    for _ in range(30):
        world.turn(500)
        settle(world)
    assert queue.in_transfer_bytes <= transfers.ASIDE_BYTES_MAX
    assert len(queue.line) + len(queue.in_transfer) == 3000
    assert world.events.count("transfer.stuck") == 2  # in 15 seconds
    del world.broker.queues.blocked["late"]
    for _ in range(100):
        world.turn(500)
        settle(world)
    assert len(world.broker.queues.by_name["late"].line) == 3000 and not queue.in_transfer


def test_what_has_no_place_to_go_is_tried_again_without_the_expiration_timer() -> None:
    world = World('server.expiration_timer_frequency = "none"\n')
    fill(world, "a")
    world.broker.queues.block("there", "it cannot be read")
    queue = world.broker.queues.by_name["q"]
    world.broker.transfers.accept(queue, queue.open_head_for_transfer(), Reason.MOVED, world.now_ms, "there")
    assert world.broker.next_ms() == world.now_ms + 1000
    world.turn(1000)
    assert "transfer.stuck" in world.events
    del world.broker.queues.blocked["there"]
    world.turn(1000)
    settle(world)
    assert all_of(world, "there") == ["a"] and world.broker.next_ms() > world.now_ms + 10_000


def test_a_queue_whose_name_is_not_utf8_can_have_a_queue_for_what_expires() -> None:
    world = World()
    fill(world, "a", queue="q")
    settle(world)
    disk = world.disk.crash(Crash.KEEP)
    disk.rename("s/q", "s/q\udcff")
    again = World('default.max_age = "1s"\ndefault.expire_to_queue = "late"\n', disk, world.now_ms + 5000)
    for _ in range(5):
        again.turn(1000)
        settle(again)
    assert all_of(again, "late") == [] or all_of(again, "late") == ["a"]
    assert not len(again.broker.queues.by_name["q\udcff"].line)


@pytest.mark.parametrize(
    "line",
    ["get q", "get q/open", "get q/n=3", "mg q v", "get q/t=100", "get none q", "flush_expired q", "flush_all_expired"],
)
def test_nobody_asks_again_in_every_turn_while_what_has_expired_waits_for_a_slow_sync(line: str) -> None:
    world = SlowWorld(EXPIRING)
    client = world.client()
    for _ in range(150):
        client.says("set q 0 1 10000", "x" * 10_000)
    client.puts("good")
    while world.sync():
        world.turn()
    client.hears()
    world.now_ms += 5000
    client.says(line)
    sync = world.start_sync()
    assert sync is not None
    asked = 0
    for _ in range(50):
        world.turn(1)
        asked += client.session.wants_turn
    assert asked <= 2 and not client.hears()
    sync.run()
    world.finish_sync(sync)
    for _ in range(20):
        world.turn()
        world.sync()
    assert (" 4" if "get" in line or "mg" in line else "150") in client.hears() and len(world.items("late")) == 150


def test_queues_are_aged_some_a_turn_and_each_of_them_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "EXPIRED_QUEUES_PER_TURN", 3 * broker.CHANGED_COST)
    world = World('default.keep_journal = false\nserver.expiration_timer_frequency = "1s"\n')
    for number in range(8):
        world.broker.queues.make(f"q{number}", world.now_ms).add(
            Item(b"x", world.now_ms, world.now_ms + 10), world.now_ms
        )
    world.now_ms += 2000
    left = []
    for _ in range(3):
        world.turn()
        left.append(sum(len(queue.line) for queue in world.broker.queues))
        assert (world.broker.next_ms() <= world.now_ms) is (len(left) < 3)
    assert left == [5, 2, 0]


@pytest.mark.parametrize(
    ("settings", "items", "most"),
    [
        ("", 100, 10),  # each is a record in a file
        ('default.expire_to_queue = "late"\n', 10, 7),
        ('default.max_queue_age = "1s"\n', 0, 20),  # each is a file that is removed
        ("", 0, 1000),
    ],
    ids=["expired", "sent", "gone", "nothing"],
)
def test_a_turn_ages_fewer_queues_if_something_happens_to_them(settings: str, items: int, most: int) -> None:
    world = World(f'server.expiration_timer_frequency = "1s"\ndefault.sync_journal = "os"\n{settings}')
    queues = [world.broker.queues.make(f"q{number}", world.now_ms) for number in range(60)]
    world.turn()
    world.now_ms += 500
    for queue in queues:
        for _ in range(items):
            queue.add(Item(b"x", world.now_ms, world.now_ms + 10), world.now_ms)
    world.now_ms += 2000
    done = [0]
    while world.broker._to_expire or len(done) == 1:
        SlowWorld.turn(world)
        done.append(sum(queue.state is QueueState.CLOSED or len(queue.line) < items for queue in queues))
    assert max(later - before for before, later in pairwise(done)) <= most
    assert done[-1] == (60 if items or "age" in settings else 0) and len(done) - 1 >= 60 / most


def test_expired_items_of_many_queues_go_some_a_turn_when_their_timers_ring_together() -> None:
    world = SlowWorld('default.keep_journal = false\nserver.expiration_timer_frequency = "none"\n')
    queues = [world.broker.queues.make(f"q{number}", world.now_ms) for number in range(4)]
    for queue in queues:
        for _ in range(SWEEP_MAX + 5):
            queue.add(Item(b"x", world.now_ms, world.now_ms + 10), world.now_ms)
        queue.ring_at(world.now_ms + 1000)
    left = [sum(len(queue.line) for queue in queues)]
    world.turn(2000)
    while left[-1]:
        left.append(sum(len(queue.line) for queue in queues))
        assert not left[-1] or world.broker.next_ms() <= world.now_ms + SLOT_MS
        world.turn(1)
    assert max(before - later for before, later in pairwise(left)) <= SWEEP_MAX + 20


@pytest.mark.parametrize("before", ["none", "1h"])
def test_a_reload_that_makes_the_expiration_timer_more_frequent_is_heard_at_once(before: str) -> None:
    world = World(f'server.expiration_timer_frequency = "{before}"\ndefault.keep_journal = false\n')
    world.turn()
    world.config = 'server.expiration_timer_frequency = "1s"\ndefault.keep_journal = false\n'
    world.client().says("reload")
    queue = world.broker.queues.make("q", world.now_ms)
    queue.add(Item(b"x", world.now_ms, world.now_ms + 500), world.now_ms)
    assert world.broker.next_ms() <= world.now_ms + 1000
    world.turn(1000)
    assert not len(queue.line)
