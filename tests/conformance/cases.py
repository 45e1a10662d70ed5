"""The case files as parameters of pytest: one a case, named, and expected to fail if it is in not_yet.py."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.not_yet import NOT_YET
from tests.conformance.server import Mismatch

HERE = Path(__file__).parent
Case = dict[str, Any]
KNOWN: set[str] = set()
"""Every "kind/case" that some test has asked for."""


def load(name: str) -> list[Case]:
    """The cases of one file, such as "kestrel/write_cases.json"."""
    cases: list[Case] = json.loads((HERE / name).read_text("utf-8"))
    return cases


def params(kind: str, cases: Iterable[tuple[str, object]]) -> list[Any]:
    """`(name, value)` pairs as parameters. NOT_YET knows a case as "kind/name"; so is its variant "name-bytes"."""
    return [
        pytest.param(given, id=name, marks=_marks(f"{kind}/{name.removesuffix('-bytes')}")) for name, given in cases
    ]


def _marks(name: str) -> list[pytest.MarkDecorator]:
    KNOWN.add(name)
    if name not in NOT_YET:
        return []
    return [pytest.mark.xfail(reason=NOT_YET[name], raises=Mismatch, strict=True)]
