"""No three modules stand in a circle of imports, those of TYPE_CHECKING and of functions included."""

from __future__ import annotations

from functools import cache

import grimp
import pytest

from tests.tidy.findings import expect_none
from tests.tidy.test_tidy import PACKAGES

PAIRS_MAX = 3  # pairs of modules that import each other, in all packages. Only lower it.

MEND = "A part does not import what makes it: give its constructor what it uses, or move what both need below both."

Graph = dict[str, set[str]]


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
    imports = grimp.build_graph("staniel", cache_dir=None)
    return {module: set(imports.find_modules_directly_imported_by(module)) for module in imports.modules}


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_three_modules_stand_in_a_circle_of_imports(package: str) -> None:
    found = [each for each in circles(graph_of_packages()) if len(each) > 2 and each[0].split(".")[1] == package]
    expect_none([f"{len(each)} modules import each other: {', '.join(each)}" for each in found], MEND)


def test_no_more_pairs_of_modules_import_each_other() -> None:
    found = [" and ".join(each) + " import each other" for each in circles(graph_of_packages()) if len(each) == 2]
    expect_none(found if len(found) > PAIRS_MAX else [], f"{MEND} There may be {PAIRS_MAX} such pairs.")
    assert len(found) == PAIRS_MAX, "Fewer are left: lower PAIRS_MAX of this file."
