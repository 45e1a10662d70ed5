"""The system refuses the segment that begins with an item that is passed on, and the item goes on in the one before."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress

import pytest

from staniel.journal.libkestrel.writer import StreamWriter
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.world import content
from tests.support.world import START_MS, World

CONFIG = """
default.sync_journal = "always"
queues.q.journal_format = "libkestrel"
queues.q.default_journal_size = 120
queues.old.expire_to_queue = "q"
queues.old.max_age = "1s"
"""
FIRST = b"f" * 80
MOVE, EXPIRY, KEY = "move", "expiry", "key"


def filled() -> Disk:
    """A spool with items in `from` and `old`; the next item of q begins a segment."""
    world = World(CONFIG)
    world.client().puts(FIRST.decode(), "q").puts("x", "from").puts("w", "old").puts("y", "old")
    world.sync()
    return world.disk.copy()


def passes_on(disk: Disk, how: str) -> None:
    """Pass an item on to q in a turn in which another item has begun a segment there, until the disk stops. Raises
    PowerCut.
    """
    world = World(CONFIG, disk)
    disk.fail("open", "/q.", errno.EMFILE, after=1, times=100)  # the first opens the segment that is there
    client = world.client()
    if how == MOVE:
        client.says("set q 0 0 1", "w", "move from q 1")
    elif how == EXPIRY:
        world.turn(2000)  # w begins the segment, then y follows
    else:
        client.says("set q 0 0 1", "w", "set q/key=k 0 0 1", "z")
    for _ in range(8):
        world.sync()
        world.turn(10)


def disks_after_kills(how: str) -> Iterator[Disk]:
    """Yield the disk after a kill at each step, and after the last."""
    for step in range(1, 200):
        disk = filled()
        disk.stop_at = len(disk.log) + step
        ended = True
        with suppress(PowerCut):
            passes_on(disk, how)
            ended = False
        yield disk.kill()
        if not ended:
            assert [name for name, _ in disk.list("s") if name.startswith("q.1")] == [f"q.{START_MS}"]
            return
    raise AssertionError("it has no end")


@pytest.mark.parametrize("how", [MOVE, EXPIRY])
def test_an_item_that_is_passed_on_is_in_one_queue_after_a_kill_at_any_step(how: str) -> None:
    source, item = ("from", b"x") if how == MOVE else ("old", b"y")
    seen = set()
    for disk in disks_after_kills(how):
        left = content(disk)
        holders = [name for name in (source, "q") if item in left.get(name, [])]
        assert len(holders) == 1 and left["q"][0] == FIRST, left
        seen.add(holders[0])
    assert seen == {source, "q"}


def test_an_item_put_with_a_key_is_stored_once_after_a_kill_at_any_step() -> None:
    seen = set()
    for disk in disks_after_kills(KEY):
        seen.add(content(disk)["q"].count(b"z"))
        world = World(CONFIG, disk)
        world.client().says("set q/key=k 0 0 1", "z")
        world.sync()
        assert content(disk.kill())["q"].count(b"z") == 1
    assert seen == {0, 1}


@pytest.mark.pure  # a compiled class has no methods to replace
def test_a_copy_that_is_looked_for_in_the_planned_segment_alone_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = StreamWriter.next_item
    monkeypatch.setattr(StreamWriter, "next_item", lambda self: (self.segments.files[-1].number, right(self)[1]))
    with pytest.raises(AssertionError, match=r"from.*, .q"):
        test_an_item_that_is_passed_on_is_in_one_queue_after_a_kill_at_any_step(MOVE)
