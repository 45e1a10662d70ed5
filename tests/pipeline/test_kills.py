"""Under a real Spark no item is lost, whichever process is killed, and at which step of a drain or of the sink.

`STANIEL_KILLS=long` kills each process at each step, `STANIEL_KILLS=worker` (or `driver`, or `java`) this one at each;
without it a few cases stand for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.test_drain import fill, server_address
from tests.pipeline.test_live_source import taken
from tests.support.process import running

ROOT = Path(__file__).resolve().parents[2]
ITEMS = 240
DRAIN = ["reserve", "spool", "fsync", "confirm", "plan", "read", "forget", "forgotten"]
SINK = ["put", "stored", "noted", "commit", "committed"]
WHO = ["worker", "driver", "java"]  # worker: the process of Spark's that does the step
ROUND, WINDOW = 100, 40  # items: a round may not have been confirmed, a window not noted
REPEATS_MAX = {"drain.fsync": ROUND, "sink.stored": WINDOW}
STEPS = [
    *(f"drain.{step}" for step in DRAIN),
    *(f"{job}.{step}" for job in ("sink", "once") for step in SINK),
]
"""`once` is the sink with keys, killed at the steps of `sink`."""
FEW = [
    ("drain.fsync", "worker"),
    ("sink.stored", "worker"),
    ("drain.confirm", "driver"),
    ("once.stored", "worker"),
    ("once.put", "worker"),
    ("once.commit", "driver"),
]


def spark(folder: Path, jobs: list[str], control: Path) -> int:
    path = os.pathsep.join([str(ROOT / "tests" / "pipeline" / "hooks"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "STANIEL_KILL": str(control)}
    command = [sys.executable, "-m", "tests.pipeline.killed", *jobs]
    with (folder / "said").open("ab") as said:
        return subprocess.run(command, cwd=ROOT, env=env, stdout=said, stderr=said, timeout=500).returncode


@pytest.mark.slow
def test_whoever_is_killed_at_a_step_of_drain_or_sink_loses_nothing(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    wanted = os.environ.get("STANIEL_KILLS")
    cases = [(step, who) for who in WHO if wanted in ("long", who) for step in STEPS] or FEW
    with ExitStack() as servers:
        jobs: dict[tuple[str, str], list[str]] = {}
        values = [b"item %06d" % number for number in range(ITEMS)]
        server = server_address(servers.enter_context(running(tmp_path / "server")))
        for number, (step, who) in enumerate(cases):
            folder = tmp_path / f"{number:02d}"
            folder.mkdir()
            job = step.partition(".")[0]
            if job == "drain":
                fill(server, f"jobs{number}", ITEMS)
            else:
                (folder / "in").mkdir()
                for part in range(2):
                    share = values[ITEMS * part // 2 : ITEMS * (part + 1) // 2]
                    pq.write_table(pa.table({"value": pa.array(share, pa.binary())}), folder / "in" / f"{part}.parquet")
            jobs[step, who] = [job, f"{server}/jobs{number}", str(folder)]
            control = folder / "kill"
            if who != "worker":
                control.write_text(f"{hook_of(step)} {who}")
                assert spark(folder, [*jobs[step, who], "-"], control) != 0
                assert control.with_suffix(".done").exists(), (folder / "said").read_text()[-3000:]
                forget_half_a_first_batch(folder / "checkpoint" / "offsets")
        alive = [word for (step, who), words in jobs.items() for word in (*words, f"{hook_of(step)} {who}")]
        assert spark(tmp_path, alive, tmp_path / "kill") == 0, (tmp_path / "said").read_text()[-3000:]
        told: Counter[str] = Counter()
        for (step, who), (job, address, place) in jobs.items():
            check(step, who, job, address, Path(place), values, told)
    total = sum(told.values())
    repeats = ", ".join(f"{step} {count}" for step, count in sorted(told.items()) if count)
    closing_line(f"kills: {len(cases)}, of {len(cases) * ITEMS} items: 0 missing, {total} repeated ({repeats})")


def hook_of(step: str) -> str:
    return step.replace("once.", "sink.")


def forget_half_a_first_batch(offsets: Path) -> None:
    """What Spark had begun to write when it was killed: if that is all, it will not start there, and asks for it to be
    deleted (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). As docs/pipeline.md tells users to.
    """
    left = list(offsets.iterdir()) if offsets.is_dir() else []
    if all(path.name.startswith(".") for path in left):
        for path in left:
            path.unlink()


def check(step: str, who: str, job: str, address: str, place: Path, values: list[bytes], told: Counter[str]) -> None:
    server, _, queue = address.partition("/")
    if job == "drain":
        rows = [(value.encode(), id) for value, id in json.loads((place / "rows.json").read_text())]
        assert len(set(rows)) == ITEMS, "an item that comes again has the id that it had"
        found = [value for value, _ in rows]
    else:
        found = [item.data for item in taken(server, queue)]
    assert set(found) == set(values), f"{step}, {who} killed: lost {sorted(set(values) - set(found))[:3]}"
    repeats = len(found) - ITEMS
    # A worker outlives its driver and its Java by a moment, in which it goes on to whatever step.
    most = REPEATS_MAX.get(step, 0) if who == "worker" else {"drain": ROUND, "sink": WINDOW, "once": 0}[job]
    assert repeats <= most, f"{step}, {who} killed: {repeats} repeated"
    told[f"{step}/{who}"] += repeats
