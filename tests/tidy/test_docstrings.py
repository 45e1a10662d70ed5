"""The first words of docstrings: a verb for a function, a noun for anything else."""

from __future__ import annotations

from functools import cache

import pytest

from tests.tidy.docstrings import bad_first_words
from tests.tidy.findings import expect_none
from tests.tidy.test_tidy import findings, python_files

# How many docstrings of a folder may begin with a wrong word. Only lower a figure; at 0 it stays there.
CEILINGS = {
    "client": 0,
    "worker": 0,
    "cluster": 0,
    "packaging": 0,
    "protocol": 0,
    "src": 0,
    "pipeline": 0,
    "bench": 0,
    "server": 0,
    "broker": 0,
    "journal": 0,
    "queues": 0,
    "sim": 0,
}
SLACK = 25  # a ceiling that is further above the count must be lowered

MEND = "Begin a function with an imperative verb (tests/tidy/verbs.txt), anything else with a noun."


@cache
def findings_in(folder: str) -> list[str]:
    return findings(python_files([folder]), bad_first_words)


@pytest.mark.parametrize("folder", CEILINGS)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    found = findings_in(folder)
    if len(found) > CEILINGS[folder]:
        expect_none(found, f"{MEND} {folder}/ may have {CEILINGS[folder]} others.")


@pytest.mark.parametrize("folder", CEILINGS)
def test_a_ceiling_follows_the_count_down(folder: str) -> None:
    count = len(findings_in(folder))
    assert CEILINGS[folder] - count <= SLACK, f"lower the ceiling of {folder}/ to {count}"


@pytest.mark.parametrize(
    "text",
    [
        '"""What a queue is."""',
        '"""Of every queue, the name."""',
        'class A:\n    """One that waits."""',
        'x = 1\n"""Whether it waits."""',
        'class A:\n    x: int\n    """It waits."""',
        'def f():\n    """The next item."""',
        'def f():\n    """Whether it waits."""',
        'def f():\n    """Raises OSError."""',
        'def f():\n    """`path`: a file."""',
    ],
)
def test_a_wrong_first_word_is_found(text: str) -> None:
    assert len(bad_first_words(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        '"""Queues."""',
        'class A:\n    """A reader that waits."""',
        'class A:\n    x: int\n    """The time of the last wait."""',
        'def f():\n    """Return the next item."""',
        'def f():\n    """Wait, then return."""',
        'class A:\n    @property\n    def f(self):\n        """The next item."""',
        'def f():\n    x = 1\n    "What is no docstring."',
    ],
)
def test_a_right_first_word_passes(text: str) -> None:
    assert bad_first_words(text) == []
