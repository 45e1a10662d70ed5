"""docs/features.md: every row says how it stands, and what is not there is said with a reason."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "features.md").read_text("utf-8")
ROWS = [line.strip("|").split("|") for line in TEXT.splitlines() if re.match(r"\| \d", line)]
VERDICTS = {"better", "done", "in part", "no"}


def test_each_row_says_one_of_four_things_and_how() -> None:
    assert len(ROWS) == 19
    for row in ROWS:
        (verdict,) = [cell.strip() for cell in row if re.fullmatch(r" \*\*[^*]+\*\* ", cell)]
        assert verdict.strip("*") in VERDICTS and len(row[-1].strip()) > 20, row


def test_the_ranks_are_complete_and_the_refusals_are_told() -> None:
    ranks = [int(row[0]) for row in ROWS if row[0].strip().isdigit()]
    assert ranks == list(range(1, len(ranks) + 1)) and len(ranks) == 19
    partly = [row[-1] for row in ROWS if any("**in part**" in cell for cell in row)]
    assert [how for how in partly if not re.search(r"\b(?:[Nn]o|[Nn]ot|cannot)\b", how)] == []
