"""The duration of operators' operations, and the delay of a client that puts and gets meanwhile.

The server is a process. Each operation affects all items of a queue. A probe puts one item and gets it again, every
PAUSE_S, at rest and during each operation.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable

import click
from msgspec import Struct

from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served

CONFIG = "[admin]\nport = 0\n"
ITEM_BYTES = 200
PAUSE_S = 0.002
REST_S = 2.0
WAIT_S_MAX = 300.0
MORE_P50_MS, P99_MS = 2.0, 20.0
MOVED_S, UNDONE_S = 4.0, 6.0  # 300,000 items


class Row(Struct, frozen=True):
    """The result of an operation. `p50_ms`, `p99_ms`, `max_ms`: delays of a put or a get of the probe. `seconds`: the
    operation's duration. `cpu_seconds`: the server's processor time meanwhile.
    """

    what: str
    seconds: float
    cpu_seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float


class Waits:
    """A client that puts an item and gets it again, and measures each."""

    def __init__(self, server: Served) -> None:
        self._sock = Client(server).sock
        self._over = threading.Event()
        self.took_ms: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            self._ask(b"set probe 0 0 1\r\nx\r\n", b"STORED\r\n")
            self._ask(b"get probe\r\n", b"END\r\n")
            time.sleep(PAUSE_S)

    def _ask(self, request: bytes, end: bytes) -> None:
        began = time.perf_counter()
        self._sock.sendall(request)
        heard = b""
        while not heard.endswith(end):
            heard += self._sock.recv(4096)
        self.took_ms.append((time.perf_counter() - began) * 1000)

    def make_row(self, what: str, seconds: float, cpu_seconds: float) -> Row:
        self._over.set()
        self._thread.join()
        self._sock.close()
        took = sorted(self.took_ms)
        return Row(what, seconds, cpu_seconds, took[len(took) // 2], took[len(took) * 99 // 100], took[-1])


def timed(server: Served, what: str, work: Callable[[], object]) -> Row:
    waits = Waits(server)
    began, before_ms = time.perf_counter(), server.cpu_ms()
    work()
    return waits.make_row(what, time.perf_counter() - began, (server.cpu_ms() - before_ms) / 1000)


def ask(server: Served, method: str, path: str, body: object = None) -> dict[str, int]:
    connection = http.client.HTTPConnection("127.0.0.1", server.ports[-1], timeout=WAIT_S_MAX)
    connection.request(method, path, json.dumps(body or {}), {"content-type": "application/json"})
    answer = connection.getresponse()
    found: dict[str, int] = json.loads(answer.read())
    connection.close()
    if answer.status != 200:
        raise ServerFailed(str(found))
    return found


def measure(count: int) -> list[Row]:
    """Measure all operations. Raises ServerFailed."""
    rows: list[Row] = []
    undo = [0]
    one_in_ten = {"where": ["regex~7$"]}  # of numbers: the others are set aside until the last one is reached
    chosen = sum([number % 10 == 7 for number in range(count)])

    def does(method: str, path: str, body: object = None, wanted: int = count) -> None:
        found = ask(server, method, path, body)
        undo[0] = found.get("undo", 0)
        done = next(found[key] for key in ("moved", "returned", "purged", "deleted", "found") if key in found)
        if done != wanted:
            raise ServerFailed(f"{method} {path}: {found}")

    with served(CONFIG) as server:
        client = Client(server)
        client.put(["q"] * count, [b"%0*d" % (ITEM_BYTES, number) for number in range(count)])
        rows.append(timed(server, "at rest", lambda: time.sleep(REST_S)))
        rows.append(
            timed(server, "find", lambda: does("POST", "/api/queues/q/find", {**one_in_ten, "limit": 0}, chosen))
        )
        for what, path, body in (("move", "/api/queues/q/move", {"to": "r"}), ("purge", "/api/queues/q/purge", {})):
            by_terms = {**body, **one_in_ten}
            rows.append(timed(server, f"{what} by terms", lambda: does("POST", path, by_terms, chosen)))  # noqa: B023
            rows.append(timed(server, "undo of that", lambda: does("POST", f"/api/undo/{undo[0]}", None, chosen)))
        for what, method, path, body in (
            ("move", "POST", "/api/queues/q/move", {"to": "r"}),
            ("purge", "POST", "/api/queues/q/purge", {}),
            ("delete", "DELETE", "/api/queues/q", {}),
        ):
            rows.append(timed(server, what, lambda: does(method, path, body)))  # noqa: B023
            rows.append(timed(server, f"undo of the {what}", lambda: does("POST", f"/api/undo/{undo[0]}")))
        rows.append(timed(server, "purge for good", lambda: does("POST", "/api/queues/q/purge", {"no_undo": True})))
    return rows


def verdict(row: Row, rest: Row, count: int) -> str:
    limits_s = {"move": MOVED_S, "undo of the move": UNDONE_S}
    limit_s = limits_s.get(row.what, 1e9) * count / 300_000
    is_polite = row.p50_ms <= rest.p50_ms + MORE_P50_MS and row.p99_ms <= max(P99_MS, rest.p99_ms)
    return "  SLOW" * (row.seconds > limit_s) + "  IMPOLITE" * (not is_polite)


@click.command()
@click.option("--items", "count", type=click.IntRange(min=1), default=300_000, show_default=True)
def main(count: int) -> None:
    """Measure operators' operations beside a client.

    Exit status: 0 all are fast and polite enough; 1 one is not, or a measurement failed.
    """
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    try:
        rows = measure(count)
    except (ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(
        f"{f'{count:,} items of {ITEM_BYTES} bytes':<32}{'seconds':>9}{'cpu':>9}{'p50 ms':>9}{'p99':>9}{'max':>9}"
    )
    told = [verdict(row, rows[0], count) for row in rows]
    for row, text in zip(rows, told, strict=True):
        took = f"{row.what:<32}{row.seconds:>9.2f}{row.cpu_seconds:>9.2f}"
        click.echo(f"{took}{row.p50_ms:>9.2f}{row.p99_ms:>9.2f}{row.max_ms:>9.2f}{text}")
    sys.exit(any(told))


if __name__ == "__main__":
    exit_on_signals()
    main()
