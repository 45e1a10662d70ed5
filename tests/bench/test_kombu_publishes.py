"""The comparison of kombu's publishes: it runs, takes turns, and its exit status follows the goal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from staniel.bench.peers import kombu_publishes
from staniel.bench.peers.kombu_publishes import Publishes


@pytest.mark.programs("python:celery", "python:redis", "redis-server")
def test_publishes_are_measured_over_both() -> None:
    result = CliRunner().invoke(kombu_publishes.main, ["--count", "10", "--rounds", "1", "--goal", "0"])
    assert result.exit_code == 0, result.output
    for word in ("10 publishes of 100 bytes", "ours ", "redis ", "ratio "):
        assert word in result.output


def test_the_median_is_compared_with_the_goal_and_the_turns_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def rates() -> Iterator[float]:
        yield from (900.0, 1000.0, 1000.0, 950.0, 950.0, 1000.0)

    def measured(contestant: kombu_publishes.Contestant, *options: object) -> Publishes:
        order.append(contestant.name)
        return Publishes(next(found), 50.0)

    monkeypatch.setattr(kombu_publishes, "measured", measured)
    found = rates()
    result = CliRunner().invoke(kombu_publishes.main, ["--rounds", "3"])
    assert (result.exit_code, order) == (1, ["ours", "redis", "redis", "ours", "ours", "redis"])
    assert "ratio 0.95   by round 0.90 to 0.95, median 0.95" in result.output
    found = rates()
    assert CliRunner().invoke(kombu_publishes.main, ["--rounds", "3", "--goal", "0.9"]).exit_code == 0
