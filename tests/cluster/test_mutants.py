"""Each rule that is broken on purpose is noticed, at the seed of the table, as what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.mutants import MUTANTS, NOT_YET
from tests.cluster.run import UNJUDGED, run

pytestmark = pytest.mark.pure
DOCUMENT = Path(__file__).parents[2] / "docs" / "replication.md"

SEEDS = {
    "answer_early": (1, "TRUTH"),
    "answer_before_own_disk": (0, "TRUTH"),
    "acknowledge_before_sync": (1, "TRUTH"),
    "place_before_data": (12, "DIVERGED"),
    "look_without_round": (169, "STALE"),
    "held_replies_kept": (42, "LOST"),
    "min_when_written": (10, "THIN"),
    "shrink_after_answer": (0, "TRUTH"),
    "change_compares_nothing": (0, "TRUTH"),
    "change_compares_epoch": (7, "TRUTH"),
    "grow_early": (3, "TRUTH"),
    "grow_before_first_record": (9, "TRUTH"),
    "grow_without_waiting": (18, "TRUTH"),
    "acks_survive_repair": (0, "TRUTH"),
    "ask_and_forget": (18, "TRUTH"),
    "asked_for_ever": (125, "STUCK"),
    "elect_outside_set": (5, "LOST"),
    "elect_compares_epoch": (4, "TRUTH"),
    "hand_over_outside_set": (20, "LOST"),
    "old_epoch_accepted": (0, "DIVERGED"),
    "epoch_in_memory": (0, "PROMISE"),
    "resume_epoch": (1, "DIVERGED"),
    "acks_without_epoch": (0, "TRUTH"),
    "power_cut_stands": (0, "TRUTH"),
    "key_on_lease": (0, "TRUTH"),
    "match_by_length": (0, "STUCK"),
    "tail_kept": (19, "TRUTH"),
    "recovery_unnumbered": (0, "DIVERGED"),
    "repair_in_set": (13, "TRUTH"),
    "mark_in_memory": (15, "TRUTH"),
    "bulk_gap": (0, "DIVERGED"),
    "compacted_unsynced": (0, "STOPPED"),
    "compacted_name_unsynced": (1, "DIVERGED"),
    "compacted_promise": (0, "PROMISE"),
    "damage_is_torn_end": (0, "TRUTH"),
    "set_of_names": (1, "TRUTH"),
    "no_cluster_id": (0, "FOREIGN"),
    "old_copy_started": (7, "TRUTH"),
    "etcd_restored_min_1": (58, "TRUTH"),
    "etcd_restored_min_2": (3, "TRUTH"),
}
"""By mutant: the seed of its profile that finds it, and what it is called out as. find.py looks for them."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_found(name: str) -> None:
    make, profile = MUTANTS[name]
    seed, kind = SEEDS[name]
    with make():
        outcome = run(seed, profile)
    assert outcome.kind == kind, f"python -m tests.cluster.find {name}: {outcome.why or 'not found'}"
    if profile not in UNJUDGED:
        assert run(seed, profile).why == "", "the seed finds something without the mutant, too"


def test_every_mutant_has_a_seed_and_a_row_in_the_document() -> None:
    document = DOCUMENT.read_text("utf-8")
    assert SEEDS.keys() == MUTANTS.keys()
    rows = [f"| `{name}` | {MUTANTS[name][1]} | {seed} | {kind} |" for name, (seed, kind) in SEEDS.items()]
    assert [row for row in rows if row not in document] == []
    assert [name for name in NOT_YET if f"`{name}`" not in document] == []


def test_the_mutants_are_those_of_the_model_less_what_has_no_place_yet_and_those_of_a_members_file() -> None:
    of_files = [name for name, (_, profile) in MUTANTS.items() if profile in ("rewrites", "rot")]
    assert len(MUTANTS) - len(of_files) + len(NOT_YET) == 37 and len(of_files) == 4


def test_a_mutant_leaves_nothing_behind() -> None:
    before = run(0).log
    make, _ = MUTANTS["answer_early"]
    with make():
        assert run(0).log != before
    assert run(0).log == before
