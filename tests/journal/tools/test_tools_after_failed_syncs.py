"""A failed sync leaves its mark, and the caches show what the disk may lack: no tool ends what a start needs."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.spool import Spool, SpoolError
from staniel.sim.disk.durable import Crash
from tests.support.world import START_MS, World

LATER_MS = START_MS + 60_000


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
