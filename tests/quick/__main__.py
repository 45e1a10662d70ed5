"""`python -m tests.quick`: lint, types, import rules, and the tests of what git says has changed.

Changed is what the last commit, the index and the working tree have changed, and untracked files; `--since main` takes
all commits since the branch left main. pytest runs beside the other checks. No test begins in the last seconds of the
budget, and no slow test at all; what is left out is named. Exit status 1 if anything fails, 2 without git.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.quick.rows import ROOT, all_rows
from tests.quick.selection import Selection, select

BIN = Path(sys.executable).parent
BUDGET_S = 40
LAST_S = 5  # a test that has begun, and the ends of the fixtures, may take so long
COLLECTING = 0.5  # of the budget, for importing test files
SHOWN_MAX = 8
NO_TESTS = 5  # pytest's exit status if all tests were left out
TIDY_FILES = "STANIEL_TIDY_FILES"
LAST = "HEAD~1"  # what the last commit and the working tree have changed
MAINS = ("main", "origin/main")
COMMANDS = ("ruff check .", "ruff format --check .")
MENDED_BY = {
    "ruff check .": "make format, which also breaks long lines; then by hand what is left: long comments and texts",
    "ruff format --check .": "make format",
}
PYTHON_COMMANDS = ("lint-imports", "mypy --strict -p staniel")


def git(*words: str, root: Path = ROOT) -> str:
    """Standard output of a git command; "" if it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


def changed_files(since: str, root: Path = ROOT) -> tuple[str, list[str]]:
    """Return the base, for the reader, and the files that differ from it. The base is where the branch left `since`. In
    a history without such a commit, only uncommitted files count.
    """
    base = git("merge-base", "HEAD", since, root=root).strip()
    names = git("diff", "--name-only", "--no-renames", "-z", base or "HEAD", root=root)
    names += git("ls-files", "-oz", "--exclude-standard", root=root)
    return f"{since} ({base[:8]})" if base else "HEAD", sorted({name for name in names.split("\0") if name})


def earlier_commits(root: Path = ROOT) -> tuple[str, int]:
    """Return the name of the main branch, and how many commits before the last one are not in it."""
    main = next((name for name in MAINS if git("rev-parse", "--verify", "-q", name, root=root)), "")
    count = git("rev-list", "--count", f"{main}..{LAST}", root=root).strip() if main else ""
    return main, int(count or 0)


