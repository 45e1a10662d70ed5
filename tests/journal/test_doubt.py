"""A sync fails, the kernel calls the pages clean, and the server is started again: nothing may rest on such pages."""

from __future__ import annotations

import errno

import pytest

from journal.group import JournalFailure
from journal.store import SpoolError
from sim.disk import PowerCut
from sim.nodes import Crash
from tests.sim.world import World

MARK = "s/.staniel/failed_sync"


def world_whose_sync_failed() -> World:
    world = World()
    client = world.client()
    client.puts("1")
    world.sync()
    client.puts("2")
    world.disk.fail("sync", "s/q", errno.EIO)
    with pytest.raises(JournalFailure):
        world.sync()
    return world


def restarted(world: World) -> World:
    return World(world.config, world.disk.kill(), world.now_ms)


def test_what_is_acknowledged_after_the_restart_survives_the_next_power_cut() -> None:
    world = restarted(world_whose_sync_failed())
    assert "spool.renewed" in world.events and world.items() == [b"1", b"2"]
    client = world.client()
    client.puts("3")
    world.sync()
    assert client.hears() == "STORED"
    assert world.crash(Crash.DROP).items() == [b"1", b"2", b"3"]


def test_the_mark_is_gone_once_everything_has_been_written_anew() -> None:
    world = restarted(world_whose_sync_failed())
    assert not world.broker.store.doubt.exists
    world.broker.shutdown(world.now_ms)
    assert "spool.renewed" not in restarted(world).events


def test_power_fails_at_any_step_of_writing_anew() -> None:
    before = world_whose_sync_failed().disk
    steps = len(restarted(world_whose_sync_failed()).disk.log) - len(before.log)
    for step in range(steps):
        world = world_whose_sync_failed()
        disk = world.disk.kill()
        disk.stop_at = len(disk.log) + step
        with pytest.raises(PowerCut):
            World(world.config, disk, world.now_ms)
        for how in Crash:
            assert World(world.config, disk.crash(how), world.now_ms).items() in ([b"1"], [b"1", b"2"])


def test_a_disk_without_room_for_it_is_named_and_the_server_does_not_start() -> None:
    world = world_whose_sync_failed()
    disk = world.disk.kill()
    disk.fail("write", "q~~0", errno.ENOSPC)
    with pytest.raises(SpoolError, match="free space"):
        World(world.config, disk, world.now_ms)
    assert disk.size(MARK) == 0
    disk.kill()
    assert World(world.config, disk, world.now_ms).items() == [b"1", b"2"]
