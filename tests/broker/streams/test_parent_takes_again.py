"""A parent with fanout_only takes an item that is moved to it, the first since its start: it never gets older ones."""

from __future__ import annotations

from contextlib import suppress

from staniel.sim.disk.disk import PowerCut
from staniel.sim.world import content
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
