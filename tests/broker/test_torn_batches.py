"""A power cut within a batch that puts an item with flags and begins to move others: each is in one place."""

from __future__ import annotations

from collections import Counter

import pytest

from staniel.broker.operations.purge import ITEMS_PER_SLICE
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World, content
from tests.broker.operations.test_undo import Admin, filled, goes_on, settles
from tests.support.spool import content_of

FLAGS = (1, 3, 2**31 - 1, 2**32 - 1)
EXPIRING = """
server.expiration_timer_frequency = "10ms"
queues.e.expire_to_queue = "ex"
queues.e.max_age = "15ms"
"""


def torn_everywhere(disk: Disk, path: str, before: int) -> list[Disk]:
    """The disk with all it was told, but for a part of what `path` has got since it had `before` bytes."""
    found = []
    for size in range(len(content_of(disk, path)) - before + 1):
        copy = disk.crash(Crash.KEEP)
        copy.tear(path, size)
        found.append(copy)
    return found


def all_items(disk: Disk) -> Counter[bytes]:
    return sum((Counter(items) for items in content(disk).values()), Counter())


@pytest.mark.parametrize("flags", FLAGS)
def test_items_that_expire_into_another_queue_behind_a_put_with_flags(flags: int) -> None:
    world = World(EXPIRING)
    client = world.client()
    for data in ("a", "b", "c"):
        client.puts(data, "e")
    world.sync()
    before = len(content_of(world.disk, "s/e"))
    client.sends(f"set e {flags} 0 1\r\nf\r\n".encode())
    world.turn(30)
    for torn in torn_everywhere(world.disk, "s/e", before):
        found = all_items(torn)
        assert found - Counter([b"f"]) == Counter([b"a", b"b", b"c"]), found


def begin_purge_behind_put(world: World, flags: int) -> int:
    """Put an item with flags, then purge all until the journal has the first removals. Returns its size before both."""
    before = len(content_of(world.disk, "s/q"))
    world.client().sends(f"set q {flags} 0 1\r\nf\r\n".encode())
    world.turn()
    put = len(content_of(world.disk, "s/q"))
    assert put > before
    Admin(world).asks("POST", "/api/queues/q/purge")
    while len(content_of(world.disk, "s/q")) == put:
        assert goes_on(world)
    return before


@pytest.mark.parametrize("flags", FLAGS)
def test_a_purge_behind_a_put_with_flags(flags: int) -> None:
    world = filled(4)
    kept = Counter(world.items())
    before = begin_purge_behind_put(world, flags)
    for torn in torn_everywhere(world.disk, "s/q", before):
        found = all_items(torn)
        assert found - Counter([b"f"]) == kept, found
    settles(world)


def test_a_purge_of_more_than_a_slice_behind_a_put_with_flags() -> None:
    world = filled(ITEMS_PER_SLICE + 3)
    kept = Counter(world.items())
    before = begin_purge_behind_put(world, 5)
    torn = world.disk.crash(Crash.KEEP)
    torn.tear("s/q", len(content_of(world.disk, "s/q")) - before - 5)
    assert all_items(torn) - Counter([b"f"]) == kept
