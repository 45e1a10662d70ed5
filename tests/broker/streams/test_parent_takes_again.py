"""A parent that has only fed its children takes an item itself, the first since its start: it never gets older ones. If
the system refuses the file that it needs for that, the item is refused or waits.
"""

from __future__ import annotations

import errno
import json
from contextlib import suppress

import pytest

from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.world import content
from tests.broker.operations.test_undo import asked, settles
from tests.support.spool import cut_at_each_step
from tests.support.streams import asks
from tests.support.world import World

CONFIG = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.q.fanout_only = true
"""


def test_a_kill_at_any_step_leaves_the_moved_item_alone() -> None:
    world = World(CONFIG)
    world.client().says("set q+a 0 0 1", "1").says("get q+a").says("set q 0 0 3", "old").puts("new", "from")
    world.sync()
    before, seen = world.disk.copy(), set()
    for step in range(1, 200):
        disk = before.copy()
        disk.stop_at = len(disk.log) + step
        ended = True
        with suppress(PowerCut):
            world = World(CONFIG, disk)
            world.client().says("move from q 1")
            for _ in range(8):
                world.sync()
                world.turn(10)
            ended = False
        left = content(disk.kill())
        assert left["q+a"][0] == b"old", left
        seen.add(tuple(left.get("q", [])))
        if not ended:
            break
    else:
        raise AssertionError("it has no end")
    assert seen == {(), (b"new",)}


REFUSALS = (errno.EMFILE, errno.EACCES, errno.ENOSPC)
EXPIRING = CONFIG + 'queues.e.expire_to_queue = "q"\nqueues.e.max_age = "1s"\naliases.all = ["s", "q"]\n'
TAKING = EXPIRING.replace("fanout_only = true", "fanout_only = false")


def refused(number: int) -> World:
    """A parent without a file, whose child has read everything, and which the system refuses its file once."""
    world = World(EXPIRING)
    asks(world, "set q+a 0 0 1", "0")
    asks(world, "get q+a")
    asks(world, "set q 0 0 1", "1")
    asks(world, "get q+a")
    for queue in ("s", "e"):
        assert asks(world, f"set {queue} 0 0 1", "x") == "STORED"
    world.disk.fail("create", "s/q.read.q", number)
    return world


def under_way(world: World) -> int:
    return sum(len(queue.in_transfer) for queue in world.broker.queues)


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("name", ["q", "all"])
def test_a_put_is_refused_while_the_parent_can_get_no_file(number: int, name: str) -> None:
    world = refused(number)
    world.config = TAKING
    world.broker.reload(world.now_ms)
    world.turn(1)
    before = {queue: world.items(queue) for queue in ("q", "s")}
    assert "cannot create the journal of queue q" in asks(world, f"set {name} 0 0 3", "new")
    assert {queue: world.items(queue) for queue in ("q", "s")} == before
    assert asks(world, f"set {name} 0 0 3", "new") == "STORED"
    assert world.items("q") == [b"new"] and world.items("q+a")[-1] == b"new"
    assert World(TAKING, world.disk.kill(), world.now_ms + 1000).items("q") == [b"new"]


@pytest.mark.parametrize("number", REFUSALS)
def test_a_move_is_refused_while_the_parent_can_get_no_file(number: int) -> None:
    world = refused(number)
    assert "cannot create the journal of queue q" in asks(world, "move s q 1")
    assert (world.items("s"), world.items("q"), under_way(world)) == ([b"x"], [], 0)
    client = world.client().says("move s q 1")
    settles(world)
    assert client.hears().startswith("MOVED 1")
    assert (world.items("s"), world.items("q")) == ([], [b"x"])


@pytest.mark.parametrize("number", REFUSALS)
def test_an_expired_item_waits_until_the_parent_gets_its_file(number: int) -> None:
    world = refused(number)
    world.turn(2000)
    settles(world)
    assert len(world.reported("transfer.stuck")) == 1 and not world.items("q")
    for _ in range(4):
        world.turn(1000)
        settles(world)
    assert (world.items("e"), world.items("q"), under_way(world)) == ([], [b"x"], 0)


def test_the_undo_of_a_move_is_refused_while_the_parent_can_get_no_file() -> None:
    """The queue was deleted after the move, and the one of its name that was made since only feeds its children."""
    world = World(TAKING)
    world.client().puts("x", "q").puts("y", "q")
    settles(world)
    number = asked(world, "POST", "/api/queues/q/move", {"to": "d"})[1]["undo"]
    assert asks(world, "delete q") == "DELETED"
    world.config = EXPIRING
    world.broker.reload(world.now_ms)
    asks(world, "set q+a 0 0 1", "0", "set q 0 0 1", "1")
    world.disk.fail("create", "s/q.read.q", errno.EMFILE)
    status, said = asked(world, "POST", f"/api/undo/{number}")
    assert "cannot create the journal of queue q" in json.dumps(said), (status, said)
    assert world.items("d") == [b"x", b"y"]
    asked(world, "POST", f"/api/undo/{number}")
    assert (world.items("d"), world.items("q"), under_way(world)) == ([], [b"x", b"y"], 0)


def test_a_start_goes_on_with_a_move_whose_target_can_get_no_file() -> None:
    """The move is cut off before its first item arrives; the system refuses the file at one start after the other."""
    base = refused(errno.EMFILE)
    now_ms = base.now_ms
    seen = set()
    for _, disk in cut_at_each_step(base.disk.kill(), lambda disk: moved_whole(disk, now_ms)):
        disk = disk.kill()
        for start in (1, 2, 3):
            if start < 3:
                disk.fail("create", "s/q.read.q", errno.EMFILE, times=100)
            world = World(EXPIRING, disk, now_ms + 100 * start)
            settles(world)
            assert len(world.items("s")) + len(world.items("q")) == 1
            disk = world.disk.kill()
        seen.add(len(world.items("q")))
    assert seen == {0, 1}


def moved_whole(disk: Disk, now_ms: int) -> None:
    world = World(EXPIRING, disk, now_ms + 10)
    world.client().says("move s q 1")
    settles(world)
