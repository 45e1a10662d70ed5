"""The formats benchmark: a small run of it, and what it makes of the runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from staniel.bench.harness.served import Served, ServerFailed
from staniel.bench.own import formats
from staniel.bench.own.formats import Cost
from staniel.bench.peers.generator import Report, build


def test_a_small_run_measures_both_formats_and_shows_that_readers_cost_no_copies(tmp_path: Path) -> None:
    found = tmp_path / "runs.json"
    arguments = ["--rounds", "1", "--count", "2000", "--items", "10000", "--readers", "3", "--json", str(found)]
    result = CliRunner().invoke(formats.main, arguments)
    assert result.exit_code == 0, result.output
    costs = msgspec.json.decode(found.read_bytes(), type=list[Cost])
    assert {(cost.what, cost.format) for cost in costs} == {
        (what, form)
        for what in ("put", "get", "put, 3 readers, os", "put, 3 readers, always", "restart")
        for form in formats.FORMATS
    }
    each = {cost.format: cost.disk_bytes for cost in costs if cost.what == "put, 3 readers, os"}
    assert each["libkestrel"] < 1200 < 3000 < each["kestrel"]


def test_a_reader_that_lacks_an_item_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = formats.loaded

    def half(server: Served, program: Path, mode: str, count: int) -> tuple[Report, float]:
        return loaded(server, program, mode, count // 2)

    monkeypatch.setattr(formats, "loaded", half)
    with pytest.raises(ServerFailed, match="has not got every item"):
        formats.with_readers("libkestrel", build(), 200, 2, "os")


def test_a_ratio_is_taken_within_a_round() -> None:
    assert formats.ratio([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]]) == "1.00 (0.50..2.00)"
