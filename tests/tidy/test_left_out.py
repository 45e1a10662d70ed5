"""What the machine lacks is left out by name, or fails where nothing may be. Runs pytest in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = (Path(__file__).resolve().parents[1] / "conftest.py").read_text("utf-8")
THREE_TESTS = """
import pytest

@pytest.mark.programs("no-such-program", "sh")
def test_foreign(): pass

@pytest.mark.programs("python:no_such_module")
def test_foreign_module(): pass

@pytest.mark.programs("sh", "python:json")
def test_at_home(): pass
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers = programs(*names): needs programs\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(THREE_TESTS)
    return pytester


def test_one_line_names_what_was_left_out(folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANIEL_REQUIRE_PROGRAMS", raising=False)
    result = folder.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, deselected=2)
    named = [line for line in result.outlines if "left out" in line]
    assert named == ["left out: 2 tests marked `programs`; missing: no-such-program, python:no_such_module"]


def test_where_programs_are_required_a_missing_one_fails(
    folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANIEL_REQUIRE_PROGRAMS", "1")
    result = folder.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
