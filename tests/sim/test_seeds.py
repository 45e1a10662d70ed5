"""Seeded histories of the real broker, with accidents: nothing lost, invented, repeated or out of order.

A red seed is a bug of the server, of the simulator or of its idea of a promise. The message says how to see its story.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from staniel.journal.disk.fs import SyncFailed
from staniel.sim.history import Outcome, SeedPlan
from staniel.sim.hub.ledgers import EqualLedger
from staniel.sim.hub.run import HubRun
from staniel.sim.power_cuts import states_of
from staniel.sim.profiles import ALL, PROFILES
from staniel.sim.queues.promises import Accident
from staniel.sim.run import history_of, run

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 200
EACH = -(-SEEDS // len(ALL))
CRASHES = 4
STATES = 5000
TRACED = ("power", "pressure", "lax", "full-disk", "everything", "libkestrel", "readers", "jobs")
DIGESTS = (
    "from staniel.sim.run import run; names = 'everything', 'calm', 'formats', 'jobs'; "
    "print([run(seed, name).digest for seed in (1, 2) for name in names])"
)


def story(outcome: Outcome) -> str:
    options = f"--seed {outcome.seed} --seeds 1 --profile {outcome.profile} --crashes {CRASHES} --verbose"
    return f"{outcome.violation}; again: python -m staniel.sim {options}"


@pytest.mark.parametrize("profile", ALL)
def test_histories_with_crashes_break_no_promise(profile: str) -> None:
    seeds = range(EACH)
    outcomes = [run(seed, profile, CRASHES) for seed in seeds]
    assert [story(outcome) for outcome in outcomes if outcome.violation is not None] == []
    assert sum(outcome.crashes for outcome in outcomes) >= CRASHES * len(seeds)


BLAMED = [
    ("deliveries", 9015314),  # a power cut during a start took an open read that a kill had left
    ("crc-collisions", 9012899),  # a move of a client that left stood beside an item that a full queue dropped
    ("hub-admin", 14004709),  # a reload set a time-out for a client that read slowly and had shut its side before
    ("hub-equal-items", 14003016),  # a start went on with a deletion, and a client had just opened an item
    ("wall", 14016315),  # an item timed out and was delivered again before its first client heard of it
]


@pytest.mark.parametrize(("profile", "seed"), BLAMED)
def test_a_history_that_the_checker_blamed_wrongly_is_fine(profile: str, seed: int) -> None:
    outcome = run(seed, profile, CRASHES)
    assert outcome.violation is None, story(outcome)


def test_two_hundred_seeds_are_run(closing_line: Callable[[str], None]) -> None:
    assert len(ALL) * EACH >= SEEDS
    closing_line(f"simulated: {len(ALL) * EACH} seeds with {CRASHES} crashes and more each, {STATES} power-loss states")


@pytest.mark.parametrize("profile", TRACED)
def test_a_power_loss_before_any_step_of_the_disk_breaks_no_promise(profile: str) -> None:
    wanted = seen = STATES // len(TRACED)
    for seed in range(1000, 1100):
        traced = states_of(SeedPlan(seed, PROFILES[profile], crashes=2, steps=60), seen)
        assert traced.outcome.violation is None, story(traced.outcome)
        seen -= traced.states
        if seen <= 0:
            return
    raise AssertionError(f"fewer than {wanted} states")


# Where queues are deleted, puts have keys or delays, or a read is of several queues, items have numbers: the rule is
# which of them may go or come, and when.
ALIKE_HUBS = [
    name
    for name, its in PROFILES.items()
    if its.hub and not (its.equal or its.deletions or its.keyed or its.delayed or its.several)
]


@pytest.mark.parametrize("profile", ALIKE_HUBS)
def test_items_are_alike_in_some_seeds_of_a_hub(profile: str) -> None:
    def is_alike(seed: int) -> bool:
        history = history_of(SeedPlan(seed, PROFILES[profile]))
        assert isinstance(history, HubRun) and isinstance(history.ledger, EqualLedger) is history.is_alike
        return history.is_alike

    alike = [seed for seed in range(40) if is_alike(seed)]
    assert 5 <= len(alike) <= 20
    outcomes = [run(seed, profile, CRASHES) for seed in alike[:2]]
    assert [story(outcome) for outcome in outcomes if outcome.violation is not None] == []


@pytest.mark.parametrize(
    "profile",
    [
        "everything",
        "power",
        "transfers",
        "eio",
        "readers",
        "jobs",
        "hub",
        "hub-durable",
        "hub-slices",
        "hub-stopped",
        "hub-admin",
        "hub-tls",
        "hub-limits",
        "hub-users",
    ],
)
def test_a_seed_is_the_same_history_every_time(profile: str) -> None:
    for seed in range(3):
        first, second = run(seed, profile), run(seed, profile)
        assert (first.digest, first.transcript) == (second.digest, second.transcript)
    assert run(0, profile).digest != run(1, profile).digest


def test_a_seed_is_the_same_history_in_another_process() -> None:
    said = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", DIGESTS]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        said.add(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout)
    assert len(said) == 1


def test_a_process_killed_between_a_failed_sync_and_its_mark_takes_the_machine_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = history_of(SeedPlan(0, PROFILES["syncs"], crashes=0, steps=1))

    def step() -> None:
        disk, history.cut_by = history.disk, Accident.KILL
        disk.fail("sync_folder", "s", errno.EIO)
        with suppress(SyncFailed):
            disk.sync_folder("s")
        disk.stop_at = len(disk.log)
        disk.sync_folder("s")

    monkeypatch.setattr(history, "_take_step", step)
    outcome = history.outcome()
    assert outcome.violation is None
    assert [who for what, who, _ in outcome.transcript if what == "accident"][:1] == ["power loss"]


def test_steps_that_are_left_out_do_not_happen() -> None:
    seed_plan = SeedPlan(1, PROFILES["everything"], skipped=frozenset(range(10, 120)))
    assert history_of(seed_plan).outcome().steps == 10
