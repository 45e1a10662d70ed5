"""Few modules stand in a circle of imports, those of TYPE_CHECKING and of functions included."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.tidy.findings import expect_none
from tests.tidy.test_tidy import PACKAGES, ROOT, python_files

# How many modules of a package may stand in circles of three or more modules. Only lower a figure.
CEILINGS = {"broker": 0, "journal": 0, "queues": 6}
PAIRS_MAX = 3  # pairs of modules that import each other, in all packages. Only lower it.
SLACK = 3  # a figure that is further above the count must be lowered

MEND = "A part does not import what makes it: give its constructor what it uses, or move what both need below both."

Graph = dict[str, set[str]]


def imports(text: str, modules: set[str]) -> set[str]:
    """Return those of `modules` that the text imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("staniel."):
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return {f"staniel.{each}" for each in modules} & found


def circles(graph: Graph) -> list[list[str]]:
    """Return the sets of modules of which each reaches each other by imports, the largest first."""
    reached = {module: _reached_from(module, graph) for module in graph}
    found = {
        tuple(sorted(each for each in reached[module] if module in reached[each]))
        for module in graph
        if module in reached[module]
    }
    return sorted(map(list, found), key=len, reverse=True)


def _reached_from(module: str, graph: Graph) -> set[str]:
    reached: set[str] = set()
    left = [module]
    while left:
        fresh = graph[left.pop()] - reached
        reached |= fresh
        left += fresh
    return reached


@cache
def graph_of_packages() -> Graph:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in python_files(PACKAGES)
    }
    names = set(paths)
    return {
        name: {each.removeprefix("staniel.") for each in imports(path.read_text("utf-8"), names)} - {name}
        for name, path in paths.items()
    }


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
    text = "from staniel.a import x\nif TYPE_CHECKING:\n    from staniel.b import c\ndef f():\n    import staniel.d"
    assert imports(text, {"a", "b", "b.c", "d", "e"}) == {"staniel.a", "staniel.b", "staniel.b.c", "staniel.d"}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_more_modules_stand_in_circles_of_imports(package: str) -> None:
    found = [each for each in circles(graph_of_packages()) if len(each) > 2 and each[0].split(".")[0] == package]
    ceiling, count = CEILINGS.get(package, 0), sum(map(len, found))
    lines = [f"{package}/: {len(each)} modules import each other: {', '.join(each)}" for each in found]
    expect_none(lines if count > ceiling else [], f"{MEND} {package}/ may have {ceiling} such modules.")
    expect_none(_lower(f"{package}/", count, ceiling), "Lower the figure in CEILINGS of this file.")


def test_no_more_pairs_of_modules_import_each_other() -> None:
    graph = graph_of_packages()
    pairs = [(one, other) for one in sorted(graph) for other in sorted(graph[one]) if one < other]
    found = [f"{one} and {other} import each other" for one, other in pairs if one in graph[other]]
    expect_none(found if len(found) > PAIRS_MAX else [], f"{MEND} There may be {PAIRS_MAX} such pairs.")
    expect_none(_lower("all packages", len(found), PAIRS_MAX), "Lower PAIRS_MAX of this file.")


def _lower(what: str, count: int, most: int) -> list[str]:
    return [f"{what}: {count} are left of {most} that are allowed"] if count < most - SLACK else []
