"""A call that the system refuses costs the queue or the feature that it was for; a mark says that a sync failed, and
nothing else leaves one.
"""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.fs import BROKEN_ERRNOS, JournalFailure
from tests.support.streams import asks
from tests.support.world import World

SMALL = """
default.max_memory_size = "4KB"
default.default_journal_size = 2000
default.max_journal_size = "8KB"
default.min_journal_compact_delay = "0ms"
"""
REFUSALS = [errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EXDEV, errno.EBUSY, errno.ENOSYS, errno.EDQUOT]
ALWAYS = 1 << 30


def put(world: World, first: int, count: int, queue: str = "q") -> None:
    for number in range(first, first + count):
        assert asks(world, f"set {queue} 0 0 500", f"{number:03}".ljust(500, "x")) == "STORED"


def take(world: World, count: int, queue: str = "q") -> None:
    for _ in range(count):
        assert asks(world, f"get {queue}").startswith("VALUE")


def drained(world: World, queue: str = "q") -> list[int]:
    found = []
    while (heard := asks(world, f"get {queue}")).startswith("VALUE"):
        found.append(int(heard.split()[4][:3]))
    return found


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("verb", ["rename", "create"])
def test_a_rotation_that_is_refused_leaves_the_journal_as_it_is(verb: str, number: int) -> None:
    world = World(SMALL)
    put(world, 0, 1)
    world.disk.fail(verb, "s/q", number, times=ALWAYS)
    put(world, 1, 39)
    assert [name for name, _ in world.disk.list("s") if name.startswith("q")] == ["q"]
    (said,) = world.reported("journal.rotate_failed")
    assert said["file"] == "s/q"
    world.disk._faults.clear()
    put(world, 40, 10)
    assert len([name for name, _ in world.disk.list("s") if name.startswith("q.")]) > 0
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert "spool.renewed" not in again.events and drained(again) == list(range(50))


@pytest.mark.parametrize("number", sorted(BROKEN_ERRNOS))
def test_a_rename_on_a_broken_disk_ends_the_server_without_a_mark_of_a_failed_sync(number: int) -> None:
    world = World(SMALL)
    put(world, 0, 1)
    world.disk.fail("rename", "s/q", number, times=ALWAYS)
    with pytest.raises(JournalFailure, match=r"^cannot rotate s/q: cannot use s/q: "):
        put(world, 1, 39)
    assert not world.broker.spool.failed_sync.exists
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert "spool.renewed" not in again.events and len(drained(again)) >= 5


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize(("verb", "path"), [("remove", "s/.staniel/segments"), ("rename", "s/q~~")])
def test_a_pack_that_cannot_be_put_in_place_is_left_out_and_tried_again(verb: str, path: str, number: int) -> None:
    world = World(SMALL)
    put(world, 0, 40)
    world.disk.fail(verb, path, number, times=ALWAYS)
    take(world, 38)
    for _ in range(5):
        world.turn(100_000)
    assert "journal.pack_failed" in world.events or "journal.rewrite_failed" in world.events
    files = len([name for name, _ in world.disk.list("s") if name.startswith("q.")])
    world.disk._faults.clear()
    world.turn(100_000)
    put(world, 40, 10)
    take(world, 10)
    assert len([name for name, _ in world.disk.list("s") if name.startswith("q.")]) < files
    again = World(SMALL, world.disk.kill(), world.now_ms)
    assert drained(again) == [48, 49]


@pytest.mark.parametrize("verb", ["remove", "read", "create", "rename", "make_folder", "list"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_no_refusal_about_sidecars_ends_a_server_or_costs_a_queue(verb: str, number: int) -> None:
    world = World(SMALL)
    put(world, 0, 20)
    disk = world.disk.kill()
    disk.fail(verb, "s/.staniel/segments", number, times=ALWAYS)
    world = World(SMALL, disk, world.now_ms)
    assert "journal.unreadable" not in world.events
    take(world, 10)
    put(world, 20, 20)
    disk = world.disk.kill()
    disk.fail(verb, "s/.staniel/segments", number, times=ALWAYS)
    assert drained(World(SMALL, disk, world.now_ms)) == list(range(10, 40))
