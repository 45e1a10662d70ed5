"""A .pxd lists the fields that its .py has: without one the compiled build alone would raise AttributeError."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.findings import expect_none, line_of
from tests.tidy.test_tidy import PACKAGES, ROOT, short

PXD = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.pxd"))
FIELDS = re.compile(
    r"    cdef (?:(?:public|readonly) )?(?:unsigned )?(?:long long |\w+ )?(?P<names>[\w, ]+?)\s*(?:#.*)?$"
)
IMPLICIT = {"__dict__", "__weakref__"}
KEPT_IN_C = {"Get": {"head", "head_size", "head_flags"}}  # fields that a .pyx alone has


def fields_in_c(text: str) -> dict[str, set[str]]:
    """The fields of each class of a .pxd."""
    found: dict[str, set[str]] = {}
    name = ""
    for line in text.splitlines():
        if match := re.match(r"cdef class (\w+)", line):
            name = match[1]
            found[name] = set()
        elif name and "(" not in line and (match := FIELDS.match(line)):
            found[name] |= {each.strip() for each in match["names"].split(",")}
    return found


def base_in_c(text: str) -> dict[str, str]:
    """The base of each class of a .pxd that has one."""
    return dict(re.findall(r"^cdef class (\w+)\((\w+)\)", text, re.MULTILINE))


ALL_FIELDS = {name: fields for path in PXD for name, fields in fields_in_c(path.read_text("utf-8")).items()}


def fields_in_python(text: str) -> dict[str, set[str]]:
    """The `__slots__` of each class, its annotated fields if it is a Struct, else what `self.…` is set to in it."""
    found: dict[str, set[str]] = {}
    tables: dict[str, set[str]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            tables[ast.unparse(node.target)] = {ast.unparse(key).strip("'") for key in node.value.keys if key}
        if not isinstance(node, ast.ClassDef):
            continue
        slots = [
            each.value for each in node.body if isinstance(each, ast.Assign) and _is_name(each.targets[0], "__slots__")
        ]
        if slots:
            found[node.name] = set().union(*(_names_in(each, tables) for each in _parts_of(slots[0])))
        elif any(isinstance(each, ast.AnnAssign) for each in node.body):
            found[node.name] = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        else:
            targets = [
                each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
            ]
            found[node.name] = {each.attr for each in targets if _is_name(each.value, "self")}
    return found


def _parts_of(slots: ast.expr) -> list[ast.expr]:
    return slots.elts if isinstance(slots, ast.Tuple) else [slots]


def _names_in(part: ast.expr, tables: dict[str, set[str]]) -> set[str]:
    """The names of a part of `__slots__`: a text, or the keys of a table, as in `*CHANGES_COUNTED`."""
    return tables[ast.unparse(part.value)] if isinstance(part, ast.Starred) else {ast.literal_eval(part)}


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@pytest.mark.parametrize("path", PXD, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pxd_lists_the_fields_of_its_classes(path: Path) -> None:
    in_c = fields_in_c(path.read_text("utf-8"))
    in_python = fields_in_python(path.with_suffix(".py").read_text("utf-8"))
    bases = base_in_c(path.read_text("utf-8"))
    found = []
    for name, fields in in_c.items():
        if name in in_python:  # else a class of the .pyx alone
            where = line_of(short(path), f"cdef class {name}")
            inherited = ALL_FIELDS.get(bases.get(name, ""), set()) - fields
            here, there = fields - KEPT_IN_C.get(name, set()) - IMPLICIT, in_python[name] - inherited - IMPLICIT
            found += [f"{where}: {name} has no field {each}, the .py has" for each in sorted(there - here)]
            found += [f"{where}: {name} has a field {each}, the .py has none" for each in sorted(here - there)]
    expect_none(found, "Make the fields of the .pxd those of the .py: `cdef public object NAME` for any value.")


def test_the_fields_of_a_class_are_found() -> None:
    assert PXD
    text = "cdef class A:\n    cdef public long long a, b  # two\n    cdef dict __dict__\n    cpdef f(self)\n"
    assert fields_in_c(text) == {"A": {"a", "b", "__dict__"}}
    assert fields_in_python('T: dict = {"a": 1}\nclass A:\n    __slots__ = (*T, "b")\n') == {"A": {"a", "b"}}
