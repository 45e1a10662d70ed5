"""A dead letter keeps its past: over restarts, power cuts, moves, undo, rewrites and read-behind."""

from __future__ import annotations

import msgspec
import pytest

from staniel.broker.admin.browse import PastView, browse
from staniel.journal.undo_file import UndoItem, read_items, slice_frame
from staniel.queues.item import Item, item_with
from staniel.queues.past import Past, Why, next_past, past_of
from staniel.sim.disk.durable import Crash
from staniel.sim.world import START_MS
from tests.broker.operations.test_undo import asked
from tests.support.world import World

CONFIG = '[queues.q]\nmax_deliveries = 2\ndead_letter_queue = "dead"\n'
EXPIRING = '[queues.q]\nmax_age = "1s"\nexpire_to_queue = "late"\n'
SMALL = "[default]\nmax_memory_size = 200\ndefault_journal_size = 600\nmax_journal_size = 2000\n"
SMALL += "min_journal_compact_delay = 1\n"


def settled(world: World) -> World:
    for _ in range(4):
        world.turn(1)
        while world.sync():
            world.turn()
    return world


def die(world: World, *items: str) -> None:
    """Put these, and abort each twice."""
    client = world.client()
    client.session.address = "192.0.2.7:4711"
    for data in items:
        world.turn(1)
        client.puts(data)
        for _ in range(2):
            client.says("get q/open", "get q/abort")
    settled(world)


def shown(world: World, queue: str = "dead") -> list[tuple[str, PastView | None]]:
    page = browse(world.broker.queues.by_name[queue], world.now_ms, 0, 100)
    return [(item.data, item.past) for item in page.items]


def one(world: World, queue: str = "dead") -> PastView:
    ((_, past),) = shown(world, queue)
    assert past is not None
    return past


def test_a_dead_letter_tells_where_it_comes_from() -> None:
    world = World(CONFIG)
    world.turn(500)
    client = world.client()
    client.session.address = "192.0.2.7:4711"
    client.puts("a")
    world.turn(250)
    client.says("get q/open", "get q/abort", "get q/open")
    world.turn(250)
    client.says("get q/abort")
    settled(world)
    assert one(world) == PastView(
        origin="q",
        reason="dead",
        deliveries=2,
        put_at_ms=START_MS + 500,
        left_at_ms=START_MS + 1000,
        client="192.0.2.7:4711",
        times=1,
    )


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP, None])
def test_it_is_kept_over_restarts(how: Crash | None) -> None:
    world = World(CONFIG)
    die(world, "a")
    before = one(world)
    for _ in range(3):
        world = World(world.config, world.disk.kill() if how is None else world.disk.crash(how), world.now_ms + 1000)
        assert one(world) == before


def test_one_that_died_with_the_server_does_not_know_its_last_client() -> None:
    world = World(CONFIG)
    client = world.client()
    client.session.address = "192.0.2.7:4711"
    client.puts("a").says("get q/open", "get q/abort", "get q/open")
    world.sync()
    past = one(settled(World(world.config, world.disk.kill(), world.now_ms + 1000)))
    assert (past.deliveries, past.client) == (2, "")


def test_an_item_that_expires_into_another_queue_gets_no_past() -> None:
    world = World(EXPIRING)
    client = world.client()
    client.session.address = "192.0.2.7:4711"
    client.puts("a").puts("b").says("get q/open", "get q/abort")
    world.turn(1500)
    settled(world)
    assert [past for _, past in shown(world, "late")] == [None, None]


def test_its_client_reads_it_as_it_was_put() -> None:
    world = World(CONFIG)
    client = world.client().says("set q 77 0 1", "a")
    for _ in range(2):
        client.says("get q/open", "get q/abort")
    settled(world)
    client.hears()
    client.says("get dead")
    world.sync()
    assert client.hears() == "VALUE dead 77 1 a END"


def test_moving_it_takes_its_past_along_and_undoing_that_brings_it_back() -> None:
    world = World(CONFIG)
    die(world, "a")
    before = one(world)
    client = world.client()
    client.says("move dead triage")
    settled(world)
    assert one(world, "triage") == before
    client.says("move triage dead")
    settled(world)
    assert one(settled(World(CONFIG, world.disk.kill(), world.now_ms + 1))) == before


