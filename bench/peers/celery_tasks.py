"""Celery's tasks a second over Staniel and over redis, with late acknowledgements, in turns.

    python -m staniel.bench.peers.celery_tasks
    python -m staniel.bench.peers.celery_tasks --pool prefork --sync always --tasks 2000 --rounds 5

`publish` is one program that sends no-op tasks one after the other; `run` is one worker with one process, from its
first task to its last. Needs the extra `celery`, redis' Python client and `redis-server`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import click
from msgspec import Struct

from staniel.bench.harness.contestant import Contestant, Sync
from staniel.bench.harness.process import Running, child_setup, exit_on_signals, running
from staniel.bench.peers.servers import DEFAULT_SERVER, PEERS, ours

WAIT_S = 300.0
POLL_S = 0.05
APP = """
import os, time
import staniel.kombu
from celery import Celery
app = Celery("app", broker=os.environ["BROKER"])
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=16)
done = 0
@app.task
def nothing(last):
    global done
    done += 1
    if done in (1, last):
        with open("times", "a") as file:
            file.write(f"{time.time()}\\n")
"""
PUBLISH = """
import app, sys, time
count = int(sys.argv[1])
app.nothing.delay(-1)
begin = time.time()
for _ in range(count - 1):
    app.nothing.delay(count)
print((count - 1) / (time.time() - begin))
"""


class Rates(Struct, frozen=True):
    """Tasks a second."""

    publish: float
    run: float


class TasksFailed(Exception):
    """The error when a program fails, or the tasks are not done in time."""


def url(contestant: Contestant, server: Running) -> str:
    scheme = "redis" if contestant.name == "redis" else "staniel"
    return f"{scheme}://127.0.0.1:{server.port}//" if scheme == "staniel" else f"redis://127.0.0.1:{server.port}/0"


def measured(contestant: Contestant, sync: Sync, pool: str, tasks: int) -> Rates:
    """Publish and run the tasks once, on a server of their own. Raises TasksFailed, StartFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-celery-") as name,
        running(contestant, sync, Path(name), None) as server,
    ):
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        environment = {**os.environ, "BROKER": url(contestant, server)}
        command = [sys.executable, "-c", PUBLISH, str(tasks)]
        sent = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S)
        if sent.returncode:
            raise TasksFailed(sent.stderr)
        return Rates(float(sent.stdout), (tasks - 1) / _worked_s(folder, environment, pool))


def _worked_s(folder: Path, environment: dict[str, str], pool: str) -> float:
    """Run a worker until the last task is done. Return the seconds since its first."""
    command = [sys.executable, "-m", "celery", "-A", "app", "worker", "-P", pool, "-c", "1", "-l", "ERROR"]
    times = folder / "times"
    with (folder / "log").open("wb") as log:
        setup = child_setup(None)
        worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, preexec_fn=setup)
        try:
            give_up = time.monotonic() + WAIT_S
            while not times.exists() or times.read_text().count("\n") < 2:
                if time.monotonic() > give_up or worker.poll() is not None:
                    raise TasksFailed((folder / "log").read_text()[-2000:])
                time.sleep(POLL_S)
        finally:
            worker.terminate()
            worker.wait()
    first, last = map(float, times.read_text().split())
    return last - first


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--tasks", default=2000, type=click.IntRange(10))
@click.option("--rounds", default=3, type=click.IntRange(1))
@click.option("--pool", type=click.Choice(["solo", "prefork", "threads"]), default="solo", show_default=True)
@click.option("--sync", type=click.Choice(["always", "1s"]), default="1s", show_default=True)
@click.option("--goal", default=1.0, show_default=True, help="Exit status 1 if a ratio is lower; 0: never.")
def main(tasks: int, rounds: int, pool: str, sync: str, goal: float) -> None:
    """Compare Celery over Staniel and over redis, in turns of which every other begins with redis."""
    exit_on_signals()
    redis = next(peer for peer in PEERS if peer.name == "redis")
    found: dict[str, list[Rates]] = {}
    loads = [os.getloadavg()[0]]
    for number in range(rounds):
        contestants = [ours(DEFAULT_SERVER), redis]
        for contestant in contestants if number % 2 == 0 else reversed(contestants):
            found.setdefault(contestant.name, []).append(measured(contestant, Sync(sync), pool, tasks))
            loads.append(os.getloadavg()[0])
    click.echo(f"{tasks} tasks, pool {pool}, sync {sync}, medians of {rounds} rounds in turns, tasks a second")
    click.echo(f"load of this machine with {os.cpu_count()} cores: {min(loads):.1f} to {max(loads):.1f}")
    low = False
    for what in ("publish", "run"):
        mine, theirs = ([getattr(rates, what) for rates in found[name]] for name in ("ours", "redis"))
        ratios = [our / their for our, their in zip(mine, theirs, strict=True)]
        low |= median(mine) < goal * median(theirs)
        click.echo(
            f"{what:8} ours {median(mine):7.0f}   redis {median(theirs):7.0f}   ratio"
            f" {median(mine) / median(theirs):.2f}   by round {min(ratios):.2f} to {max(ratios):.2f}"
        )
    if low:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
