"""A power cut leaves zeros where a libkestrel queue's newest segment was, and items go on into the one before."""

from __future__ import annotations

from contextlib import suppress

import pytest

from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.world import content
from tests.support.spool import put_file
from tests.support.world import START_MS, World

CONFIG = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.old.expire_to_queue = "q"
queues.old.max_age = "1s"
"""
MOVE, EXPIRY = "move", "expiry"


def zeroed() -> Disk:
    """A spool with items in `from` and `old`; of the newest segment of q zeros are left."""
    world = World(CONFIG)
    world.client().puts("first", "q").puts("x", "from").puts("y", "old")
    world.sync()
    disk = world.disk.copy()
    put_file(disk, f"q.{START_MS + 500_000}", bytes(200))
    return disk


def passes_on(disk: Disk, how: str) -> None:
    """Begin to pass an item on to q, until the disk stops. Raises PowerCut."""
    world = World(CONFIG, disk)
    if how == MOVE:
        world.client().says("move from q 1")
    else:
        world.turn(2000)
    for _ in range(20):
        world.sync()
        world.turn(10)


@pytest.mark.parametrize("how", [MOVE, EXPIRY])
def test_an_item_that_is_passed_on_is_in_one_queue_after_a_kill_at_any_step(how: str) -> None:
    source, item = ("from", b"x") if how == MOVE else ("old", b"y")
    seen = set()
    for step in range(1, 200):
        disk = zeroed()
        disk.stop_at = len(disk.log) + step
        ended = True
        with suppress(PowerCut):
            passes_on(disk, how)
            ended = False
        disk.stop_at = None
        left = content(disk.kill())
        held = [name for name in (source, "q") if item in left.get(name, [])]
        assert len(held) == 1 and left["q"][0] == b"first", (step, left)
        seen.add(held[0])
        if not ended:
            break
    assert seen == {source, "q"} and not ended
