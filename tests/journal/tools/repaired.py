"""A start beside a repair of the same spool: what the histories of the simulator's profiles leave at their accidents,
as it is and with harm done to its files.

`python -m tests.journal.tools.repaired --seconds 600` goes on for so long; the suite takes a share. A server is started
on one copy of each spool; another copy is repaired, and a server started on what that has made. Both must serve the
same items in the same order in each queue, the same jobs, and have the same things to undo; or the report of the
repair names the queue, or the repair says why it makes no copy.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import click

from staniel.broker.operations.audit import Requester
from staniel.broker.operations.resumption import begin_undo
from staniel.journal.group_commit import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.journal.tools.repair import CannotRepair, Repair, Repaired
from staniel.queues.item import is_payload_gone, past_bytes
from staniel.sim.disk.disk import Disk
from staniel.sim.history import SeedPlan
from staniel.sim.profiles import ALL, PROFILES
from staniel.sim.run import history_of
from staniel.sim.world import LONG_AGO_MS, World, end_operations
from tests.faults.rich import files

HARMS = ("flip", "flips", "cut", "zeros", "longer", "gone", "empty")
HARMED = 60  # of a hundred spools
UNHARMED = ("lock", "ballast", "failed_sync.room")
CONFIG = 'default.sync_journal = "os"\n'
JOBS = f"{CONFIG}[workq]\nport = 0\n"
REASONS = {"after a power cut": "redo.replayed", "has begun to rewrite": "spool.renewed"}
"""Why there is no copy, and what a start says then."""
PLAIN = tuple(name for name in ALL if not PROFILES[name].hub or name in ("hub-undo", "hub-wrapped", "hub-redo"))

Served = dict[str, list[object]]


class Harm(NamedTuple):
    path: str
    what: str
    at: int


class Told(NamedTuple):
    """What a start has led to: by queue, and what it refused with."""

    served: Served
    refusal: str = ""
    events: frozenset[str] = frozenset()


class Verdict(NamedTuple):
    """What came of one spool."""

    kind: str
    differences: list[str]


def harm(disk: Disk, rng: Random) -> list[Harm]:
    """Do harm to one file or two."""
    done = []
    for _ in range(rng.choice((1, 1, 2))):
        there = [path for path in files(disk) if path.rpartition("/")[2] not in UNHARMED and disk.size(path)]
        if not there:
            break
        path, what = rng.choice(there), rng.choice(HARMS)
        data = bytearray(disk.read(path, 0, 1 << 30))
        at = rng.choice((rng.randrange(len(data)), len(data) - 1 - rng.randrange(min(len(data), 40))))
        if what in ("flip", "flips"):
            for _ in range(1 if what == "flip" else 8):
                data[at] ^= 1 << rng.randrange(8)
                at = rng.randrange(len(data))
        elif what == "cut":
            del data[at:]
        elif what == "zeros":
            data[at:] = bytes(len(data) - at)
        elif what == "longer":
            data += rng.choice((bytes(1 + rng.randrange(60)), rng.randbytes(1 + rng.randrange(60))))
        elif what == "empty":
            data.clear()
        disk.remove(path)
        if what != "gone":
            file = disk.append(path)
            file.write(bytes(data))
            file.close()
        done.append(Harm(path, what, at))
    disk.sync_all("")
    return done


def serve(disk: Disk, config: str, now_ms: int) -> Told:
    """Start on `disk`, and list what is served: at once, when what was cut off has ended, and when all that can be
    undone has been.
    """
    try:
        world = World(config, disk, now_ms)
    except SpoolError as refused:
        return Told({}, str(refused))
    served: Served = {}
    broker, events = world.broker, frozenset(world.events)
    _list(world, served)
    end_operations(world)
    _list(world, served)
    for record in [each for each in broker.undos.by_id.values() if each.content.began.is_kept]:
        begin_undo(broker.operations, Requester("", "admin"), record, world.now_ms)
        end_operations(world)
    _list(world, served)
    return Told({name: found for name, found in served.items() if any(found)}, "", events)


def _list(world: World, served: Served) -> None:
    broker = world.broker
    for queue in list(broker.queues):
        items = [*queue.line.walk(), *(taken.item for taken in queue.open_reads.values())]
        there = [(*_plain(item), past_bytes(item)) for item in items if not is_payload_gone(item)]
        served.setdefault(queue.name, []).append(there)
    for name, why in broker.queues.blocked.items():
        served.setdefault(name, []).append(why)
    for record in broker.undos.by_id.values():
        served.setdefault(record.queue, []).append((record.id, record.content.counts(), record.target))
    if broker.serves_jobs:
        jobs = broker.workq.jobs.by_id
        served.setdefault("jobs", []).append(
            sorted((id, job.payload, job.state, job.result) for id, job in jobs.items())
        )


def _plain(item: object) -> tuple[object, ...]:
    return tuple(getattr(item, name) for name in ("data", "added_ms", "expires_ms", "flags"))


def repair(disk: Disk, now_ms: int) -> list[Repaired]:
    """Put a repaired copy in the spool's place. Raises CannotRepair."""
    disk.make_folder("copy")
    told = list(Repair(disk, "s", None, "copy", now_ms, lambda size: None).run())
    disk.rename("s", "old")
    disk.rename("copy", "s")
    return told


