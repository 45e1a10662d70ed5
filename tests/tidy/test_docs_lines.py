"""Prose in documents is wrapped at 100 columns, so that a change of a sentence is a change of its lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.findings import expect_none

ROOT = Path(__file__).parents[2]
WIDTH = 100


def documents() -> list[str]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return sorted(str(each.relative_to(ROOT)) for each in found)


def long_lines(text: str) -> Iterator[int]:
    """Numbers of the lines of prose that are longer. Tables, code and pictures are as long as they have to be, and so
    is what has no blank to be broken at.
    """
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        is_code ^= bare.startswith("```")
        is_prose = not is_code and not bare.startswith(("|", "```", "![", "<")) and not line.startswith("    ")
        if len(line) > WIDTH and is_prose and " " in bare:
            yield number


@pytest.mark.parametrize("name", documents())
def test_prose_is_wrapped(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    found = [f"{name}:{number}: {len(lines[number - 1])} columns" for number in long_lines((ROOT / name).read_text())]
    expect_none(found, f"Wrap the prose at {WIDTH} columns.")


def test_tables_code_and_pictures_may_be_longer() -> None:
    long = "word " * 30
    assert list(long_lines(f"{long}\n| {long}|\n```\n{long}\n```\n    {long}\n![{long}](a)\n{'x' * 200}\n")) == [1]
