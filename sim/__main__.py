"""The simulator's command line. It prints a line for every failing seed. See docs/testing.md."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import count, islice
from time import monotonic

import click
from msgspec import Struct

from staniel.sim.history import STEPS, Outcome, SeedPlan
from staniel.sim.power_cuts import states_of
from staniel.sim.profiles import ALL, PROFILES
from staniel.sim.run import history_of
from staniel.sim.shrink import shrink

BATCH_SEEDS = 25
PROGRESS_S = 10


class Job(Struct, frozen=True):
    """The settings that all seeds of a run share."""

    profiles: tuple[str, ...]
    crashes: int
    steps: int

    def seed_plan(self, seed: int) -> SeedPlan:
        """Return the plan of a seed. Profiles take turns."""
        return SeedPlan(seed, PROFILES[self.profiles[seed % len(self.profiles)]], self.crashes, self.steps)


class Result(Struct, frozen=True):
    """The result of a seed: the values in a failing seed's line, and the counts for the totals."""

    seed: int
    profile: str
    kind: str
    why: str
    crashes: int
    facts: int
    answers: int
    states: int


def one(job: Job, seed: int) -> Result:
    outcome = history_of(job.seed_plan(seed)).outcome()
    return _result(outcome, 0)


def with_power_cuts(job: Job, seed: int) -> Result:
    states = states_of(job.seed_plan(seed))
    gc.collect()  # the states of one seed are thousands of worlds
    return _result(states.outcome, states.states)


def _result(outcome: Outcome, states: int) -> Result:
    violation = outcome.violation
    kind, why = (violation.kind.value, violation.why) if violation is not None else ("", "")
    return Result(outcome.seed, outcome.profile, kind, why, outcome.crashes, outcome.facts, outcome.answers, states)


@contextmanager
def swept_at_the_ends() -> Iterator[None]:
    """Collect garbage between batches only: worlds are in reference cycles."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def batch(job: Job, seeds: list[int], with_states: bool) -> list[Result]:
    with swept_at_the_ends():
        return [with_power_cuts(job, seed) if with_states else one(job, seed) for seed in seeds]


def batches(first: int, seeds: int | None) -> Iterator[list[int]]:
    numbers = count(first) if seeds is None else iter(range(first, first + seeds))
    while part := list(islice(numbers, BATCH_SEEDS)):
        yield part


def results(job: Job, first: int, seeds: int | None, jobs: int, with_states: bool) -> Iterator[Result]:
    """Yield the results in the order of the seeds."""
    if jobs == 1:
        for part in batches(first, seeds):
            yield from batch(job, part, with_states)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running = []
        for part in batches(first, seeds):
            running.append(pool.submit(batch, job, part, with_states))
            if len(running) > 2 * jobs:
                yield from running.pop(0).result()
        for future in running:
            yield from future.result()


@click.command()
@click.option("--seed", default=0, help="The first seed.")
@click.option("--seeds", default=100, help="How many seeds.")
@click.option("--forever", is_flag=True, help="Until interrupted, from --seed on.")
@click.option("--crashes", default=4, help="Crashes a seed.")
@click.option("--steps", default=STEPS, help="Steps a seed, about as many requests.")
@click.option("--profile", default="all", type=click.Choice([*PROFILES, "all"]), help="The mix of accidents.")
@click.option("--jobs", default=2, help="Processes.")
@click.option("--states", is_flag=True, help="Cut the power at every step of each seed's first life, in many ways.")
@click.option("--verbose", is_flag=True, help="Show each failing seed's history, made as short as possible.")
def main(
    seed: int, seeds: int, forever: bool, crashes: int, steps: int, profile: str, jobs: int, states: bool, verbose: bool
) -> None:
    """Search for lost items: run seeded histories of a broker on a disk that loses unsynced bytes, checking each
    throughout.
    """
    job = Job(ALL if profile == "all" else (profile,), crashes, steps)
    totals: Counter[str] = Counter()
    began = shown = monotonic()
    try:
        for result in results(job, seed, None if forever else seeds, jobs, states):
            totals.update(seeds=1, crashes=result.crashes, operations=result.answers, facts=result.facts)
            totals.update(states=result.states, failures=bool(result.kind))
            if result.kind:
                _complain(job, result, verbose, states)
            if monotonic() - shown > PROGRESS_S:
                shown = monotonic()
                click.echo(_line(totals, monotonic() - began), err=True)
    except KeyboardInterrupt:
        pass
    click.echo(_line(totals, monotonic() - began))
    sys.exit(1 if totals["failures"] else 0)


def _complain(job: Job, result: Result, verbose: bool, with_states: bool) -> None:
    options = f"--crashes {job.crashes} --steps {job.steps}{' --states' if with_states else ''}"
    click.echo(f"seed {result.seed} ({result.profile}): {result.kind}: {result.why}")
    click.echo(
        f"  again: python -m staniel.sim --seed {result.seed} --seeds 1 --profile {result.profile} {options} --verbose"
    )
    if verbose and not with_states:
        outcome = shrink(SeedPlan(result.seed, PROFILES[result.profile], job.crashes, job.steps))
        for what, who, text in outcome.transcript:
            click.echo(f"  {what:9} {who:6} {text[:200]}")
        click.echo(f"  = {outcome.violation}")


def _line(totals: Counter[str], seconds: float) -> str:
    words = [f"{totals[what]} {what}" for what in ("seeds", "crashes", "operations", "facts", "states", "failures")]
    return f"{', '.join(words)} in {seconds:.0f} s, {totals['seeds'] / max(seconds, 0.001):.0f} seeds/s"


if __name__ == "__main__":
    main()