def judge(disk: Disk, config: str, now_ms: int) -> Verdict:
    """Start on one copy, repair another, and compare."""
    try:
        started = serve(disk.copy(), config, now_ms)
    except JournalFailure as failure:
        started = Told({}, str(failure))
    other = disk.copy()
    try:
        told = repair(other, now_ms)
    except CannotRepair as refused:
        return _refused(str(refused), started)
    if started.refusal:
        return Verdict("differs", [f"no start, but a copy: {started.refusal}"])
    repaired = serve(other, config, now_ms)
    if repaired.refusal:
        return Verdict("differs", [f"no start on the copy: {repaired.refusal}"])
    names = sorted({*started.served, *repaired.served})
    pairs = {name: (started.served.get(name, []), repaired.served.get(name, [])) for name in names}
    differences = {
        name: f"{name}: {_short(right)} by a start, {_short(found)} when repaired"
        for name, (right, found) in pairs.items()
        if right != found
    }
    unnamed = [each for name, each in differences.items() if not any(_names(one, name) for one in told)]
    if unnamed:
        return Verdict("differs", unnamed)
    return Verdict("named" if differences else "alike", [])


def _refused(why: str, started: Told) -> Verdict:
    """No copy was made: only where a start has to come first, or refuses, too."""
    for words, event in REASONS.items():
        if words in why and event in started.events:
            return Verdict(f"refused: {words}", [])
    if started.refusal and started.refusal == why:
        return Verdict("refused as a start", [])
    return Verdict("differs", [f"refused: {why}; a start: {started.refusal or sorted(started.events)}"])


def _names(told: Repaired, queue: str) -> bool:
    return bool(told.why_not) and (told.name == queue.partition("+")[0] or queue in told.why_not)


def _short(found: list[object]) -> str:
    return repr(found)[:300]


def spools(seed: int, profile: str) -> Iterator[tuple[Disk, int, bool]]:
    """What the accidents of one history leave, each with the time then, and whether it has jobs."""
    history = history_of(SeedPlan(seed, PROFILES[profile]))
    found: list[tuple[Disk, int, bool]] = []
    history.on_disk = lambda disk: found.append((disk.copy(), history.now_ms, PROFILES[profile].jobs))
    history.outcome()
    yield from found[1:]  # the first is empty


def check(seed: int, profile: str) -> Iterator[tuple[Verdict, list[Harm]]]:
    """The spools of one history, some of them harmed."""
    rng = Random(f"{seed} {profile}")
    for disk, now_ms, has_jobs in spools(seed, profile):
        disk.capacity_bytes = 1 << 40
        done = harm(disk, rng) if rng.randrange(100) < HARMED else []
        config = JOBS if has_jobs else CONFIG
        yield judge(disk, config, rng.choice((LONG_AGO_MS, now_ms))), done


@click.command()
@click.option("--seconds", default=60.0)
@click.option("--seed", default=0)
@click.option("--profile", default="")
def main(seconds: float, seed: int, profile: str) -> None:
    until = time.monotonic() + seconds
    totals: Counter[str] = Counter()
    while time.monotonic() < until:
        name = profile or PLAIN[seed % len(PLAIN)]
        for number, (verdict, harms) in enumerate(check(seed, name)):
            totals[verdict.kind] += 1
            for line in verdict.differences:
                print(f"--seed {seed} --profile {name} #{number} {[tuple(each) for each in harms]}: {line}", flush=True)
        seed += 1
    print(", ".join(f"{count} {kind}" for kind, count in totals.most_common()))
    sys.exit(1 if totals["differs"] else 0)


if __name__ == "__main__":
    main()
