"""The cost of each layer: every row can be driven, and what valgrind says is read as it was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.bench.harness.contestant import ROOT
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
    rows = [Row("a", 1.0, 1011, 1000), Row("b", 1.0, 1010, 1000), Row("c", 1.0), Row("d", None, 5)]
    lines = table(rows).splitlines()
    assert lines[1].endswith("+1.1%  WORSE")
    assert lines[2].endswith("+1.0%")
    assert lines[3].endswith("1.00")
    assert lines[4].split() == ["d", "-", "5"]


def test_the_baselines_name_rows_that_there_are_each_build_its_own() -> None:
    kept = core.baselines()
    assert kept and len({each.counted_with for each in kept}) == len(kept)
    assert all(set(each.instructions) <= set(LAYERS) for each in kept)


def test_both_builds_have_a_baseline_for_each_row_that_ci_compares() -> None:
    """Of the same interpreter; a compiled one of the Cython that constraints.txt installs."""
    cython = re.findall(r"^cython==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE | re.IGNORECASE)
    compared = set(re.findall(r"--only '(.+?)'", (ROOT / ".ci" / "run").read_text("utf-8")))
    assert len(compared) == 5
    found: dict[str, set[str]] = {}
    for kept in core.baselines():
        build, interpreter, *_ = kept.counted_with.split(", ")
        if build == "pure Python" or kept.counted_with.endswith(f", Cython {cython[0]}"):
            assert compared <= set(kept.instructions), kept.counted_with
            found.setdefault(interpreter, set()).add(build)
    assert {"compiled", "pure Python"} in found.values()


def test_a_check_that_can_compare_nothing_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "BASELINE", tmp_path / "baseline.json")
    checked = CliRunner().invoke(core.main, ["--check", "--only", "hub: get"])
    assert checked.exit_code == core.NOTHING_TO_COMPARE == 3
    core.update_baseline(core.Baseline(core.counted_with(), {"hub: put": 7}), [])
    assert CliRunner().invoke(core.main, ["--check", "--only", "hub: get"]).exit_code == 3, "of another row"


def test_a_baseline_of_another_interpreter_is_not_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core, "BASELINE", tmp_path / "baseline.json")
    other = core.Baseline("pure Python, CPython 2.7", {"hub: get": 1})
    core.update_baseline(other, [])
    assert core.baseline().instructions == {}
    assert "there is nothing to compare with" in capsys.readouterr().err
    core.update_baseline(core.baseline(), [Row("hub: get", None, 7)])
    assert core.baseline().instructions == {"hub: get": 7} and other in core.baselines()


def test_only_what_seems_to_have_grown_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([{"a": 100, "b": 120, "c": 102}, {"b": 110, "c": 99}, {"b": 115}])
    asked: list[list[str]] = []
    monkeypatch.setattr(core, "counted", lambda names: (asked.append(list(names)), next(counts))[1])
    rows = core.checked(["a", "b", "c"], core.Baseline("", {"a": 100, "b": 100, "c": 100}))
    assert asked == [["a", "b", "c"], ["b", "c"], ["b"]]
    assert [(row.name, row.instructions, row.is_worse) for row in rows] == [
        ("a", 100, False),
        ("b", 110, True),
        ("c", 99, False),
    ]


def test_without_valgrind_there_are_microseconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(core.shutil, "which", lambda name: None)
    (row,) = core.measured(["reply with an item"], core.Baseline("", {}))
    assert row.us > 0 and row.instructions is None
    assert "microseconds only: valgrind is not installed" in capsys.readouterr().err
