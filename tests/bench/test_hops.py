"""How many functions a request passes through: the figures repeat, and the shortest walk stays short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from staniel.bench.own.hops import main, walks

# By walk: the most functions, files, and changes of file. `reply_batch`, the joining of a batch apart from its records,
# ids and replies are functions because compiled modules call them in C: that takes a quarter of a reliable get's
# instructions. The histograms take one, of the syncs and of the one request in ten milliseconds that is timed.
# A new queue and a recovered one ask for the last number of files that retention holds keep.
MOST = {
    "set, queue known": (31, 18, 28),
    "set, new queue": (117, 42, 106),
    "open": (41, 23, 35),
    "close and open": (45, 23, 41),
    "close": (32, 19, 28),
    "waiting get: parked": (25, 11, 18),
    "waiting get: woken": (51, 25, 49),
    "recovery, 100 items": (174, 47, 192),
}
TABLE = Path(__file__).with_name("request_files.md")
WALKS_OF_TABLE = {"set": "set, queue known", "open": "open", "close": "close"}


pytestmark = pytest.mark.pure  # compiled functions are not seen by a profile


@pytest.mark.parametrize("name", MOST)
def test_a_walk_enters_few_functions_and_files(name: str) -> None:
    walks()  # lines that are asked for again are known
    row = walks()[name].row
    functions, files, changes = MOST[name]
    why = "look for a pass-through in `python -m staniel.bench.own.hops --list`"
    assert row["functions"] <= functions and row["files"] <= files and row["changes"] <= changes, why


def test_the_table_of_a_requests_files_is_true() -> None:
    found = walks()
    rows = re.findall(r"^\| `([\w/.]+)` \| .+ \| ([a-z, ]+) \|$", TABLE.read_text("utf-8"), re.MULTILINE)
    for name, walk in WALKS_OF_TABLE.items():
        files = {file for file, _ in found[walk].calls}
        told = [file for file, names in rows if name in names.split(", ")]
        assert sorted(told) == sorted(files), f"the table of files in {TABLE.name} is wrong for {name}: correct it"


def test_the_same_code_gives_the_same_figures(tmp_path: Path) -> None:
    walks()
    told = CliRunner().invoke(main, ["--list", "--json", str(tmp_path / "rows")])
    assert told.exit_code == 0, told.output
    assert "    1 server/hub.py Hub.turn" in told.output.splitlines()
    rows = json.loads((tmp_path / "rows").read_bytes())
    assert rows.keys() == MOST.keys()
    assert rows == {name: hops.row for name, hops in walks().items()}
