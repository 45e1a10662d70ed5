"""A few seconds of fuzzing of every parser and reader; for as long as one likes: `python -m tests.fuzz`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.fuzz import campaign, mutate
from tests.fuzz.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
POINTS_MIN = 30  # the shortest reader, of manifests, has some 40


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What was said of each target."""
    command = [sys.executable, "-m", "tests.fuzz", *TARGETS, "--brief", "--seconds", "300"]
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
    pieces = re.split(r"^target: ([\w-]+)\n", said.stdout.decode("utf-8", "replace"), flags=re.MULTILINE)
    assert len(pieces) > 1, pieces[0][-6000:]
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


@pytest.mark.pure
@pytest.mark.programs("python:atheris")
@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_break_a_promise(target: str, told: dict[str, str], closing_line: Callable[[str], None]) -> None:
    said = told[target]
    done = re.search(r"number_of_executed_units: (\d+)", said)
    assert done and int(done[1]) >= TARGETS[target].brief_runs, said[-6000:]
    reached = re.findall(r" cov: (\d+) ", said)
    assert reached and int(reached[-1]) > POINTS_MIN, "the lines of ours are not watched: nothing guides the bytes"
    closing_line(f"fuzz: {done[1]} inputs to {target}")


@pytest.mark.pure
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
    before = len(os.listdir("/proc/self/fd"))
    result = CliRunner().invoke(mutate.main, ["--seconds", "6"])
    assert result.exit_code == 0, result.output
    assert len(os.listdir("/proc/self/fd")) < before + 20
    tried = dict(re.findall(r"^([\w-]+): ([0-9]+) inputs$", result.output, re.MULTILINE))
    assert list(tried) == list(TARGETS) and all(int(count) > 0 for count in tried.values())


def test_an_input_that_breaks_a_target_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(data: bytes) -> None:
        assert b"\xff" not in data

    monkeypatch.setitem(TARGETS, "text", Target(check, TARGETS["text"].seeds))
    result = CliRunner().invoke(mutate.main, ["text", "--seconds", "60"])
    assert isinstance(result.exception, AssertionError) and "\\xff" in result.output


@pytest.mark.pure
@pytest.mark.programs("python:atheris")
def test_a_campaign_counts_what_it_has_tried_and_keeps_what_reached_something_new(tmp_path: Path) -> None:
    result = CliRunner().invoke(campaign.main, ["replies", "--seconds", "1", "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = re.search(r"^replies +([0-9,]+) +[0-9,]+ +([0-9,]+) +([0-9,]+) +0$", result.output, re.MULTILINE)
    assert found and all(int(number.replace(",", "")) > 0 for number in found.groups())
    assert any((tmp_path / "corpus" / "replies").iterdir()) and not any((tmp_path / "found" / "replies").iterdir())


PRETENDS = """#!/bin/sh
for last; do :; done
%s
echo AssertionError: a promise is broken
exit 77
"""


@pytest.mark.parametrize(
    ("does", "told"), [("echo > $last/crash-1", "/crash-1: AssertionError"), (":", "could not be run: AssertionError")]
)
def test_a_campaign_names_each_finding_once(
    does: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that finds it is a pretended one."""
    pretender = tmp_path / "python"
    pretender.write_text(PRETENDS % does)
    pretender.chmod(0o755)
    monkeypatch.setattr(campaign.sys, "executable", str(pretender))
    monkeypatch.setattr(campaign, "SECONDS_MIN", 0)
    result = CliRunner().invoke(campaign.main, ["text", "--seconds", "2", "--folder", str(tmp_path)])
    assert result.exit_code == 1 and result.output.count("a promise is broken") == 1 and told in result.output


@pytest.mark.parametrize("said", ["", "#0 INITED", "stat::number_of_executed_units: 0"])
def test_a_target_of_which_no_input_was_tried_does_not_look_like_a_pass(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that tries none, and ends well, is a pretended one."""
    pretender = tmp_path / "python"
    pretender.write_text(f"#!/bin/sh\necho '{said}'\n")
    pretender.chmod(0o755)
    monkeypatch.setattr(campaign.sys, "executable", str(pretender))
    result = CliRunner().invoke(campaign.main, ["text", "--seconds", "1", "--folder", str(tmp_path)])
    assert result.exit_code == 1, result.output
    assert "text could not be run: no input was tried: give more --seconds" in result.output
