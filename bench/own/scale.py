"""The growth of cost with the work. Each part is run at three sizes, each ten times the one before (`--quick`: two).

Linear growth is expected for queues, fan-out children, open reads, waiting and idle clients, items. The server is a
process of its own on one core. The last part measures how long one request to a broker without sockets delays all
clients.
"""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served
from staniel.bench.own import stalls

GROWTH_MAX = 11.0  # for ten times the units
NOISE = {"ms": 15.0, "us": 0.0, "KiB": 4000.0, "files": 0.0}  # totals below say nothing about growth
DATA = b"x" * 100
LONG = "\n[server]\nmax_open_transactions = 1000000\n"


class Row(Struct):
    """A result: `total` in `unit` for `count` of them. `growth`: this total divided by that for a tenth of the units,
    if measured.
    """

    part: str
    what: str
    count: int
    total: float
    unit: str = "ms"
    growth_max: float = GROWTH_MAX
    growth: float | None = None

    @property
    def is_fine(self) -> bool:
        return self.growth is None or self.growth <= self.growth_max


Rows = Iterator[Row]


def clients(server: Served, count: int, stack: ExitStack) -> list[Client]:
    made = []
    for _ in range(count):
        made.append(Client(server))
        stack.callback(made[-1].sock.close)
    made[-1].ask([b"version\r\n"], b"\r\n")  # the last one has connected, so all have
    return made


def hang_up(stack: ExitStack) -> None:
    """Disconnect all at once, and leave the server time to notice."""
    stack.close()
    time.sleep(0.5)


def wall_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def cpu_ms(server: Served, work: Callable[[], object]) -> float:
    """Return the processor time of `work` in the server, without waiting for the disk and for us."""
    began = server.cpu_ms()
    work()
    return server.cpu_ms() - began


def disk_row(what: str, count: int, work: Callable[[], object]) -> Row:
    """Return a row of mostly the disk's time, which is not judged."""
    return Row("queues", f"{what} (wall)", count, wall_ms(work), growth_max=math.inf)


def restart_rows(part: str, server: Served, count: int, items: int) -> Rows:
    server.restart(items)
    yield Row(part, "restart (cpu)", count, server.restart_cpu_ms)
    yield Row(part, "restart (wall)", count, server.restart_ms, growth_max=math.inf)


def some_queues(count: int) -> Rows:
    """Measure queues. Every file is synced before its reply (`sync_journal = "always"`)."""
    names = [f"q{number}" for number in range(count)]
    with served("") as server:
        before_kb = server.rss_kb()
        client = Client(server)
        yield disk_row("create", count, lambda: client.get(names))
        yield disk_row("put one each", count, lambda: client.put(names, [DATA] * count))
        yield Row("queues", "rss", count, server.rss_kb() - before_kb, "KiB")
        yield Row("queues", "idle for 2 s (cpu)", count, cpu_ms(server, lambda: time.sleep(2)))
        stats = partial(client.ask, [b"stats\r\n"], b"\r\nEND\r\n")
        yield Row("queues", "stats (cpu)", count, cpu_ms(server, stats))
        client.sock.close()
        yield from restart_rows("queues", server, count, count)
        client = Client(server)
        yield disk_row("get one each", count, lambda: client.get(names))
        client.put(names, [DATA] * count)
        flush = partial(client.ask, [b"flush_all\r\n"], b"\r\n")
        yield disk_row("flush_all", count, flush)
        yield Row("queues", "most files open", count, server.files(), "files")
        client.sock.close()


def some_children(count: int) -> Rows:
    puts = 50
    with served('[default]\nsync_journal = "1s"\n') as server:
        client = Client(server)
        client.get([f"q+{number}" for number in range(count)])
        cost = cpu_ms(server, lambda: client.put(["q"] * puts, [DATA] * puts))
        yield Row("fan-out", "put to the parent (cpu)", count, cost / puts)
        client.sock.close()
        yield from restart_rows("fan-out", server, count, puts * (count + 1))


