"""The cost of an operation, a queue with readers, and a restart in libkestrel's format, compared with Kestrel's.

The formats alternate, with a fresh server each time. Processor time is the server's own and the kernel's on its behalf,
which depends less on a busy machine than the clock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import machine
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served
from staniel.bench.peers.generator import CannotBuild, GeneratorFailed, Report, build, run, wrongs

FORMATS = ("kestrel", "libkestrel")
CONNECTIONS = 100
RESTART_BYTES = 100
STEP = 10_000


class Cost(Struct, frozen=True):
    """The cost in one run: thousands a second by the clock, microseconds of processor time for each operation. For a
    restart both are milliseconds in all.
    """

    what: str
    format: str
    rate_k: float
    cpu_us: float
    disk_bytes: float = 0.0


def loaded(server: Served, program: Path, mode: str, count: int, size: int = 1024) -> tuple[Report, float]:
    """Call the generator once. Return its report, and the microseconds of processor of each operation. Raises
    ServerFailed.
    """
    args = ("--mode", mode, "--conns", str(CONNECTIONS), "--ops", str(count), "--size", str(size), "--queue", "q")
    began = server.cpu_ms()
    try:
        report = run(program, args, server.port, server.pid, OUR_CORE)
    except GeneratorFailed as failure:
        raise ServerFailed(str(failure)) from failure
    wrong = wrongs(report, count)
    if wrong:
        raise ServerFailed(", ".join(wrong))
    return report, 1000 * (server.cpu_ms() - began) / count


def config(form: str, sync: str) -> str:
    return f'[default]\njournal_format = "{form}"\nsync_journal = "{sync}"\n'


def plain(form: str, program: Path, count: int) -> Iterator[Cost]:
    """Measure puts and gets on one queue."""
    with served(config(form, "1s")) as server:
        loaded(server, program, "put", STEP)
        loaded(server, program, "get", STEP)
        for mode in ("put", "get"):
            report, cpu_us = loaded(server, program, mode, count)
            yield Cost(mode, form, report.ops_per_s / 1000, cpu_us)


def with_readers(form: str, program: Path, count: int, readers: int, sync: str) -> Cost:
    """Measure puts to a queue with `readers` fan-out children, each of which must have every item at the end."""
    with served(config(form, sync)) as server:
        client = Client(server)
        with closing(client.sock):
            client.get([f"q+r{number}" for number in range(readers)])
            report, cpu_us = loaded(server, program, "put", count)
            stats = client.ask([b"stats\r\n"], b"\r\nEND\r\n").decode().splitlines()
        for number in range(readers):
            if f"STAT queue_q+r{number}_items {count}" not in stats:
                raise ServerFailed(f"q+r{number} has not got every item")
        bytes_per_item = server.journal_kb() * 1024 / count
        return Cost(f"put, {readers} readers, {sync}", form, report.ops_per_s / 1000, cpu_us, bytes_per_item)


def restart(form: str, items: int) -> Cost:
    """Kill the server with SIGKILL while `items` items wait, and start it. `rate_k` and `cpu_us` are
    milliseconds here.
    """
    with served(config(form, "1s")) as server:
        client = Client(server)
        with closing(client.sock):
            for _ in range(0, items, STEP):
                client.put(["q"] * STEP, [b"x" * RESTART_BYTES] * STEP)
        server.restart(items)
        return Cost("restart", form, server.restart_ms, server.restart_cpu_ms)


def measure(rounds: int, count: int, items: int, readers: int, program: Path) -> Iterator[Cost]:
    for number in range(rounds):
        for form in FORMATS if number % 2 == 0 else reversed(FORMATS):
            yield from plain(form, program, count)
            for sync in ("os", "always"):
                yield with_readers(form, program, count // 4, readers, sync)
            yield restart(form, items)


def ratio(pair: list[list[float]]) -> str:
    """Return libkestrel's figure over Kestrel's, round by round: the median and the spread."""
    found = sorted(other / one if one else 1.0 for one, other in zip(*pair, strict=True))
    return f"{median(found):.2f} ({found[0]:.2f}..{found[-1]:.2f})"


def lines(costs: list[Cost]) -> Iterator[str]:
    yield f"{'':24}{'k/s':^39}{'us of processor':^39}{'bytes an item':^15}"
    yield f"{'':24}" + f"{'kestrel':>9}{'libk.':>9}{'libk./kestrel':>21}" * 2 + f"{'kestrel':>9}{'libk.':>8}"
    for what in dict.fromkeys(cost.what for cost in costs):
        sides = [[cost for cost in costs if cost.what == what and cost.format == form] for form in FORMATS]
        row = f"{'restart, ms' if what == 'restart' else what:24}"
        for figure in ("rate_k", "cpu_us"):
            pair = [[getattr(one, figure) for one in side] for side in sides]
            row += "".join(f"{median(values):9.1f}" for values in pair) + f"{ratio(pair):>21}"
        disk = "".join(f"{median(one.disk_bytes for one in side):9.0f}" for side in sides)
        yield row + (disk if disk.strip(" 0") else "")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="How often each is run.")
@click.option("--count", default=60_000, show_default=True, type=click.IntRange(4), help="Operations of a plain run.")
@click.option("--items", default=1_000_000, show_default=True, help="Items of 100 bytes to start with.")
@click.option("--readers", default=10, show_default=True, type=click.IntRange(1), help="Fan-out children.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write every run here.")
def main(rounds: int, count: int, items: int, readers: int, json_path: Path | None) -> None:
    """Measure libkestrel's journal format beside Kestrel's.

    Exit status: 0 all runs were sound, 1 one was not.
    """
    before = machine.ticks()
    try:
        costs = list(measure(rounds, count, items - items % STEP, readers, build()))
    except (ServerFailed, CannotBuild) as failure:
        click.echo(f"bench.formats: {failure}", err=True)
        sys.exit(1)
    click.echo("\n".join(lines(costs)))
    for warning in machine.busy_warning(machine.others_cores(before, machine.ticks())):
        click.echo(f"warning: {warning}", err=True)
    if json_path is not None:
        json_path.write_bytes(msgspec.json.encode(costs))


if __name__ == "__main__":
    exit_on_signals()
    main()
