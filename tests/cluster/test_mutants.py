"""Each rule that is broken on purpose is noticed, at the seed of the table, as what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.sim.mutants.starts import MUTANTS as OF_ONE_SERVER
from tests.cluster.mutants import ELSEWHERE, MUTANTS
from tests.cluster.run import UNJUDGED, run

pytestmark = pytest.mark.pure
DOCUMENT = Path(__file__).with_name("mutants.md")

SEEDS = {
    "answer_early": (1, "TRUTH"),
    "answer_before_own_disk": (0, "TRUTH"),
    "acknowledge_before_sync": (1, "TRUTH"),
    "place_before_data": (12, "DIVERGED"),
    "look_without_round": (212, "STALE"),
    "held_replies_kept": (54, "LOST"),
    "min_when_written": (16, "THIN"),
    "shrink_after_answer": (0, "TRUTH"),
    "change_compares_nothing": (10, "TRUTH"),
    "change_compares_epoch": (13, "TRUTH"),
    "grow_early": (86, "TRUTH"),
    "grow_before_first_record": (27, "TRUTH"),
    "grow_without_waiting": (13, "TRUTH"),
    "acks_survive_repair": (0, "TRUTH"),
    "ask_and_forget": (434, "TRUTH"),
    "asked_for_ever": (302, "STUCK"),
    "elect_outside_set": (5, "LOST"),
    "elect_compares_epoch": (0, "TRUTH"),
    "hand_over_outside_set": (39, "LOST"),
    "old_epoch_accepted": (0, "DIVERGED"),
    "epoch_in_memory": (0, "PROMISE"),
    "resume_epoch": (1, "DIVERGED"),
    "acks_without_epoch": (0, "TRUTH"),
    "power_cut_stands": (2, "TRUTH"),
    "acknowledge_lazily": (4, "TRUTH"),
    "boot_in_memory": (12, "TRUTH"),
    "boot_noted_late": (12, "TRUTH"),
    "compacted_boot": (2, "TRUTH"),
    "short_in_company": (24, "LOST"),
    "short_leader_followed": (2, "DIVERGED"),
    "led_by_word": (101018, "LOST"),
    "place_of_a_leader": (1, "DIVERGED"),
    "key_on_lease": (0, "TRUTH"),
    "match_by_length": (3, "STUCK"),
    "tail_kept": (33, "TRUTH"),
    "recovery_unnumbered": (0, "DIVERGED"),
    "repair_in_set": (1, "TRUTH"),
    "mark_in_memory": (37, "TRUTH"),
    "bulk_gap": (153, "DIVERGED"),
    "trimmed_under_followers": (176, "DIVERGED"),
    "compared_by_size": (0, "DIVERGED"),
    "compacted_unsynced": (0, "STOPPED"),
    "compacted_name_unsynced": (3, "DIVERGED"),
    "compacted_promise": (0, "PROMISE"),
    "damage_is_torn_end": (0, "TRUTH"),
    "full_disk_ignored": (1, "DIVERGED"),
    "torn_end_kept": (0, "TRUTH"),
    "failed_sync_believed": (12, "TRUTH"),
    "failed_sync_unmarked": (26, "LOST"),
    "failed_sync_of_deposed": (210000512, "LOST"),
    "lease_of_a_hung_disk": (0, "STUCK"),
    "etcd_forgets": (19, "DIVERGED"),
    "set_of_names": (0, "TRUTH"),
    "no_cluster_id": (0, "FOREIGN"),
    "old_copy_started": (0, "TRUTH"),
    "etcd_restored_min_1": (8, "TRUTH"),
    "etcd_restored_min_2": (4, "TRUTH"),
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
    assert [name for name, what in ELSEWHERE.items() if f"`{name}`" not in document or what not in document] == []


def test_the_mutants_are_those_of_the_model_and_those_of_this_code() -> None:
    of_disks = ("rewrites", "rot", "lazy", "full disks", "failed syncs", "etcd restarts", "leases")
    own = [name for name, (_, profile) in MUTANTS.items() if profile in of_disks]
    own.remove("power_cut_stands")
    own += ["trimmed_under_followers", "compared_by_size"]
    assert len(MUTANTS) - len(own) + len(ELSEWHERE) == 37 and len(own) == 21
    assert ELSEWHERE.keys().isdisjoint(MUTANTS) and set(ELSEWHERE.values()) <= OF_ONE_SERVER.keys()


def test_a_mutant_leaves_nothing_behind() -> None:
    before = run(0).log
    make, _ = MUTANTS["answer_early"]
    with make():
        assert run(0).log != before
    assert run(0).log == before
