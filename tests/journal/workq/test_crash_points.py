"""The power fails before every single step that a command log takes on the disk, cleaning included: no job that was
answered for is lost, none comes back, none is leased twice.
"""

from __future__ import annotations

import errno
from itertools import product
from random import Random

import pytest

from staniel.journal.disk.fs import JournalFailure
from staniel.sim.disk.durable import Crash
from tests.support.job_world import LOG
from tests.support.workq_log import (
    Script,
    as_the_original_reads,
    by_chance,
    everything,
    files,
    interrupted,
    snapshot,
    steps_of,
    wrongs,
)

STEPS = steps_of(everything)
START_STEPS = steps_of(lambda script: None)
SHARES = 8


@pytest.mark.parametrize("seed", range(24))
def test_power_fails_amid_requests_drawn_by_lot(seed: int) -> None:
    run, random = by_chance(seed), Random(seed)
    steps = steps_of(run)
    for stop_at in sorted(random.sample(range(START_STEPS, steps), 12)):
        script = interrupted(run, stop_at)
        assert script is not None
        for how in (Crash.DROP, Crash.KEEP, random.randrange):
            assert wrongs(script, how) == [], (stop_at, how)


@pytest.mark.parametrize("seed", range(24, 36))
def test_the_original_reads_every_log_that_requests_drawn_by_lot_leave(seed: int) -> None:
    class Judged(Script):
        def note(self) -> None:
            super().note()
            read = as_the_original_reads(self.world)
            now_ms, jobs = self.world.now_ms, self.world.broker.workq.jobs.by_id
            assert {id: state[:4] for id, state in self.safe.items() if jobs[id].limit_ms > now_ms} == {
                id: state for id, state in read.items() if id in jobs and jobs[id].limit_ms > now_ms
            }

    by_chance(seed)(Judged())


@pytest.mark.parametrize("share", range(SHARES))
def test_power_fails_at_every_step(share: int) -> None:
    random = Random(share)
    for stop_at in range(share, STEPS + 1, SHARES):
        script = interrupted(everything, stop_at)
        if script is None:
            continue
        for how in (Crash.DROP, Crash.KEEP, random.randrange):
            assert wrongs(script, how) == [], (stop_at, how)


def test_a_kill_at_every_step_loses_nothing_that_was_written() -> None:
    for stop_at in range(0, STEPS + 1, 7):
        script = interrupted(everything, stop_at)
        if script is not None:
            script.world.disk.kill()
            assert wrongs(script, Crash.KEEP) == [], stop_at


def test_no_segment_that_a_killed_server_removed_comes_back_behind_a_failed_sync() -> None:
    whole = Script()
    everything(whole)
    steps = [number for number, op in enumerate(whole.world.disk.log) if op.path.endswith(".log")]
    removals = [number for number in steps if whole.world.disk.log[number].verb in ("remove", "rename")]
    failures = 0
    for stop_at, verb in product([number + 1 for number in removals], ("sync", "sync_folder", "sync_all")):
        script = interrupted(everything, stop_at)
        assert script is not None
        disk = script.world.disk.kill()
        disk.fail(verb, LOG, errno.EIO)
        try:
            script.world.again(disk).turn(20)
        except JournalFailure:
            failures += 1
        script.world = script.world.again()
        script.client = script.world.worker()
        for number in range(20, 30):  # older segments are cleaned, with what they tell of the removed one's jobs
            script.add(number)
            script.delete(number)
            script.wait(60)
        script.wait(440)
        assert wrongs(script, Crash.DROP) == [], (stop_at, verb)
    assert failures


def test_the_script_has_rotated_and_cleaned_and_the_original_reads_what_is_left() -> None:
    script = Script()
    everything(script)
    log = script.world.disk.log
    assert sum(op.verb == "rename" and op.path.endswith(".rw") for op in log) >= 2
    assert sum(op.verb == "remove" and op.path.endswith(".log") for op in log) >= 1
    mine = {id: (state, attempts, payload, result) for id, (state, attempts, payload, result, *_) in
            snapshot(script.world).items()}  # fmt: skip
    assert as_the_original_reads(script.world) == mine
    assert not [name for name, _ in script.world.disk.list(LOG) if name.endswith(".rw")]


def test_at_every_pause_the_original_could_go_on_with_the_log() -> None:
    class Judged(Script):
        def note(self) -> None:
            super().note()
            read = as_the_original_reads(self.world)
            assert read == {id: state[:4] for id, state in self.safe.items()}, files(self.world.disk)

    everything(Judged())
