"""The test files that belong to changed files, the closest first. Reads files of the checkout, runs nothing."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.quick.rows import ALWAYS, Row, row_of


class Selection(NamedTuple):
    """What to run for a change. Paths are relative to the root."""

    changed_tests: list[str]
    """Test files that have changed: they run first."""
    close: list[str]
    """The changed test files, those that import a changed module or are named after it, and those of every change."""
    rest: list[str]
    """The other test files of each row."""
    entries: list[str]
    """The same, slow ones included, as few words for a command line."""
    without_row: list[str]
    """Changed files to which no tests belong."""


def select(changed: list[str], rows: list[Row], root: Path) -> Selection:
    changed_tests = [path for path in changed if _is_test(path) and (root / path).is_file()]
    without_row = []
    entries: list[str] = []
    close: list[str] = []
    others: list[str] = []
    for path in changed:
        row = row_of(path, rows)
        if row is not None:
            candidates = files_of(row.tests, root)
            users = _users(path, candidates, root)
            close += users
            others += [each for each in candidates if each not in users]
            entries += row.tests
        elif path.startswith("tests/") and path.endswith(".py"):
            close += [] if _is_test(path) else _users(path, files_of(("tests/",), root), root)
        else:
            without_row.append(path)
    always = [entry for row in rows if ALWAYS in row.paths for entry in row.tests] if changed else []
    first = list(dict.fromkeys([*changed_tests, *close, *files_of(tuple(always), root)]))
    rest = [path for path in dict.fromkeys(others) if path not in first]
    return Selection(changed_tests, first, rest, list(dict.fromkeys([*changed_tests, *entries, *always])), without_row)


def files_of(entries: tuple[str, ...], root: Path) -> list[str]:
    """The test files that the entries of a row name: files, or folders with what is below them."""
    found: list[str] = []
    for entry in entries:
        paths = sorted((root / entry).rglob("test_*.py")) if entry.endswith("/") else [root / entry]
        found += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return found


def _is_test(path: str) -> bool:
    name = PurePosixPath(path)
    return path.startswith("tests/") and name.name.startswith("test_") and name.suffix == ".py"


def _users(path: str, candidates: list[str], root: Path) -> list[str]:
    """Those of the test files that import the module at `path`, are named after it, or lie below its conftest.py."""
    module = PurePosixPath(path).with_suffix("")
    if module.name == "conftest":
        return [each for each in candidates if PurePosixPath(each).is_relative_to(module.parent)]
    package = f"{'' if path.startswith('tests/') else 'staniel.'}{'.'.join(module.parent.parts)}"
    imports = re.compile(rf"\b{re.escape(package)}(?:\.| import (?:[\w, ]+, )?){module.name}\b")
    names = {f"test_{module.name}.py", f"test_{module.name}s.py"}
    return [
        each for each in candidates if PurePosixPath(each).name in names or imports.search((root / each).read_text())
    ]
