"""Celery's tasks a second: a small run measures both brokers, and fails where ours misses the goal."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from staniel.bench.peers import celery_tasks
from staniel.bench.peers.celery_tasks import Rates


@pytest.mark.slow
@pytest.mark.programs("redis-server", "python:redis", "python:celery")
def test_a_small_run_measures_both_brokers() -> None:
    result = CliRunner().invoke(celery_tasks.main, ["--tasks", "10", "--rounds", "1", "--goal", "0"])
    assert result.exit_code == 0, result.output
    rows = re.findall(r"^(\w+) +ours +(\d+) +redis +(\d+) +ratio ([0-9.]+)", result.output, re.MULTILINE)
    assert [row[0] for row in rows] == ["publish", "run"]
    assert all(int(rate) > 0 for row in rows for rate in row[1:3])
    assert re.search(r"^load of this machine with \d+ cores: [0-9.]+ to [0-9.]+$", result.output, re.MULTILINE)


def test_every_other_round_begins_with_redis_and_a_missed_goal_is_an_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def measured(contestant: celery_tasks.Contestant, *options: object) -> Rates:
        asked.append(contestant.name)
        return Rates(*((90.0, 200.0) if contestant.name == "ours" else (100.0, 100.0)))

    monkeypatch.setattr(celery_tasks, "measured", measured)
    result = CliRunner().invoke(celery_tasks.main, ["--rounds", "3"])
    assert result.exit_code == 1
    assert asked == ["ours", "redis", "redis", "ours", "ours", "redis"]
    assert "publish  ours      90   redis     100   ratio 0.90   by round 0.90 to 0.90" in result.output
    assert CliRunner().invoke(celery_tasks.main, ["--rounds", "3", "--goal", "0.9"]).exit_code == 0
