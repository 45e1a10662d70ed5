"""What the simulator has found, as the shortest stories: each was lost, repeated or a lie once."""

from __future__ import annotations

from sim.nodes import Crash
from sim.world import content
from tests.sim.world import World

EXPIRING = """
server.expiration_timer_frequency = "10ms"
queues.e.expire_to_queue = "ex"
queues.e.max_age = "15ms"
"""


def expired_world() -> World:
    """An item has expired in `e`; its copy is in `ex`, and the disk does not know yet."""
    world = World(EXPIRING)
    world.client().puts("a", "e")
    world.sync()
    world.turn(30)
    assert world.items("ex") == [b"a"]
    return world


def test_a_clean_stop_during_a_transfer_leaves_the_item_in_one_queue() -> None:
    world = expired_world()
    world.broker.shutdown(world.now_ms)
    assert content(world.disk) == {"ex": [b"a"]}


def test_a_close_behind_a_wait_is_not_answered_by_a_stop_unless_it_is_done() -> None:
    world = World()
    client = world.client().puts("a")
    world.sync()
    client.says("get q/open", "get other/t=3000", "get q/close")
    world.sync()
    client.hears()
    world.broker.shutdown(world.now_ms)
    world.collect()
    assert client.hears().count("END") <= 1
    assert content(world.disk) == {"q": [b"a"]}


def test_a_queue_can_be_deleted_while_an_item_leaves_it() -> None:
    world = expired_world()
    world.client().says("delete e")
    while world.sync():
        world.turn()
    assert content(world.disk.crash(Crash.DROP)) == {"ex": [b"a"]}


def test_a_duration_counts_from_the_reload_that_brings_it() -> None:
    world = World('default.sync_journal = "os"')
    client = world.client().puts("a")
    world.config = 'default.sync_journal = "50ms"'
    client.says("reload").puts("b")
    world.turn(60)
    world.sync()
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"a", b"b"]}


def test_an_answer_that_was_promised_durable_is_so_even_if_a_reload_follows_at_once() -> None:
    world = World()
    client = world.client()
    world.config = 'default.sync_journal = "os"'
    client.sends(b"set q 0 0 1\r\na\r\nreload\r\n")
    world.turn()
    world.sync()
    assert client.hears().startswith("STORED")
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"a"]}


def test_a_move_that_ends_early_is_answered_when_the_disk_has_it() -> None:
    world = World("queues.t.max_items = 1")
    client = world.client().puts("a").puts("b")
    world.sync()
    client.hears()
    client.says("move q t")
    assert client.hears() == ""
    while world.sync():
        world.turn()
    assert client.hears() == "MOVED 1"
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"b"], "t": [b"a"]}


def test_a_deleted_queue_leaves_the_file_of_its_successor_alone() -> None:
    world = World("default.max_memory_size = 10")
    client = world.client().puts("a" * 30)
    world.sync()
    client.puts("b" * 30)
    sync = world.start_sync()
    assert sync is not None
    client.says("delete q").puts("x")
    sync.run()
    world.finish_sync(sync)
    client.puts("y")
    while world.sync():
        world.turn()
    assert content(world.disk.crash(Crash.DROP)) == {"q": [b"x", b"y"]}


def test_an_item_that_waits_to_go_on_goes_with_its_queue_when_that_is_deleted() -> None:
    config = '[queues.q]\nexpire_to_queue = "late"\n[queues.late]\nmax_age = "2s"\nexpire_to_queue = "last"\n'
    world = World(config)
    client = world.client()
    client.says("set q 0 1 1", "a")
    world.sync()
    for _ in range(2):  # it comes to `late`, and expires there before the disk knows that it came
        world.turn(2500)
        client.says("get late/peek")
    client.says("delete late")
    for _ in range(3):
        world.sync()
        world.turn()
    assert world.items("last") == [] and world.items("q") == []
