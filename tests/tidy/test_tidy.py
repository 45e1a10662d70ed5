"""The tree keeps the rules of tests/tidy/rules.py. Says which files they hold for; a finding names file and line."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.tidy import rules
from tests.tidy.findings import expect_none

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("protocol", "queues", "journal", "broker", "server", "client", "worker", "sim", "pipeline", "bench"),
    "cluster",
)
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


def looked_at(paths: Iterable[Path]) -> list[Path]:
    """The paths, or those that STANIEL_TIDY_FILES names: `make quick` sets it to the changed files."""
    only = os.environ.get("STANIEL_TIDY_FILES")
    return [path for path in paths if only is None or short(path) in only.split(os.pathsep)]


def findings(paths: Iterable[Path], rule: Callable[[str], list[str]]) -> list[str]:
    """What the rule finds, as "file:line: what is wrong"."""
    return findings_by_path(paths, lambda path, text: rule(text))


def findings_by_path(paths: Iterable[Path], rule: Callable[[str, str], list[str]]) -> list[str]:
    found = [(short(path), rule(short(path), path.read_text("utf-8", errors="replace"))) for path in looked_at(paths)]
    return [f"{path}:{each.removeprefix('line ')}" for path, all_of_it in found for each in all_of_it]


def test_no_function_is_longer_than_sixty_lines() -> None:
    expect_none(
        findings(python_files((*PACKAGES, "tests")), rules.too_long),
        "Move one thing that it does into a function of its own.",
    )


def test_every_module_of_the_packages_opens_with_a_docstring() -> None:
    expect_none(
        findings(python_files(PACKAGES), rules.docstring_missing),
        "Open the module with a docstring that says what the file is for.",
    )


def test_every_room_says_in_a_paragraph_what_it_is_for() -> None:
    rooms = [path for path in python_files(PACKAGES) if path.name == "__init__.py"]
    expect_none(
        findings(rooms, rules.room_docstring_missing),
        "Say in one paragraph what the folder is for and what may not enter.",
    )


def test_no_docstring_says_a_formula() -> None:
    paths = [path for path in python_files((*PACKAGES, "tests")) if path.parent != Path(__file__).parent]
    expect_none(findings(paths, rules.formulas), "Say what the thing does instead.")


def test_imports_point_one_way() -> None:
    expect_none(
        findings_by_path(python_files(PACKAGES), rules.forbidden_imports),
        "Move the code to a package that may import it: see the contracts in pyproject.toml.",
    )


def test_nothing_of_ours_is_importable_under_a_second_name() -> None:
    """`journal` beside `staniel.journal` would be the same module twice, with two sets of classes."""
    specs = {package: importlib.util.find_spec(package) for package in PACKAGES}
    expect_none(
        [
            f"{spec.origin}:1: also importable as {name}"
            for name, spec in specs.items()
            if spec and str(ROOT) in f"{spec.origin}"
        ],
        "Import staniel.NAME, and start pytest as a program: `python -m pytest` puts the checkout on the path.",
    )


def test_nothing_below_the_server_touches_disk_clock_or_async_code() -> None:
    expect_none(
        findings_by_path(python_files(PACKAGES), rules.forbidden_calls),
        "Take `now_ms` or an Fs as an argument, or move the code to server/.",
    )


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    expect_none(
        findings(text_files(), rules.machine_words),
        "Name a path that every machine has, or one relative to the repository.",
    )


def test_code_and_docs_say_what_acts_not_somebody() -> None:
    paths = [path for path in text_files() if not short(path).startswith("tests/") and path.name != "LICENSE"]
    expect_none(findings(paths, rules.persons), "Name the actor: the client, the reader, the thread, the operator.")


def test_every_ignored_type_error_is_named() -> None:
    paths = [path for path in python_files((*PACKAGES, "tests")) if path.parent != Path(__file__).parent]
    expect_none(findings(paths, rules.bare_ignores), "Name the error: `# type: ignore[assignment]`.")


def test_no_test_skips_itself() -> None:
    expect_none(
        findings(python_files(["tests"]), rules.skips),
        "Mark the test with `programs`, which names what it needs (docs/contributing/tests.md).",
    )


def test_the_rules_are_held_against_files_that_exist() -> None:
    packages = ("protocol", "queues", "journal", "broker", "server", "sim")
    texts = {short(path) for path in text_files()}
    found = [f"{package}/:1: no Python files" for package in packages if not python_files([package])]
    files = ("Makefile", "pyproject.toml", ".ci/run", "CONTRIBUTING.md")
    found += [f"{path}:1: not among the texts" for path in files if path not in texts]
    expect_none(found, "Name folders and files as they are called today in PACKAGES and FOLDERS of this test.")
