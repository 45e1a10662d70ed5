"""The two segments of the redo log: what fits into one, and what is still needed when it is used again."""

from __future__ import annotations

from staniel.journal.redo.log import SegmentState
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.journal.redo.test_redo_log import in_use


def test_a_file_that_came_and_went_while_one_segment_ended_and_the_other_began_does_not_come_back() -> None:
    world = in_use()
    redo, full = world.broker.group.redo, world.broker.group.redo.active
    client = world.client()
    client.puts("x" * 7000)
    world.sync()
    client.puts("x" * 7000)
    client.puts("x" * 2000)
    assert len(redo._sealed) == 1  # the first batch of this sync has its place in the one, the second in the other
    client.puts("old" * 10, "r")
    client.puts("x" * 4000)
    client.says("delete r")
    world.sync()
    assert redo.active is not full and full.take == redo.taken
    world.turn()
    world.do_tasks()
    client.puts("second")
    world.sync()
    assert full.state is SegmentState.FREE
    client.puts("new", "r")
    assert world.crash(Crash.KEEP).items("r") == [b"new"]
