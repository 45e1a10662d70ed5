"""A call that the system refuses costs the queue or the feature that it was for; a mark says that a sync failed, and
nothing else leaves one.
"""

from __future__ import annotations

import errno
import os

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


@pytest.mark.parametrize("sync", ["always", "os"])
@pytest.mark.parametrize("number", [*(each for each in REFUSALS if each != errno.EDQUOT), errno.EMFILE, errno.ENOMEM])
def test_a_libkestrel_segment_that_is_refused_lets_the_one_before_it_grow(number: int, sync: str) -> None:
    text = f'{SMALL}default.journal_format = "libkestrel"\ndefault.sync_journal = "{sync}"\n'
    world = World(text)
    put(world, 0, 1)
    world.disk.fail("create", "s/q.", number, times=ALWAYS)
    put(world, 1, 19)
    client = world.client()
    for each in range(20, 40):
        client.puts(f"{each:03}".ljust(500, "x"), "q")  # many to a batch
    world.sync()
    (said,) = world.reported("journal.rotate_failed")
    assert said["file"] == f"s/{segments(world)[0]}" and len(segments(world)) == 1
    world.disk._faults.clear()
    put(world, 40, 80)
    assert len(segments(world)) > 1
    again = World(text, world.disk.kill(), world.now_ms)
    assert drained(again) == list(range(120))


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSYS, errno.EIO])
def test_a_folder_that_is_not_listed_does_not_end_a_server_whose_segments_are_read(number: int) -> None:
    world = World(f'{SMALL}default.journal_format = "libkestrel"\n')
    put(world, 0, 40)
    world.disk.fail("list", "s", number, times=ALWAYS)
    take(world, 38)
    world.disk._faults.clear()
    assert len(segments(world)) < 4 and drained(world) == [38, 39]


def segments(world: World) -> list[str]:
    return [name for name, _ in world.disk.list("s") if name.startswith("q.") and ".read." not in name]


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


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("text", ["", 'default.journal_format = "libkestrel"\n'])
def test_a_journal_that_cannot_be_opened_for_writing_costs_its_queue_before_any_request(text: str, number: int) -> None:
    world = World(text)
    put(world, 0, 3, "denied")
    put(world, 0, 3, "other")
    disk = world.disk.kill()
    disk.fail("open", "s/denied", number, times=ALWAYS)
    world = World(text, disk, world.now_ms)
    assert world.summary.unreadable == 1 and "journal.unreadable" in world.events
    assert asks(world, "get denied").startswith("SERVER_ERROR queue denied is not available: denied")
    put(world, 3, 1, "other")
    assert drained(world, "other") == [0, 1, 2, 3]
    world.disk._faults.clear()
    asks(world, "reload")
    assert drained(world, "denied") == [0, 1, 2]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSYS, errno.EPERM, errno.EIO])
def test_a_file_system_that_does_not_tell_its_space_is_served_and_said_once(number: int) -> None:
    disk = World("").disk.kill()
    disk.fail("statfs", "", number, times=ALWAYS)
    world = World("", disk)
    put(world, 0, 3)
    for _ in range(5):
        world.turn(1000)
    assert world.events.count("spool.space_unknown") == 1 and "disk.full" not in world.events
    assert world.broker.health.check(world.now_ms).ready
    assert drained(world) == [0, 1, 2]


@pytest.mark.parametrize("number", [errno.EFBIG, errno.EPERM, errno.EOPNOTSUPP, errno.EACCES, errno.EIO])
def test_a_reserve_that_cannot_be_allocated_though_there_is_room_is_no_full_disk(number: int) -> None:
    disk = World("").disk.kill()
    disk.fail("allocate", "ballast", number, times=ALWAYS)
    world = World("", disk)
    (said,) = world.reported("spool.no_reserve")
    assert os.strerror(number) in str(said["why"]) and "disk.full" not in world.events
    put(world, 0, 3)
    world.disk.capacity_bytes = world.disk.used_bytes + (1 << 20)
    world.turn(1000)
    assert asks(world, "set q 0 0 1", "x").startswith("SERVER_ERROR disk full") and "disk.full" in world.events
    world.disk.capacity_bytes = 1 << 30
    world.turn(1000)
    put(world, 3, 1)
    assert drained(world) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_reserve_for_which_there_is_no_room_is_a_full_disk(number: int) -> None:
    disk = World("").disk.kill()
    disk.fail("allocate", "ballast", number, times=ALWAYS)
    world = World("", disk)
    assert "disk.full" in world.events and asks(world, "set q 0 0 1", "x").startswith("SERVER_ERROR disk full")


def test_a_name_whose_rotations_would_not_fit_the_file_system_is_refused_at_its_first_request() -> None:
    disk = World("").disk.kill()
    disk.name_bytes = 143  # as eCryptfs has it
    world = World(SMALL, disk)
    put(world, 0, 40, "q" * 88)
    refused = asks(world, f"set {'q' * 89} 0 0 1", "x")
    assert "longer than 88 bytes on the spool's file system" in refused
    assert max(len(name) for name, _ in world.disk.list("s")) <= 143


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
