"""README.md: its transcripts run as they stand there, and its figures are those of docs/performance.md."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.transcripts import Document, free_port, play

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PERFORMANCE = ROOT / "docs" / "performance.md"
LINE_CHARS_MAX = 100


@pytest.mark.slow
def test_what_is_pasted_into_a_shell_answers_as_the_page_says(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    document = Document(README)
    heard = play(document, tmp_path, free_port(), {**os.environ, "PATH": path})
    assert len(document.commands) > 20 and len(document.expected) > 20
    assert document.missing_in(heard) == [], heard
    assert "Traceback" not in heard, heard


def test_a_line_that_does_not_come_or_comes_too_late_is_found() -> None:
    document = Document(README)
    right = "\n".join(document.expected)
    assert document.missing_in(right) == []
    assert document.missing_in(right.replace("done resize 1.png", "done resize 7.png")) == ["done resize 1.png"]
    first, *others = document.expected
    assert document.missing_in("\n".join([*others, first])) != []


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each table's rows, the line of hyphens left out."""
    found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()] for table in found]
    return [[table[0], *table[2:]] for table in rows]


def test_each_figure_is_one_of_the_performance_page() -> None:
    measured = {tuple(row) for table in tables(PERFORMANCE.read_text("utf-8")) for row in table}
    section = README.read_text("utf-8").partition("\n## Figures\n")[2].partition("\n## ")[0]
    shown = [row for table in tables(section) for row in table[1:]]
    assert len(shown) >= 10
    assert [row for row in shown if not any(set(row) <= set(known) and row[0] == known[0] for known in measured)] == []
    assert any(re.match(r"0\.[0-8]", cell) for row in shown for cell in row), "and the bad ones are among them"


def test_its_prose_can_be_read_in_a_terminal() -> None:
    blocks = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    prose = blocks.sub("", README.read_text("utf-8"))
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > LINE_CHARS_MAX] == []
