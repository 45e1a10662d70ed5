"""A repair that a refused call has ended, or a power loss: no server starts on the part that it has made."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.journal.tools.repair import CannotRepair, Repair, Repaired
from staniel.journal.tools.unfinished import Work, unfinished_work
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.faults.rich import CONFIG, LATER_MS, _asks, _puts, _transfers, start
from tests.journal.disk.errno_walk import failing
from tests.support.world import World


def rich_spool() -> Disk:
    world = World(CONFIG)
    _puts(world, "big", 30, 1000)
    _asks(world, *["get big"] * 5)
    _puts(world, "mail", 3, 30)
    _asks(world, "get mail+a")
    _transfers(world)
    return world.disk.copy()


@pytest.fixture(scope="module")
def spool() -> Disk:
    return rich_spool()


def repair(disk: Disk) -> list[Repaired]:
    return list(Repair(disk, "s", None, "copy", LATER_MS, lambda size: None).run())


def in_place(disk: Disk) -> Disk:
    disk.rename("s", "first")
    disk.rename("copy", "s")
    disk.sync_folder("")
    return disk


def has_journals(disk: Disk) -> bool:
    try:
        return any(regular for _, regular in disk.list("copy"))
    except FileNotFoundError:
        return False


def test_a_part_of_a_copy_is_never_served_whatever_the_power_loss_leaves_of_it(spool: Disk) -> None:
    whole = spool.fork()
    with failing(whole) as calls:
        repair(whole)
    wanted = start(in_place(whole)).content
    refused = 0
    for at in range(len(calls)):
        disk = spool.fork()
        with failing(disk, at, errno.EIO), suppress(OSError, JournalFailure, CannotRepair):
            repair(disk)
        for how in (None, *Crash):
            left = disk.fork() if how is None else disk.fork().crash(how)
            if not has_journals(left):
                continue
            found = start(in_place(left))
            if found.refusal:
                refused += 1
                assert "copy it again" in found.refusal, found.refusal
            else:
                assert found.content == wanted, (at, calls[at], how)
    assert refused > 100


def test_a_marked_copy_is_unfinished_work_and_is_not_repaired(spool: Disk) -> None:
    disk = spool.fork()
    with failing(disk) as calls:
        repair(disk)
    last = len(calls) - 1
    assert calls[last][0] == "sync_folder", "the mark is cleared last"
    disk = spool.fork()
    with failing(disk, last, errno.EIO), pytest.raises((OSError, JournalFailure)):
        repair(disk)
    assert unfinished_work(disk, "copy")[0].work is Work.COPY
    with pytest.raises(CannotRepair, match="copy it again"):
        list(Repair(disk, "copy", None, "another", LATER_MS, lambda size: None).run())
    with pytest.raises(CannotRepair, match="copy it again"):
        list(Repair(disk, "copy", frozenset({"big"}), "another", LATER_MS, lambda size: None).run())


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ESTALE])
def test_a_read_that_is_refused_once_costs_the_copy_and_no_item(spool: Disk, number: int) -> None:
    counted = spool.fork()
    with failing(counted) as calls:
        repair(counted)
    reads = [
        at for at, (verb, path) in enumerate(calls) if verb in ("read", "reader", "open") and ".staniel/" not in path
    ]
    for at in [at for at in reads if calls[at][1].startswith(("s/", "copy/"))]:
        disk = spool.fork()
        with failing(disk, at, number), pytest.raises(OSError) as refused:
            repair(disk)
        assert refused.value.errno == number and refused.value.filename, calls[at]
