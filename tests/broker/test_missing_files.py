"""Sealed files that are gone or have lost their end while the server was down: what they cost is counted and told, and
nothing else is lost, removed or invented.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from staniel.journal.disk.replace_file import replace_file
from staniel.journal.dump import rows
from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.tools.verify import inspect
from staniel.queues.line import PlainLine
from staniel.sim.disk.disk import Disk
from tests.broker.maintenance.test_packing import do_everything, half_read
from tests.broker.maintenance.test_read_behind import SMALL, filled, got, log_of, queue_of
from tests.broker.test_unreadable_files import drained, item, sealed
from tests.support.streams import asks, fill
from tests.support.world import World

CONFIG = """
default.max_memory_size = "4KB"
default.max_journal_size = "1GB"
default.default_journal_size = 2000
server.expiration_timer_frequency = "none"
"""
AMPLE = CONFIG.replace("4KB", "4MB")
COUNT = 40


def stopped(taken: int = 0) -> tuple[Disk, list[str]]:
    """A spool with a queue of many files, `taken` of whose items have been read; and its sealed files."""
    world = World(CONFIG)
    fill(world, *(item(number) for number in range(COUNT)))
    for _ in range(taken):
        asks(world, "get q")
    files = sealed(world, "q")
    world.broker.shutdown(world.now_ms)
    return world.disk.kill(), files


def started(disk: Disk, config: str = CONFIG) -> World:
    return World(config, disk)


def flaws(disk: Disk) -> list[str]:
    copy = disk.kill()
    return [flaw.why for found in inspect(copy, "s") for flaw in found.flaws if found.is_damaged]


def items_of(disk: Disk, name: str) -> list[int]:
    """The numbers of the items that can be read in a file."""
    found: list[int] = []
    with suppress(CorruptRecord):
        found += (int(row.data[:6]) for row in rows(disk, f"s/{name}", KestrelDumper()) if row.data)
    return found


@pytest.mark.parametrize("config", [CONFIG, AMPLE])
@pytest.mark.parametrize("at", [0, 3, -1])
@pytest.mark.parametrize("taken", [0, 2, 9])
def test_a_sealed_file_that_is_gone_costs_its_items_alone_and_they_are_counted(
    config: str, at: int, taken: int
) -> None:
    disk, files = stopped(taken)
    mine = items_of(disk, files[at])
    disk.remove(f"s/{files[at]}")
    assert flaws(disk) == [f"a missing sealed file, with {len(mine)} items"]
    for _ in range(2):  # it is told at each start
        world = started(disk, config)
        lost = [number for number in mine if number >= taken]
        assert world.reported("journal.gone") == [{"queue": "q", "file": files[at], "items": len(lost)}]
        disk = world.disk.kill()
    assert drained(world, "q")[0] == [number for number in range(taken, COUNT) if number not in lost]
    fill(world, item(COUNT))
    assert drained(started(world.disk.kill(), config), "q")[0] == [COUNT]


@pytest.mark.parametrize("config", [CONFIG, AMPLE])
@pytest.mark.parametrize("at", [0, 3, -1])
@pytest.mark.parametrize("taken", [0, 2, 9])
@pytest.mark.parametrize("left", [0, 1, 521, 700])
def test_a_sealed_file_that_has_lost_its_end_is_read_up_to_there(config: str, at: int, taken: int, left: int) -> None:
    disk, files = stopped(taken)
    mine = items_of(disk, files[at])
    disk.truncate(f"s/{files[at]}", left)
    there = items_of(disk, files[at])
    assert any("missing at the end of a sealed file" in why for why in flaws(disk))
    world = started(disk, config)
    lost = [number for number in mine if number >= taken and number not in there]
    assert world.reported("journal.shortened") == [{"queue": "q", "file": files[at], "items": len(lost)}]
    assert drained(world, "q")[0] == [number for number in range(taken, COUNT) if number not in lost]


def test_a_file_that_is_put_back_is_served_again() -> None:
    disk, files = stopped(2)
    content = disk.read(f"s/{files[1]}", 0, 1 << 20)
    disk.remove(f"s/{files[1]}")
    world = started(disk)
    assert "journal.gone" in world.events
    world.broker.shutdown(world.now_ms)
    disk = world.disk.kill()
    back = disk.append(f"s/{files[1]}")
    back.write(content)
    back.close()
    world = started(disk)
    assert "journal.gone" not in world.events and flaws(world.disk) == []
    assert drained(world, "q")[0] == list(range(2, COUNT))


def test_a_queue_whose_files_are_all_gone_is_told_once() -> None:
    disk, files = stopped()
    for name in [*files, "q"]:
        disk.remove(f"s/{name}")
    assert len(flaws(disk)) == len(files)
    world = started(disk)
    assert [each["file"] for each in world.reported("journal.gone")] == files
    assert "journal.gone" not in started(world.disk.kill()).events


def test_a_gone_file_without_a_readable_sidecar_is_told_too() -> None:
    disk, files = stopped()
    disk.remove(f"s/{files[1]}")
    disk.truncate(kestrel_files.sidecar_path("s", files[1]), 30)
    world = started(disk)
    assert world.reported("journal.gone") == [{"queue": "q", "file": files[1], "items": "unknown"}]
    found = drained(world, "q")[0]
    assert found == sorted(set(found)) and found[-1] == COUNT - 1


def test_a_sidecar_of_a_file_that_a_summary_has_replaced_is_not_taken_for_a_gone_file() -> None:
    """As a backup of a running server may have it: sidecars copied before a summary, journals after it."""
    world = filled(SMALL, 300, size=60)
    old = {each: world.disk.read(f"s/.staniel/segments/{each}", 0, 1 << 20) for each in sidecars(world.disk)}
    assert got(world, 200) == list(range(200))
    disk = world.disk.kill()
    stale = old.keys() - set(sealed_names(disk))
    assert len(stale) > 5
    for each in stale:
        replace_file(disk, f"s/.staniel/segments/{each}", old[each])
    after = World(SMALL, disk)
    assert got(after, 300) == list(range(200, 300))
    assert after.reported("journal.unreadable_items") == [] and len(after.reported("journal.gone")) == len(stale)


def sidecars(disk: Disk) -> list[str]:
    return [name for name, _ in disk.list("s/.staniel/segments")]


@pytest.mark.parametrize("memory", [200, 4_000_000])
@pytest.mark.parametrize("what", ["cut", "gone"])
@pytest.mark.parametrize("more", ["", 'queues.q.expire_to_queue = "late"\n'])
def test_stand_ins_of_a_summary_reach_nobody_when_what_removes_them_is_lost(memory: int, what: str, more: str) -> None:
    """The files behind the summary have lost their removals, and no sidecar tells of those."""
    world = half_read()
    do_everything(world)
    disk = world.disk.kill()
    assert items_with_stand_ins(disk) > 0
    for name, _ in disk.list("s/.staniel/segments"):
        disk.remove(f"s/.staniel/segments/{name}")
    behind = [*sealed_names(disk)[1:], "q"]
    for name in behind:
        if what == "cut":
            disk.truncate(f"s/{name}", 0)
        else:
            disk.remove(f"s/{name}")
    after = World(SMALL.replace("max_memory_size = 200", f"max_memory_size = {memory}") + more, disk)
    found = []
    while (heard := asks(after, "get q")) != "END":
        found.append(heard.split()[4][:4])
    assert found and all(found), "an empty item was handed out"
    assert not more or after.items("late") == []
    told = after.reported("journal.stand_ins") + after.reported("journal.unreadable_items")
    assert sum(int(str(each["items"])) for each in told) == items_with_stand_ins(disk)
    assert World(SMALL, after.disk.kill()).items() == []


def half_taken_pack() -> tuple[Disk, int]:
    """A spool after a clean stop: the queue's first file is a pack that begins with stand-ins of items that have all
    been taken, and the next item is in it, too. And that item's number.
    """
    world = filled(SMALL.replace("max_memory_size = 200", "max_memory_size = 1200"), 150, size=60)
    for _ in range(60):
        got(world, 2)
        checkpoint, left = log_of(world).segments.sealed[0].checkpoint, queue_of(world).line.left
        if items_with_stand_ins(world.disk) and checkpoint is not None and left < checkpoint.end:
            world.broker.shutdown(world.now_ms)
            return world.disk.kill(), left
    raise AssertionError("no pack is in that state")


@pytest.mark.parametrize("memory", [200, 1200])
def test_stand_ins_of_items_that_have_been_taken_are_no_loss(memory: int) -> None:
    """They lie between the last known place in the file and the item that is read back first."""
    disk, left = half_taken_pack()
    world = World(SMALL.replace("max_memory_size = 200", f"max_memory_size = {memory}"), disk)
    assert queue_of(world).line.on_disk == 150 - left, "a start has read nothing back yet"
    assert got(world, 150) == list(range(left, 150))
    assert not {"journal.unreadable_items", "journal.stand_ins"}.intersection(world.events)
    assert ("damaged", False) not in world.disk.list("s/.staniel")


def test_counting_what_is_dropped_unread_reports_no_loss_of_what_was_taken_before() -> None:
    disk, left = half_taken_pack()
    world = World(SMALL, disk)
    line = queue_of(world).line
    assert isinstance(line, PlainLine) and not line.in_memory
    assert line.drop_unread(2) == 2
    line.measure_dropped()
    assert len(line) == 150 - left - 2 and line.bytes == 60 * len(line)
    assert isinstance(line.tail, ReadBehind) and line.tail.unreadable == []


def sealed_names(disk: Disk) -> list[str]:
    return sorted(name for name, regular in disk.list("s") if regular and name.startswith("q."))


def items_with_stand_ins(disk: Disk) -> int:
    found = rows(disk, f"s/{sealed_names(disk)[0]}", KestrelDumper())
    return sum(row.data == b"" and row.added_ms == 0 for row in found)
