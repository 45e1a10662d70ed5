"""Under a real Spark no item or job is lost, whichever process is killed, and at which step of a drain, of the sink or
of a replay.

`STANIEL_KILLS=long` kills each process at each step, `STANIEL_KILLS=worker` (or `driver`, `java`, `server`) this one at
each; without it a few cases stand for them. The counts go to the file that `STANIEL_KILLS_LOG` names: kill_table.py.
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
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.job_servers import add_jobs, address_of, job_server, leased
from tests.pipeline.kill_table import note_kill
from tests.pipeline.killed import ITEMS
from tests.pipeline.test_drain import fill, server_address
from tests.pipeline.test_live_source import taken
from tests.support.process import Server

ROOT = Path(__file__).resolve().parents[2]
CHILD_MAX_S = 500
DRAIN = ["reserve", "spool", "fsync", "confirm", "plan", "read", "forget", "forgotten"]
SINK = ["put", "stored", "noted", "commit", "committed"]
DRAINS, SINKS = ("drain", "lease"), ("sink", "once", "add", "addonce", "replay")
WHO = ["worker", "driver", "java", "server"]  # worker: the process of Spark's that does the step
IN_ONE_SPARK = ("worker", "server")  # whose death Spark survives
ROUND, WINDOW = 100, 40  # items: a round may not have been confirmed, a window not noted
REPEATS_MAX = {"drain": ROUND, "lease": 0, "sink": WINDOW, "once": 0, "add": WINDOW, "addonce": 0, "replay": 0}
WORKER_REPEATS_MAX = {"drain.fsync": ROUND, "sink.stored": WINDOW, "add.stored": WINDOW}
STEPS = [f"{job}.{step}" for job in DRAINS for step in DRAIN] + [f"{job}.{step}" for job in SINKS for step in SINK]
"""What killed.py does, at each step that hooks/sitecustomize.py knows: `drain` and `sink`, whose steps the others
share.
"""
FEW = [
    ("drain.fsync", "worker"),
    ("sink.stored", "worker"),
    ("drain.confirm", "driver"),
    ("once.stored", "worker"),
    ("once.put", "worker"),
    ("once.commit", "driver"),
    ("once.put", "server"),
    ("lease.fsync", "worker"),
    ("lease.reserve", "server"),
    ("addonce.stored", "worker"),
    ("replay.stored", "driver"),
]


class Served:
    """A server of items and jobs which is started again whenever it was killed. `pid` is the file with its process."""

    def __init__(self, folder: Path, pid: Path) -> None:
        self.pid = pid
        self._folder = folder
        self._ended = Event()

    def __enter__(self) -> Served:
        self._stack = ExitStack()
        self.server = self._stack.enter_context(job_server(self._folder))
        self.pid.write_text(str(self.server.pid))
        self._keeper = Thread(target=self._keep)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._keeper.join()
        self._stack.close()

    def _keep(self) -> None:
        while not self._ended.wait(0.02):
            if self.server.child.poll() is not None:
                self.server.kill()
                self.server.start()
                self.pid.write_text(str(self.server.pid))

    def address_for(self, job: str) -> str:
        return address_of(self.server) if job in ("lease", "add", "addonce") else server_address(self.server)


def spark(folder: Path, jobs: list[str], control: Path, pid: Path) -> int:
    path = os.pathsep.join([str(ROOT / "tests" / "pipeline" / "hooks"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "STANIEL_KILL": str(control), "STANIEL_SERVER": str(pid)}
    command = [sys.executable, "-m", "tests.pipeline.killed", *jobs]
    with (folder / "said").open("ab") as said:
        return subprocess.run(command, cwd=ROOT, env=env, stdout=said, stderr=said, timeout=CHILD_MAX_S).returncode


@pytest.mark.slow
def test_whoever_is_killed_at_a_step_of_drain_or_sink_loses_nothing(
    tmp_path: Path, closing_line: Callable[[str], None]
) -> None:
    wanted = os.environ.get("STANIEL_KILLS")
    cases = [(step, who) for who in WHO if wanted in ("long", who) for step in STEPS] or FEW
    pid = tmp_path / "server.pid"
    with Served(tmp_path / "server", pid) as served:
        jobs: dict[tuple[str, str], list[str]] = {}
        values = [b"item %06d" % number for number in range(ITEMS)]
        for number, (step, who) in enumerate(cases):
            folder = tmp_path / f"{number:02d}"
            folder.mkdir()
            job = step.partition(".")[0]
            make_ready(job, served.server, f"jobs{number}", folder, values)
            jobs[step, who] = [job, f"{served.address_for(job)}/jobs{number}", str(folder)]
            control = folder / "kill"
            if who not in IN_ONE_SPARK:
                control.write_text(f"{hook_of(step)} {who}")
                assert spark(folder, [*jobs[step, who], "-"], control, pid) != 0
                assert control.with_suffix(".done").exists(), (folder / "said").read_text()[-3000:]
                forget_half_a_first_batch(folder / "checkpoint" / "offsets")
        alive = []
        for (step, who), words in jobs.items():
            alive += [*words, f"{hook_of(step)} {who}" if who in IN_ONE_SPARK else "-"]
        assert spark(tmp_path, alive, tmp_path / "kill", pid) == 0, (tmp_path / "said").read_text()[-3000:]
        told: Counter[str] = Counter()
        for (step, who), (job, address, place) in jobs.items():
            repeats = check(step, who, job, address, Path(place), values)
            told[step] += repeats
            note_kill(job, step.partition(".")[2], who, len(values), 0, repeats)
    total = sum(told.values())
    repeated = ", ".join(f"{step} {count}" for step, count in sorted(told.items()) if count)
    closing_line(f"kills: {len(cases)}, of {len(cases) * ITEMS} items: 0 missing, {total} repeated ({repeated})")


def make_ready(job: str, server: Server, queue: str, folder: Path, values: list[bytes]) -> None:
    """Fill a queue to drain, or write a table to put."""
    if job == "drain":
        fill(server_address(server), queue, len(values))
    elif job == "lease":
        add_jobs(server, queue, values, ttr_s=1)
    else:
        (folder / "in").mkdir()
        for part in range(2):
            share = values[ITEMS * part // 2 : ITEMS * (part + 1) // 2]
            table = pa.table({"value": pa.array(share, pa.binary()), "id": [value.decode() for value in share]})
            pq.write_table(table, folder / "in" / f"{part}.parquet")


def hook_of(step: str) -> str:
    job, _, name = step.partition(".")
    return f"{'drain' if job in DRAINS else 'sink'}.{name}"


def forget_half_a_first_batch(offsets: Path) -> None:
    """What Spark had begun to write when it was killed: if that is all, it will not start there, and asks for it to be
    deleted (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). As docs/pipeline.md tells users to.
    """
    left = list(offsets.iterdir()) if offsets.is_dir() else []
    if all(path.name.startswith(".") for path in left):
        for path in left:
            path.unlink()


def check(step: str, who: str, job: str, address: str, place: Path, values: list[bytes]) -> int:
    """Check that nothing is missing, and return how many items came twice."""
    server, _, queue = address.partition("/")
    if job in DRAINS:
        rows = [(value.encode(), id) for value, id in json.loads((place / "rows.json").read_text())]
        assert len(set(rows)) == ITEMS, "an item that comes again has the id that it had"
        found = [value for value, _ in rows]
    elif job in ("add", "addonce"):
        found = list(leased(server, queue).elements())
    else:
        found = [item.data for item in taken(server, queue)]
    assert set(found) == set(values), f"{step}, {who} killed: lost {sorted(set(values) - set(found))[:3]}"
    repeats = len(found) - ITEMS
    # A worker outlives its driver and its Java by a moment, in which it goes on to whatever step.
    most = WORKER_REPEATS_MAX.get(step, 0) if who == "worker" else REPEATS_MAX[job]
    assert repeats <= most, f"{step}, {who} killed: {repeats} repeated"
    return repeats
