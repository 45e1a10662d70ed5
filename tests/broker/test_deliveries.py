"""max_deliveries counts deliveries, whatever ended them: an item that kills its machine is not delivered for ever."""

from __future__ import annotations

import pytest

from staniel.queues.time_outs import READS_PER_STEP
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.world import World

CONFIG = '[queues.q]\nmax_deliveries = 2\ndead_letter_queue = "dead"\n'


def restarted(world: World, how: Crash | None) -> World:
    """The server after a power cut, or a kill if `how` is None."""
    disk: Disk = world.disk.kill() if how is None else world.disk.crash(how)
    return World(world.config, disk, world.now_ms + 1000)


def settled(world: World) -> World:
    """Every transfer that is due has been made."""
    for _ in range(4):
        world.turn(1)
        while world.sync():
            world.turn()
    return world


def opened(world: World) -> World:
    """A client has opened the head of `q`, and holds it."""
    assert world.client().says("get q/open").hears() == "" and world.sync()
    return world


@pytest.mark.parametrize("how", [None, Crash.DROP, Crash.KEEP])
def test_an_item_whose_reader_takes_the_server_along_each_time_becomes_a_dead_letter(how: Crash | None) -> None:
    world = World(CONFIG)
    world.client().puts("poison").puts("good")
    for _ in range(2):
        world = settled(restarted(opened(world), how))
    assert (world.items("q"), world.items("dead")) == ([b"good"], [b"poison"])
    assert world.reported("item.dead")[0]["deliveries"] == 2
    again = settled(restarted(world, how))
    assert (again.items("q"), again.items("dead")) == ([b"good"], [b"poison"])


def test_a_read_before_the_last_one_goes_back_to_the_head() -> None:
    world = World(CONFIG)
    world.client().puts("a").puts("b")
    world = restarted(opened(world), None)
    client = world.client().says("get q/open")
    settled(world)
    assert client.hears() == "VALUE q/open 0 1 a END"


def test_no_client_gets_an_item_before_recovery_has_ended_the_reads() -> None:
    world = World(CONFIG)
    world.client().puts("a").puts("b")
    world = settled(restarted(opened(world), None))
    world = restarted(opened(world), None)
    client = world.client()
    client.sends(b"get q/peek\r\n")
    world.turn()
    world.turn()
    assert client.hears() == "VALUE q/peek 0 1 b END"


def test_many_dead_letters_of_one_restart_keep_their_order() -> None:
    count = 2 * READS_PER_STEP + 1
    world = World(f"server.max_open_transactions = {count}\n" + CONFIG.replace("= 2", "= 1"))
    putter, reader = world.client(), world.client()
    for number in range(count):
        putter.sends(b"set q 0 0 4\r\n%04d\r\n" % number)
        reader.sends(b"get q/open\r\n")
    world.turn()
    world.sync()
    again = settled(restarted(world, Crash.DROP))
    assert again.items("dead") == [b"%04d" % number for number in range(count)] and not again.items("q")


def test_a_restart_with_the_limit_lowered_counts_the_deliveries_before_it() -> None:
    world = World(CONFIG.replace("= 2", "= 5"))
    world.client().puts("a")
    for _ in range(2):
        world = settled(restarted(opened(world), None))
    world.config = CONFIG.replace("= 2", "= 1")
    opened(world)
    assert settled(restarted(world, None)).items("dead") == [b"a"]


def test_items_that_recovery_has_not_ended_count_in_its_summary() -> None:
    world = World(CONFIG)
    world.client().puts("a").puts("b")
    again = restarted(opened(world), None)
    assert (again.summary.items, again.summary.bytes) == (2, 2)
