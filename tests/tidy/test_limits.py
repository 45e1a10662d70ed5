"""A test that hangs ends as a failure that names it, and the others still run.

The interval itself is not awaited: the test that hangs fires the timer that pytest has set for it.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from tests.conftest import MANY_TESTS_NEXT, SLOWEST_FIRST, WITH_SPARK
from tests.tidy.findings import expect_none

ROOT = Path(__file__).parents[2]
HANGS = """
import faulthandler
import threading

fire = faulthandler.dump_traceback_later
timers = []
faulthandler.dump_traceback_later = lambda *limit, **how: timers.append((limit, how))


def test_hangs():
    [(limit, how)] = timers
    assert limit == (LIMIT,)
    fire(0.01, **how)
    threading.Event().wait()

def test_goes_on():
    assert timers[-1][0] == (LIMIT,), "each test has a timer"
"""


def test_a_test_that_hangs_is_named_and_does_not_keep_the_others(tmp_path: Path) -> None:
    limit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"][
        "faulthandler_timeout"
    ]
    (tmp_path / "test_it.py").write_text(HANGS.replace("LIMIT", f"{float(limit)}"))
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "--numprocesses", "1", str(tmp_path)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 1 and "1 failed, 1 passed" in said, f"pyproject.toml, faulthandler_…: pytest said\n{said}"
    assert "crashed while running 'test_it.py::test_hangs'" in said, f"the test that hung is not named\n{said}"
    assert "in test_hangs" in said, f"no traceback says where it stood\n{said}"


def test_the_files_that_are_begun_first_exist() -> None:
    missing = [name for name in WITH_SPARK + SLOWEST_FIRST + MANY_TESTS_NEXT if not (ROOT / "tests" / name).is_file()]
    found = [f"tests/conftest.py: the lists of long files name tests/{name}, which does not exist" for name in missing]
    expect_none(found, "Correct the path there, or remove it.")


def test_the_files_that_share_a_spark_are_those_that_ask_for_it() -> None:
    paths = (ROOT / "tests" / "pipeline").glob("test_*.py")
    asking = {f"pipeline/{path.name}" for path in paths if "spark: SparkSession" in path.read_text()}
    found = [f"tests/conftest.py: WITH_SPARK and the tests differ in tests/{name}" for name in asking ^ {*WITH_SPARK}]
    expect_none(sorted(found), "Name there each file of tests with the fixture `spark`, and no other.")
