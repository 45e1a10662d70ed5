"""The command `python -m staniel.bench`: our server against its peers. Options, exit status, and the order of
the output.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import chart, machine
from staniel.bench.harness.contestant import Contestant, Sync
from staniel.bench.harness.machine import Machine, cores
from staniel.bench.harness.process import StartFailed, exit_on_signals, running
from staniel.bench.peers import figures, generator
from staniel.bench.peers.figures import Row
from staniel.bench.peers.rounds import Arena, Run, planned, play, watched
from staniel.bench.peers.servers import DEFAULT_SERVER, LIMIT, OURS, PEERS, ours, why_absent
from staniel.bench.peers.workloads import WORKLOADS, Workload

QUICK_ROUNDS = 3
QUICK_SHARE = 6
QUICK_SECONDS_MAX = 100.0
NO_SERVER = "none"
ONLY_IF_NAMED = ("rabbitmq", LIMIT)  # each of its runs starts for five seconds; it is a bound and no server


class Outcome(Struct, frozen=True):
    """The content of --json: the facts, the figures, and every single run."""

    machine: Machine
    others_cores: float
    rows: list[Row]
    runs: list[Run]


@click.command()
@click.option(
    "--server",
    default=DEFAULT_SERVER,
    metavar="COMMAND",
    help="How to run ours in the foreground; {port}, {dir} and {sync} are filled in. 'none': only peers.",
)
@click.option(
    "--peers",
    default=",".join(one.name for one in PEERS if one.name not in ONLY_IF_NAMED),
    show_default=True,
    metavar="NAMES",
    help="Servers to compare with, between commas; 'none': no server.",
)
@click.option("--limit", is_flag=True, help="Compare with the least that one thread can do, too: peers/limit.c.")
@click.option("--only", multiple=True, metavar="NAME", help="A workload of --list; may be given again.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each is run.")
@click.option("--quick", is_flag=True, help=f"{QUICK_ROUNDS} rounds of 1/{QUICK_SHARE} the work, in two minutes.")
@click.option("--times", type=click.IntRange(1, 100), default=1, show_default=True, help="Multiply the work by this.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(tempfile.gettempdir()),
    show_default=True,
    help="Where the servers keep their files.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all of it here.")
@click.option("--chart", "chart_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw the ratios here.")
@click.option("--list", "show_list", is_flag=True, help="Show the workloads and end.")
def main(
    server: str,
    peers: str,
    limit: bool,
    only: tuple[str, ...],
    rounds: int,
    quick: bool,
    times: int,
    folder: Path,
    json_file: Path | None,
    chart_file: Path | None,
    show_list: bool,
) -> None:
    """Measure the server against its peers, alternating, and print the ratios.

    Exit status: 0 all runs were sound; 1 items were lost, doubled or damaged, or a run failed; 2 wrong options.
    """  # fmt: skip
    workloads = [msgspec.structs.replace(one, ops=times * one.ops) for one in chosen_workloads(only)]
    if show_list:
        click.echo(figures.workload_list(workloads))
        return
    if quick:
        workloads, rounds = [smaller(one) for one in workloads], min(rounds, QUICK_ROUNDS)
    contestants = [*our_contestant(server), *chosen_peers(peers, limit)]
    if not contestants:
        raise click.UsageError("nothing to measure: no server and no peer")
    arena = Arena(built_generator(), folder.resolve(), *cores())
    require_ours(contestants, arena)
    outcome = compare(arena, workloads, contestants, rounds, QUICK_SECONDS_MAX if quick else float("inf"))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    if chart_file:
        chart_file.write_text(picture(outcome.rows))
    sys.exit(verdict(outcome.runs))


def picture(rows: Sequence[Row]) -> str:
    """Return a chart of every ratio, with its spread."""
    bars = [
        chart.Bar(f"{row.workload} / {versus.peer.name}", *msgspec.structs.astuple(versus.ratio))
        for row in rows
        for versus in row.peers
        if versus.ratio is not None
    ]
    return chart.ratios("Ours by theirs", bars, "as fast")


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    known = {one.name: one for one in WORKLOADS}
    for name in names:
        if name not in known:
            raise click.UsageError(f"no workload {name!r}; there are: {', '.join(known)}")
    return [known[name] for name in names or known]


def smaller(workload: Workload) -> Workload:
    return msgspec.structs.replace(workload, ops=workload.ops // QUICK_SHARE)


def our_contestant(server: str) -> list[Contestant]:
    if server == NO_SERVER:
        return []
    try:
        return [ours(server)]
    except ValueError as error:
        raise click.UsageError(f"--server: {error}") from None


def chosen_peers(names: str, with_limit: bool) -> list[Contestant]:
    """Return the requested peers that are installed; print a line for each that is not."""
    known = {one.name: one for one in PEERS}
    wanted = [] if names == NO_SERVER else names.split(",")
    wanted += [LIMIT] if with_limit and LIMIT not in wanted else []
    for name in wanted:
        if name not in known:
            raise click.UsageError(f"no peer {name!r}; there are: {', '.join(known)}")
    absent = {name: why_absent(known[name]) for name in wanted}
    for name, why in absent.items():
        if why:
            click.echo(f"left out: {name} ({why})", err=True)
    here = [known[name] for name in wanted if not absent[name]]
    for one in here:
        if Sync.DURABLE not in one.promises():
            click.echo(f"left out of durable rows: {one.name} (this version cannot sync before an answer)", err=True)
    return here


def built_generator() -> Path:
    try:
        return generator.build()
    except generator.CannotBuild as error:
        raise click.ClickException(str(error)) from None


def require_ours(contestants: Sequence[Contestant], arena: Arena) -> None:
    """Check that our server starts, before minutes are spent on the peers."""
    for contestant in contestants:
        if contestant.name != OURS:
            continue
        try:
            with running(contestant, Sync.JOURNALED, arena.base, arena.server_core):
                pass
        except StartFailed as error:
            raise click.ClickException(f"our server does not start: {error}") from None


def compare(
    arena: Arena, workloads: Sequence[Workload], contestants: Sequence[Contestant], rounds: int, seconds_max: float
) -> Outcome:
    """Play all rounds, with progress on standard error, facts and the table on standard output."""
    facts = machine.facts(arena.base, contestants)
    click.echo(figures.facts(facts))
    warn(machine.warnings(facts))
    before = machine.ticks()
    runs = watched(play(arena, workloads, contestants, rounds, seconds_max), lambda line: click.echo(line, err=True))
    names = [one.name for one in contestants if one.name != OURS]
    others = machine.others_cores(before, machine.ticks())
    rows = figures.rows(runs, [one.name for one in workloads], names)
    click.echo("\n" + figures.render(rows, names))
    warn([*machine.busy_warning(others), *cut_short(len(runs), planned(workloads, contestants, rounds), seconds_max)])
    return Outcome(facts, round(others, 3), rows, runs)


def cut_short(done: int, wanted: int, seconds_max: float) -> list[str]:
    """Return a warning if some figures stand for fewer rounds than requested, else an empty list."""
    return (
        [f"cut off after {seconds_max:.0f} s: {wanted - done} of {wanted} runs were not made"] if done < wanted else []
    )


def warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def verdict(runs: Sequence[Run]) -> int:
    """Name every failed run, and return the exit status."""
    failures = [run for run in runs if run.failure]
    for run in failures:
        click.echo(f"FAILED: {run.contestant}, {run.workload}, round {run.round + 1}: {run.failure}", err=True)
    return 1 if failures else 0


if __name__ == "__main__":
    exit_on_signals()
    main()
