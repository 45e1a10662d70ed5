"""Which tests belong to which folder: read from the table in tests/README.md, its only source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = "tests/README.md"
HEADING = "## Which tests?"
ALWAYS = "/"  # the row of the tests that every change runs
QUOTED = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A row of the table. A path that ends in "/" is a folder, "*.md" stands for such files at the top."""

    line: int
    paths: tuple[str, ...]
    tests: tuple[str, ...]


def read_rows(text: str) -> list[Row]:
    """The rows of the table, in its order. Raises ValueError if there is no such table."""
    lines = text.splitlines()
    if HEADING not in lines:
        raise ValueError(f'{DOCUMENT} has no heading "{HEADING}"')
    rows: list[Row] = []
    for number, line in enumerate(lines[lines.index(HEADING) + 1 :], lines.index(HEADING) + 2):
        if line.startswith("## "):
            break
        cells = line.strip("|").split("|")
        if line.startswith("|") and QUOTED.search(cells[0]):
            rows.append(Row(number, tuple(QUOTED.findall(cells[0])), tuple(QUOTED.findall(cells[1]))))
    return rows


def all_rows() -> list[Row]:
    return read_rows((ROOT / DOCUMENT).read_text("utf-8"))


def row_of(path: str, rows: list[Row]) -> Row | None:
    """The row with the longest path that `path` is, or lies in; None if there is none."""
    fitting = [(len(each), row) for row in rows for each in row.paths if _covers(each, path)]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _covers(entry: str, path: str) -> bool:
    if entry.startswith("*"):
        return "/" not in path and path.endswith(entry[1:])
    return path.startswith(entry) if entry.endswith("/") else path == entry
