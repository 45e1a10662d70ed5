"""The cost of idle, slow and non-reading clients: memory for each, and delay for the others.

Polite clients send small requests while the crowd is connected, and before and after that. `abuse.py` measures the cost
of connecting; here the crowd stays. `stall_timeout`, which would disconnect most of it, is set very long.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness.probe import Delays, Probe
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served

CONFIG = '[server]\nstall_timeout = "10m"\n[default]\nsync_journal = "1s"\n'
RATE, POLITE = 250, 8
BYTE_EVERY_S = 10.0
LONG_BYTES = 64 << 10
ASKED_BYTES = 160_000  # requested by a client that never reads: ten thousand replies of LONG_BYTES
TIMES_MAX = 2.0
REST_SECONDS_MAX, REST_MS_MAX = 60.0, 10.0
IDLE_KIB_MAX, SLOW_KIB_MAX = 10.0, 16.0
NO_LIMIT = float("inf")

Socks = list[socket.socket]


class Crowd(Struct, frozen=True):
    """A crowd. `join` connects the clients; `work` is what they do for some seconds. `each_kib_max` limits the memory
    of each.
    """

    name: str
    count: int
    join: Callable[[Served, int], Socks]
    work: Callable[[Socks, float], None]
    each_kib_max: float


class Row(Struct, frozen=True):
    """The result of a crowd. `each_kib`: the resident memory of one client. `times`: the polite p99 with the crowd
    divided by that without it; `cpu_times`: the same for the server's processor time for a polite request. Both are
    medians of the rounds.
    """

    crowd: str
    count: int
    each_kib: float
    quiet: list[Delays]
    crowded: list[Delays]
    times: float
    cpu_times: float
    each_kib_max: float

    @property
    def missed(self) -> list[str]:
        """The missed targets."""
        found = {
            "p99": self.times > TIMES_MAX,
            "cpu": self.cpu_times > TIMES_MAX,
            "memory": self.each_kib > self.each_kib_max,
        }
        return [name for name, is_missed in found.items() if is_missed]


def connect(server: Served, count: int, receive_bytes: int = 0) -> Iterator[socket.socket]:
    for _ in range(count):
        sock = socket.socket()
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        sock.connect(("127.0.0.1", server.port))
        yield sock


def idle(server: Served, count: int) -> Socks:
    return list(connect(server, count))


def slow(server: Served, count: int) -> Socks:
    socks = []
    for sock in connect(server, count):
        sock.sendall(b"set slow 0 0 1000\r\nx")
        socks.append(sock)
    return socks


def deaf(server: Served, count: int) -> Socks:
    client = Client(server)
    client.put(["long"], [bytes(LONG_BYTES)])
    client.sock.close()
    line = b"get long/peek\r\n"
    socks = []
    for sock in connect(server, count, 4096):
        sock.sendall(line * (ASKED_BYTES // len(line)))
        socks.append(sock)
    return socks


def stay_idle(socks: Socks, seconds: float) -> None:
    time.sleep(seconds)


def drip(socks: Socks, seconds: float) -> None:
    """Send a byte to each in BYTE_EVERY_S, in turn."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * len(socks) / BYTE_EVERY_S)
        for sock in socks[sent:due]:
            sock.send(b"x")
        sent = max(sent, due)
        time.sleep(0.01)
    socks[:] = socks[sent:] + socks[:sent]


def crowds(idle_count: int, slow_count: int, deaf_count: int) -> list[Crowd]:
    return [
        Crowd("idle", idle_count, idle, stay_idle, IDLE_KIB_MAX),
        Crowd("a byte in 10 s", slow_count, slow, drip, SLOW_KIB_MAX),
        # The memory of these clients is bounded by max_pending_size_total, and beyond that by the kernel.
        Crowd("read nothing", deaf_count, deaf, stay_idle, NO_LIMIT),
    ]


def wait_until_idle(server: Served) -> None:
    """Wait until the server has finished its work. Raises ServerFailed."""
    give_up = time.monotonic() + REST_SECONDS_MAX
    while time.monotonic() < give_up:
        before_ms = server.cpu_ms()
        time.sleep(0.5)
        if server.cpu_ms() - before_ms < REST_MS_MAX:
            return
    raise ServerFailed("the server does not come to rest")


