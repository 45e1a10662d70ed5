"""Files whose numbers are near the end of numbers: no name, frame or record is too short for what comes next."""

from __future__ import annotations

import pytest

from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put, encode_read_head
from staniel.queues.item import Item
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World, content, end_operations
from tests.support.spool import new_disk, put_file

ENDS = [2**31 - 1, 2**32 - 1, 10**18 - 1, 2**63 - 1, 10**19 - 1, 2**64 - 1, 10**30]


@pytest.mark.parametrize("number", ENDS)
def test_items_in_the_segments_behind_it_are_there_after_a_crash(number: int) -> None:
    disk = new_disk()
    put_file(disk, f"q.{number}", SEGMENT_MAGIC + encode_put(Item(b"read", 1), 1))
    put_file(disk, "q.read.", READER_MAGIC + encode_read_head(1))
    world = World('default.journal_format = "libkestrel"\ndefault.default_journal_size = 100\n', disk)
    items = [f"item {each}".ljust(40, ".") for each in range(6)]
    for each in items:
        world.client().puts(each)
        world.sync()
        world.turn(1)
        world.do_tasks()
    assert len([name for name, _ in disk.list("s") if name.startswith("q.")]) > 4
    assert content(disk.crash(Crash.DROP)) == {"q": [each.encode() for each in items]}


@pytest.mark.parametrize("number", ENDS)
def test_items_are_moved_once_to_a_queue_behind_it(number: int) -> None:
    disk = new_disk()
    put_file(disk, f"t.{number}", b"")
    put_file(disk, "t", b"")
    world = World("", disk)
    client = world.client()
    for each in range(3):
        client.puts(f"item {each}", "q")
    world.sync()
    client.says("move q t")
    lives = []
    while world.broker.operations.running:
        lives.append(World("", disk.crash(Crash.KEEP), world.now_ms))
        world.sync()
        world.turn(1)
    for life in lives:
        end_operations(life)
        assert life.items("t") + life.items("q") == [b"item 0", b"item 1", b"item 2"]
    assert len(lives) > 1
