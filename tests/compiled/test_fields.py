"""A number in a field of a compiled class is the one that was put there, or an exception."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from staniel.compiled import stem_of

ROOMS = (
    "queues/line",
    "queues/stream",
    "journal/libkestrel",
    "journal/interval_set",
    "journal/kestrel",
    "protocol/text",
)


def numbers_of_classes() -> Iterator[tuple[str, str, list[str]]]:
    """(module, class, its fields of 64 bits) of the .pxd files in ROOMS."""
    root = Path(stem_of("staniel.x")).parent
    for path in sorted(
        path for package in ("queues", "journal", "protocol") for path in (root / package).rglob("*.pxd")
    ):
        name = path.relative_to(root).with_suffix("").as_posix()
        found: dict[str, list[str]] = {}
        kind = ""
        for line in path.read_text("utf-8").splitlines():
            if match := re.match(r"cdef class (\w+)", line):
                found[kind := match[1]] = []
            elif kind and (match := re.match(r"    cdef public long long ([\w, ]+)", line)):
                found[kind] += [each.strip() for each in match[1].split(",")]
        for kind, fields in found.items():
            if fields and name.startswith(ROOMS):
                yield "staniel." + name.replace("/", "."), kind, fields


CASES = list(numbers_of_classes())


@pytest.mark.compiled
@pytest.mark.parametrize(("module", "name", "fields"), CASES)
def test_a_field_takes_64_bits_or_raises(module: str, name: str, fields: list[str]) -> None:
    kind: Any = getattr(importlib.import_module(module), name)
    blank = kind.__new__(kind)
    for field in fields:
        for value in (2**63 - 1, -(2**63)):
            setattr(blank, field, value)
            assert getattr(blank, field) == value
        for value in (2**63, -(2**63) - 1, 2**100):
            with pytest.raises(OverflowError):
                setattr(blank, field, value)


def test_ids_and_numbers_of_files_may_be_of_any_size() -> None:
    """A foreign segment may hold ids up to the last of 63 bits, and what comes behind it must not wrap round."""
    from staniel.journal.interval_set import IntervalSet
    from staniel.journal.libkestrel.position import Position

    position = Position(2**63 - 1, [2**63 + 5, 2**70])
    assert (position.head, list(position.done)) == (2**63 - 1, [2**63 + 5, 2**70])
    done = IntervalSet([2**63 - 1])
    done.add_interval(2**63, 2**64)
    assert (done.starts, 2**64 in done, done.reach(2**63)) == ([2**63 - 1], True, 2**64)


def test_the_classes_are_found() -> None:
    assert {("staniel.queues.line", "PlainLine"), ("staniel.queues.stream.stream", "StreamLine")} <= {
        (module, name) for module, name, _ in CASES
    }
