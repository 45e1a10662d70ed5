"""What TLS costs: a short run with the right answers, and what the table says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.bench.harness.served import served
from staniel.bench.own import encrypted
from staniel.bench.own.besieged import CONFIG, certificate
from staniel.bench.own.encrypted import Cost, Row


def test_puts_and_gets_are_measured_over_both_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted, "OPERATIONS", 200)
    with served(CONFIG % certificate(tmp_path)) as server:
        rows = encrypted.measured(server, size=64, pipeline=2, rounds=1)
    assert [row.name for row in rows] == ["put, 64 B, 2 at a time", "get, 64 B, 2 at a time"]
    for row in rows:
        assert row.times > 0 and min(row.plain.per_second, row.encrypted.per_second) > 0


def test_a_row_beyond_the_goal_is_marked() -> None:
    rows = [Row("put", Cost(10.0, 1000), Cost(24.9, 900), 2.49), Row("get", Cost(10.0, 1000), Cost(26.0, 900), 2.6)]
    *_, put, get = encrypted.table(rows)
    assert put.split() == ["put", "10.0", "24.9", "2.49", "1,000", "900"]
    assert get.split() == ["get", "10.0", "26.0", "2.60", "1,000", "900", "MISSED"]
