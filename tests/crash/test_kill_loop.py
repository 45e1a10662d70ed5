"""Kill after kill of a real server on real files, with everything that it does going on.

`python -m staniel.bench.soak.loop` does the same for as long as one likes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.bench.soak.loop import Loop
from staniel.bench.soak.totals import Totals
from tests.support import starter

KILLS = 60
STOPS = 20
LIFE_SECONDS = (0.02, 0.1)
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


def die(folder: Path, count: int, death: signal.Signals, journal_format: str = "kestrel") -> Totals:
    """Die so often; the first broken promise fails the test."""
    loop = Loop(folder, SEED, "mixed", death, LIFE_SECONDS, journal_format=journal_format)
    loop.victim.launch = starter.start  # the last test here executes a program at each start
    totals = Totals()
    with loop.victim:
        while totals.kills < count:
            cycle = loop.cycle()
            assert cycle.wrong == [], f"seed {SEED}, cycle {loop.number}"
            totals.add(cycle)
    return totals


@pytest.mark.slow
def test_sixty_kills_under_load_break_no_promise(tmp_path: Path, closing_line: Callable[[str], None]) -> None:
    totals = die(tmp_path, KILLS, signal.SIGKILL)
    assert totals.rotations >= KILLS and totals.rewrites > 0, totals
    closing_line(f"kill loop: {totals.text()}, seed {SEED}")


@pytest.mark.slow
def test_kills_break_no_promise_of_queues_in_libkestrels_format_either(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    totals = die(tmp_path, STOPS, signal.SIGKILL, "libkestrel")
    assert totals.rotations >= STOPS, totals
    closing_line(f"kill loop, libkestrel: {totals.text()}, seed {SEED}")


@pytest.mark.slow
def test_twenty_stops_and_some_reloads_under_load_break_none_either(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    totals = die(tmp_path, STOPS, signal.SIGTERM)
    closing_line(f"stop loop: {totals.text()}, seed {SEED}")


@pytest.mark.slow
def test_long_runs_have_a_command_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "staniel.bench.soak.loop", "--cycles=2", "--jobs=2", f"--dir={tmp_path}"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[2])
    assert said.stdout.count("; 0 wrong") == 2, (said.stdout, said.stderr)
    assert list(tmp_path.iterdir()) == []
