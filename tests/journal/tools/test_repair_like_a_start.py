"""A repaired copy serves what a start on the spool would have served, on spools that accidents and damage have left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from staniel.journal.disk.failed_sync import SuspectPaths
from staniel.journal.tools.repair import Repair, Repaired
from tests.journal.tools.repaired import PLAIN, check


def kinds(profiles: tuple[str, ...]) -> Counter[str]:
    """How often which verdict came, of one history of each profile. No spool may differ."""
    found: Counter[str] = Counter()
    for seed, profile in enumerate(profiles):
        for verdict, harms in check(seed, profile):
            assert not verdict.differences, (seed, profile, harms, verdict.differences)
            found[verdict.kind] += 1
    return found


@pytest.mark.parametrize("part", range(2))
def test_a_repaired_copy_serves_what_a_start_would(part: int) -> None:
    assert kinds(PLAIN[part::2])["alike"] > 40


def test_operations_that_are_not_copied_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Repair, old: str, new: str) -> Iterator[Repaired]:
        return iter(())

    monkeypatch.setattr(Repair, "_copy_undos", nothing)
    assert any(verdict.differences for seed in range(8) for verdict, _ in check(seed, "hub-undo"))


def test_intents_that_are_not_copied_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Repair, old: str, new: str) -> Iterator[Repaired]:
        return iter(())

    monkeypatch.setattr(Repair, "_copy_intents", nothing)
    assert any(verdict.differences for seed in range(20) for verdict, _ in check(seed, "transfers"))


def test_what_a_redo_log_knows_better_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Repair, "_look_at_log", lambda self: None)
    assert any(verdict.differences for seed in range(8) for verdict, _ in check(seed, "redo"))


def test_a_renewal_that_is_half_done_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SuspectPaths, "changes_files", False)
    assert any(verdict.differences for seed in range(139, 200) for verdict, _ in check(seed, "names-in-doubt"))
