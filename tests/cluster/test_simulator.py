"""Members in a simulated world keep the promises, whatever happens to machines, messages and etcd."""

from __future__ import annotations

import pytest

from tests.cluster.run import PROFILES, UNJUDGED, run

SEEDS = 25
KEPT = {
    # two lines of leaders: a record that one has lost, as its policy allows, has the number of another one's record
    # a leader is deposed while its journals are synced, and the sync fails
    "failed syncs": [200000153, 210000512, 220000214, 300000369],
    # a disk rots while a leader hears what its machine has acknowledged before
    "rot": [210000300],
    # a disk that is full when a member starts after a power cut: it could not note that it may lack something
    "full disks": [210000520],
}
"""Seeds that failed once."""


@pytest.mark.parametrize("profile", [name for name in PROFILES if name not in UNJUDGED])
def test_no_promise_is_broken(profile: str) -> None:
    broken = [(seed, outcome.why) for seed in range(SEEDS) if (outcome := run(seed, profile)).kind]
    assert broken == [], f"python -m tests.cluster.run --profile {profile} --verbose --seed {broken[0][0]}"


def test_the_same_seed_is_the_same_history() -> None:
    assert run(3).log == run(3).log


def test_members_stop_where_the_key_is_lost_and_harm_nothing() -> None:
    kinds = {run(seed, "lost-key").kind for seed in range(SEEDS)}
    assert kinds <= {"", "STUCK"} and "STUCK" in kinds


@pytest.mark.parametrize(("profile", "seed"), [(profile, seed) for profile, seeds in KEPT.items() for seed in seeds])
def test_a_history_that_failed_once_keeps_the_promises(profile: str, seed: int) -> None:
    assert run(seed, profile).why == ""
