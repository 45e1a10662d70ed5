"""A repaired copy serves what a start on the old spool would serve, also of what a killed server has left to finish."""

from __future__ import annotations

import pytest

from staniel.broker.operations import purge
from staniel.journal.tools.repair import Repair, Repaired
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World, content
from tests.broker.test_unfinished_work import FORMATS, all_items, killed
from tests.support.spool import content_of

SMALL = "default.max_memory_size = 120\ndefault.max_journal_size = 100000\ndefault.default_journal_size = 100000\n"


def repaired(disk: Disk) -> tuple[Disk, list[Repaired]]:
    """The disk with the copy in the spool's place."""
    copy = disk.fork()
    copy.make_folder("copy")
    told = list(Repair(copy, "s", None, "copy", 10**12, lambda size: None).run())
    copy.rename("s", "old")
    copy.rename("copy", "s")
    return copy, told


@pytest.mark.parametrize("form", FORMATS)
def test_a_copy_of_a_spool_left_amid_a_purge_or_an_undo(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge, "ITEMS_PER_SLICE", 2)
    for disk in killed(form):
        copy, told = repaired(disk)
        assert all_items(copy) == all_items(disk), [each.name for each in told]
        assert not any(each.why_not for each in told)


def flip(disk: Disk, name: str) -> None:
    """The first record of a sealed file has another opcode."""
    data = content_of(disk, f"s/{name}")
    region = disk.overwrite(f"s/{name}")
    region.write_at(0, bytes([0x77]) + data[1:])
    region.close()


def test_one_queue_that_is_written_anew_takes_no_other_ones_intents_away() -> None:
    world = World(SMALL)
    client = world.client()
    for number in range(8):
        client.puts(f"z{number}".ljust(40, "."), "z")
        while world.sync():
            world.turn(1)
    for name in ("a", "b"):
        client.puts(name, name)
    while world.sync():
        world.turn(1)
    client.says("move a ta", "move b tb")
    assert world.sync()  # of the copies: the removals are recorded at most
    sealed = next(name for name, _ in world.disk.list("s") if name.startswith("z."))
    for how in (Crash.KEEP, Crash.DROP):
        disk = world.disk.crash(how)
        flip(disk, sealed)
        copy, told = repaired(disk)
        assert [each.name for each in told if each.is_anew] == ["z"]
        found = all_items(copy)
        assert (found[b"a"], found[b"b"]) == (1, 1)
        assert found == all_items(disk)


def sealed_queue(name: str) -> World:
    """A world whose queue `name` has sealed files."""
    world = World(SMALL)
    for number in range(8):
        world.client().puts(f"{name}{number}".ljust(40, "."), name)
        while world.sync():
            world.turn(1)
    return world


def amid_move(world: World, source: str, target: str, harmed: str) -> Disk:
    """What a power cut leaves amid that move of one item, with a sealed file of `harmed` that cannot be read."""
    world.client().says(f"move {source} {target} 1")
    assert world.sync()  # of the operation's file
    world.turn()
    assert world.sync()  # of the copy
    sealed = [name for name, _ in world.disk.list("s") if name.startswith(f"{harmed}.")]
    disk = world.disk.crash(Crash.KEEP)
    flip(disk, sealed[-1])
    return disk


def test_a_move_from_a_queue_that_is_written_anew_goes_on() -> None:
    disk = amid_move(sealed_queue("z"), "z", "t", "z")
    copy, told = repaired(disk)
    assert [each.name for each in told if each.is_anew] == ["z"]
    assert not any(each.why_not for each in told)
    assert content(copy) == content(disk)


def test_a_move_to_a_queue_that_is_written_anew_is_told() -> None:
    world = sealed_queue("z")
    world.client().puts("a", "a")
    while world.sync():
        world.turn(1)
    _, told = repaired(amid_move(world, "a", "z", "z"))
    (left,) = [each for each in told if each.why_not]
    assert left.name == "undo/1" and "on their way from a to z" in left.why_not