def measure_polite(server: Served, work: Callable[[float], None], seconds: float) -> tuple[Delays, float]:
    """Return the polite clients' delays while `work` runs, and the server's processor time for each of their requests,
    in microseconds. Raises ServerFailed.
    """
    before_ms = server.cpu_ms()
    probe = Probe(server.port, "polite", RATE, OUR_CORE, POLITE)
    try:
        work(seconds)
        delays = probe.collect_delays()
    except BaseException:
        probe.kill()
        raise
    if delays.harm:
        raise ServerFailed(f"the polite clients: {delays.harm}")
    return delays, (server.cpu_ms() - before_ms) * 1000 / delays.requests


def measured(crowd: Crowd, rounds: int, seconds: float) -> Row:
    """Measure a server of its own: before, during and after the crowd. Raises ServerFailed."""
    with served(CONFIG) as server, ExitStack() as stack:
        measure_polite(server, time.sleep, seconds)  # runs every path once
        quiet = [measure_polite(server, time.sleep, seconds) for _ in range(rounds)]
        before_kib = server.rss_kb()
        socks = crowd.join(server, crowd.count)
        for sock in socks:
            stack.callback(sock.close)
        last = Client(server)
        last.ask([b"version\r\n"], b"\r\n")  # all are in
        last.sock.close()
        wait_until_idle(server)
        each_kib = (server.rss_kb() - before_kib) / crowd.count
        crowded = [measure_polite(server, lambda duration: crowd.work(socks, duration), seconds) for _ in range(rounds)]
        with suppress(OSError):
            stack.close()
        time.sleep(1)
        quiet += [measure_polite(server, time.sleep, seconds) for _ in range(rounds)]
    times = median(latency.p99_ms for latency, _ in crowded) / median(latency.p99_ms for latency, _ in quiet)
    cpu_times = median(cpu_us for _, cpu_us in crowded) / median(cpu_us for _, cpu_us in quiet)
    return Row(
        crowd.name,
        crowd.count,
        round(each_kib, 2),
        [latency for latency, _ in quiet],
        [latency for latency, _ in crowded],
        round(times, 2),
        round(cpu_times, 2),
        crowd.each_kib_max,
    )


def line(row: Row) -> str:
    quiet, crowded = (median(latency.p99_ms for latency in some) for some in (row.quiet, row.crowded))
    missed = f"  MISSED: {', '.join(row.missed)}" if row.missed else ""
    figures = f"{row.each_kib:>12.1f}{quiet:>12.2f}{crowded:>12.2f}{row.times:>8.2f}{row.cpu_times:>8.2f}"
    return f"{row.crowd:<16}{row.count:>8,}{figures}{missed}"


@click.command()
@click.option("--idle", "idle_count", default=10_000, show_default=True, help="Clients that say nothing.")
@click.option("--slow", "slow_count", default=2_000, show_default=True, help="Clients that send a byte in 10 s.")
@click.option("--deaf", "deaf_count", default=200, show_default=True, help="Clients that never read.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="Of each round.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(
    idle_count: int, slow_count: int, deaf_count: int, rounds: int, seconds: float, json_file: Path | None
) -> None:
    """Let crowds stay beside polite clients, and show their cost.

    Exit status: 0 no polite p99 more than doubled, 10 KiB at most for an idle client and 16 KiB for a slow one; 1 a
    target was missed, or a measurement failed.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    click.echo(f"{'crowd':<16}{'clients':>8}{'KiB each':>12}{'quiet p99':>12}{'beside p99':>12}{'times':>8}{'cpu':>8}")
    rows = list[Row]()
    for crowd in crowds(idle_count, slow_count, deaf_count):
        try:
            rows.append(measured(crowd, rounds, seconds))
        except (ServerFailed, OSError) as error:
            raise click.ClickException(f"{crowd.name}: {error}") from None
        click.echo(line(rows[-1]))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(any(row.missed for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
