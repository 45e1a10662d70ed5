"""The order of the runs: round after round, each workload, each contestant in turn, on a fresh server every time."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from staniel.bench.harness.contestant import Contestant
from staniel.bench.harness.process import Running, StartFailed, log_tail, running
from staniel.bench.peers import generator
from staniel.bench.peers.generator import GeneratorFailed, Report
from staniel.bench.peers.servers import OURS, with_jobs
from staniel.bench.peers.workloads import Step, Workload, steps


class Run(Struct, frozen=True):
    """A run of one contestant in one workload and one round: a report, or the failure."""

    round: int
    workload: str
    contestant: str
    report: Report | None = None
    failure: str = ""


class Arena(Struct, frozen=True):
    """The constants of all runs. A core is None if the machine has only one."""

    program: Path
    base: Path
    server_core: int | None
    generator_core: int | None


def play(
    arena: Arena, workloads: Sequence[Workload], contestants: Sequence[Contestant], rounds: int, seconds_max: float
) -> Iterator[Run]:
    """Yield every run as it ends. After `seconds_max` no further run is started."""
    give_up = time.monotonic() + seconds_max
    for number in range(rounds):
        for workload in workloads:
            for contestant in line_up(workload, contestants, number):
                if time.monotonic() > give_up:
                    return
                yield run(arena, workload, contestant, number)


def planned(workloads: Sequence[Workload], contestants: Sequence[Contestant], rounds: int) -> int:
    """Return how many runs `play` makes without a time limit."""
    return rounds * sum(len(line_up(workload, contestants, 0)) for workload in workloads)


def line_up(workload: Workload, contestants: Sequence[Contestant], number: int) -> list[Contestant]:
    """Return the contestants of a round, in alternating order: none always runs after the same neighbour's writes."""
    field = [
        one
        for one in contestants
        if one.name == OURS or (one.name in workload.peers and workload.sync in one.promises())
    ]
    if workload.jobs:
        field = [with_jobs(one) if one.name == OURS else one for one in field]
    return field if number % 2 == 0 else field[::-1]


def run(arena: Arena, workload: Workload, contestant: Contestant, number: int) -> Run:
    """Make one run. Errors of a server are in the result; nothing is raised for them."""

    def failed(why: str) -> Run:
        return Run(number, workload.name, contestant.name, failure=why)

    try:
        with running(contestant, workload.sync, arena.base, arena.server_core) as server:
            report, found = _all_steps(arena, workload, contestant, server)
            if found:
                return failed(f"{', '.join(found)} (server: {log_tail(server)})")
    except (StartFailed, GeneratorFailed) as error:
        return failed(str(error))
    except subprocess.TimeoutExpired:
        return failed("the load generator hung")
    return Run(number, workload.name, contestant.name, report=report)


def _all_steps(
    arena: Arena, workload: Workload, contestant: Contestant, server: Running
) -> tuple[Report | None, list[str]]:
    measured = None
    for step in steps(workload, contestant.proto, contestant.kv):
        report = _one_step(arena, step, server)
        found = generator.wrongs(report, workload.ops)
        if found:
            return None, found
        if step.measured:
            measured = report
    return measured, []


def _one_step(arena: Arena, step: Step, server: Running) -> Report:
    if step.measured:
        os.sync()  # earlier writes of any process must not slow this run down
    return generator.run(arena.program, step.args, server.port, server.pid, arena.generator_core)


def watched(runs: Iterator[Run], tell: Callable[[str], None]) -> list[Run]:
    """Return all runs, and print a line for each as it ends."""
    done = []
    for one in runs:
        rate = f"{one.report.ops_per_s / 1000:8.1f} k/s" if one.report else f"  FAILED: {one.failure}"
        tell(f"round {one.round + 1}  {one.workload:<18}{one.contestant:<12}{rate}")
        done.append(one)
    return done