def test_the_undo_of_a_move_brings_it_back() -> None:
    world = World(CONFIG)
    die(world, "a", "b")
    before = shown(world)
    asked(world, "POST", "/api/queues/dead/move", {"to": "triage"})
    assert [past for _, past in shown(world, "triage")] == [past for _, past in before] and not world.items("dead")
    (record,) = asked(world, "GET", "/api/undo")[1]
    asked(world, "POST", f"/api/undo/{record['id']}")
    assert shown(world) == before


def test_the_undo_of_a_purge_brings_it_back() -> None:
    world = World(CONFIG)
    die(world, "a", "b")
    before = shown(world)
    asked(world, "POST", "/api/queues/dead/purge", {})
    (record,) = asked(world, "GET", "/api/undo")[1]
    asked(world, "POST", f"/api/undo/{record['id']}")
    assert shown(world) == before


def test_one_that_dies_again_keeps_when_it_was_put_first() -> None:
    world = World(CONFIG)
    die(world, "a")
    first = one(world)
    world.turn(5000)
    client = world.client().says("move dead q")
    settled(world)
    for _ in range(2):
        client.says("get q/open", "get q/abort")
    settled(world)
    again = one(world)
    assert again.put_at_ms == first.put_at_ms and again.left_at_ms > first.left_at_ms and again.times == 2


@pytest.mark.parametrize("kind", ["", 'journal_format = "libkestrel"\n', "keep_journal = false\n"])
def test_a_target_of_any_kind_takes_the_item(kind: str) -> None:
    world = World(f"[queues.dead]\n{kind}{CONFIG}" if kind else CONFIG)
    die(world, "a")
    assert world.items("dead") == [b"a"]


def test_many_in_a_small_journal_keep_theirs_each() -> None:
    """In memory, in the journal behind it, and after rewrites and packs."""
    world = World(SMALL + CONFIG)
    names = [f"item-{number:03}" for number in range(40)]
    die(world, *names)
    client = world.client()
    client.says(*(["get dead"] * 10))
    settled(world)
    expected = shown(world)
    assert [data for data, _ in expected] == names[10:]
    assert all(past is not None and past.origin == "q" for _, past in expected)
    assert len({past.left_at_ms for _, past in expected if past is not None}) > 10
    assert world.broker.queues.by_name["dead"].line.on_disk
    again = World(world.config, world.disk.crash(Crash.DROP), world.now_ms + 1000)
    assert shown(again) == expected
    for _ in range(20):
        again.client().says("get dead/open")
        again.turn(5)
        again.sync()
    third = World(world.config, again.disk.kill(), again.now_ms + 1000)
    assert shown(third) == expected


def test_the_file_of_a_purge_keeps_it() -> None:
    world = World(CONFIG)
    die(world, "a", "b")
    queue = world.broker.queues.by_name["dead"]
    taken = [queue.open_head_for_transfer(), queue.open_head_for_transfer()]
    read = read_items(slice_frame(taken))
    assert read is not None and [item for _, item in read] == [each.item for each in taken]
    assert all(past_of(item) is not None for _, item in read)


def test_an_undo_file_of_an_earlier_version_is_read() -> None:
    class Earlier(msgspec.Struct, frozen=True, array_like=True):
        added_ms: int
        expires_ms: int
        flags: int
        size: int
        crc: int
        xid: int
        id: int

    data = msgspec.msgpack.encode(Earlier(1, 2, 3, 4, 5, 6, 7))
    assert msgspec.msgpack.decode(data, type=UndoItem) == UndoItem(1, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("data", [b"\x00", b"", b"\xff" * 9, b"\x97\x09\xc4\x01q\x01\x01\x01\xa0\x01"])
def test_a_past_that_a_later_version_has_written_counts_as_none(data: bytes) -> None:
    assert past_of(item_with(data, b"a", 1, 0, 0)) is None


def test_a_name_and_an_address_of_any_length_fit() -> None:
    past = next_past(Item(b"a", 1), Why.DEAD, "\udce9" + "q" * 199, 2**31, "x" * 5000, 2**53)
    found = past_of(item_with(past, b"a", 1, 0, 0))
    assert isinstance(found, Past) and found.origin_name == "\udce9" + "q" * 199 and len(found.client) == 100
