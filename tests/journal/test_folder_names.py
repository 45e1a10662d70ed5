"""The names of new folders, and of files that are moved to another folder, when a sync fails: a start after that must
not write into a folder, or leave a file in one, whose name the next power cut takes away.
"""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.support.job_world import JobWorld
from tests.support.spool import new_disk
from tests.support.world import START_MS, World

LATER_MS = START_MS + 5000
SYNCS = 6  # that a start does, at least; each of them fails once


def start_with_failure(disk: Disk, after: int, config: str = "", *, jobs: bool = False) -> bool:
    """Start a server whose sync number `after` of a folder fails. Return whether it did."""
    disk.kill().fail("sync_folder", "s", errno.EIO, after=after)
    try:
        JobsInSpool(disk) if jobs else World(config, disk)
    except (JournalFailure, SpoolError):
        return True
    return False


class JobsInSpool(JobWorld):
    """Jobs whose command log is in the spool's own folder."""

    def __init__(self, disk: Disk, now_ms: int = START_MS) -> None:
        self.workq_toml, self.syncs = "", True
        World.__init__(self, "[workq]\nport = 0\n", disk, now_ms)


def settle(world: World) -> None:
    world.turn(20)
    while world.sync():
        world.turn()


def made_folders(disk: Disk) -> list[int]:
    return [number for number, op in enumerate(disk.log) if op.verb == "make_folder"]


def test_jobs_are_kept_though_a_kill_and_a_failed_sync_left_the_folder_of_their_log_in_the_cache_alone() -> None:
    whole = new_disk()
    JobsInSpool(whole)
    failures = 0
    for step in range(1, made_folders(whole)[-1] + 3):
        for after in range(SYNCS):
            disk = new_disk()
            disk.stop_at = step
            with suppress(PowerCut):
                JobsInSpool(disk)
            if not start_with_failure(disk, after, jobs=True):
                continue
            failures += 1
            world = JobsInSpool(disk.kill(), LATER_MS)
            assert world.worker().adds(1, "job") == "+OK"
            settle(world)
            assert JobsInSpool(disk.crash(Crash.DROP), LATER_MS + 1000).jobs, (step, after)
    assert failures


def test_a_folder_whose_name_could_not_be_synced_is_made_anew_by_the_next_start() -> None:
    disk = new_disk()
    disk.fail("sync_folder", "s/.staniel", errno.EIO, after=0)
    with suppress(JournalFailure, SpoolError):
        World("", disk).client().says("set q/key=k 0 0 1", "x")
    assert disk.lies
    world = World("", disk.kill(), LATER_MS)
    world.client().says("set q/key=k2 0 0 1", "x")
    settle(world)
    again = World("", disk.crash(Crash.DROP), LATER_MS + 1000)
    client = again.client()
    client.says("set q/key=k2 0 0 1", "x")
    settle(again)
    assert client.hears() == "EXISTS"


@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("config", ["", "queues.q.keep_journal = false"], ids=["kept again", "not kept"])
def test_a_file_that_is_moved_aside_is_in_one_of_the_two_folders(form: str, config: str) -> None:
    kept, lapsed = f'default.journal_format = "{form}"\n', "queues.q.keep_journal = false\n"
    world = World(kept, new_disk())
    world.client().says("set q 0 0 3", "one")
    settle(world)
    world.broker.shutdown(world.now_ms)
    base = world.disk.crash(Crash.KEEP)
    whole = base.fork()
    World(kept + lapsed, whole, LATER_MS)
    failures = 0
    for step in range(1, len(whole.log) + 1):
        for after in range(3):
            disk = base.fork()
            disk.stop_at = step
            with suppress(PowerCut):
                World(kept + lapsed, disk, LATER_MS)
            if not start_with_failure(disk, after, kept + lapsed):
                continue
            failures += 1
            settle(World(kept + config, disk.kill(), LATER_MS + 2000))
            assert holders(disk.crash(Crash.DROP)) == holders(disk), (step, after)
    assert failures


def holders(disk: Disk) -> set[str]:
    """The files with the item."""
    aside = [f"s/.staniel/{name}" for name, _ in disk.list("s/.staniel") if name.startswith("aside.")]
    paths = [f"{folder}/{name}" for folder in ["s", *aside] for name, regular in disk.list(folder) if regular]
    found = {path for path in paths if b"one" in disk.read(path, 0, 1 << 20)}
    assert found
    return found
