"""The removal of a deleted queue's files is durable when it ends, and every file but the last one before that one."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.disk.removal import FileRemoval
from staniel.journal.disk.replace_file import create_empty
from staniel.sim.disk.disk import Crash, Disk
from tests.support.spool import cut_at_each_step

NAMES = ["q.1", "q.2", "q"]
LAST = "q.3.pack"


def with_files() -> Disk:
    disk = Disk()
    disk.make_folder("s")
    for name in [*NAMES, LAST]:
        file = create_empty(disk, f"s/{name}")
        file.sync()
        file.close()
    disk.sync_folder("")
    disk.sync_folder("s")
    return disk


def names(disk: Disk) -> list[str]:
    return sorted(name for name, _ in disk.list("s"))


def test_no_file_comes_back_after_a_power_cut() -> None:
    disk = with_files()
    FileRemoval(disk, "s", list(NAMES), LAST).carry_out()
    assert names(disk.crash(Crash.DROP)) == []


def test_the_last_file_is_there_as_long_as_any_other_is() -> None:
    cuts = 0
    for _, disk in cut_at_each_step(with_files(), lambda disk: FileRemoval(disk, "s", list(NAMES), LAST).carry_out()):
        for how in (Crash.DROP, Crash.KEEP):
            left = names(disk.copy().crash(how))
            assert not left or LAST in left
            cuts += 1
    assert cuts


@pytest.mark.parametrize("name", [*NAMES, LAST])
def test_a_refused_removal_goes_on_where_it_stopped(name: str) -> None:
    disk = with_files()
    disk.fail("remove", f"s/{name}", errno.EPERM, times=1)
    removal = FileRemoval(disk, "s", list(NAMES), LAST)
    with pytest.raises(OSError):
        removal.carry_out()
    assert LAST in names(disk)
    removal.carry_out()
    assert names(disk.crash(Crash.DROP)) == []
