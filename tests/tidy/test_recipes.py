"""The recipes of docs/contributing/recipes.md are followed: files, names and commits that they name are there.

A step is a numbered item. Its quoted paths exist, each quoted identifier stands in one of those files, and the commit
named after the steps touches a file of each step that it is said to show.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.tidy.findings import ROOT, expect_none, line_of

DOCUMENT = "docs/contributing/recipes.md"
HEADING = "## How to add …"
STEP = re.compile(r"(\d+)\. ")
QUOTED = re.compile(r"`([^`]+)`")
EXAMPLE = re.compile(r"Example: `([0-9a-f]{8})` .*?shows\s+steps\s+([\d, ]+)\.")
PROGRAM = (
    *("broker/", "client/", "cluster/", "journal/", "pipeline/", "protocol/", "queues/", "server/", "sim/"),
    "worker/",
)
"""The folders whose files count, as docs/contributing/code.md says: those of the wheel, and the simulator."""
FILES_MAX = {
    "A setting of queues": (4, 7),
    "A figure of a queue": (4, 6),
    "A command": (4, 7),
    "An operation on queues": (4, 7),
}
"""How many files of the program a recipe may need: (always, with all that begins with "If"). Four is the limit of the
first.
"""
EARLIER_NAMES = {"broker/admin/http/": "broker/commands/http/", "broker/admin/page/": "broker/page/"}
"""Folders that have moved: commits before the move are examples under the earlier name."""
WITHOUT_EXAMPLE = {"A journal record", "A dependency"}  # no commit has added one since the folders have these names


def paths_in(text: str) -> list[str]:
    return [each for each in QUOTED.findall(text) if re.fullmatch(r"[\w./-]+(?:/|\.\w+)", each)]


def files_of_program(sentences: Iterable[str]) -> list[str]:
    """The files and folders of the program that are quoted; "`a/` or `b/`" is one of them."""
    text = re.sub(r"` or `[^`]+`", "`", " ".join(sentences))
    return [each for each in paths_in(text) if each.startswith(PROGRAM)]


class Step(NamedTuple):
    line: int
    number: int
    text: str

    @property
    def paths(self) -> list[str]:
        return paths_in(self.text)

    @property
    def needed_files(self) -> list[str]:
        """The files of the program that are always needed: those of sentences that do not begin with "If"."""
        return files_of_program(each for each in re.split(r"(?<=\.) ", self.told) if not each.startswith("If "))

    @property
    def all_files(self) -> list[str]:
        return files_of_program([self.told])

    @property
    def told(self) -> str:
        return self.text.partition(". ")[2]

    @property
    def names(self) -> list[str]:
        return [each for each in QUOTED.findall(self.text) if re.fullmatch(r"\w+", each)]

    @property
    def where(self) -> str:
        return f"{DOCUMENT}:{self.line}"


class Recipe(NamedTuple):
    title: str
    line: int
    steps: list[Step]
    commit: str
    shown: list[int]
    """Numbers of the steps that the commit shows."""


def read_recipes(text: str) -> list[Recipe]:
    before, _, after = text.partition(f"{HEADING}\n")
    first = before.count("\n") + 2
    section = after.partition("\n## ")[0]
    recipes = []
    for part in re.split(r"^### ", section, flags=re.MULTILINE)[1:]:
        line = first + section[: section.index(f"### {part}")].count("\n")
        example = EXAMPLE.search(" ".join(part.split()))
        shown = [int(each) for each in example[2].split(",")] if example else []
        recipes.append(
            Recipe(part.partition("\n")[0], line, read_steps(part, line), example[1] if example else "", shown)
        )
    return recipes


def read_steps(part: str, first: int) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(part.splitlines(), first):
        if match := STEP.match(line):
            steps.append(Step(number, int(match[1]), line))
        elif line.startswith("   ") and steps:
            steps[-1] = steps[-1]._replace(text=f"{steps[-1].text} {line.strip()}")
    return steps


RECIPES = read_recipes((ROOT / DOCUMENT).read_text("utf-8"))
WITH_COMMIT = [
    pytest.param(recipe, marks=pytest.mark.programs(f"commit:{recipe.commit}"), id=recipe.title)
    for recipe in RECIPES
    if recipe.commit
]


def test_each_recipe_has_numbered_steps_and_an_example() -> None:
    found = [f"{line_of(DOCUMENT, HEADING)}: no recipes"] if not RECIPES else []
    for recipe in RECIPES:
        numbers = [step.number for step in recipe.steps]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"{DOCUMENT}:{recipe.line}: steps are numbered {numbers}")
        if not recipe.commit and recipe.title not in WITHOUT_EXAMPLE:
            found.append(f"{DOCUMENT}:{recipe.line}: {recipe.title!r} has no example")
        found += [f"{DOCUMENT}:{recipe.line}: no step {each}" for each in recipe.shown if each not in numbers]
    expect_none(found, "Number the steps from 1; end with `Example: COMMIT … shows steps 1, 2, 3.`")


def test_each_step_names_files_and_names_that_are_there() -> None:
    found = []
    for step in (step for recipe in RECIPES for step in recipe.steps):
        if not step.paths:
            found.append(f"{step.where}: step {step.number} names no file")
        found += [f"{step.where}: there is no {path}" for path in step.paths if not (ROOT / path).exists()]
        text = "".join(each.read_text("utf-8") for path in step.paths for each in files_at(path))
        names = [name for name in step.names if not re.search(rf"\b{name}\b", text)]
        found += [f"{step.where}: {name} is in none of {', '.join(step.paths)}" for name in names]
    expect_none(found, "Correct the step: name the file where this is written today.")


def files_at(path: str) -> list[Path]:
    """The file, if it is one; of a folder, only names of files are of interest."""
    return [ROOT / path] if (ROOT / path).is_file() else []


def test_a_recipe_needs_few_files() -> None:
    """A recipe that grows has found one idea in two places: make them one, or derive one from the other."""
    found = []
    for recipe in (recipe for recipe in RECIPES if recipe.title in FILES_MAX):
        needed = {path for step in recipe.steps for path in step.needed_files}
        everything = {path for step in recipe.steps for path in step.all_files}
        assert FILES_MAX[recipe.title][0] <= 4
        for paths, most in zip((needed, everything), FILES_MAX[recipe.title], strict=True):
            if len(paths) > most:
                found.append(f"{DOCUMENT}:{recipe.line}: {len(paths)} files, not {most}: {', '.join(sorted(paths))}")
    assert FILES_MAX.keys() <= {recipe.title for recipe in RECIPES}
    expect_none(found, "Put what the steps say again into one file, from which the others take it.")


@pytest.mark.parametrize("recipe", WITH_COMMIT)
def test_the_commit_of_a_recipe_touches_the_files_of_its_steps(recipe: Recipe) -> None:
    command = ["git", "-C", str(ROOT), "show", "--name-only", "--format=", recipe.commit]
    touched = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for now, then in EARLIER_NAMES.items():
        touched += [name.replace(then, now) for name in touched if name.startswith(then)]
    shown = [step for step in recipe.steps if step.number in recipe.shown]
    found = [
        f"{step.where}: {recipe.commit} touches none of {', '.join(step.paths)}"
        for step in shown
        if not any(name.startswith(path) for path in step.paths for name in touched)
    ]
    expect_none(found, "Take another commit as the example, or remove the step from those that it shows.")


def test_a_recipe_is_read_with_its_steps_and_its_example() -> None:
    text = "# T\n\n## How to add …\n\nWords.\n\n### A thing\n\n"
    text += "1. `a/b.py`, `Name`: this\n   and `c/`.\n2. Last, `make x`.\n\n"
    [recipe] = read_recipes(f"{text}Example: `0123abcd` does it and\nshows steps 1, 2.\n\n## Commits\n\n1. no\n")
    assert (recipe.title, recipe.line, recipe.commit, recipe.shown) == ("A thing", 7, "0123abcd", [1, 2])
    assert [(step.where, step.paths, step.names) for step in recipe.steps] == [
        (f"{DOCUMENT}:9", ["a/b.py", "c/"], ["Name"]),
        (f"{DOCUMENT}:11", [], []),
    ]


def test_files_of_the_program_are_counted_without_those_that_are_not_always_needed() -> None:
    text = "1. `queues/a.py` and `tests/b.py`, `name`. If it is so: `broker/c.py`. `queues/` or `broker/` obeys."
    [step] = read_steps(text, 1)
    assert step.needed_files == ["queues/a.py", "queues/"]
    assert step.all_files == ["queues/a.py", "broker/c.py", "queues/"]