class Check:
    """A command, run to its end: its output, its seconds, and whether its exit status is 0 or `passes`."""

    def __init__(self, words: list[str], passes: int = 0, env: dict[str, str] | None = None) -> None:
        began = time.monotonic()
        done = subprocess.run(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output = done.stdout
        self.is_right = done.returncode in (0, passes)
        self.seconds = time.monotonic() - began

    def show(self, name: str) -> None:
        print(f"{name}: {'ok' if self.is_right else 'FAILED'}, {self.seconds:.1f} s", flush=True)
        if not self.is_right:
            print(self.output, flush=True)
            if name in MENDED_BY:
                print(f"To mend: {MENDED_BY[name]}\n", flush=True)


def run_checks(commands: tuple[str, ...]) -> bool:
    """Whether all of the commands succeed. Shows each as it ends."""
    are_right = True
    for command in commands:
        program, *words = command.split()
        check = Check([f"{BIN / program}", *words])
        check.show(command)
        are_right &= check.is_right
    return are_right


def run_tests(selection: Selection, changed: list[str], began: float, budget: float, folder: Path) -> bool:
    """Whether tests ran and none failed. Shows pytest's output, what was left out, and the command that runs it."""
    from tests.conftest import SLOWEST_FIRST
    from tests.quick.budget import Why

    report = folder / "left-out"
    report.touch()
    options = {
        "deadline": began + budget - LAST_S,
        "collect_until": began + budget * COLLECTING,
        "slow": [f"tests/{name}" for name in SLOWEST_FIRST],
        "report": f"{report}",
    }
    (folder / "options").write_text(json.dumps(options))
    words = [f"{BIN / 'pytest'}", "-q", "-p", "no:cacheprovider", "--quick", f"{folder / 'options'}"]
    # The closest tests do not wait until the files of a whole row are imported.
    shares = [selection.close, selection.rest] if selection.rest else [selection.close]
    with ThreadPoolExecutor(len(shares)) as pool:
        env = os.environ | {TIDY_FILES: os.pathsep.join(changed)}
        checks = list(pool.map(lambda share: Check([*words, *share], NO_TESTS, env), shares))
    for check in checks:
        print(check.output, flush=True)
    left_out = report.read_text().splitlines()
    show_left_out(left_out, selection.entries)
    have_run = any(" passed" in check.output for check in checks)
    if any(line.startswith(Why.LATE.value) for line in left_out) and not have_run:
        print(
            "FAILED: this machine is so busy that no test began in time; give it more: make quick ARGS='--seconds 120'"
        )
        return False
    return all(check.is_right for check in checks)


def show_left_out(lines: list[str], entries: list[str]) -> None:
    """Each line of the report is a reason, a tab and a file."""
    counts = Counter(tuple(line.split("\t")) for line in lines)
    for reason in dict.fromkeys(reason for reason, _ in counts):
        files = sorted(path for why, path in counts if why == reason)
        more = f" and {len(files) - SHOWN_MAX} more files" if len(files) > SHOWN_MAX else ""
        print(f"left out, {reason}: {', '.join(files[:SHOWN_MAX])}{more}")
    if counts:
        print(f"all of them: make test ARGS={shlex.quote(' '.join(entries))}")


def main() -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="make quick", description=__doc__)
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="the budget (default: %(default)s)")
    parser.add_argument("--since", metavar="COMMIT", default=LAST, help="changed since when (default: %(default)s)")
    parser.add_argument("paths", nargs="*", help="take these files for changed, whatever git says")
    given = parser.parse_args()
    if not given.paths and not git("rev-parse", "HEAD"):
        print("there is no git history here that says what has changed; run: make check test", file=sys.stderr)
        return 2
    if given.since != LAST and not git("rev-parse", "--verify", "-q", f"{given.since}^{{commit}}"):
        print(
            f"git has no commit {given.since}; name a branch, a tag or a hash: make quick SINCE=main", file=sys.stderr
        )
        return 2
    base, changed = ("this command", given.paths) if given.paths else changed_files(given.since)
    selection = select(changed, all_rows(), ROOT)
    count = len(selection.close) + len(selection.rest)
    print(f"changed since {base}: {len(changed)} files; {count} test files belong to them", flush=True)
    main_branch, earlier = earlier_commits()
    if earlier and not given.paths and given.since == LAST:
        print(f"left out: {earlier} earlier commits that {main_branch} lacks; for all: make quick SINCE={main_branch}")
    for path in selection.without_row:
        print(f"no tests belong to {path}")
    if slow := [path for path in selection.changed_tests if "pytest.mark.slow" in (ROOT / path).read_text("utf-8")]:
        print(f"has changed, and its slow tests are left out: make test ARGS={shlex.quote(' '.join(slow))}", flush=True)
    has_code = any(path.endswith((".py", ".toml")) for path in changed)
    commands = (*COMMANDS, *(PYTHON_COMMANDS if has_code else ()))
    if not has_code:
        print(f"left out, because no Python file has changed: {', '.join(PYTHON_COMMANDS)}", flush=True)
    results: list[bool] = []
    checks = threading.Thread(target=lambda: results.append(run_checks(commands)))
    checks.start()
    if selection.close:
        with tempfile.TemporaryDirectory() as folder:
            results.append(run_tests(selection, changed, began, given.seconds, Path(folder)))
    checks.join()
    used = os.times()
    cpu_s = used.children_user + used.children_system
    print(f"{'all right' if all(results) else 'FAILED'}, {time.monotonic() - began:.1f} s, processor {cpu_s:.1f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
