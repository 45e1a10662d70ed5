"""A failed sync leaves its mark, and the caches show what the disk may lack: no tool ends what a start needs."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.convert import Conversion, ConversionRefused, ConversionUnfinished
from staniel.queues.config import Format
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.world import START_MS, World

LATER_MS = START_MS + 60_000
OTHER = {Format.KESTREL: Format.LIBKESTREL, Format.LIBKESTREL: Format.KESTREL}
CRASHES = (Crash.DROP, Crash.KEEP)


def settle(world: World) -> None:
    for _ in range(3):
        world.turn(5)
        world.sync()


def test_a_tool_leaves_the_redo_log_in_use_after_a_failed_sync() -> None:
    config = 'default.sync_journal = "always"\nserver.redo_log = "256KB"'
    world = World(config)
    settle(world)
    client, acknowledged = world.client(), []
    world.disk.fail("sync_all", "s", errno.EIO)
    with suppress(JournalFailure):
        for number in range(400):
            item = f"{number:0120}"
            client.puts(item)
            settle(world)
            assert client.hears() == "STORED"
            acknowledged.append(item.encode())
    assert world.disk.lies == 1
    disk = world.disk.kill()
    assert len(acknowledged) > 10 and disk.crash(Crash.DROP).size("s/q") < disk.size("s/q")
    version = disk.read("s/.staniel/version", 0, 100)
    spool = Spool(disk, "s")
    with pytest.raises(SpoolError, match=r"a sync failed in an earlier run.*start a server on it once"):
        spool.finish_log()
    left = disk.kill().crash(Crash.DROP)
    assert left.read("s/.staniel/version", 0, 100) == version
    assert World(config, left, LATER_MS).items()[: len(acknowledged)] == acknowledged


def convert(disk: Disk, to: Format) -> None:
    spool = Spool(disk, "s")
    spool.finish_log()
    Conversion(spool, "q", LATER_MS, lambda *_: None).run(to)


def filled(source: Format) -> Disk:
    world = World(f'default.sync_journal = "always"\ndefault.journal_format = "{source.value}"')
    settle(world)
    for number in range(5):
        world.client().puts(f"{number}")
        settle(world)
    world.broker.shutdown(world.now_ms)
    return world.disk.kill()


def unfinished(source: Format) -> Iterator[tuple[int, Disk]]:
    """Disks on which a conversion has been ended by a failed sync: of each folder's sync that it makes, in turn."""
    base = filled(source)
    for after in range(100):
        disk = base.fork().kill()
        disk.fail("sync_folder", "s", errno.EIO, after=after)
        try:
            convert(disk, OTHER[source])
        except (JournalFailure, SpoolError, ConversionUnfinished):
            yield after, disk.kill()
        else:
            return


def test_the_user_of_such_a_conversion_is_told_to_start_a_server() -> None:
    disk = filled(Format.KESTREL)
    disk.fail("sync_folder", "aside.", errno.EIO)
    with pytest.raises(ConversionUnfinished) as refused:
        convert(disk, Format.LIBKESTREL)
    assert "start a server, which finishes it" in str(refused.value) and "run this again" not in str(refused.value)


ITEMS = [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("source", list(Format))
def test_a_conversion_that_a_failed_sync_has_ended_is_not_continued_by_a_tool(source: Format) -> None:
    seen = 0
    for after, disk in unfinished(source):
        with suppress(SpoolError, ConversionRefused):
            convert(disk, OTHER[source])
        left = disk.kill()
        for how in CRASHES:
            assert World("", left.crash(how), LATER_MS).items() == ITEMS, (after, how)
        assert World("", left, LATER_MS).items() == ITEMS, after
        seen += 1
    assert seen > 8


@pytest.mark.parametrize("source", list(Format))
def test_a_power_cut_in_the_start_that_finishes_such_a_conversion_loses_nothing(source: Format) -> None:
    starts = 0
    for after, failed in unfinished(source):
        for step in range(after % 3, 300, 3):
            disk = failed.fork().kill()
            disk.stop_at = len(disk.log) + step
            with suppress(PowerCut):
                World("", disk, LATER_MS)
                break
            for how in CRASHES:
                assert World("", disk.crash(how), LATER_MS).items() == ITEMS, (after, step, how)
            starts += 1
    assert starts > 100


@pytest.mark.parametrize("source", list(Format))
def test_a_plan_that_such_a_start_has_carried_out_moves_no_later_file(source: Format) -> None:
    """The removal of the plan may be in the caches only."""
    for after, disk in unfinished(source):
        world = World('default.sync_journal = "always"', disk, LATER_MS)
        settle(world)
        client = world.client().says("delete q")
        settle(world)
        client.says("set q 0 0 3", "new")
        settle(world)
        assert "STORED" in client.hears()
        for how in CRASHES:
            assert World("", world.disk.crash(how), LATER_MS).items() == [b"new"], (after, how)
