"""How a tidy test fails: each finding on a line of its own, then how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def expect_none(found: Iterable[str], mend: str) -> None:
    """Fail if there is a finding. A finding is "file:line: what is wrong"; `mend` says what to do about all of them."""
    lines = list(found)
    if lines:
        count = "1 finding" if len(lines) == 1 else f"{len(lines)} findings"
        pytest.fail("\n".join([count, *lines, f"To mend: {mend}"]), pytrace=False)


def line_of(path: str, text: str) -> str:
    """Return "path:line" of the first line of a file of the repository that contains `text`, or "path:1"."""
    lines = (ROOT / path).read_text("utf-8").splitlines()
    return f"{path}:{next((number for number, line in enumerate(lines, 1) if text in line), 1)}"
