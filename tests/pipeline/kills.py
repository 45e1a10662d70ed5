"""Jobs under a real Spark whose driver, worker or Java process is killed at a step of theirs, and which are run again.

    python -m tests.pipeline.kills [--job pack] [--victim driver] [--where task] [--every 1 [--first 5]]

Each case: a job is started, and before the Nth change of the disk by a task (or by the driver) SIGKILL goes to the
worker that makes it, to the driver or to Java. A killed worker's task is tried again by Spark; otherwise the job is
started again. Before that and after it the spool and the lake have to hold what they should, each item once.
`archive-s3` archives into an object store. A case in which nobody was killed is a fault of the case. `--every N`: not a
few steps of each kind, but every Nth, from `--first`, until the job has no more: its own process then ended well
although nobody was killed. The counts go to the file that `STANIEL_KILLS_LOG` names: kill_table.py.
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from staniel import pipeline
from staniel.journal.disk.os_fs import OsFile, OsFs
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import Part, Reading
from staniel.pipeline.lake.folders import LocalFolder, RemoteFolder, below, folder
from staniel.pipeline.lake.lake import RemoteLakeFolder
from staniel.pipeline.sessions import quiet_log
from staniel.pipeline.tasks import archive as archiving
from staniel.pipeline.tasks import convert as converting
from staniel.pipeline.tasks import pack as pack_module
from staniel.pipeline.tasks import summarise as summarise_module
from staniel.pipeline.tasks.archive import archive
from staniel.pipeline.tasks.convert import convert
from staniel.queues.config import Format, JournalDialect
from tests.pipeline.conftest import SHORT_LIVED, SMALL_DATA
from tests.pipeline.kill_table import note_kill
from tests.pipeline.object_store import object_store
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
    "archive-s3": [("worker", "task", (1,)), ("driver", "driver", (2, 3, 5))],
    "convert": [("worker", "task", (4, 9, 14, 19, 24, 29, 34)), ("jvm", "task", (12,)), ("driver", "task", (20,))],
}
ARCHIVES = ("archive", "archive-s3")
VICTIMS = {"jvm": "java"}
TRIES = 5
CHILD_MAX_S = 900  # a job takes 8 s of a machine that does nothing else
CHANGES = [(OsFs, name) for name in ("append", "rename", "remove", "sync_folder", "truncate")]
CHANGES += [(OsFile, name) for name in ("write", "sync")]
CHANGES += [(RemoteLakeFolder, name) for name in ("create", "move", "clear")] + [(RemoteFolder, "write")]


def arm(step: int, victim: int, mark: str) -> None:
    """Kill `victim` (0: this process) before the change of this number, once."""
    changes = 0

    def move_each(self: RemoteLakeFolder, moves: Iterable[tuple[str, str]]) -> None:
        for pair in moves:  # a step each, as in the store
            move_one(self, [pair])

    def deadly(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Any, *args: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes >= step and not os.path.exists(mark):
                Path(mark).touch()
                os.kill(victim or os.getpid(), signal.SIGKILL)
                time.sleep(0.5)
            return change(self, *args)

        changed.real = change  # type: ignore[attr-defined]
        return changed

    for kind, name in CHANGES:
        setattr(kind, name, deadly(getattr(kind, name)))
    move_one = RemoteLakeFolder.move
    move_each.real = move_one.real  # type: ignore[attr-defined]
    RemoteLakeFolder.move = move_each  # type: ignore[method-assign]


def disarm() -> None:
    """Spark uses its workers again: what is left in one would act in the next case."""
    for kind, name in CHANGES:
        change = getattr(kind, name)
        setattr(kind, name, getattr(change, "real", change))


class Dying:
    """A task in a worker that is armed."""

    def __init__(self, work: Callable[[Any], Any], *how: Any) -> None:
        self.work, self.how = work, how

    def __call__(self, task: Any) -> Any:
        arm(*self.how)
        try:
            return self.work(task)
        finally:
            disarm()


def work(spark: Any, job: str, spool: str, out: str) -> bool:
    """Run a job; whether it came to its end."""
    if job == "pack":
        pack_module.pack(spark, spool, {}, JournalDialect.DOCUMENTS)
    elif job in ARCHIVES:
        archive(spark, spool, out, {"maxBytesPerTrigger": "6k"}, lambda told: None)
    else:
        return not any(each.refusal for each in convert(spark, [spool], [], Format.LIBKESTREL))
    return True


@contextlib.contextmanager
def armed(where: str, step: int, victim: int, mark: str) -> Iterator[None]:
    """The tasks, or this process, are going to kill."""
    modules = (pack_module, archiving, converting)
    if where == "task":
        for module in modules:
            module.run = lambda spark, tasks, work: summarise_module.run(spark, tasks, Dying(work, step, victim, mark))
    else:
        arm(step, victim, mark)
    yield
    disarm()
    for module in modules:
        module.run = summarise_module.run


def session() -> Any:
    """One that tries a task three times, and starts quickly."""
    java = f"{SHORT_LIVED} -Dlog4j2.configurationFile={quiet_log()}"
    settings = {"spark__driver__extraJavaOptions": java, "spark__sql__shuffle__partitions": 2, **SMALL_DATA}
    return pipeline.session("local[2,3]", **settings)


def child(job: str, spool: str, out: str, victim: str, where: str, step: int, mark: str) -> None:
    spark = session()
    pid = {"driver": os.getpid(), "jvm": spark.sparkContext._gateway.proc.pid}[victim]
    with armed(where, step, pid, mark):
        work(spark, job, spool, out)
    os._exit(0)


def items_in(spool: Path) -> Counter[tuple[str, bytes]]:
    """What the queues hold, whatever their format."""
    found: Counter[tuple[str, bytes]] = Counter()
    place = LocalFolder(str(spool))
    for form in ("kestrel", "libkestrel"):
        adapter, queues = list_segments(place, form)
        for queue, segments in queues.items():
            for batch in adapter.view("state")(place, Part(queue, segments), Reading()):
                found.update((queue, row["value"]) for row in batch.to_pylist())
    return found


def archived(out: str) -> Counter[tuple[str, int]]:
    import pyarrow.dataset as ds

    place = folder(out)
    store = place.fs if isinstance(place, RemoteFolder) else None
    table = ds.dataset(place.path, filesystem=store, partitioning="hive").to_table(columns=["file", "offset"])
    return Counter((row["file"], row["offset"]) for row in table.to_pylist())


def recorded(spool: Path) -> Counter[tuple[str, int]]:
    place = LocalFolder(str(spool))
    adapter, queues = list_segments(place, "kestrel")
    parts = (Part(queue, segments) for queue, segments in queues.items())
    batches = (batch for part in parts for batch in adapter.view("ops")(place, part, Reading()))
    return Counter((row["file"], row["offset"]) for batch in batches for row in batch.to_pylist())


@dataclass
class Told:
    """What the kills of one kind came to."""

    kills: int = 0
    compared: int = 0  # items, or records of an archive, after a kill
    lost: int = 0
    doubled: int = 0
    wrong: int = 0  # cases


def case(
    spark: Any, place: Path, store: str, job: str, victim: str, where: str, step: int, told: Told
) -> tuple[bool, list[str]]:
    """Whether it came to a kill, and what is wrong. `spark`: what is started again is started there. `store` is the URL
    of an object store.
    """
    spool, mark = place / "spool", place / "mark"
    out = below(store, place.name) if job == "archive-s3" else str(place / "lake")
    for number, queue in enumerate(("jobs", "mail")):
        write(spool, queue, history(30 + number, 500), 3)
    before, held, records = states(spool), items_in(spool), recorded(spool)
    before_lost, before_doubled = told.lost, told.doubled
    wrong: list[str] = []
    done = False
    if victim == "worker":
        with armed(where, step, 0, str(mark)):
            done = work(spark, job, str(spool), out)
    else:
        line = [job, spool, out, victim, where, step, mark]
        command = [sys.executable, "-m", "tests.pipeline.kills", "--child", *map(str, line)]
        ended = subprocess.run(command, capture_output=True, timeout=CHILD_MAX_S)
        if ended.returncode and not mark.exists():
            wrong.append(f"the job fails although nobody was killed: {ended.stderr.decode()[-500:]}")
        time.sleep(1)  # who was orphaned ends, or goes on
        if job == "pack" and states(spool) != before:
            wrong.append("the spool is another one after the kill")
    for _ in range(TRIES):
        if done:
            break
        done = work(spark, job, str(spool), out)
        time.sleep(0 if done else 1)
    if not done:
        wrong.append("it does not come to its end")
    wrong += compare(held, items_in(spool), told)
    if job in ARCHIVES:
        wrong += compare(records, archived(out), told)
    if job == "pack" and (states(spool) != before or len(list(spool.glob("[jm]*.*"))) != 2):
        wrong.append("the packed spool is another one")
    if job == "convert" and list_segments(LocalFolder(str(spool)), "kestrel")[1]:
        wrong.append("a queue was not converted")
    killed = mark.exists()
    told.kills += killed
    compared = sum(records.values() if job in ARCHIVES else held.values()) if killed else 0
    told.compared += compared
    if killed:
        whose = f"steps of the {where}"
        note_kill(
            job, whose, VICTIMS.get(victim, victim), compared, told.lost - before_lost, told.doubled - before_doubled
        )
    return killed, wrong


def compare(before: Counter[Any], now: Counter[Any], told: Told) -> list[str]:
    lost, doubled = sum((before - now).values()), sum((now - before).values())
    told.lost, told.doubled = told.lost + lost, told.doubled + doubled
    return [f"lost {lost}, doubled {doubled}"] if lost or doubled else []


def steps_of(job: str, every: int, first: int) -> Iterator[tuple[str, str, Iterable[int]]]:
    """Victims, where their steps are counted, and which steps; without an end if the job is to say how many it has."""
    if not every:
        yield from CASES[job]
        return
    yield "worker", "task", count(first, every)
    for victim, where in (("driver", "task"), ("driver", "driver"), ("jvm", "task"), ("jvm", "driver")):
        if (where == "task") or job != "convert":  # its driver changes nothing
            yield victim, where, count(first, every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--job", choices=list(CASES))
    parser.add_argument("--victim", choices=["worker", "driver", "jvm"])
    parser.add_argument("--where", choices=["task", "driver"], help="whose steps are counted")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--first", type=int, default=1, help="with --every: the step to begin with")
    parser.add_argument("--child", nargs=7)
    given = parser.parse_args()
    if given.child:
        job, spool, out, victim, where, step, mark = given.child
        child(job, spool, out, victim, where, int(step), mark)
    with object_store() as store:
        sys.exit(run_all(given, store))


def run_all(given: argparse.Namespace, store: str) -> int:
    """Run the chosen cases, and return 1 if something is wrong."""
    spark = session()
    told: dict[tuple[str, str, str], Told] = defaultdict(Told)
    for job in [given.job] if given.job else list(CASES):
        for victim, where, steps in steps_of(job, given.every, given.first):
            if given.victim not in (None, victim) or given.where not in (None, where):
                continue
            kind = told[job, victim, where]
            for step in steps:
                place = Path(tempfile.mkdtemp(prefix="kills-"))
                killed, wrong = case(spark, place, store, job, victim, where, step, kind)
                is_over = given.every and not killed  # it has no step of that number
                if not killed and not is_over:
                    wrong.append("nobody was killed")
                kind.wrong += bool(wrong)
                print(f"{job}: {victim} killed at step {step} of the {where}: {killed}, {wrong or 'right'}", flush=True)
                shutil.rmtree(place)
                if is_over:
                    break
    for (job, victim, where), each in told.items():
        print(f"{job}, {victim} killed at steps of the {where}: {each}")
    return 1 if any(each.wrong for each in told.values()) else 0


if __name__ == "__main__":
    main()
