"""The measurement of polls without news, at a size that takes no time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.bench.own.idle_streams import main, measure


@pytest.mark.parametrize("spools", [1, 3])
def test_a_poll_without_news_is_measured(tmp_path: Path, spools: int) -> None:
    cost = measure(tmp_path, spools, 12, 3)
    assert (cost.queues, cost.spools) == (12, spools) and cost.look_ms > 0


def test_a_poll_that_takes_too_long_is_told_by_the_exit_status() -> None:
    assert CliRunner().invoke(main, ["--queues", "200", "--rounds", "2", "--most-ms", "0.0001"]).exit_code == 1
    result = CliRunner().invoke(main, ["--queues", "200", "--rounds", "2"])
    assert result.exit_code == 0 and len(result.output.splitlines()) == 3
