"""The cost of TLS for an operation: the same requests over TLS and in plain text to one server, in turns.

The criterion is the server's processor time for an operation, which other programs hardly disturb. The operations a
second are also shown; they depend on the client as much as on the server.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import click
from msgspec import Struct

from staniel.bench.harness.machine import busy_warning, others_cores, ticks
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import HEAR_SECONDS_MAX, OUR_CORE, Served, ServerFailed, served
from staniel.bench.own.besieged import CONFIG, certificate, trusting

TIMES_MAX = 2.5
SIZES = (64, 1024, 16_384)
PIPELINES = (1, 20)
OPERATIONS = 4000  # of a round
CONNECTIONS = 10
PLAIN, ENCRYPTED = range(2)  # the server's ports, in this order


class Cost(Struct, frozen=True):
    """The cost of one operation in one round."""

    server_us: float
    per_second: float


class Row(Struct, frozen=True):
    """The result of a kind of operation. `times` is TLS over plain text."""

    name: str
    plain: Cost
    encrypted: Cost
    times: float


@contextmanager
def connected(server: Served, port: int) -> Iterator[list[socket.socket]]:
    """Yield connections to one of its ports; those to the second have made a handshake."""
    context = trusting()
    with ExitStack() as stack:
        socks = list[socket.socket]()
        for _ in range(CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", server.ports[port]), HEAR_SECONDS_MAX)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks.append(stack.enter_context(context.wrap_socket(sock) if port == ENCRYPTED else sock))
        yield socks


def round_of(server: Served, socks: list[socket.socket], request: bytes, answer: bytes, pipeline: int) -> Cost:
    """Run a round in which all connections have `pipeline` requests in flight. Raises ServerFailed."""
    asked, expected = request * pipeline, answer * pipeline
    turns = OPERATIONS // (pipeline * len(socks))
    before_ms, began_s = server.cpu_ms(), time.monotonic()
    for _ in range(turns):
        for sock in socks:
            sock.sendall(asked)
        for sock in socks:
            heard = b""
            while len(heard) < len(expected):
                data = sock.recv(1 << 16)
                if not data:
                    raise ServerFailed("the server has hung up")
                heard += data
            if heard != expected:
                raise ServerFailed(f"{heard[:100]!r}")
    done = turns * pipeline * len(socks)
    took_s = time.monotonic() - began_s
    return Cost((server.cpu_ms() - before_ms) * 1000 / done, done / took_s)


def measured(server: Served, size: int, pipeline: int, rounds: int) -> list[Row]:
    """Measure puts, then gets of the same items. Raises ServerFailed."""
    data = b"x" * size
    put, stored = b"set q 0 0 %d\r\n%b\r\n" % (size, data), b"STORED\r\n"
    found = b"VALUE q 0 %d\r\n%b\r\nEND\r\n" % (size, data)
    costs: dict[tuple[str, int], list[Cost]] = {}
    with connected(server, PLAIN) as plain, connected(server, ENCRYPTED) as encrypted:
        for number in range(rounds + 1):
            for name, request, answer in (("put", put, stored), ("get", b"get q\r\n", found)):
                for port, socks in ((PLAIN, plain), (ENCRYPTED, encrypted)):
                    cost = round_of(server, socks, request, answer, pipeline)
                    if number:  # the first round makes objects that later ones reuse
                        costs.setdefault((name, port), []).append(cost)
    return [_row(f"{name}, {size} B, {pipeline} at a time", *(costs[name, port] for port in (PLAIN, ENCRYPTED)))
            for name in ("put", "get")]  # fmt: skip


def _row(name: str, plain: list[Cost], encrypted: list[Cost]) -> Row:
    times = median([secret.server_us / open.server_us for open, secret in zip(plain, encrypted, strict=True)])
    return Row(name, _middle(plain), _middle(encrypted), times)


def _middle(costs: list[Cost]) -> Cost:
    return Cost(median([cost.server_us for cost in costs]), median([cost.per_second for cost in costs]))


def table(rows: list[Row]) -> list[str]:
    lines = [f"{'':<24}{'us of the server':>20}{'':>10}{'operations a second':>24}"]
    lines.append(f"{'':<24}{'plain':>10}{'TLS':>10}{'times':>10}{'plain':>12}{'TLS':>12}")
    for row in rows:
        used = f"{row.plain.server_us:>10.1f}{row.encrypted.server_us:>10.1f}{row.times:>10.2f}"
        done = f"{row.plain.per_second:>12,.0f}{row.encrypted.per_second:>12,.0f}"
        lines.append(f"{row.name:<24}{used}{done}{'  MISSED' * (row.times > TIMES_MAX)}")
    return lines


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Of each row, in turns.")
def main(rounds: int) -> None:
    """Measure what TLS costs. Exit status 1: an operation costs the server more than 2.5 times that in plain text."""
    before = ticks()
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    rows = list[Row]()
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as folder:
        try:
            with served(CONFIG % certificate(Path(folder))) as server:
                for size in SIZES:
                    for pipeline in PIPELINES:
                        rows += measured(server, size, pipeline, rounds)
        except (ServerFailed, OSError) as error:
            raise click.ClickException(str(error)) from None
    click.echo("\n".join(table(rows)))
    for warning in busy_warning(others_cores(before, ticks())):
        click.echo(f"warning: {warning}", err=True)
    raise SystemExit(any(row.times > TIMES_MAX for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
