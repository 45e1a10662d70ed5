"""The benchmark of crowds: small ones beside a real server, and what counts as missed."""

from __future__ import annotations

import msgspec
import pytest

from staniel.bench.own import crowds

SMALL = {crowd.name: crowd for crowd in crowds.crowds(idle_count=200, slow_count=100, deaf_count=10)}


@pytest.mark.parametrize("name", SMALL)
def test_a_small_crowd_costs_memory_within_the_target_and_no_polite_client_its_answers(name: str) -> None:
    row = crowds.measured(SMALL[name], 1, 0.3)
    assert [each.harm for each in (*row.quiet, *row.crowded)] == ["", "", ""]
    assert all(each.requests > 0 for each in (*row.quiet, *row.crowded))
    assert "memory" not in row.missed, row
    assert name in crowds.line(row)


def test_each_missed_target_is_named() -> None:
    good = crowds.Row("none", 1, 10.0, [], [], 2.0, 2.0, 10.0)
    assert good.missed == []
    assert msgspec.structs.replace(good, times=2.01, each_kib=10.1).missed == ["p99", "memory"]
    assert msgspec.structs.replace(good, cpu_times=2.01).missed == ["cpu"]
