"""Damaged spools, thousands of them, a sample of all that `python -m tests.faults.sweep` goes through."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.sweep import Damaged, Files, check, cuts, flips, sample, verdicts
from tests.support.judge import Judge
from tests.support.process import running
from tests.support.records import addx
from tests.support.wire import drain

CUTS = 2000
FLIPS = 5000
SERVED = 150  # of either, by one real server
USED_ONE_IN = 4
MEMORY_BYTES_MAX = 64 << 20
SEED = int(os.environ.get("STANIEL_SWEEP_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.slow
def test_a_file_cut_anywhere_is_served_up_to_the_cut_and_the_rest_of_the_spool_whole() -> None:
    wrong = [line for damaged in sample(list(cuts()), CUTS, SEED) for line in check(damaged)]
    assert wrong == [], f"seed {SEED}"


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_no_crash_and_costs_nothing_but_what_follows_it_in_that_file() -> None:
    chosen = enumerate(sample(list(flips()), FLIPS, SEED))
    wrong = [line for number, damaged in chosen for line in check(damaged, used=not number % USED_ONE_IN)]
    assert wrong == [], f"seed {SEED}"


def test_no_damage_makes_a_start_take_memory() -> None:
    damaged = sample(list(flips()), 50, SEED)
    tracemalloc.start()
    try:
        for each in damaged:
            check(each)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < MEMORY_BYTES_MAX, f"seed {SEED}"


def prefixed(number: int, files: Files) -> Files:
    """The same files with a name of their own in a spool that they share."""
    return {f"d{number}-{name}": data for name, data in files.items()}


@pytest.mark.slow
def test_one_real_server_serves_hundreds_of_damaged_queues_and_says_what_it_has_cut(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    chosen = [each.files for each in sample(list(cuts()), SERVED, SEED) + sample(list(flips()), SERVED, SEED)]
    spool = tmp_path / "spool"
    spool.mkdir()
    everything: Files = {}
    for number, files in enumerate(chosen):
        everything |= prefixed(number, files)
    for name, data in everything.items():
        (spool / name).write_bytes(data)
    judged = verdicts(everything)
    now_ms = time.time_ns() // 1_000_000
    with running(tmp_path, "--sync", "os") as server:
        said = server.stderr
        for queue, verdict in judged.items():
            for (file, at), lost in verdict.damage().items():
                assert f" queue={queue} file={file} at={at} unread_bytes={len(lost)} " in said
            assert drain(server.address, queue) == verdict.live(now_ms), f"{queue}, seed {SEED}"
        assert server.memory_bytes() < MEMORY_BYTES_MAX
    closing_line(f"sweep: {CUTS} cuts, {FLIPS} flipped bits, seed {SEED}")


def test_the_sweep_finds_a_reader_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Damaged("whole", {"q": addx(b"abc") + addx(b"d")})
    assert check(whole) == []
    monkeypatch.setattr(Judge, "read", lambda judge, data, is_sealed: 0)
    assert len(check(whole)) == 3  # another state, damage that nobody reported, another state after a kill
