"""A run: accidents one upon the other, clients all the time, and a judgement of every item at the end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from msgspec import Struct, field

from staniel.bench.soak.cluster.accidents import Accidents
from staniel.bench.soak.cluster.clients import Client, Drainer, Ledger, Putter, Taker
from staniel.bench.soak.cluster.machines import CLIENTS_PORT, DidNotHappen, Machines, machines

PUTTERS, TAKERS = 2, 3
LASTS_S = (1.0, 15.0)
SECOND_ACCIDENT = REST = 0.5  # how often another accident comes on top, and how often all get well before the next
DRAIN_S_MAX = 120.0
Say = Callable[[str], None]


class Accident(Struct, frozen=True):
    """An accident and its time: from its beginning until the next one, or until all members were in sync again."""

    name: str
    began_s: float
    ended_s: float


class Run(Struct):
    """The outcome of a run. `pauses`: for each kind of accident, and each time that it happened, the longest time
    without an acknowledged put, in seconds.
    """

    seconds: float
    wrong: list[str] = []
    counts: dict[str, int] = {}
    pauses: dict[str, list[float]] = field(default_factory=dict)
    epochs: int = 0


def play(folder: Path, seconds: float, seed: int, rate: float, lease_s: int, say: Say) -> Run:
    """Let accidents happen for `seconds`. `rate`: puts a second, about. Raises CannotJoin, CannotMount, OSError."""
    run, ledger, random = Run(seconds), Ledger(), Random(seed)
    with machines(folder, lease_s) as them:
        clients: list[Client] = []
        try:
            them.form()
            addresses = [(member.address, CLIENTS_PORT) for member in them.members]
            pace_s = PUTTERS / rate
            clients += [Putter(f"p{at}", addresses, ledger, str(seed), pace_s) for at in range(PUTTERS)]
            clients += [Taker(f"t{at}", addresses, ledger, str(seed), pace_s) for at in range(TAKERS)]
            for client in clients:
                client.start()
            happened = _accidents(them, random, seconds, say)
            _end_work(them, clients)
            drainer = Drainer("d", addresses, ledger, str(seed), pace_s)
            clients.append(drainer)
            drainer.start()
            drainer.join(DRAIN_S_MAX)
            if drainer.is_alive():
                raise DidNotHappen(f"the queues were not empty within {DRAIN_S_MAX:g} s")
            ledger.judge_all()
            run.pauses = _pauses(happened, ledger.gaps)
        except DidNotHappen as error:
            run.wrong.append(str(error))
        finally:
            _end(clients)
        run.epochs = them.epoch
        run.wrong += [*ledger.wrong, *them.wrong(), *_verified(them)]
        run.counts = dict(ledger.counts)
        if run.wrong:
            for member in them.members:  # the disks go with the run
                shutil.copytree(member.disk.view, folder / f"disk-{member.name}", symlinks=True)
    return run


def _accidents(them: Machines, random: Random, seconds: float, say: Say) -> list[Accident]:
    source, happened = Accidents(them, random), []
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        at_s = time.monotonic()
        names = [source.happen()]
        time.sleep(random.uniform(*LASTS_S))
        if random.random() < SECOND_ACCIDENT:
            names.append(source.happen())
            time.sleep(random.uniform(*LASTS_S))
        them.heal()
        if random.random() < REST:
            them.wait_until_whole()
        happened += [Accident(name, at_s, time.monotonic()) for name in names]
        took_s = time.monotonic() - at_s
        say(f"{at_s - began_s:8.1f} s  {', then '.join(names)}: over after {took_s:.1f} s, epoch {them.epoch}")
    return happened


def _end_work(them: Machines, clients: list[Client]) -> None:
    """Let all get well, and the clients go."""
    them.heal()
    them.wait_until_whole()
    _end(clients)


def _end(clients: list[Client]) -> None:
    for client in clients:
        client.is_over.set()
    for client in clients:
        client.join()


def _pauses(happened: list[Accident], gaps: list[tuple[float, float]]) -> dict[str, list[float]]:
    pauses: dict[str, list[float]] = {}
    for accident in happened:
        within = [length for began, length in gaps if accident.began_s - length < began < accident.ended_s]
        pauses.setdefault(accident.name, []).append(max(within, default=0.0))
    return pauses


def _verified(them: Machines) -> list[str]:
    """Stop all members, and hold each spool against its format. Return what is wrong."""
    for member in them.members:
        member.thaw()
        member.stop()
    wrong = []
    for member in them.members:
        member.wait()
        command = [*member.disk.wrapper, str(Path(sys.executable).with_name("staniel")), "journal", "verify"]
        done = subprocess.run([*command, str(member.disk.folder / "spool")], capture_output=True, text=True)
        if done.returncode:
            wrong.append(f"journal verify of member {member.name}: {done.stdout[-400:]} {done.stderr[-400:]}")
    return wrong


def markdown(run: Run, machine: str, seed: int, version: str) -> str:
    """Return the report."""
    verdict = f"**FAILED**: {len(run.wrong)} wrong" if run.wrong else "**passed**: nothing lost, doubled or back"
    lines = [f"# {run.seconds / 60:.0f} minutes of a cluster", "", verdict, ""]
    lines += [f"- {fault}" for fault in run.wrong[:50]] + [""] * bool(run.wrong)
    lines += [f"{version}, seed {seed}, {machine}", ""]
    lines += [f"- {name}: {count:,}" for name, count in sorted(run.counts.items())]
    lines += [f"- leaders: {run.epochs} epochs", "", "Accidents, and the longest time without an acknowledged put:", ""]
    lines += ["| accident | times | median s | longest s |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {len(pauses)} | {median(pauses):.1f} | {max(pauses):.1f} |"
        for name, pauses in sorted(run.pauses.items())
    ]
    return "\n".join(lines) + "\n"
