"""How many functions a request passes through: the figures repeat, and the shortest walk stays short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.bench.own.hops import main, walks

# Two more than before the types that compiled modules call each other by: the journal's `reply_batch`, and a batch that
# is joined apart from its records. In plain Python a put takes no more instructions for it. And one
# for the histograms, of the one request in ten milliseconds that is timed; two for a delivery. A delivery enters three
# more since the common changes, ids and replies have functions of their own, which compiled modules call in C: a
# reliable get takes a quarter fewer instructions there. One function sends replies of one piece and of more.
KNOWN_SET_FUNCTIONS_MAX = 31
KNOWN_SET_CHANGES_MAX = 29
PARKED_FUNCTIONS_MAX = 34
WOKEN_FUNCTIONS_MAX = 52


pytestmark = pytest.mark.pure  # compiled functions are not seen by a profile


def test_a_set_of_a_known_queue_enters_few_functions() -> None:
    walks()
    row = walks()["set, queue known"].row
    assert row["functions"] <= KNOWN_SET_FUNCTIONS_MAX
    assert row["changes"] <= KNOWN_SET_CHANGES_MAX


def test_a_get_that_waits_enters_few_functions() -> None:
    walks()  # lines that are asked for again are known
    found = walks()
    assert found["waiting get: parked"].row["functions"] <= PARKED_FUNCTIONS_MAX
    assert found["waiting get: woken"].row["functions"] <= WOKEN_FUNCTIONS_MAX


def test_the_same_code_gives_the_same_figures(tmp_path: Path) -> None:
    walks()
    told = CliRunner().invoke(main, ["--list", "--json", str(tmp_path / "rows")])
    assert told.exit_code == 0, told.output
    assert "    1 server/hub.py Hub.turn" in told.output.splitlines()
    rows = json.loads((tmp_path / "rows").read_bytes())
    assert len(rows) == 8
    assert rows == {name: hops.row for name, hops in walks().items()}
