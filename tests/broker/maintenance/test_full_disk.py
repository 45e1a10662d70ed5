"""A full disk ends when consumers have read: journals shrink by what is read, whatever their settings allow them."""

from __future__ import annotations

import pytest

from staniel.sim.disk.disk import Disk
from tests.support.streams import asks
from tests.support.world import World

ITEM_BYTES = 20_000


def fill(world: World, queues: list[str]) -> dict[str, int]:
    """Put items in turns until the disk is full; how many each queue has."""
    stored = dict.fromkeys(queues, 0)
    for number in range(10_000):
        queue = queues[number % len(queues)]
        data = f"{stored[queue]:05}".ljust(ITEM_BYTES, "x")
        if asks(world, f"set {queue} 0 0 {len(data)}", data) != "STORED":
            return stored
        stored[queue] += 1
    raise AssertionError("the disk is never full")


@pytest.mark.parametrize("memory", ["128MB", "500KB"])
@pytest.mark.parametrize("count", [1, 5])
def test_a_full_disk_whose_items_are_read_to_nine_tenths_accepts_puts_within_ten_seconds(
    count: int, memory: str
) -> None:
    disk = Disk(8 << 20)
    disk.make_folder("s")
    config = f"default.max_memory_size = {memory!r}\n"
    world = World(config, disk)
    stored = fill(world, [f"q{number}" for number in range(count)])
    for queue, many in stored.items():
        for _ in range(many * 9 // 10):
            assert asks(world, f"get {queue}").startswith("VALUE")
    for _ in range(10):
        world.turn(1000)
        world.sync()
        world.turn()
    assert asks(world, "set other 0 0 1", "x") == "STORED" and "disk.space" in world.events
    again = World(config, world.disk.kill(), world.now_ms)
    for queue, many in stored.items():
        left = [int(data[:5]) for data in again.items(queue)]
        assert left == list(range(many * 9 // 10, many))
