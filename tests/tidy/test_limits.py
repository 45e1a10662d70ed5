"""A test that hangs ends as a failure that names it, and the others still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import SLOWEST_FIRST

ROOT = Path(__file__).parents[2]
HANGS = """
import threading

def test_hangs():
    threading.Event().wait()

def test_goes_on():
    pass
"""


def test_a_test_that_hangs_is_named_and_does_not_keep_the_others(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "--numprocesses", "1", "-o", "faulthandler_timeout=5", str(tmp_path)]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert said.returncode == 1 and "1 failed, 1 passed" in said.stdout, said.stdout
    assert "crashed while running 'test_it.py::test_hangs'" in said.stdout
    assert "in wait" in said.stdout + said.stderr, "where it stood"


def test_the_files_that_are_begun_first_exist() -> None:
    assert [name for name in SLOWEST_FIRST if not (ROOT / "tests" / name).is_file()] == []
