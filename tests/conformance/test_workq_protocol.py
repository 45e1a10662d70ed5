"""workq's conversations, recorded from the original server: each as it is, and each with every byte on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.workq_play import Play
from tests.support.job_world import JobWorld

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "workq" / "protocol_cases.json").read_text("utf-8"))
NAMED = [pytest.param(case, id=case["name"]) for case in CASES]
SHORT = [pytest.param(case, id=case["name"]) for case in CASES if len(json.dumps(case)) < 4000]


def byte_by_byte(case: dict[str, Any]) -> dict[str, Any]:
    """The same case, each send of plain text cut everywhere."""
    steps = []
    for step in case["steps"]:
        plain = isinstance(step["send"], str) and "{{" not in step["send"]
        steps.append({**step, "split": list(range(1, len(step["send"])))} if plain else step)
    return {**case, "steps": steps}


@pytest.mark.parametrize("case", NAMED)
def test_a_client_of_workq_hears_what_workq_says(case: dict[str, Any]) -> None:
    Play(JobWorld()).run(case)


@pytest.mark.parametrize("case", [each for each in SHORT if "1mib" not in str(each.id)])
def test_it_does_not_matter_how_the_bytes_arrive(case: dict[str, Any]) -> None:
    Play(JobWorld()).run(byte_by_byte(case))


def test_all_cases_pass_one_after_the_other_on_one_server() -> None:
    world = JobWorld('cmdlog_sync = "interval"\ncmdlog_seg_size = 500\ncmdlog_clean_int = 300')
    for case in CASES:
        if not case["fresh"]:
            Play(world).run(case)
    assert len(world.segments()) > 3
