"""A sample of the calls that `python -m tests.faults.refused_calls` has the system refuse to a real server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.faults.preloaded import build
from tests.faults.refused_calls import judge, trials

SAMPLE = 3
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.slow
@pytest.mark.programs("cc")
def test_a_refused_call_is_borne_or_ends_the_server_with_its_reason_and_nothing_is_lost(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    preload, told = build("failing_calls.c", tmp_path), []
    for number, trial in enumerate(Random(SEED).sample(trials(), SAMPLE)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = judge(folder, preload, trial)
        assert found.wrong == [], f"{trial.name}, seed {SEED}"
        told.append(f"{trial.name}: {found.outcome.value}")
    closing_line(f"refused calls: {'; '.join(told)}, seed {SEED}")
