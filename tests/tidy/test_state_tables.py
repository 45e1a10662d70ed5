"""States of more than three kinds have a table of which may follow which."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType

import grimp

from tests.tidy.findings import expect_none

ENDINGS = ("State", "Stage", "Phase")
FEW = 3

MEND = "Beside the Enum, give a dict from each member to those that may follow, and assert it where the state changes."


def states_in(module: ModuleType) -> Iterator[type[Enum]]:
    """Yield the Enums of states that the module defines, those of few members left out."""
    for each in vars(module).values():
        is_own = isinstance(each, type) and issubclass(each, Enum) and each.__module__ == module.__name__
        if is_own and each.__name__.endswith(ENDINGS) and len(each) > FEW:
            yield each


def has_table(module: ModuleType, states: type[Enum]) -> bool:
    """Tell whether tables of the module have what follows each state: one for all events, or one for each event."""
    listed: set[object] = set()
    for table in vars(module).values():
        is_of_states = isinstance(table, dict) and all(isinstance(key, states) for key in table)
        if is_of_states and all(_are_of(states, after) for after in table.values()):
            listed |= set(table)
    return listed == set(states) or all(hasattr(state, "followers") for state in states)


def _are_of(states: type[Enum], after: object) -> bool:
    return isinstance(after, states) or (
        isinstance(after, tuple | frozenset) and all(isinstance(each, states) for each in after)
    )


def defining_modules() -> list[str]:
    """Return the modules that import enum: no other can define such a class."""
    graph = grimp.build_graph("staniel", include_external_packages=True, cache_dir=None)
    return sorted(graph.find_modules_that_directly_import("enum"))


def test_states_of_more_than_three_kinds_have_a_table() -> None:
    modules = [import_module(name) for name in defining_modules() if "pipeline" not in name]
    found = {f"{module.__name__}: {states.__name__}": has_table(module, states)
             for module in modules for states in states_in(module)}  # fmt: skip
    assert len(found) >= 11, "the rule looks at none of them any more"
    expect_none([f"{where} has no table" for where, has in found.items() if not has], MEND)


class WorkState(Enum):
    ONE = 1
    TWO = 2
    THREE = 3
    FOUR = 4


def test_a_table_has_each_state_and_no_more_than_states() -> None:
    module = ModuleType(WorkState.__module__)
    one, two, three, four = WorkState
    module.__dict__.update(WorkState=WorkState, SHOWN=dict.fromkeys(WorkState, "shown"))
    assert list(states_in(module)) == [WorkState] and not has_table(module, WorkState)
    module.__dict__.update(NEXT={one: (two, three), two: (), three: ()})
    assert not has_table(module, WorkState)
    module.__dict__.update(ON_STOP={four: one})
    assert has_table(module, WorkState)
