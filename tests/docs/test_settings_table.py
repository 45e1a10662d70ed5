"""The tables of docs/config.md are what the schema says, and python -m tests.docs.settings_table writes them."""

from __future__ import annotations

from tests.docs.settings_table import PAGE, TODO, filled

TEXT = PAGE.read_text("utf-8")


def test_the_tables_are_those_of_the_schema() -> None:
    assert filled(TEXT) == TEXT, "run: python -m tests.docs.settings_table"
    assert TODO not in TEXT, "say what the new key means"


def test_a_key_that_is_missing_or_differs_is_written_and_its_meaning_is_kept() -> None:
    (row,) = [line for line in TEXT.splitlines() if line.startswith("| max_waiters |")]
    meaning = row.strip("|").split(" | ")[3].strip()
    other = TEXT.replace(row, f"| max_waiters | size | `1` | {meaning} |\n| no_such_key | size | `1` | Nothing. |")
    assert other != TEXT and filled(other) == TEXT
    without = filled(TEXT.replace(f"{row}\n", ""))
    assert row.replace(meaning, TODO) in without.splitlines()
