"""Fills docs/config.md from the schema: each key of a section, its type and its default. The page itself is the source
of what a key means: of a new key that stands as "TODO".

    python -m tests.docs.settings_table
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from staniel.broker.config.toml import keys_of
from tests.broker.config.test_document import SECTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "config.md"
HEAD = "| key | type | default | meaning |\n|---|---|---|---|\n"
TODO = "TODO."


def filled(text: str, sections: Mapping[str, type[Struct]] = SECTIONS) -> str:
    """Return the page with the rows that the schema says, in the page's order, new keys last."""
    for title, kind in sections.items():
        before, heading, rest = text.partition(f"\n## {title}\n")
        told, head, body = rest.partition(HEAD)
        assert "\n## " not in told, f"{title} has no table that begins with {HEAD}"
        table, blank, after = body.partition("\n\n")
        text = "".join((before, heading, told, head, *rows(table, kind), after and blank[1:], after))
    return text


def rows(table: str, kind: type[Struct]) -> list[str]:
    meanings = dict(re.findall(r"^\| (\w+) \| .* \| `[^`]*` \| (.*) \|$", table, re.MULTILINE))
    keys = keys_of(kind)
    order = [*(name for name in meanings if name in keys), *(name for name in keys if name not in meanings)]
    cells = [(name, keys[name].kind.word, keys[name].kind.show(keys[name].default)) for name in order]
    return [f"| {name} | {word} | `{default}` | {meanings.get(name, TODO)} |\n" for name, word, default in cells]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
