"""`make quick` runs the tests that tests/README.md names: each product folder has its row, each row tests.

What it leaves out is tried in folders of their own, with pytest as it runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.quick.__main__ import COMMANDS, LAST, MENDED_BY, changed_files, earlier_commits
from tests.quick.rows import ALWAYS, DOCUMENT, HEADING, Row, all_rows, read_rows, row_of
from tests.quick.selection import files_of, select
from tests.tidy.findings import ROOT, expect_none, line_of
from tests.tidy.test_tidy import PACKAGES

SECTION = line_of(DOCUMENT, HEADING)


def test_each_folder_of_the_product_has_its_row() -> None:
    rows = all_rows()
    folders = [f"{package}/" for package in (*PACKAGES, "docs", "monitoring", "examples", "packaging", "src/staniel")]
    missing = [folder for folder in folders if row_of(folder, rows) is None]
    expect_none(
        [f"{SECTION}: no row for {folder}" for folder in missing],
        "Add a row to that table: the folder, then the tests that `make quick` runs for it.",
    )


def test_each_row_names_folders_and_tests_that_exist() -> None:
    found = []
    for row in all_rows():
        where = f"{DOCUMENT}:{row.line}"
        paths = [path for path in row.paths if path != ALWAYS]
        found += [f"{where}: there is no {path}" for path in paths if not list(ROOT.glob(path))]
        found += [f"{where}: no tests in {entry}" for entry in row.tests if not files_of((entry,), ROOT)]
        found += [f"{where}: {row.paths[0]} has no tests"] if not row.tests else []
    expect_none(found, "Correct the path in that row, or remove the row if its folder is gone.")


def test_no_path_has_two_rows() -> None:
    paths = [(path, row.line) for row in all_rows() for path in row.paths]
    twice = [(path, line) for at, (path, line) in enumerate(paths) if path in [each for each, _ in paths[:at]]]
    expect_none([f"{DOCUMENT}:{line}: {path} has two rows" for path, line in twice], "Merge the rows.")


def test_the_row_with_the_longest_path_counts() -> None:
    rows = read_rows(f"{HEADING}\n\n| `a/` `*.md` | `tests/a/` |\n| `a/b/` | `tests/b/` |\n\n## Next\n| `c/` | `d` |\n")
    assert rows == [Row(3, ("a/", "*.md"), ("tests/a/",)), Row(4, ("a/b/",), ("tests/b/",))]
    found = [row_of(path, rows) for path in ("a/x.py", "a/b/x.py", "X.md", "docs/X.md", "c/x.py")]
    assert found == [rows[0], rows[1], rows[0], None, None]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with a package `a`, its tests and one tidy test."""
    texts = {
        "a/line.py": "",
        "tests/a/test_any.py": "",
        "tests/a/test_line.py": "",
        "tests/a/test_user.py": "from staniel.a import other, line\n",
        "tests/b/test_helped.py": "from tests.support.help import x\n",
        "tests/b/test_plain.py": "",
        "tests/support/help.py": "",
        "tests/tidy/test_t.py": "",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


ROWS = [Row(1, ("a/",), ("tests/a/",)), Row(2, (ALWAYS,), ("tests/tidy/",))]
TIDY = "tests/tidy/test_t.py"


def test_tests_that_use_a_changed_module_come_before_the_rest_of_the_row(tree: Path) -> None:
    chosen = select(["a/line.py", "new.bin"], ROWS, tree)
    assert chosen.close == ["tests/a/test_line.py", "tests/a/test_user.py", TIDY]
    assert chosen.rest == ["tests/a/test_any.py"]
    assert (chosen.changed_tests, chosen.without_row) == ([], ["new.bin"])
    assert chosen.entries == ["tests/a/", "tests/tidy/"]


def test_a_changed_test_comes_first_and_a_helper_brings_its_users(tree: Path) -> None:
    changed = ["a/gone.py", "tests/b/test_plain.py", "tests/b/test_gone.py", "tests/support/help.py"]
    chosen = select(changed, ROWS, tree)
    assert chosen.close == ["tests/b/test_plain.py", "tests/b/test_helped.py", TIDY]
    assert chosen.changed_tests == ["tests/b/test_plain.py"]


def test_nothing_changed_means_no_tests(tree: Path) -> None:
    assert select([], ROWS, tree).close == []


SLOW = "import pytest\n\n@pytest.mark.slow\ndef test_slow(): pass\n\ndef test_brief(): pass\n"
BROWSER = "import pytest\n\n@pytest.mark.programs('python:playwright')\ndef test_page(): pass\n"
SPARK = "def test_spark(spark): pass\n"
CONFTEST = "import pytest\nfrom tests.quick.budget import Budget\nfrom pathlib import Path\n\n"
CONFTEST += "def pytest_addoption(parser): parser.addoption('--quick')\n\n"
CONFTEST += "def pytest_configure(config):\n"
CONFTEST += (
    "    config.pluginmanager.register(Budget.from_file(config.getoption('--quick'), Path(__file__).parent))\n\n"
)
CONFTEST += "@pytest.fixture\ndef spark(): pass\n"


def run(folder: Path, left_s: float = 600, collect_s: float = 600) -> tuple[str, set[str]]:
    """Run the tests of `folder` as `make quick` does: pytest's last line, and the lines of the report."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: slow\n  programs: needs\n")
    for name, text in (("test_slow", SLOW), ("test_page", BROWSER), ("test_spark", SPARK)):
        (folder / f"{name}.py").write_text(text)
    now = time.monotonic()
    options = {"deadline": now + left_s, "collect_until": now + collect_s, "slow": []}
    (folder / "options").write_text(json.dumps(options | {"report": f"{folder / 'report'}"}))
    (folder / "report").touch()
    command = [sys.executable, "-c", f"import sys, pytest; sys.path.insert(0, {str(ROOT)!r}); sys.exit(pytest.main())"]
    command += ["-q", "-p", "no:cacheprovider", "--quick", f"{folder / 'options'}"]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert said.stdout, said.stderr
    return said.stdout.splitlines()[-1], set((folder / "report").read_text().splitlines())


def test_what_is_slow_is_left_out_and_named(tmp_path: Path) -> None:
    last, report = run(tmp_path)
    assert last.startswith("1 passed, 3 deselected")
    assert report == {"marked slow\ttest_slow.py", "in a browser\ttest_page.py", "with Spark\ttest_spark.py"}


def test_a_file_that_would_be_imported_too_late_is_not_run_and_named(tmp_path: Path) -> None:
    last, report = run(tmp_path, collect_s=-1)
    assert "passed" not in last
    assert report == {f"out of time\ttest_{name}.py" for name in ("slow", "page", "spark")}


def test_what_would_begin_too_late_is_not_run_and_named(tmp_path: Path) -> None:
    last, report = run(tmp_path, left_s=-1)
    assert "passed" not in last and "out of time\ttest_slow.py" in report


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository: `main` has one commit, a branch two more, and the working tree a changed and a new file."""

    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "-m", name)

    git("init", "-b", "main")
    commit("first.py")
    git("checkout", "-b", "branch")
    commit("second.py")
    commit("third.py")
    (tmp_path / "first.py").write_text("x = 1\n")
    (tmp_path / "new.py").write_text("")
    return tmp_path


def test_the_last_commit_and_the_working_tree_count_as_changed(history: Path) -> None:
    base, changed = changed_files(LAST, history)
    assert base.startswith("HEAD~1 (") and changed == ["first.py", "new.py", "third.py"]
    assert earlier_commits(history) == ("main", 1)


def test_a_base_may_be_named(history: Path) -> None:
    base, changed = changed_files("main", history)
    assert base.startswith("main (") and changed == ["first.py", "new.py", "second.py", "third.py"]


def test_after_the_first_commit_only_the_working_tree_counts(history: Path) -> None:
    subprocess.run(["git", "checkout", "-f", "main"], cwd=history, check=True, capture_output=True)
    assert changed_files(LAST, history) == ("HEAD", ["new.py"])
    assert earlier_commits(history) == ("main", 0)


def test_a_base_that_git_does_not_know_is_refused() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.quick", "--since", "no-such-branch"], cwd=ROOT, capture_output=True, text=True
    )
    assert said.returncode == 2 and "make quick SINCE=main" in said.stderr


def test_a_finding_of_lint_and_format_names_the_command_that_mends_it() -> None:
    assert all("make format" in MENDED_BY[command] for command in COMMANDS)
