"""A call that the system refuses to a tool is never taken for absence, damage or success, and what comes of it is what
errno_tools.md says.

These are samples; `python -m tests.journal.tools.errno_tools` tries each call with each errno.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from staniel.server.cli.journal import journal
from tests.journal.tools.errno_tools import DOCUMENT, TOOLS, read, sample, tried, written

SEED = Random().randrange(1 << 30) if os.environ.get("STANIEL_SEEK") else 1
EACH = 50
TOLD = read(written(DOCUMENT.read_text("utf-8")))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a killed tool does not clean up
@pytest.mark.parametrize("name", TOOLS)
def test_a_refused_call_costs_what_the_table_says_and_no_item(name: str) -> None:
    results = [tried(each) for each in sample(name, EACH, Random(f"{SEED} {name}"))]
    assert [(str(each.trial), each.call, each.wrong) for each in results if each.wrong] == [], f"seed {SEED}"
    for each in results:
        assert each.outcome is not None and each.outcome.value in TOLD[name, each.column], (str(each.trial), each.call)


def test_each_journal_tool_is_tried() -> None:
    missing = {f"journal {name}" for name in journal.commands} - {name.partition(",")[0] for name in TOOLS}
    assert not missing, f"LIST in tests/journal/tools/errno_tools.py has no {sorted(missing)}: add a Tool for each"


def test_the_table_of_the_docs_has_each_tool() -> None:
    assert {name for name, _ in TOLD} == set(TOOLS)
