"""The table of large requests: one row on a real server, scaled down, and what counts as missed."""

from __future__ import annotations

from staniel.bench.harness.contestant import ROOT
from staniel.bench.own import shares


def test_a_small_request_is_measured_beside_polite_clients() -> None:
    row = next(row for row in shares.ROWS if row.name == "/metrics with 10,000 queues")
    found = shares.measured(row, ROOT, scale=0.001)
    assert found.turn_ms > 0 and found.worst_ms > 0 and row.name in shares.line(found)


def test_a_turn_above_the_bar_is_missed() -> None:
    assert shares.Outcome("some", 20.1, 0.0, 0.0, 20.0).is_missed
    assert not shares.Outcome("some", 19.9, 90.0, 0.0, 20.0).is_missed
