"""The cost of one greedy client for the polite ones, and of large items for small ones.

The polite clients are measured alternately alone and in company, on one server.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import machine
from staniel.bench.harness.probe import Delays
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, polite_delays, served

POLITE = 99
RATE = 2000  # requests a second of all of them together
SECONDS = 2.0
TIMES_MAX = 2.0  # the p99 in company, compared with alone
CONFIG = '[default]\nsync_journal = "1s"\nmax_item_size = "64MB"\n'
PIPELINE = b"set greedy 0 0 1024\r\n%b\r\nget greedy\r\n" % bytes(1024) * 500

Greed = Callable[[socket.socket, threading.Event], None]


class Row(Struct, frozen=True):
    """The result of a company. `times` is the p99 in company over the p99 alone, the median of all rounds."""

    company: str
    alone: list[Delays]
    together: list[Delays]
    times: float

    @property
    def is_fair(self) -> bool:
        return self.times <= TIMES_MAX


def pipelines(sock: socket.socket, over: threading.Event) -> None:
    """Keep a thousand requests in flight."""
    answers = len(b"STORED\r\n") + len(b"VALUE greedy 0 1024\r\n") + 1024 + len(b"\r\nEND\r\n")
    sock.sendall(PIPELINE)
    while not over.is_set():
        sock.sendall(PIPELINE)
        swallow(sock, 500 * answers)
    swallow(sock, 500 * answers)


def moves_items(item_bytes: int, sock: socket.socket, over: threading.Event) -> None:
    put = b"set large 0 0 %d\r\n%b\r\n" % (item_bytes, bytes(item_bytes))
    while not over.is_set():
        sock.sendall(put)
        swallow(sock, len(b"STORED\r\n"))
        sock.sendall(b"get large\r\n")
        swallow(sock, len(b"VALUE large 0 %d\r\n" % item_bytes) + item_bytes + len(b"\r\nEND\r\n"))


def swallow(sock: socket.socket, count: int) -> None:
    while count:
        more = len(sock.recv(min(count, 1 << 20)))
        if not more:
            raise ServerFailed("the server hung up on the greedy client")
        count -= more


COMPANY: dict[str, Greed] = {
    "one client with 1,000 requests in flight": pipelines,
    "one client that moves items of 100 KB": partial(moves_items, 100 << 10),
    "one client that moves items of 10 MB": partial(moves_items, 10 << 20),
}


def polite(server: Served, seconds: float) -> Delays:
    """Measure the polite clients. Raises ServerFailed."""
    return polite_delays(server, RATE, POLITE, seconds)


def in_company(server: Served, greed: Greed, seconds: float) -> Delays:
    sock, over, wrong = Client(server).sock, threading.Event(), list[Exception]()

    def work() -> None:
        try:
            greed(sock, over)
        except (OSError, ServerFailed) as error:
            wrong.append(error)

    greedy = threading.Thread(target=work, daemon=True)
    greedy.start()
    try:
        delays = polite(server, seconds)
    finally:
        over.set()
        greedy.join()
        sock.close()
    if wrong:
        raise ServerFailed(str(wrong[0]))
    return delays


def measure(rounds: int, seconds: float) -> list[Row]:
    rows = []
    with served(CONFIG) as server:
        for name, greed in COMPANY.items():
            alone, together = [], []
            for _ in range(rounds):
                alone.append(polite(server, seconds))
                together.append(in_company(server, greed, seconds))
            times = median(some.p99_ms / one.p99_ms for one, some in zip(alone, together, strict=True))
            rows.append(Row(name, alone, together, round(times, 2)))
    return rows


def line(row: Row) -> str:
    p50, p99 = (median(one.p50_ms for one in row.alone), median(one.p99_ms for one in row.alone))
    text = f"{row.company:<44}{p50:>8.2f}{p99:>8.2f}"
    p50, p99 = (median(one.p50_ms for one in row.together), median(one.p99_ms for one in row.together))
    most = max(one.max_ms for one in row.together)
    return f"{text}{p50:>10.2f}{p99:>8.2f}{most:>8.2f}{row.times:>8.2f}{'' if row.is_fair else '  UNFAIR'}"


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(rounds: int, json_file: Path | None) -> None:
    """Measure the cost of greedy clients for polite ones.

    Exit status: 0 no company more than doubles the p99 of the polite clients; 1 some does, or a measurement failed.
    """
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    before = machine.ticks()
    try:
        rows = measure(rounds, SECONDS)
    except (ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    head = f"{f'{POLITE} polite clients beside':<44}{'p50 ms':>8}{'p99':>8}"
    click.echo(f"{head}{'with: p50':>10}{'p99':>8}{'max':>8}{'times':>8}")
    for row in rows:
        click.echo(line(row))
    for warning in machine.busy_warning(machine.others_cores(before, machine.ticks())):
        click.echo(f"warning: {warning}", err=True)
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(not all(row.is_fair for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
