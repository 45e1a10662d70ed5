"""Queues moved from one journal format to the other: nothing lost, nothing doubled, whenever the power fails."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.libkestrel.records import DATA_BYTES_MAX
from staniel.journal.spool import Spool
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.unfinished import unfinished_work
from staniel.queues.config import Format, JournalDialect
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.broker.maintenance.test_packing import do_everything, half_read
from tests.broker.maintenance.test_read_behind import SMALL
from tests.broker.operations.test_undo import Admin, asked, filled
from tests.broker.test_missing_files import items_with_stand_ins, sealed_names
from tests.support.spool import crashes, cut_at_each_step, new_disk, put_file
from tests.support.world import START_MS, World

KESTREL, LIBKESTREL = 'default.journal_format = "kestrel"', 'default.journal_format = "libkestrel"'
Holdings = dict[str, list[bytes]]
OTHER = {Format.KESTREL: Format.LIBKESTREL, Format.LIBKESTREL: Format.KESTREL}
CONFIGS = {Format.KESTREL: KESTREL, Format.LIBKESTREL: LIBKESTREL}


def settle(world: World) -> None:
    while world.sync():
        world.turn()


def used(format_: Format, children: bool = True) -> Disk:
    """A spool with queue `q` in that format: fan-out children at different places, open reads, expiries, flags."""
    world = World(CONFIGS[format_])
    client = world.client()
    client.says("set q 7 0 3", "one", "set q 0 0 3", "two")
    if children:
        client.says("get q+late", "get q+ahead")
    for number in range(12):
        client.says(f"set q 0 {4_000_000_000 if number % 3 else 0} 4", f"i{number:03}")
        world.turn(1)
    if children:
        client.says("set q+late 0 0 5", "alone", *["get q+ahead"] * 5)
    client.says("get q/open")
    world.client().says("get q/open")
    client.says("get q/close", "get q", "set other 0 0 1", "o")
    settle(world)
    world.broker.shutdown(world.now_ms)
    return world.disk.crash(Crash.DROP)


def held(disk: Disk, format_: Format) -> Holdings:
    world = World(CONFIGS[format_], disk.crash(Crash.KEEP))
    assert [event for event in world.events if event.startswith("journal.")] in ([], ["journal.format"])
    return holdings(world)


def holdings(world: World) -> Holdings:
    return {queue.name: [item.data for item in queue.line.items()] for queue in world.broker.queues}


def convert(disk: Disk, to: Format, queue: str = "q") -> int:
    return Conversion(Spool(disk, "s"), queue, START_MS + 10_000, lambda *_: None).run(to)


def names(disk: Disk) -> set[str]:
    return {name for name, regular in disk.list("s") if regular}


@pytest.mark.parametrize("children", [False, True], ids=["alone", "with children"])
@pytest.mark.parametrize("source", list(Format))
def test_a_queue_and_its_children_hold_the_same_after_a_conversion(source: Format, children: bool) -> None:
    disk = used(source, children)
    before = held(disk, source)
    assert convert(disk, OTHER[source]) == sum(map(len, before.values())) - len(before["other"])
    assert held(disk, OTHER[source]) == before
    assert convert(disk.crash(Crash.KEEP), OTHER[source]) == -1


def test_what_waits_in_several_queues_is_one_item_afterwards() -> None:
    disk = used(Format.KESTREL)
    convert(disk, Format.LIBKESTREL)
    (segment,) = [name for name in names(disk) if name.startswith("q.") and ".read." not in name]
    assert disk.read(f"s/{segment}", 0, 1 << 20).count(b"i011") == 1
    assert {name for name in names(disk) if ".read." in name} == {"q.read.q", "q.read.late", "q.read.ahead"}


@pytest.mark.parametrize("source", list(Format))
def test_the_old_files_are_kept(source: Format) -> None:
    disk = used(source)
    before = {name: disk.read(f"s/{name}", 0, 1 << 20) for name in names(disk) if name.startswith("q")}
    convert(disk, OTHER[source])
    aside = f"s/.staniel/aside.{START_MS + 10_000}"
    assert {name: disk.read(f"{aside}/{name}", 0, 1 << 20) for name, _ in disk.list(aside)} == before
    assert not names(disk) & set(before)


@pytest.mark.parametrize("source", list(Format))
def test_the_power_may_fail_at_any_step_of_a_conversion(source: Format) -> None:
    start = used(source)
    before = held(start, source)
    steps = 0
    for steps, disk in cut_at_each_step(start, lambda disk: convert(disk, OTHER[source])):
        for number, how in enumerate(crashes(3)):
            assert holdings(World("", disk.crash(how))) == before, (steps, number)
    assert steps > 15


@pytest.mark.parametrize("source", list(Format))
def test_a_kill_amid_a_conversion_a_failed_sync_and_a_power_cut_bring_no_old_file_back(source: Format) -> None:
    start = used(source)
    before = held(start, source)
    failures = 0
    for step, disk in cut_at_each_step(start, lambda disk: convert(disk, OTHER[source])):
        disk.kill()
        for number in range(4):
            left = disk.fork()
            left.fail("sync_folder", "s", errno.EIO, after=number)
            try:
                World("", left)
            except JournalFailure:
                failures += 1
            settle(World("", left.kill()))
            for how in crashes(3):
                assert holdings(World("", left.crash(how))) == before, (step, number, how)
    assert failures


def test_a_start_carries_out_what_was_decided() -> None:
    start = used(Format.KESTREL)
    disk = start.crash(Crash.KEEP)
    whole = Spool(disk, "s")
    Conversion(whole, "q", START_MS + 10_000, lambda *_: None).run(Format.LIBKESTREL)
    moved = next(number for number, op in enumerate(disk.log) if op.verb == "rename" and "aside." in op.new)
    disk = start.crash(Crash.KEEP)
    spool = Spool(disk, "s")
    disk.stop_at = moved + 1
    with pytest.raises(PowerCut):
        Conversion(spool, "q", START_MS + 10_000, lambda *_: None).run(Format.LIBKESTREL)
    left = disk.crash(Crash.KEEP)
    World("", left)
    assert "q.read.q" in names(left) and "q" not in names(left)


def test_no_room_on_the_disk_changes_nothing() -> None:
    disk = used(Format.KESTREL)
    before = {name: disk.read(f"s/{name}", 0, 1 << 20) for name in names(disk)}
    spool = Spool(disk, "s")
    disk.capacity_bytes = disk.used_bytes + 100
    with pytest.raises(OSError):
        Conversion(spool, "q", START_MS, lambda *_: None).run(Format.LIBKESTREL)
    assert {name: disk.read(f"s/{name}", 0, 1 << 20) for name in names(disk)} == before


def test_a_queue_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConversionRefused, match="there is no queue nobody"):
        convert(used(Format.KESTREL), Format.LIBKESTREL, "nobody")


def test_a_fan_out_child_goes_with_its_parent_only() -> None:
    with pytest.raises(ConversionRefused, match="name its parent, q"):
        convert(used(Format.KESTREL), Format.LIBKESTREL, "q+late")


def test_a_name_that_the_format_cannot_hold_is_refused() -> None:
    world = World(KESTREL)
    world.client().says("set b&b 0 0 1", "x")
    settle(world)
    with pytest.raises(ConversionRefused, match="only letters, digits"):
        convert(world.crash(Crash.DROP).disk.crash(Crash.DROP), Format.LIBKESTREL, "b&b")


def test_an_item_too_large_for_the_format_is_refused() -> None:
    disk = new_disk()
    put_file(disk, "q", Encoder(JournalDialect.DOCUMENTS).addx(Item(bytes(DATA_BYTES_MAX + 1), START_MS)))
    with pytest.raises(ConversionRefused, match="allows 16MB at most"):
        convert(disk, Format.LIBKESTREL)
    assert "q" in names(disk)


@pytest.mark.parametrize("is_at_rest", [False, True])
def test_a_queue_with_a_delay_is_converted_when_the_delay_has_ended(is_at_rest: bool) -> None:
    world = World()
    client = world.client().says("set q/delay=60000 0 0 4", "late", "set q 0 0 3", "now")
    if is_at_rest:
        client.says("get q/peek")
    settle(world)
    assert len(world.broker.queues.by_name["q"].resting) == is_at_rest
    disk = world.disk.crash(Crash.DROP)
    with pytest.raises(ConversionRefused, match="a delay that ends at 2023-11-14T22:14:20"):
        convert(disk, Format.LIBKESTREL)
    later = disk.crash(Crash.DROP)
    assert Conversion(Spool(later, "s"), "q", START_MS + 61_000, lambda *_: None).run(Format.LIBKESTREL) == 2
    again = World(LIBKESTREL, later.crash(Crash.DROP))
    items = again.broker.queues.by_name["q"].line.items()
    assert [(item.data, item.expires_ms) for item in items] == [(b"late", 0), (b"now", 0)]


@pytest.mark.parametrize("what", ["purge", "move", "undo of a purge", "undo of a move"])
def test_a_queue_with_an_operation_that_was_cut_off_is_converted_when_a_start_has_ended_it(what: str) -> None:
    """Its file speaks of transactions, ids and places in the old files."""
    world = filled(20)
    begin = "purge" if what.endswith("purge") else "move"
    body: dict[str, object] = {} if begin == "purge" else {"to": "r"}
    admin = Admin(world)
    if what.startswith("undo"):
        number = asked(world, "POST", f"/api/queues/q/{begin}", body)[1]["undo"]
        admin.asks("POST", f"/api/undo/{number}")
    else:
        admin.asks("POST", f"/api/queues/q/{begin}", body)
    states, refused = 0, 0
    while world.broker.operations.running:
        disk = world.disk.crash(Crash.KEEP)
        is_open = bool(unfinished_work(disk, "s"))
        if is_open:
            with pytest.raises(ConversionRefused, match="start it once"):
                convert(disk, Format.LIBKESTREL)
        refused += is_open
        states += 1
        world.sync()
        world.do_tasks()
        world.turn(1)
    assert refused > 0 and states > refused


def test_a_queue_that_is_converted_there_and_back_without_a_start_has_no_files_that_are_gone() -> None:
    world = World('default.max_memory_size = 4000\ndefault.default_journal_size = "2KB"')
    for number in range(40):
        world.client().puts(f"i{number:04}" + "x" * 300)
        settle(world)
    world.broker.shutdown(world.now_ms)
    disk = world.disk.crash(Crash.DROP)
    assert disk.list("s/.staniel/segments")
    before = held(disk, Format.KESTREL)
    for step, to in enumerate([Format.LIBKESTREL, Format.KESTREL, Format.LIBKESTREL]):
        assert Conversion(Spool(disk, "s"), "q", START_MS + 60_000 * (step + 1), lambda *_: None).run(to) == 40
        disk = disk.kill()
        assert not disk.list("s/.staniel/segments")
        assert held(disk, to) == before


def test_stand_ins_whose_removals_are_lost_do_not_become_items() -> None:
    world = half_read()
    do_everything(world)
    disk = world.disk.kill()
    _, *others = sealed_names(disk)
    assert items_with_stand_ins(disk)
    for name, _ in disk.list("s/.staniel/segments"):
        disk.remove(f"s/.staniel/segments/{name}")
    for name in [*others, "q"]:
        disk.truncate(f"s/{name}", 0)
    start = World(SMALL, disk.copy(), world.now_ms)
    wanted = [item for item in start.items() if item]
    assert Conversion(Spool(disk, "s"), "q", world.now_ms + 10_000, lambda *_: None).run(Format.LIBKESTREL) > 0
    assert World(SMALL, disk.kill(), world.now_ms).items() == wanted
