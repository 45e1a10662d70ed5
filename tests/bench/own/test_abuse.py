"""The abuse benchmark: a small attack on a real server, and what counts as missed."""

from __future__ import annotations

import msgspec

from staniel.bench.harness.contestant import ROOT
from staniel.bench.own import abuse
from staniel.bench.own.attacks import ATTACKS


def test_a_small_attack_is_measured_beside_polite_clients() -> None:
    row = abuse.measured(ATTACKS[0], ROOT, 1, 0.2, scale=0.01)
    assert [one.harm for one in (*row.quiet, *row.beside, *row.attacked)] == ["", "", ""]
    assert row.quiet[0].requests > 0 and row.attacked[0].requests > 0
    assert row.turn_ms > 0 and row.times > 0, "the turns of the server's hub are timed from outside"
    assert row.attack in abuse.line(row)


def test_each_missed_target_is_named() -> None:
    good = abuse.Row("none", [], [], [], turn_ms=20.0, times=2.0, held_mb=abuse.HELD_MB_MAX)
    assert good.missed == []
    assert msgspec.structs.replace(good, turn_ms=20.1).missed == ["turn"]
    assert msgspec.structs.replace(good, times=2.01, held_mb=500.0).missed == ["p99", "memory"]
