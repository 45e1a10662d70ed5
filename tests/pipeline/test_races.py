"""A short form of the races; the long one is `python -m tests.pipeline.races`, or STANIEL_RACES_SECONDS=300 here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pipeline.races import race

SECONDS = float(os.environ.get("STANIEL_RACES_SECONDS", "5"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2], ids=["a log that is kept", "a log that is cleaned"])
def test_whoever_reads_a_spool_beside_a_server_loses_doubles_and_invents_nothing(tmp_path: Path, seed: int) -> None:
    races = race(tmp_path, SECONDS, seed)
    assert not races.wrong
    checks = (
        "state of kestrel",
        "state of libkestrel",
        "jobs of workq",
        "pipeline.state",
        "pack",
        "convert",
        "pack at rest",
    )
    assert all(races.counts[name] for name in checks)
    assert races.counts["items put"] > 100 and races.counts["stream of kestrel: items"] > 10
