"""The entries of docs/config.md are what the schema says, and python -m tests.docs.settings_table writes them."""

from __future__ import annotations

from tests.docs.settings_table import ENTRY, PAGE, TODO, filled

TEXT = PAGE.read_text("utf-8")


def test_the_entries_are_those_of_the_schema() -> None:
    assert filled(TEXT) == TEXT, "run: python -m tests.docs.settings_table"
    assert TODO not in TEXT, "say what the new key means"


def test_a_key_that_is_missing_or_differs_is_written_and_its_meaning_is_kept() -> None:
    (found,) = [found for found in ENTRY.finditer(TEXT) if found[1] == "max_waiters"]
    other = TEXT.replace(found[0], f"- **max_waiters** (size, `1`): {found[3]}\n- **no_such_key** (size, `1`): None.\n")
    assert other != TEXT and filled(other) == TEXT
    without = filled(TEXT.replace(found[0], ""))
    assert f"- **max_waiters** ({found[2]}): {TODO}" in without.splitlines()
