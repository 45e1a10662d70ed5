"""A copy of a spool has everything of its own folder that recovery reads."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from staniel.broker.wall_clock import ClockReading
from staniel.journal.disk.fs import JournalFailure
from staniel.journal.own_files import LOSSES
from staniel.journal.spool import Spool
from staniel.journal.spool_listing import NOT_COPIED, SPOOL_STATE, may_be_in_spool, spool_files
from staniel.journal.tools.convert import Conversion, ConversionRefused
from staniel.journal.tools.repair import Repair
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.world import START_MS, World

CONFIG = 'default.sync_journal = "always"'
COPIED_FOLDERS = {"segments", "cmdlog", "undo", "keys"}
DAY_MS = 86_400_000


class Machine:
    """A machine whose wall clock can be set. `boot` changes at each boot."""

    def __init__(self) -> None:
        self.passed_ms = self.step_ms = 0
        self.boot = "first"

    def read(self) -> ClockReading:
        return ClockReading(START_MS + self.passed_ms + self.step_ms, self.passed_ms, self.boot)

    def start(self, disk: Disk | None = None) -> World:
        return World(CONFIG, disk, self.read().wall_ms, read_clocks=self.read)


def settle(world: World) -> None:
    for _ in range(5):
        world.turn(1)
        world.sync()


def after_a_step(machine: Machine) -> World:
    """A server with an item that lives for an hour, whose wall clock has been set a day forwards."""
    world = machine.start()
    world.client().says("set q 0 3600 3", "ttl")
    settle(world)
    machine.passed_ms, machine.step_ms = 60_000, DAY_MS
    world.now_ms += 60_000
    return world


def test_every_name_of_the_own_folder_is_copied_or_left_out_for_a_reason() -> None:
    copied = {*SPOOL_STATE, *COPIED_FOLDERS}
    assert copied.isdisjoint(NOT_COPIED) and copied | set(NOT_COPIED) == set(LOSSES)
    assert all(map(may_be_in_spool, (f".staniel/{name}" for name in SPOOL_STATE)))


def test_a_repaired_copy_and_a_backup_know_the_steps_of_the_clock() -> None:
    machine = Machine()
    world = after_a_step(machine)
    world.broker.wall.check_clock(world.now_ms)
    settle(world)
    world.broker.shutdown(world.now_ms)
    disk = world.disk.kill()
    assert machine.start(disk.copy()).items() == [b"ttl"]
    assert ".staniel/clock" in [file.name for file in spool_files(disk, "s")]
    disk.make_folder("t")
    assert not any(repaired.has_losses for repaired in Repair(disk, "s", None, "t", START_MS, lambda _: None).run())
    assert disk.read("t/.staniel/clock", 0, 1 << 20) == disk.read("s/.staniel/clock", 0, 1 << 20)


def test_a_note_of_the_clock_is_renewed_after_its_sync_has_failed() -> None:
    machine = Machine()
    world = after_a_step(machine)
    world.disk.fail("sync_folder", ".staniel", errno.EIO)
    with suppress(JournalFailure):
        world.broker.wall.check_clock(world.now_ms)
    assert world.disk.lies
    again = machine.start(world.disk.kill())
    settle(again)
    assert again.items() == [b"ttl"]
    machine.boot = "second"  # a power cut
    assert machine.start(again.disk.crash(Crash.DROP)).items() == [b"ttl"]


def test_a_conversion_reads_the_end_of_a_delay_by_the_steps_of_the_clock() -> None:
    machine = Machine()
    world = machine.start()
    world.client().says("set q/delay=1800000 0 0 5", "delay")
    settle(world)
    machine.passed_ms, machine.step_ms = 60_000, DAY_MS
    world.now_ms += 60_000
    world.broker.wall.check_clock(world.now_ms)
    settle(world)
    world.broker.shutdown(world.now_ms)
    disk = world.disk.kill()
    for passed_ms in (60_000, 1_700_000):
        now_ms = START_MS + passed_ms + DAY_MS
        with pytest.raises(ConversionRefused, match="a delay that ends at 2023-11-15T22:43:"):
            Conversion(Spool(disk, "s"), "q", now_ms, lambda *_: None).run(Format.LIBKESTREL)
        disk = disk.kill()
    now_ms = START_MS + 1_900_000 + DAY_MS
    assert Conversion(Spool(disk, "s"), "q", now_ms, lambda *_: None).run(Format.LIBKESTREL) == 1
