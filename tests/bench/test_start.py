"""Starts are measured to the first answer, and one that answers wrongly fails the measurement."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import msgspec
from click.testing import CliRunner

from staniel.bench.peers.start import Took, lines, main


def test_every_start_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "starts.json"
    said = CliRunner().invoke(main, ["--rounds", "1", "--items", "1000", "--json", str(path)])
    assert said.exit_code == 0, said.output
    found = [took for took in msgspec.json.decode(path.read_bytes(), type=list[Took]) if took.who == "ours"]
    assert [took.what for took in found[:3]] == ["interpreter alone", "--version", "empty start"]
    assert found[3].what == "restart, 1,000 items"
    assert all(took.wall_ms > 0 and took.cpu_ms > 0 for took in found)


def test_a_server_that_does_not_start_fails_the_measurement() -> None:
    said = CliRunner().invoke(main, ["--rounds", "1", "--program", f"{shlex.quote(sys.executable)} -c pass"])
    assert (said.exit_code, said.output.count("bench.start: no answer")) == (1, 1)


def test_the_table_tells_the_best_and_the_median() -> None:
    found = [Took("empty start", "ours", wall_ms, wall_ms / 2) for wall_ms in (300.0, 100.0, 120.0)]
    assert [line.split() for line in lines(found)][1] == ["empty", "start", "ours", "100.0", "120.0", "50.0", "60.0"]
