"""Jobs under a real Spark whose driver, worker or Java process is killed at a step of theirs, and which are run again.

    python -m tests.pipeline.kills [--job pack]

Each case: a job is started, and before the Nth change of the disk by a task (or by the driver) SIGKILL goes to the
worker that makes it, to the driver or to Java. A killed worker's task is tried again by Spark; otherwise the job is
started again. Before that and after it the spool and the lake have to hold what they should, each item once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pipeline
from journal.fs import OsFile, OsFs
from pipeline import archive as archiving
from pipeline import convert as converting
from pipeline import fleet, packs
from pipeline.archive import archive
from pipeline.convert import convert
from pipeline.files import LocalFolder
from pipeline.formats import look
from pipeline.segments import Part, Reading
from queues.config import Dialect, Format
from tests.pipeline.spools import history, write
from tests.pipeline.test_packs import states

CASES = {
    "pack": [
        ("worker", "task", (1, 2, 3)),
        ("jvm", "task", (3,)),
        ("driver", "task", (2,)),
        ("driver", "driver", (3, 5, 7)),
    ],
    "archive": [
        ("worker", "task", (1, 4, 7)),
        ("jvm", "task", (3,)),
        ("driver", "task", (3,)),
        ("driver", "driver", (4, 7, 10)),
    ],
    "convert": [("worker", "task", (4, 9, 14, 19, 24, 29, 34)), ("jvm", "task", (12,)), ("driver", "task", (20,))],
}
CHANGES = [(OsFs, name) for name in ("append", "rename", "remove", "sync_folder", "truncate")]
CHANGES += [(OsFile, name) for name in ("write", "sync")]
REAL: dict[tuple[Any, str], Any] = {(kind, name): getattr(kind, name) for kind, name in CHANGES}


def arm(step: int, victim: int, mark: str) -> None:
    """Kill `victim` (0: this process) before the change of this number, once."""
    count = 0

    def deadly(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Any, *args: Any) -> Any:
            nonlocal count
            count += 1
            if count >= step and not os.path.exists(mark):
                Path(mark).touch()
                os.kill(victim or os.getpid(), signal.SIGKILL)
                time.sleep(0.5)
            return change(self, *args)

        return changed

    for (kind, name), change in REAL.items():
        setattr(kind, name, deadly(change))


class Dying:
    """A task in a worker that is armed."""

    def __init__(self, work: Callable[[Any], Any], *how: Any) -> None:
        self.work, self.how = work, how

    def __call__(self, task: Any) -> Any:
        arm(*self.how)
        return self.work(task)


def work(spark: Any, job: str, spool: str, out: str) -> bool:
    """Run a job; whether it came to its end."""
    if job == "pack":
        packs.pack(spark, spool, {}, Dialect.DOCUMENTS)
    elif job == "archive":
        archive(spark, spool, out, {"maxBytesPerTrigger": "6k"}, lambda told: None)
    else:
        return not any(each.refusal for each in convert(spark, [spool], [], Format.LIBKESTREL))
    return True


@contextlib.contextmanager
def armed(where: str, step: int, victim: int, mark: str) -> Iterator[None]:
    """The tasks, or this process, are going to kill."""
    modules = (packs, archiving, converting)
    if where == "task":
        for module in modules:
            module.run = lambda spark, tasks, work: fleet.run(spark, tasks, Dying(work, step, victim, mark))
    else:
        arm(step, victim, mark)
    yield
    for module in modules:
        module.run = fleet.run


def child(job: str, spool: str, out: str, victim: str, where: str, step: int, mark: str) -> None:
    spark = pipeline.session("local[2,3]")
    pid = {"driver": os.getpid(), "jvm": spark.sparkContext._gateway.proc.pid}[victim]
    with armed(where, step, pid, mark):
        work(spark, job, spool, out)
    os._exit(0)


def items_in(spool: Path) -> Counter[tuple[str, bytes]]:
    """What the queues hold, whatever their format."""
    found: Counter[tuple[str, bytes]] = Counter()
    place = LocalFolder(str(spool))
    for form in ("kestrel", "libkestrel"):
        adapter, queues = look(place, form)
        for queue, segments in queues.items():
            for batch in adapter.view("state")(place, Part(queue, segments), Reading()):
                found.update((queue, row["value"]) for row in batch.to_pylist())
    return found


def archived(out: Path) -> Counter[tuple[str, int]]:
    import pyarrow.dataset as ds

    table = ds.dataset(str(out), partitioning="hive").to_table(columns=["file", "offset"])
    return Counter((row["file"], row["offset"]) for row in table.to_pylist())


def recorded(spool: Path) -> Counter[tuple[str, int]]:
    place = LocalFolder(str(spool))
    adapter, queues = look(place, "kestrel")
    parts = (Part(queue, segments) for queue, segments in queues.items())
    batches = (batch for part in parts for batch in adapter.view("ops")(place, part, Reading()))
    return Counter((row["file"], row["offset"]) for batch in batches for row in batch.to_pylist())


def case(spark: Any, folder: Path, job: str, victim: str, where: str, step: int) -> tuple[bool, list[str]]:
    """Whether it came to a kill, and what is wrong. `spark`: what is started again is started there."""
    spool, out, mark = folder / "spool", folder / "lake", folder / "mark"
    for number, queue in enumerate(("jobs", "mail")):
        write(spool, queue, history(30 + number, 500), 3)
    before, held, records = states(spool), items_in(spool), recorded(spool)
    wrong, tries = [], 0
    if victim == "worker":
        with armed(where, step, 0, str(mark)):
            tries += not work(spark, job, str(spool), str(out))
    else:
        line = [job, spool, out, victim, where, step, mark]
        subprocess.run(
            [sys.executable, "-m", "tests.pipeline.kills", "--child", *map(str, line)], capture_output=True, timeout=300
        )
        time.sleep(1)  # who was orphaned ends, or goes on
        if job == "pack" and states(spool) != before:
            wrong.append("the spool is another one after the kill")
        while not work(spark, job, str(spool), str(out)) and tries < 5:
            tries += 1
            time.sleep(1)
    if job == "pack" and (states(spool) != before or len(list(spool.glob("[jm]*.*"))) != 2):
        wrong.append("the packed spool is another one")
    if items_in(spool) != held:
        wrong.append(
            f"lost {sum((held - items_in(spool)).values())}, too many {sum((items_in(spool) - held).values())}"
        )
    if job == "archive" and archived(out) != records:
        lost, many = records - archived(out), archived(out) - records
        wrong.append(f"lost {sum(lost.values())}, doubled {sum(many.values())}")
    return mark.exists(), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--job", choices=list(CASES))
    parser.add_argument("--child", nargs=7)
    given = parser.parse_args()
    if given.child:
        job, spool, out, victim, where, step, mark = given.child
        child(job, spool, out, victim, where, int(step), mark)
    spark = pipeline.session("local[2,3]")
    kills = bad = 0
    for job in [given.job] if given.job else list(CASES):
        for victim, where, steps in CASES[job]:
            for step in steps:
                folder = Path(tempfile.mkdtemp(prefix="kills-"))
                killed, wrong = case(spark, folder, job, victim, where, step)
                kills, bad = kills + killed, bad + bool(wrong)
                print(f"{job}: {victim} killed at step {step} of the {where}: {killed}, {wrong or 'right'}", flush=True)
                shutil.rmtree(folder)
    print(f"{kills} kills, {bad} wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
