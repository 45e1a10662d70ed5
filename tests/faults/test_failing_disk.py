"""Every sync and every write of a busy broker fails once, at every place where it can."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from sim.disk import Disk
from sim.nodes import Choose, Crash
from tests.faults.trial import Trial
from tests.journal.spool import new_disk

SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
SYNCS = 50
WRITES = 100


def ends(seed: int) -> list[Crash | Choose | None]:
    """Power cuts, then a kill."""
    return [*Crash, Random(seed).randrange, None]


def failing(verb: str, number: int, seed: int, code: int, short: int = 0) -> tuple[Trial, int]:
    """A trial whose disk fails the step `number` of that kind; how many steps of the kind had been done by then."""
    disk = Struck(verb)
    disk.make_folder("s")
    disk.fail(verb, "s", code, after=number, short=short)
    return Trial(seed, disk), disk.done


class Struck(Disk):
    """Counts the steps of one kind that succeed once one of them has failed."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.verb = verb
        self.struck = False
        self.done = 0

    def _trip(self, verb: str, path: str) -> None:
        try:
            super()._trip(verb, path)
        except OSError:
            self.struck = True
            raise
        self.done += self.struck and verb == self.verb


@pytest.mark.parametrize(("verb", "count"), [("sync", SYNCS), ("sync_folder", 12), ("sync_all", 1)])
def test_each_of_the_first_syncs_fails_and_nothing_is_said_that_is_not_kept(verb: str, count: int) -> None:
    """The pages count as clean then, and the next sync would succeed without them: there must be none."""
    for number in range(count):
        trial, syncs_after = failing(verb, number, SEED + number, errno.EIO)
        assert trial.failure is not None and syncs_after == 0, (number, SEED)
        for how in ends(SEED):
            assert trial.wrong_after(how) == [], (number, SEED, how)


def test_each_write_breaks_off_at_any_byte_and_nothing_is_said_that_is_not_kept() -> None:
    random = Random(SEED)
    for number in range(WRITES):
        trial, _ = failing("write", number, SEED + number, errno.EIO, random.randrange(90))
        assert trial.failure is not None, (number, SEED)
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
