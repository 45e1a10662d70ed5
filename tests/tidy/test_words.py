"""Our functions are not called by everyday verbs without an object: which of them may stay, and how many."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.tidy.findings import expect_none
from tests.tidy.test_tidy import python_files, short

FOLDERS = ("server", "broker", "queues", "journal", "protocol", "client", "worker", "pipeline", "sim", "bench")

# How many functions of FOLDERS may have this word, without its underscores, as their whole name. Only lower a figure.
CEILINGS = {
    "beside": 0,
    "begin": 3,
    "come": 1,
    "due": 0,
    "each": 0,
    "finish": 17,
    "found": 0,
    "give": 0,
    "go_on": 2,
    "look": 3,
    "note": 1,
    "nothing": 0,
    "rest": 1,
    "settle": 0,
    "step": 2,
    "take": 2,
    "tell": 4,
}
SLACK = 3  # a ceiling that is further above the count must be lowered

MEND = "Give the function a verb and its object: `sync_all`, not `settle`. A word at 0 may not come back."

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_called(word: str, text: str) -> list[str]:
    """Return a finding for each function of a file whose whole name is `word`."""
    return [
        f"{node.lineno}: `{node.name}` does not say its object"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function) and node.name.strip("_") == word
    ]


@cache
def found_by_word() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {word: [] for word in CEILINGS}
    for path in python_files(FOLDERS):
        text = path.read_text("utf-8")
        for word in CEILINGS:
            if word in text:
                found[word] += [f"{short(path)}:{each}" for each in functions_called(word, text)]
    return found


@pytest.mark.parametrize("word", CEILINGS)
def test_no_more_functions_have_an_everyday_verb_as_their_name(word: str) -> None:
    found = found_by_word()[word]
    if len(found) > CEILINGS[word]:
        expect_none(found, f"{MEND} `{word}` may stand {CEILINGS[word]} times.")


@pytest.mark.parametrize("word", CEILINGS)
def test_a_ceiling_follows_the_count_down(word: str) -> None:
    count = len(found_by_word()[word])
    assert CEILINGS[word] - count <= SLACK, f"lower the ceiling of {word} to {count}"


@pytest.mark.parametrize(
    ("text", "count"), [("def settle(): ...", 1), ("def _settle(): ...", 1), ("def settled(): ...", 0)]
)
def test_a_word_is_found_as_a_whole_name(text: str, count: int) -> None:
    assert len(functions_called("settle", text)) == count
