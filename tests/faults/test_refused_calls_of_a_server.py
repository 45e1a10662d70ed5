"""A sample of the calls that `python -m tests.faults.refused_calls` has the system refuse to a real server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.faults.preloaded import build
from tests.faults.refused_calls import GROUPS, OTHERS, WAIT_SECONDS_MAX, Prepared, judge, trials
from tests.faults.traced_calls import Phase, Tracer, traced
from tests.support import process

SAMPLE = 3
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.slow
@pytest.mark.programs("cc")
def test_a_refused_call_is_borne_or_ends_the_server_with_its_reason_and_nothing_is_lost(
    tmp_path: Path, closing_line: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_SECONDS_MAX", WAIT_SECONDS_MAX)
    random, prepared = Random(SEED), Prepared(tmp_path / "prepared", build("failing_calls.c", tmp_path))
    known = [each for each in sorted(traced(Tracer(tmp_path), prepared.server)) if each.phase is not Phase.TOOLS]
    chosen = random.sample(trials(known, random), SAMPLE)
    found = judge(tmp_path / "judged", prepared, chosen)
    told = [f"{trial.name}: {each.cost.value}" for trial, each in zip(chosen, found, strict=True)]
    assert [each.wrong for each in found] == [[]] * SAMPLE, f"{told}, {found}, seed {SEED}"
    closing_line(f"refused calls: {'; '.join(told)}, seed {SEED}")


def test_no_errno_is_in_two_groups_of_a_call() -> None:
    for call, groups in {**GROUPS, "the others": OTHERS}.items():
        words = [word for group in groups for word in group.split()]
        assert len(words) == len(set(words)), call
