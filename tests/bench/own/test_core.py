"""The cost of each layer: every row can be driven, and what valgrind says is read as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from staniel.bench.own import core
from staniel.bench.own.core import Row, Stopwatch, read_counts, table
from staniel.bench.own.layers import LAYERS

DUMP = """# callgrind format
version: 1
desc: Trigger: Client Request: hub: get 400
events: Ir
totals: 16000400
"""


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_does_what_it_counts(name: str, tmp_path: Path) -> None:
    with LAYERS[name](str(tmp_path)) as work:
        watch = Stopwatch()
        assert work(watch) > 0
        assert watch.seconds > 0


def test_a_dump_names_its_row_and_its_operations(tmp_path: Path) -> None:
    (tmp_path / "counts.1").write_text(DUMP)
    (tmp_path / "counts").write_text("desc: Trigger: Program termination\ntotals: 0\n")
    assert read_counts(tmp_path) == {"hub: get": 40001}


def test_a_row_that_has_grown_is_marked() -> None:
    lines = table([Row("a", 1.0, 1060, 1000), Row("b", 1.0, 1040, 1000), Row("c", 1.0)]).splitlines()
    assert lines[1].endswith("+6.0%  WORSE")
    assert lines[2].endswith("+4.0%")
    assert lines[3].endswith("1.00")


def test_the_baseline_names_rows_that_there_are() -> None:
    kept = core.msgspec.json.decode(core.BASELINE.read_bytes(), type=core.Baseline)
    assert set(kept.instructions) <= set(LAYERS)


def test_a_baseline_of_another_interpreter_is_not_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "baseline.json"
    other.write_text('{"python": "CPython 2.7", "instructions": {"hub: get": 1}}')
    monkeypatch.setattr(core, "BASELINE", other)
    assert core.baseline().instructions == {}
    assert "nothing to compare with" in capsys.readouterr().err


def test_without_valgrind_there_are_microseconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core.shutil, "which", lambda name: None)
    (row,) = core.measured(["reply with an item"], core.Baseline("", {}))
    assert row.us > 0 and row.instructions is None
    assert "microseconds only: valgrind is not installed" in capsys.readouterr().err
