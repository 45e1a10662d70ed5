"""Every sync and every write of a busy broker fails once, at every place where it can."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Choose, Crash, Inode
from tests.faults.trial import Trial
from tests.support.spool import new_disk

SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
SYNCS = 50
WRITES = 100


def ends(seed: int) -> list[Crash | Choose | None]:
    """Power cuts, then a kill."""
    return [*Crash, Random(seed).randrange, None]


def failing(verb: str, number: int, seed: int, code: int, short: int = 0) -> tuple[Trial, Struck]:
    """A trial whose disk fails the step `number` of that kind, if there are so many."""
    disk = Struck(verb)
    disk.make_folder("s")
    disk.fail(verb, "s", code, after=number, short=short)
    return Trial(seed, disk), disk


class Struck(Disk):
    """Counts the steps of one kind that succeed once one of them has failed. `struck`: the path of that one."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.verb = verb
        self.struck = ""
        self.done = 0

    def trip(self, verb: str, path: str) -> None:
        try:
            super().trip(verb, path)
        except OSError:
            self.struck = path
            raise
        self.done += bool(self.struck) and verb == self.verb

    def write_to(self, inode: Inode, data: bytes) -> None:
        try:
            super().write_to(inode, data)
        except OSError:
            self.struck = inode.path
            raise

    @property
    def is_without_consequence(self) -> bool:
        """Whether nothing failed, or only what nothing rests on yet: a summary or a sidecar in the making, a pause or
        a status, which is then refused.
        """
        path = self.struck
        return not path or "~~" in path or "/segments" in path or path.endswith((".new", ".staniel"))


@pytest.mark.parametrize(("verb", "count"), [("sync", SYNCS), ("sync_folder", 12), ("sync_all", 1)])
def test_each_of_the_first_syncs_fails_and_nothing_is_said_that_is_not_kept(verb: str, count: int) -> None:
    """The pages count as clean then, and the next sync would succeed without them: there must be none."""
    ended = 0
    for number in range(count):
        trial, disk = failing(verb, number, SEED + number, errno.EIO)
        if trial.failure is None:
            assert disk.is_without_consequence, (number, disk.struck, SEED)
        else:
            assert disk.done == 0, (number, disk.struck, SEED)
            ended += 1
        for how in ends(SEED):
            assert trial.wrong_after(how) == [], (number, SEED, how)
    assert ended > count // 2


def test_each_write_breaks_off_at_any_byte_and_nothing_is_said_that_is_not_kept() -> None:
    random = Random(SEED)
    for number in range(WRITES):
        trial, disk = failing("write", number, SEED + number, errno.EIO, random.randrange(90))
        assert trial.failure is not None or disk.is_without_consequence, (number, disk.struck, SEED)
        for how in ends(SEED):
            assert trial.wrong_after(how) == [], (number, SEED, how)


def test_the_disk_is_full_in_each_write_at_any_byte_and_what_was_admitted_is_kept_all_the_same() -> None:
    random = Random(SEED)
    refused = 0
    for number in range(WRITES):
        trial, _ = failing("write", number, SEED + number, errno.ENOSPC, random.randrange(90))
        refused += trial.refused
        for how in ends(SEED):
            assert trial.wrong_after(how) == [], (number, SEED, how)
    assert refused > WRITES


@pytest.mark.parametrize("verb", ["create", "reserve", "remove", "rename"])
def test_a_step_in_the_folder_finds_no_space_and_nothing_is_lost_or_left_over(verb: str) -> None:
    for number in range(8):
        trial, _ = failing(verb, number, SEED + number, errno.ENOSPC)
        for how in ends(SEED):
            assert trial.wrong_after(how) == [], (number, SEED, how)


def test_a_disk_that_is_sound_shows_that_the_trial_is() -> None:
    trial = Trial(SEED, new_disk())
    assert trial.failure is None and trial.refused == 0
    assert [trial.wrong_after(how) for how in ends(SEED)] == [[], [], [], []]
    lost = Trial(SEED, new_disk())
    for name, regular in lost.disk.list("s"):
        if regular and name.startswith("q"):
            lost.disk.remove(f"s/{name}")
    assert any("lost" in line for line in lost.wrong_after(None))
