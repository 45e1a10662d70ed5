"""An item moves into a libkestrel queue in the turn in which an equal one was put there, as the first of a segment: the
item that was put is never taken for the copy, so that none is lost.
"""

from __future__ import annotations

from staniel.sim.disk.disk import Disk
from staniel.sim.world import content
from tests.support.spool import cut_at_each_step
from tests.support.world import World

CONFIG = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.q.default_journal_size = 120
"""


def filled() -> Disk:
    """A spool whose queue q has a child and no room in its segment."""
    world = World(CONFIG)
    world.client().says("set q+child 0 0 1", "c").says("get q+child").puts("f" * 80, "q").says("get q+child")
    world.sync()
    return world.disk.copy()


def put_and_moved(disk: Disk) -> None:
    """Put x, of which q and its child have one each, and move the child's to q in the same turn. Raises PowerCut."""
    world = World(CONFIG, disk)
    world.client().says("set q 0 0 1", "x", "move q+child q 1")
    for _ in range(8):
        world.sync()
        world.turn(10)


def test_no_item_is_lost_by_a_kill_at_any_step() -> None:
    seen = set()
    for _, disk in cut_at_each_step(filled(), put_and_moved):
        left = content(disk.kill())
        seen.add(left["q"].count(b"x") + left.get("q+child", []).count(b"x"))
    assert seen == {0, 2}
