"""SIGKILL under load, again and again, for jobs: what was answered is so after the restart, and no job is had twice.

`python -m staniel.bench.soak.loop --serve jobs` does the same for as long as one likes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.bench.soak.jobs import Book, JobLoop, Known
from staniel.bench.soak.totals import Totals
from tests.support import starter

KILLS = 6
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_a_server_killed_under_load_keeps_its_jobs(
    tmp_path: Path, sync: str, closing_line: Callable[[str], None]
) -> None:
    loop, totals = JobLoop(tmp_path, SEED, sync), Totals()
    loop.victim.launch = starter.start
    with loop.victim:
        while totals.kills < KILLS:
            cycle = loop.cycle()
            assert cycle.wrong == [], f"seed {SEED}, cycle {loop.number}, {sync}"
            totals.add(cycle)
    assert "cmdlog.damaged" not in loop.victim.said or sync != "always"
    assert totals.rotations >= KILLS
    closing_line(f"crash: workq {sync}: {totals.text()}, seed {SEED}")


def test_the_judge_sees_what_is_wrong() -> None:
    book = Book()
    book.jobs = {
        1: Known.ADDED, 2: Known.DELETED, 3: Known.COMPLETED, 4: Known.LEASED, 5: Known.ADDING, 6: Known.FAILED,
    }  # fmt: skip
    sound: dict[int, str | None] = {1: "0", 2: None, 3: "1", 4: "4", 5: None, 6: "2"}
    assert book.judge(sound) == []
    assert book.judge({**sound, 1: "4", 5: "0"}) != []
    for number, state in ((1, None), (2, "0"), (3, "4"), (4, "0"), (4, None), (6, "1")):
        assert book.judge({number: state}) != []
    book.twice.append(7)
    assert book.judge(sound) == ["job 7 was leased twice"]
