"""A server is killed amid a change of names, the next one starts on its caches, and the power is lost at each step of
that: what was answered is there, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from staniel.journal.kestrel.install import remove_sidecars
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import content
from tests.support.world import World

SMALL = """
default.max_memory_size = 300
default.default_journal_size = 400
default.max_journal_size = 900
default.min_journal_compact_delay = 0
"""


def story(disk: Disk) -> list[bytes]:
    """Small journals that are sealed, summed up and packed, with items left in them. Raises PowerCut."""
    world = World(SMALL, disk)
    client = world.client()
    for number in range(60):
        client.puts(f"item {number:03}".ljust(40, "."))
        while world.sync():
            world.turn(1)
        if number > 8:
            client.says("get q")
        while world.sync():
            world.turn(1)
    return world.items()


def first_disk() -> Disk:
    disk = Disk()
    disk.make_folder("s")
    disk.sync_folder("")
    return disk


def cut_starts(disk: Disk) -> Iterator[tuple[int, Disk]]:
    """The disk after each step of a start on it, caches included."""
    for step in range(1, 200):
        twin = disk.fork()
        twin.stop_at = step
        try:
            World(SMALL, twin)
        except PowerCut:
            yield step, twin
        else:
            return


@pytest.mark.slow
def test_a_kill_amid_the_removal_of_sidecars() -> None:
    disk = first_disk()
    story(disk)
    amid = [
        at + after
        for at, op in enumerate(disk.log)
        if op.verb == "remove" and "segments/" in op.path
        for after in (1, 2, 3, 4)
    ]
    assert len(amid) > 12
    for kill_at in sorted(set(amid))[:24]:
        killed = first_disk()
        killed.stop_at = kill_at
        with suppress(PowerCut):
            story(killed)
        killed.kill()
        before = content(killed)
        for step, left in cut_starts(killed):
            for how in (Crash.DROP, Crash.KEEP):
                assert content(left.crash(how)) == before, (kill_at, step, how)


def test_the_removal_of_sidecars_is_synced_though_an_earlier_attempt_had_removed_them() -> None:
    disk = first_disk()
    disk.make_folder("s/.staniel/segments")
    disk.append("s/.staniel/segments/q.1").close()
    disk.sync_folder("s/.staniel/segments")
    disk.remove("s/.staniel/segments/q.1")  # and the process fails before it can sync that
    remove_sidecars(disk, "s", ["q.1"])
    assert disk.crash(Crash.DROP).list("s/.staniel/segments") == []


@pytest.mark.parametrize("folder", ["s", "s/.staniel", "s/.staniel/segments", "s/.staniel/undo"])
def test_a_start_makes_sure_of_the_names_that_it_finds(folder: str) -> None:
    disk = first_disk()
    World("", disk).broker.shutdown(0)
    disk.make_folder("s/.staniel/undo")
    disk.make_folder("s/.staniel/segments")
    disk.append(f"{folder}/gone").close()
    disk.sync_folder(folder)
    disk.remove(f"{folder}/gone")
    World("", disk.kill())
    assert ("gone", True) not in disk.crash(Crash.DROP).list(folder)


def test_a_spool_whose_folder_a_killed_server_has_just_made_stays() -> None:
    disk = Disk()
    disk.fail("sync_folder", "", 5)
    with suppress(OSError):
        disk.make_folder("s")
    assert disk.inode_at("s/q") is None
    disk = Disk()
    disk.stop_at = 1
    with suppress(PowerCut):
        disk.make_folder("s")
    world = World("", disk.kill())
    world.client().puts("a")
    world.sync()
    assert content(disk.crash(Crash.DROP)) == {"q": [b"a"]}
