"""Fan-out in libkestrel's format where not all keep a journal, some cannot be read, or a queue is made anew."""

from __future__ import annotations

import errno

import pytest

from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World as WorldWithThreads
from tests.support.streams import asks
from tests.support.world import World

FORMAT = 'default.journal_format = "libkestrel"\n'
PARENT_WITHOUT = f'{FORMAT}queues.f.keep_journal = false\nqueues."f+x".keep_journal = true\n'
CHILD_WITHOUT = f'{FORMAT}queues."f+y".keep_journal = false\n'


def put(world: World, *names: str) -> None:
    client = world.client()
    for number, name in enumerate(names):
        client.puts(str(number), name)
        world.sync()
    assert "ERROR" not in client.hears()


def items(world: WorldWithThreads) -> dict[str, list[bytes]]:
    return {name: world.items(name) for name in ("f", "f+x", "f+y") if world.items(name)}


@pytest.mark.parametrize("how", Crash)
def test_a_child_keeps_its_items_though_its_parent_keeps_no_journal(how: Crash) -> None:
    world = World(PARENT_WITHOUT)
    put(world, "f+x", "f", "f+x")
    assert items(world) == {"f": [b"1"], "f+x": [b"0", b"1", b"2"]}
    assert items(world.crash(how)) == {"f+x": [b"0", b"1", b"2"]}


def test_of_a_parent_that_keeps_no_journal_any_more_its_own_position_is_set_aside() -> None:
    world = World(FORMAT)
    put(world, "f+x", "f", "f")
    assert items(world) == {"f": [b"1", b"2"], "f+x": [b"0", b"1", b"2"]}
    world.config = PARENT_WITHOUT
    after = world.crash(Crash.DROP)
    assert "journal.set_aside" in after.events and items(after) == {"f+x": [b"0", b"1", b"2"]}
    put(after, "f")
    assert items(after) == {"f": [b"0"], "f+x": [b"0", b"1", b"2", b"0"]}
    assert items(after.crash(Crash.DROP)) == {"f+x": [b"0", b"1", b"2", b"0"]}


def test_a_family_of_which_nobody_keeps_a_journal_is_set_aside_as_a_whole() -> None:
    world = World(FORMAT)
    put(world, "f+x", "f")
    world.config = f"{FORMAT}default.keep_journal = false\n"
    after = world.crash(Crash.DROP)
    assert not items(after) and not [name for name, regular in after.disk.list("s") if regular]


@pytest.mark.parametrize("first", ["f", "f+y"])
def test_a_child_that_keeps_no_journal_gets_its_copies(first: str) -> None:
    world = World(CHILD_WITHOUT)
    put(world, first, "f+x", "f+y")
    put(world, "f", "f")
    assert world.items("f+y")[-2:] == [b"0", b"1"] and world.items("f+x")[-2:] == [b"0", b"1"]
    client = world.client()
    client.says("delete f+y")
    world.sync()
    put(world, "f")
    assert world.items("f+x")[-1:] == [b"0"] and not world.items("f+y")


def test_a_queue_made_anew_keeps_its_segment_though_an_older_one_of_that_moment_is_still_to_retire() -> None:
    world = WorldWithThreads(f"{FORMAT}default.default_journal_size = 100\n")
    client = world.client()
    for _ in range(3):
        client.puts("1" * 60)
        world.sync()
    for _ in range(2):
        client.says("get q")
        world.sync()
    assert world.broker.maintenance.tasks._waiting
    client.says("delete q")
    client.puts("2")
    world.sync()
    world.do_tasks()
    assert client.hears().endswith("STORED")
    assert world.crash(Crash.DROP).items() == [b"2"]


def unreadable_child() -> World:
    world = World()
    put(world, "f+x")
    disk = world.disk.crash(Crash.DROP)
    disk.fail("read", "s/f+x", errno.EACCES, times=1000)
    return World(FORMAT, disk, world.now_ms + 1000)


def test_beside_a_child_that_cannot_be_read_its_parent_is_kept_in_the_childs_format() -> None:
    world = unreadable_child()
    assert "journal.unreadable" in world.events
    put(world, "f")
    after = world.crash(Crash.DROP)
    assert "journal.mixed" not in after.events and items(after) == {"f": [b"0"], "f+x": [b"0"]}


def test_an_unreadable_child_that_has_come_back_is_served_with_its_parent() -> None:
    world = unreadable_child()
    put(world, "f")
    world.disk.kill()
    world.client().says("reload")
    assert items(world) == {"f": [b"0"], "f+x": [b"0"]}
    assert isinstance(world.disk, Disk)


LAX = f'{FORMAT}default.sync_journal = "os"\n'


@pytest.mark.parametrize("strict", ['queues."f+y".sync_journal = "always"\n', 'queues.f.sync_journal = "always"\n'])
def test_a_reload_that_makes_one_reader_stricter_holds_for_the_items_of_the_family(strict: str) -> None:
    world = World(LAX)
    put(world, "f+x", "f+y", "f")
    world.config = LAX + strict
    world.client().says("reload")
    world.sync()
    put(world, "f")
    assert items(world.crash(Crash.DROP))["f+y"] == [b"1", b"2", b"0"]


@pytest.mark.parametrize("strict", ['queues."f+y".sync_journal = "always"\n', 'queues.f.sync_journal = "always"\n'])
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_a_reload_makes_a_reader_stricter_whose_files_cannot_be_opened_for_now(strict: str, number: int) -> None:
    world = World(LAX)
    put(world, "f+x", "f+y", "f")
    world = World(LAX, world.disk.kill(), world.now_ms)  # its files are not open
    world.disk.fail("open", "/s/f.", number, times=100)
    world.config = LAX + strict
    assert asks(world, "reload") == "Reloaded config."
    assert world.reported("journal.rotate_failed")
    world.disk.kill()  # faults end
    put(world, "f")
    assert items(world.crash(Crash.DROP))["f+y"] == [b"1", b"2", b"0"]
