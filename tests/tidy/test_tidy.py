"""The tree keeps the rules of tests/tidy/rules.py. Says which files they hold for; a finding names file and line."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.tidy import rules

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("protocol", "queues", "journal", "broker", "server", "client", "sim", "pipeline", "bench")
# Found and not yet mended, files by package; these figures may only get smaller.
ROOMS_UNDESCRIBED_TODAY = {"protocol": 1, "queues": 3, "journal": 4, "broker": 4, "server": 2, "pipeline": 6}
FORMULAS_TODAY = {"queues": 17, "journal": 28, "broker": 37, "server": 10, "pipeline": 38}
TEXT_SUFFIXES = {"", ".py", ".md", ".toml", ".txt", ".json", ".sh", ".cfg", ".service", ".yml", ".yaml"}
FOLDERS = (*PACKAGES, "src", "tests", "docs", "examples", "packaging", ".ci")


def files_under(folder: str) -> list[Path]:
    found = (ROOT / folder).rglob("*")
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def python_files(folders: Iterable[str]) -> list[Path]:
    return [path for folder in folders for path in files_under(folder) if path.suffix == ".py"]


def text_files() -> list[Path]:
    at_the_top = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # a file in a worktree
    all_files = [*at_the_top, *(path for folder in FOLDERS for path in files_under(folder))]
    return [path for path in all_files if path.suffix in TEXT_SUFFIXES and path.parent != Path(__file__).parent]


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def findings(paths: Iterable[Path], rule: Callable[[str], list[str]]) -> list[str]:
    return [f"{short(path)} {each}" for path in paths for each in rule(path.read_text("utf-8", errors="replace"))]


def findings_by_path(paths: Iterable[Path], rule: Callable[[str, str], list[str]]) -> list[str]:
    return [f"{short(path)} {each}" for path in paths for each in rule(short(path), path.read_text("utf-8"))]


def test_no_function_is_longer_than_sixty_lines() -> None:
    assert findings(python_files((*PACKAGES, "tests")), rules.too_long) == []


def test_every_module_of_the_packages_opens_with_a_docstring() -> None:
    assert findings(python_files(PACKAGES), rules.docstring_missing) == []


def test_every_room_says_in_a_paragraph_what_it_is_for(closing_line: Callable[[str], None]) -> None:
    rooms = [path for path in python_files(PACKAGES) if path.name == "__init__.py"]
    shrinking(findings(rooms, rules.room_docstring_missing), ROOMS_UNDESCRIBED_TODAY, closing_line)


def test_no_docstring_says_a_formula(closing_line: Callable[[str], None]) -> None:
    paths = [path for path in python_files((*PACKAGES, "tests")) if path.parent != Path(__file__).parent]
    shrinking(findings(paths, rules.formulas), FORMULAS_TODAY, closing_line)


def shrinking(found: list[str], today: dict[str, int], closing_line: Callable[[str], None]) -> None:
    """No package has more findings than `today`; the end of the run names those that have fewer."""
    counts = Counter(each.partition("/")[0] for each in found)
    assert [each for each in found if counts[each.partition("/")[0]] > today.get(each.partition("/")[0], 0)] == []
    fewer = [f"{package} {counts[package]}" for package, count in today.items() if counts[package] < count]
    if fewer:
        closing_line(f"fewer findings than listed in tests/tidy/test_tidy.py: {', '.join(fewer)}")


def test_imports_point_one_way() -> None:
    assert findings_by_path(python_files(PACKAGES), rules.forbidden_imports) == []


def test_nothing_of_ours_is_importable_under_a_second_name() -> None:
    """`journal` beside `staniel.journal` would be the same module twice, with two sets of classes."""
    specs = {package: importlib.util.find_spec(package) for package in PACKAGES}
    assert [name for name, spec in specs.items() if spec and str(ROOT) in f"{spec.origin}"] == []


def test_nothing_below_the_server_touches_disk_clock_or_async_code() -> None:
    assert findings_by_path(python_files(PACKAGES), rules.forbidden_calls) == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert findings(text_files(), rules.machine_words) == []


def test_every_ignored_type_error_is_named() -> None:
    paths = [path for path in python_files((*PACKAGES, "tests")) if path.parent != Path(__file__).parent]
    assert findings(paths, rules.bare_ignores) == []


def test_no_test_skips_itself() -> None:
    assert findings(python_files(["tests"]), rules.skips) == []


def test_the_rules_are_held_against_files_that_exist() -> None:
    assert all(python_files([package]) for package in ("protocol", "queues", "journal", "broker", "server", "sim"))
    assert {"Makefile", "pyproject.toml", ".ci/run", "CONTRIBUTING.md"} <= {short(path) for path in text_files()}
