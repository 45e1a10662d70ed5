"""The removal of a deleted queue's files is durable when it ends, and every file but the last one before that one.
Their names are listed meanwhile.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from staniel.journal.disk.fs import SyncFailed
from staniel.journal.disk.removal import FileRemoval, RemovalList, listed_names
from staniel.journal.disk.replace_file import create_empty
from staniel.journal.kestrel.files import sidecar_folder
from staniel.journal.spool import Spool
from staniel.sim.disk.disk import Crash, Disk
from tests.support.spool import content_of, cut_at_each_step

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
    return sorted(name for name, regular in disk.list("s") if regular)


def removal(disk: Disk) -> FileRemoval:
    return FileRemoval(disk, "s", "q", list(NAMES), LAST)


def carry_out(disk: Disk) -> None:
    removal(disk).carry_out()


def test_no_file_comes_back_after_a_power_cut() -> None:
    disk = with_files()
    carry_out(disk)
    assert names(disk.crash(Crash.DROP)) == []


def test_the_last_file_is_there_as_long_as_any_other_is() -> None:
    cuts = 0
    for _, disk in cut_at_each_step(with_files(), carry_out):
        for how in (Crash.DROP, Crash.KEEP):
            left = names(disk.crash(how))
            assert not left or LAST in left
            cuts += 1
    assert cuts


@pytest.mark.parametrize("name", [*NAMES, LAST])
def test_a_refused_removal_goes_on_where_it_stopped(name: str) -> None:
    disk = with_files()
    disk.fail("remove", f"s/{name}", errno.EPERM, times=1)
    begun = removal(disk)
    with pytest.raises(OSError):
        begun.carry_out()
    assert LAST in names(disk)
    begun.carry_out()
    assert names(disk.crash(Crash.DROP)) == []


def set_files_aside(disk: Disk) -> None:
    spool = Spool(disk, "s")
    spool.set_aside(spool.listing().kestrel["q"], 1)


@pytest.mark.parametrize("remove", [carry_out, set_files_aside])
def test_the_names_of_files_that_a_power_cut_could_bring_back_are_listed_durably(
    remove: Callable[[Disk], None],
) -> None:
    could_come_back = 0
    for _, disk in cut_at_each_step(with_files(), remove):
        after = disk.crash(Crash.DROP)
        for name in {*names(after)} - {*names(disk)}:
            assert name in listed_names(after, "s")
            could_come_back += 1
    assert could_come_back


@pytest.mark.parametrize("verb", ["make_folder", "create", "write", "rename"])
def test_files_whose_names_cannot_be_listed_are_removed_all_the_same(verb: str) -> None:
    disk = with_files()
    disk.fail(verb, ".staniel/segments", errno.ENOSPC, times=1000)
    carry_out(disk)
    assert names(disk.crash(Crash.DROP)) == []


def test_a_list_whose_sync_fails_removes_nothing() -> None:
    disk = with_files()
    disk.fail("sync", ".removed", errno.ENOSPC)
    with pytest.raises(SyncFailed):
        carry_out(disk)
    assert names(disk) == sorted([*NAMES, LAST])


def test_a_changed_list_has_no_names() -> None:
    disk = with_files()
    RemovalList(disk, "s", "q").write(NAMES)
    assert listed_names(disk, "s") == NAMES
    path = f"{sidecar_folder('s')}/q.removed"
    data = content_of(disk, path)
    for at in range(len(data)):
        disk.remove(path)
        file = disk.append(path)
        file.write(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        file.close()
        assert listed_names(disk, "s") == []


def test_a_start_removes_a_list_that_is_left() -> None:
    disk = with_files()
    RemovalList(disk, "s", "q").write(NAMES)
    spool = Spool(disk, "s")
    spool.prune(spool.listing().kestrel)
    assert disk.list(sidecar_folder("s")) == []