def some_reads(count: int, part: str, config: str) -> Rows:
    crowd = 10
    with served(config + LONG) as server, ExitStack() as stack:
        crowded = clients(server, crowd, stack)

        def get_by_crowd(key: str) -> None:
            for client in crowded:
                client.get([key] * (count // crowd))

        crowded[0].put(["q"] * count, [DATA] * count)
        yield Row(part, "open (cpu)", count, cpu_ms(server, lambda: get_by_crowd("q/open")))
        yield Row(part, "abort the oldest (cpu)", count, cpu_ms(server, lambda: get_by_crowd("q/abort")))
        before_kb = server.journal_kb()
        get_by_crowd("q/open")
        yield Row(part, "journal, opened", count, server.journal_kb() - before_kb, "KiB")
        yield from restart_rows(part, server, count, count)
        crowded = clients(server, crowd, stack)
        get_by_crowd("q/open")
        yield Row(part, "close the oldest (cpu)", count, cpu_ms(server, lambda: get_by_crowd("q/close")))
        crowded[0].put(["q"] * count, [DATA] * count)
        get_by_crowd("q/open")
        yield Row(part, "hang up with all (cpu)", count, cpu_ms(server, partial(hang_up, stack)))


def some_waiters(count: int) -> Rows:
    """Measure waiting clients. One in ten disconnects before the items come; the others get them in the order of their
    requests.
    """
    with served('[default]\nsync_journal = "1s"\n') as server, ExitStack() as stack:
        waiting = clients(server, count, stack)

        def park() -> None:
            for client in waiting:
                client.sock.sendall(b"version\r\nget q/t=100000\r\n")
                client.hear(b"\r\n")

        yield Row("waiters", "wait (cpu)", count, cpu_ms(server, park))
        for client in waiting[::10]:
            client.sock.close()
        producer = clients(server, 1, stack)[0]
        data = [b"%07d" % number for number in range(count)]
        staying = [client for number, client in enumerate(waiting) if number % 10]
        gone = count - len(staying)

        def serve() -> None:
            producer.put(["q"] * count, data)
            for client, one in zip(staying, data, strict=False):
                if one not in client.hear(b"END\r\n"):
                    raise ServerFailed("a waiter was served out of turn")

        yield Row("waiters", "serve in order (cpu)", count, cpu_ms(server, serve))
        if producer.get(["q"] * gone).count(b"VALUE") != gone:
            raise ServerFailed("a hang-up lost an item")


def some_idle(count: int) -> Rows:
    with served("") as server, ExitStack() as stack:
        active = clients(server, 1, stack)[0]
        before_kb = server.rss_kb()
        yield Row("idle", "connect (cpu)", count, cpu_ms(server, lambda: clients(server, count, stack)))
        yield Row("idle", "rss", count, server.rss_kb() - before_kb, "KiB")
        delays = [wall_ms(lambda: active.ask([b"version\r\n"], b"\r\n")) for _ in range(500)]
        yield Row("idle", "p50 of an active client", count, statistics.median(delays) * 1000, "us", 2.0)
        yield Row("idle", "hang up (cpu)", count, cpu_ms(server, partial(hang_up, stack)))


def some_items(count: int) -> Rows:
    with served('[default]\nsync_journal = "1s"\n') as server:
        client = Client(server)
        before_kb = server.rss_kb()
        yield Row("items", "put (cpu)", count, cpu_ms(server, lambda: client.put(["q"] * count, [DATA] * count)))
        yield Row("items", "rss", count, server.rss_kb() - before_kb, "KiB")
        client.sock.close()
        yield from restart_rows("items", server, count, count)
        client = Client(server)
        yield Row("items", "get (cpu)", count, cpu_ms(server, lambda: client.get(["q"] * count)))
        client.sock.close()


def some_stalls(count: int) -> Rows:
    for what, work in stalls.all_of(count):
        yield Row("stalls", what, count, wall_ms(work))


TIMED = '[default]\nsync_journal = "1s"\nopen_transaction_timeout = "1h"\n'
PARTS: dict[str, tuple[Callable[[int], Rows], tuple[int, int, int]]] = {
    "queues": (some_queues, (100, 1_000, 10_000)),
    "fan-out": (some_children, (10, 100, 1_000)),
    "reads": (lambda count: some_reads(count, "reads", '[default]\nsync_journal = "1s"\n'), (1_000, 10_000, 100_000)),
    "reads-timed": (lambda count: some_reads(count, "reads-timed", TIMED), (1_000, 10_000, 100_000)),
    "waiters": (some_waiters, (100, 1_000, 5_000)),
    "idle": (some_idle, (1_000, 5_000, 10_000)),
    "items": (some_items, (10_000, 100_000, 1_000_000)),
    "stalls": (some_stalls, (10_000, 100_000, 1_000_000)),
}


def compared(rows: Sequence[Row]) -> None:
    """Compute the growth of each row over the same row at a tenth of the units, or the nearest size above noise."""
    for row in rows:
        loud = [one for one in rows if (one.part, one.what) == (row.part, row.what) and one.total > NOISE[one.unit]]
        smaller = [one for one in loud if one.count < row.count]
        if row in loud and smaller:
            base = ([one for one in smaller if 10 * one.count <= row.count] or smaller[:1])[-1]
            row.growth = round((row.total / base.total) ** (1 / math.log10(row.count / base.count)), 1)


def line(row: Row) -> str:
    per_one = row.total / row.count * (1000 if row.unit == "ms" else 1)
    each_unit = "us" if row.unit == "ms" else row.unit
    growth = "-" if row.growth is None else str(row.growth)
    mark = "" if row.is_fine else "  GROWS TOO FAST"
    total = f"{row.total:>12,.1f} {row.unit:<5}"
    return f"{row.part:<12}{row.what:<34}{row.count:>9,}{total}{per_one:>12,.3f} {each_unit:<5}{growth:>7}{mark}"


def measure(parts: Sequence[str], sizes: int) -> list[Row]:
    rows: list[Row] = []
    for name in parts:
        run, counts = PARTS[name]
        for count in counts[:sizes]:
            click.echo(f"{name} {count:,}", err=True)
            rows.extend(run(count))
    compared(rows)
    return sorted(rows, key=lambda row: (parts.index(row.part), row.what, row.count))


@click.command()
@click.option("--quick", is_flag=True, help="The two smaller sizes of each part.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="A part; may be given again.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(quick: bool, only: tuple[str, ...], json_file: Path | None) -> None:
    """Measure the growth of cost with the work.

    Exit status: 0 every cost grew at most 11 times for ten times the units, 1 some grew faster, or something was lost.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    try:
        rows = measure(only or tuple(PARTS), 2 if quick else 3)
    except (ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{'part':<12}{'what':<34}{'count':>9}{'total':>12}      {'each':>12}       {'x10':>6}")
    for row in rows:
        click.echo(line(row))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(not all(row.is_fine for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
