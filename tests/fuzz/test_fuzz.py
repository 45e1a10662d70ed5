"""A few seconds of fuzzing of every parser and reader; for as long as one likes: `python -m tests.fuzz`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fuzz import mutate
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
RUNS = {"memcache": 800, "text": 3000, "thrift": 6000, "workq": 800}
RUNS_ELSE = 150
POINTS_MIN = 50


@pytest.mark.programs("python:atheris")
@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_break_a_promise(target: str, tmp_path: Path, closing_line: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "tests.fuzz", target, "--seconds", "300", "--corpus", str(tmp_path / "corpus")]
    runs = RUNS.get(target, RUNS_ELSE) + len(list(TARGETS[target].seeds()))
    told = subprocess.run([*command, "--runs", str(runs)], cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert told.returncode == 0, (told.stdout + told.stderr)[-6000:]
    done = re.search(r"number_of_executed_units: (\d+)", told.stderr)
    assert done and int(done[1]) >= runs
    reached = re.findall(r" cov: (\d+) ", told.stderr)
    assert reached and int(reached[-1]) > POINTS_MIN, "the lines of ours are not watched: nothing guides the bytes"
    closing_line(f"fuzz: {done[1]} inputs to {target}")


@pytest.mark.programs("python:atheris")
@pytest.mark.parametrize(
    ("promise", "found"),
    [("assert data[:1] != b'g', 'found'", "AssertionError: found"), ("bytes(len(data) << 30)", "MemoryError")],
)
def test_what_breaks_a_promise_is_found_and_named(promise: str, found: str, tmp_path: Path) -> None:
    """With a target that is wrong: the machinery reports it."""
    script = (
        "import sys; from tests.fuzz import targets\n"
        f"def wrong(data):\n    {promise}\n"
        "targets.TARGETS['text'] = targets.Target(wrong, lambda: iter([b'a', b'gg']))\n"
        "sys.argv[1:] = ['text', '--seconds', '60']\n"
        "from tests.fuzz.__main__ import main; main()\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert told.returncode != 0 and found in told.stdout + told.stderr
    assert list(tmp_path.glob("crash-*"))


def test_changed_inputs_reach_every_target() -> None:
    result = CliRunner().invoke(mutate.main, ["--seconds", "3"])
    assert result.exit_code == 0, result.output
    tried = dict(re.findall(r"^([\w-]+): ([0-9]+) inputs$", result.output, re.MULTILINE))
    assert list(tried) == list(TARGETS) and all(int(count) > 0 for count in tried.values())


def test_an_input_that_breaks_a_target_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(data: bytes) -> None:
        assert b"\xff" not in data

    monkeypatch.setitem(TARGETS, "text", Target(check, TARGETS["text"].seeds))
    result = CliRunner().invoke(mutate.main, ["text", "--seconds", "60"])
    assert isinstance(result.exception, AssertionError) and "\\xff" in result.output
