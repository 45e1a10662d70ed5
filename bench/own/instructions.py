"""The instructions of a request outside the kernel: our server, redis and the limit, each run by valgrind's callgrind
and used by real clients.

Instructions do not depend on other work of the machine. Two counts of one build differ by 1 to 2 %, because the number
of clients served in one turn varies; `core.py` counts turns that are always the same.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct, structs

from staniel.bench.harness.contestant import Contestant, Launch
from staniel.bench.harness.machine import cores
from staniel.bench.harness.process import StartFailed, exit_on_signals, running
from staniel.bench.own.core import BUILD, CannotCount
from staniel.bench.peers import generator
from staniel.bench.peers.generator import CannotBuild, GeneratorFailed
from staniel.bench.peers.servers import DEFAULT_SERVER, PEERS, ours, present
from staniel.bench.peers.workloads import WORKLOADS, Step, Workload, steps

SLOW_CLOCK = Path(__file__).resolve().with_name("slow_clock.c")
ROWS = ("put", "get", "get-reliable", "put-10x32", "get-10x32")
WARM_OPS, COUNTED_OPS = 10_000, 60_000
VALGRIND_START_SECONDS = 120.0
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no")


class Count(Struct, frozen=True):
    """The instructions of a request of one server, in one row."""

    row: str
    server: str
    instructions: int


def slow_clock() -> Path:
    """Build a library to preload. Raises CannotBuild."""
    return generator.built((SLOW_CLOCK,), BUILD / "slow_clock.so", flags=generator.SHARED)


def watched(contestant: Contestant, counts: Path, preload: Path | None) -> Contestant:
    """Return the same server, run by valgrind, which counts once it is told to."""
    plain = contestant.command

    def command(launch: Launch) -> list[str]:
        clock = ["env", "PYTHONHASHSEED=0", *([f"LD_PRELOAD={preload}"] if preload else [])]
        return [*clock, *CALLGRIND, f"--callgrind-out-file={counts}", *plain(launch)]

    return structs.replace(contestant, command=command, start_seconds_max=VALGRIND_START_SECONDS)


def control(option: str, pid: int) -> None:
    """Send callgrind a command. Raises CannotCount."""
    done = subprocess.run(["callgrind_control", *option.split(), str(pid)], capture_output=True, text=True, check=False)
    if done.returncode or "OK." not in done.stdout:
        raise CannotCount(f"callgrind_control {option}: {done.stdout.strip()} {done.stderr.strip()}")


def total(counts: Path) -> int:
    """Return the total of the only dump that was requested in addition to `counts`."""
    (dump,) = counts.parent.glob(f"{counts.name}.*")
    _, _, totals = dump.read_text().rpartition("\ntotals: ")
    return int(totals.split()[0])


def count_row(load: Path, workload: Workload, contestant: Contestant, preload: Path | None) -> int:
    """Return the instructions of a request. Raises CannotCount, StartFailed, GeneratorFailed."""
    server_core, load_core = cores()
    with tempfile.TemporaryDirectory(prefix="bench-instructions-") as folder:
        counts = Path(folder) / "counts"
        with running(watched(contestant, counts, preload), workload.sync, Path(folder), server_core) as server:

            def ask(step: Step) -> None:
                report = generator.run(load, step.args, server.port, server.pid, load_core)
                if wrongs := generator.wrongs(report, int(step.args[step.args.index("--ops") + 1])):
                    raise CannotCount(f"{contestant.name}, {workload.name}: {', '.join(wrongs)}")

            control("-i on", server.pid)
            for step in steps(structs.replace(workload, ops=WARM_OPS), contestant.proto, contestant.kv):
                ask(step)
            for step in steps(structs.replace(workload, ops=COUNTED_OPS), contestant.proto, contestant.kv):
                if step.measured:
                    control("-z", server.pid)
                ask(step)
                if step.measured:
                    control("-d", server.pid)
                    break
        return total(counts) // COUNTED_OPS


def contestants(names: Sequence[str]) -> dict[str, tuple[Contestant, Path | None]]:
    """Return the servers by name, with their preloaded libraries. Only our server reads the time often. Raises
    CannotBuild, CannotCount.
    """
    peers = {one.name: one for one in PEERS}
    makers: dict[str, Callable[[], tuple[Contestant, Path | None]]] = {
        "ours": lambda: (ours(DEFAULT_SERVER), slow_clock()),
        "redis": lambda: (peers["redis"], None),
        "limit": lambda: (peers["limit"], None),
    }
    if "redis" in names and not present(peers["redis"]):
        raise CannotCount("redis-server is not on the PATH; install it, or leave it out with --servers ours,limit")
    for name in names:
        if name not in makers:
            raise CannotCount(f"no server {name!r}; there are: {', '.join(makers)}")
    return {name: makers[name]() for name in names}


def counted(rows: Sequence[str], servers: Sequence[str], rounds: int) -> Iterator[Count]:
    """Yield the least of some rounds, for each row and server. Raises CannotCount, CannotBuild, GeneratorFailed,
    StartFailed.
    """
    for program in ("valgrind", "callgrind_control"):
        if shutil.which(program) is None:
            raise CannotCount(f"{program} is not on the PATH (apt-get install valgrind)")
    load, known = generator.build(), {one.name: one for one in WORKLOADS}
    asked = contestants(servers)
    for row in rows:
        for name, (contestant, preload) in asked.items():
            if contestant.proto == "redis" and known[row].reliable:
                continue  # its reads are gone once sent
            found = [count_row(load, known[row], contestant, preload) for _ in range(rounds)]
            yield Count(row, name, min(found))


def table(counts: Sequence[Count], servers: Sequence[str]) -> str:
    """Return a table with a line for each row and a column for each server."""
    by_place = {(count.row, count.server): f"{count.instructions:,}" for count in counts}
    lines = ["instructions a request".ljust(24) + "".join(name.rjust(12) for name in servers)]
    rows = dict.fromkeys(count.row for count in counts)
    lines += [row.ljust(24) + "".join(by_place.get((row, name), "-").rjust(12) for name in servers) for row in rows]
    return "\n".join(lines)


@click.command()
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="A row; may be given again.")
@click.option("--servers", default="ours,redis,limit", show_default=True, metavar="NAMES", help="Between commas.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="The least of so many counts.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the counts here."
)
def main(only: tuple[str, ...], servers: str, rounds: int, json_file: Path | None) -> None:
    """Count the instructions of a request beside redis and the least that one thread can do.

    The build of ours is chosen as always: the compiled one if there is one, else plain Python.
    """
    names, counts = servers.split(","), []
    try:
        for count in counted(only or ROWS, names, rounds):
            click.echo(f"{count.row}, {count.server}: {count.instructions:,}", err=True)
            counts.append(count)
    except (CannotCount, CannotBuild, GeneratorFailed, StartFailed) as error:
        raise click.ClickException(str(error)) from None
    click.echo(table(counts, names))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(counts)) + b"\n")


if __name__ == "__main__":
    exit_on_signals()
    main()
