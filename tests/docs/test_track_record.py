"""tests/track_record/README.md: every defect has a row, and every test that a row names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "tests" / "track_record" / "README.md").read_text("utf-8")
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", TEXT)
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| [KWL]?\d", line)]
KEPT = ("W14", "W18")  # habits that clients know; the text says so


def test_every_named_test_exists() -> None:
    missing = [
        f"{path}::{name}" for path, name in NAMED if f"def {name}(" not in (ROOT / "tests" / path).read_text("utf-8")
    ]
    assert len(NAMED) > 40 and missing == []


def test_every_defect_has_its_row() -> None:
    numbers = [number for row in ROWS for number in row.split("|")[1].strip().split(", ")]
    kestrel = [*(str(n) for n in range(1, 29)), *(f"K{n}" for n in range(1, 14))]
    others = [*(f"W{n}" for n in range(1, 23)), *(f"L{n:02}" for n in range(1, 21))]
    assert all(number in TEXT for number in KEPT)
    assert sorted([*numbers, *KEPT]) == sorted([*kestrel, *others])


def test_a_row_names_a_test_or_says_not_yet() -> None:
    assert [row[:60] for row in ROWS if "::test_" not in row and "**not yet**" not in row] == []


def test_every_file_of_the_track_record_is_in_the_table() -> None:
    named = {name for _, name in NAMED}
    for path in sorted((ROOT / "tests" / "track_record").glob("test_*.py")):
        written = re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
        assert written and named & set(written), path.name
