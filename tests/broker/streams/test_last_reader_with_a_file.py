"""The last reader with a file is deleted while the parent, which only feeds its children, has none: its items are
never delivered to the parent, whatever the next starts are told.
"""

from __future__ import annotations

import errno

import pytest

from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion
from staniel.queues.config import Format
from staniel.queues.stream.queue import StreamQueue
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.spool import cut_at_each_step
from tests.support.streams import asks, names, segments
from tests.support.world import World

TAKES = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.q.default_journal_size = 60
"""
FEEDS = TAKES + "queues.q.fanout_only = true\n"


def fed(is_consumed: bool) -> World:
    """Three items for q+a, which are delivered if `is_consumed`."""
    world = World(FEEDS)
    asks(world, "set q+a 0 0 1", "0")
    asks(world, "get q+a")
    for payload in ("1", "2", "3"):
        assert asks(world, "set q 0 0 1", payload) == "STORED"
    for _ in range(3 if is_consumed else 0):
        assert asks(world, "get q+a").startswith("VALUE")
    return world


@pytest.mark.parametrize("is_consumed", [True, False])
@pytest.mark.parametrize("how", [None, *Crash])
def test_the_items_of_a_deleted_child_never_come_to_a_parent_that_takes_again(
    how: Crash | None, is_consumed: bool
) -> None:
    """At each step from the start on: a kill (None), or a power cut."""
    world = fed(is_consumed)
    base, now_ms = world.disk.copy(), world.now_ms
    waiting = [] if is_consumed else [b"1", b"2", b"3"]

    def delete(disk: Disk) -> None:
        world = World(FEEDS, disk, now_ms + 10)
        assert asks(world, "set q 0 0 1", "4") == "STORED"  # the parent exists from now on
        if is_consumed:
            assert asks(world, "get q+a").startswith("VALUE")
        assert asks(world, "delete q+a") == "DELETED"

    seen = []
    for step, disk in cut_at_each_step(base, delete):
        world = World(TAKES, disk.kill() if how is None else disk.crash(how), now_ms + 1000)
        child = world.broker.queues.find("q+a")
        assert world.items("q") == [], step
        if child is not None:
            assert world.items("q+a") in (waiting, [*waiting, b"4"]), step
        assert asks(world, "set q 0 0 3", "new") == "STORED"
        assert world.items("q") == [b"new"], step
        seen.append(child is not None)
    assert seen == sorted(seen, reverse=True) and {*seen} == {True, False}


def test_nor_after_a_reload_and_a_kill() -> None:
    world = fed(is_consumed=True)
    assert asks(world, "delete q+a") == "DELETED"
    world.config = TAKES
    world.broker.reload(world.now_ms)
    world.turn(10)
    assert world.items("q") == []
    assert World(TAKES, world.disk.kill(), world.now_ms + 1000).items("q") == []


def test_nor_in_the_other_format() -> None:
    world = fed(is_consumed=True)
    assert asks(world, "delete q+a") == "DELETED"
    disk = world.disk.kill()
    assert Conversion(Spool(disk, "s"), "q", world.now_ms + 500, lambda *_: None).run(Format.KESTREL) == 0


def test_a_child_that_is_made_again_takes_the_next_items_alone() -> None:
    world = fed(is_consumed=True)
    assert asks(world, "delete q+a") == "DELETED"
    assert asks(world, "set q 0 0 4", "none") == "STORED"  # nobody takes it
    asks(world, "get q+a")
    assert asks(world, "set q 0 0 3", "new") == "STORED"
    for config in (FEEDS, TAKES):
        after = World(config, world.disk.kill(), world.now_ms + 1000)
        assert (after.items("q"), after.items("q+a")) == ([], [b"new"])


def test_an_item_that_nobody_takes_is_not_written() -> None:
    world = fed(is_consumed=True)
    assert asks(world, "delete q+a") == "DELETED"
    before = {name: world.disk.size(f"s/{name}") for name in names(world.disk)}
    assert asks(world, "set q 0 0 4", "none") == "STORED"
    assert {name: world.disk.size(f"s/{name}") for name in names(world.disk)} == before


def test_the_deletion_is_refused_while_the_parent_can_get_no_file() -> None:
    world = fed(is_consumed=False)
    world.disk.fail("create", "s/q.read.q", errno.EMFILE, times=1)
    assert "queue q+a is not deleted" in asks(world, "delete q+a")
    assert world.items("q+a") == [b"1", b"2", b"3"]
    assert asks(world, "delete q+a") == "DELETED"
    assert World(TAKES, world.disk.kill(), world.now_ms + 1000).items("q") == []


def test_segments_without_a_reader_file_that_were_not_delivered_once_are_never_delivered() -> None:
    """As an earlier version has left them, or an operator has copied them there."""
    world = fed(is_consumed=True)
    disk = world.disk.kill()
    disk.remove("s/q.read.a")
    assert segments(disk) == names(disk)
    for config in (FEEDS, FEEDS, TAKES):
        world = World(config, disk, world.now_ms + 1000)
        queue = world.broker.queues.find("q")
        assert isinstance(queue, StreamQueue) and world.items("q") == []
        disk = world.disk.kill()
