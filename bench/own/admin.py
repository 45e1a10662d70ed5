"""The cost and speed of the admin side: scrapes, pages, a browser, `staniel top`, `journal verify`.

The machine is seldom calm, so the measure is processor time if it can be: of the server, of a command, or of the hub's
longest turn (`turns.py`). A browser can only be measured by the clock; a blank page beside it shows the machine's
share. `admin_page.py` has the measurements in a browser.
"""

from __future__ import annotations

import http.client
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from statistics import median
from termios import TIOCSWINSZ

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.probe import Probe
from staniel.bench.harness.process import child_setup, exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served
from staniel.bench.own.turns import Longest

CONFIG = '[admin]\nport = 0\n[default]\nsync_journal = "1s"\n'
BARE_CONFIG = '[admin]\nsocket = false\n[default]\nsync_journal = "1s"\n'
QUEUES, CHANGING = 1_000, 400
RATE = 1_000  # requests a second: each of the CHANGING queues is put to and taken from in turn
FLAT_OUT = 1_000_000  # requests a second that no generator reaches
PAGES = 10
SCRAPE_EVERY_S = 1.0
SCRAPED_QUEUES = 10_000
SCRAPES = 5
ITEM_BYTES = 1_024
TOP_WINDOW = struct.pack("4H", 50, 160, 0, 0)  # rows, columns

SHARE_MAX_PERCENT = 2.0
SCRAPE_MS_MAX, TURN_MS_MAX = 200.0, 5.0
VERIFY_MB_MIN = 500.0
TOP_MAX_PERCENT = 1.0


class Row(Struct, frozen=True):
    """A result: `figure` in `unit`, which must be at most `goal`, or at least, if `is_least`. Without a goal it is only
    shown.
    """

    name: str
    figure: float
    unit: str
    goal: float | None = None
    is_least: bool = False

    @property
    def is_missed(self) -> bool:
        return self.goal is not None and (self.figure < self.goal if self.is_least else self.figure > self.goal)


class Options(Struct, frozen=True):
    rounds: int
    seconds: float
    items: int


def filled(server: Served, count: int, items_each: int = 1) -> None:
    """Fill `count` queues with some items of 100 bytes."""
    client = Client(server)
    names = [f"queue-{number:05}" for number in range(count)]
    for _ in range(items_each):
        client.put(names, [bytes(100)] * count)
    client.sock.close()


def admin_port(server: Served) -> int:
    return server.ports[1]


def scrape(server: Served) -> bytes:
    """Scrape the server. Raises ServerFailed."""
    connection = http.client.HTTPConnection("127.0.0.1", admin_port(server), timeout=60)
    try:
        connection.request("GET", "/metrics")
        reply = connection.getresponse()
        body = reply.read()
    finally:
        connection.close()
    if reply.status != 200 or not body.endswith(b"\n"):
        raise ServerFailed(f"/metrics answers {reply.status}, {len(body)} bytes")
    return body


class Operators:
    """The operators of a server: open pages, and a scrape a second if requested, in a thread that only reads."""

    def __init__(self, server: Served, pages: int, scrapes: bool) -> None:
        self._server, self._scrapes = server, scrapes
        self._over = threading.Event()
        self._socks = [socket.create_connection(("127.0.0.1", admin_port(server))) for _ in range(pages)]
        for sock in self._socks:
            sock.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self.heard_bytes, self.harm = 0, ""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        due = time.monotonic()
        try:
            while not self._over.wait(0.05):
                for sock in self._socks:
                    with suppress(BlockingIOError):
                        data = sock.recv(1 << 20, socket.MSG_DONTWAIT)
                        if not data:
                            raise ServerFailed("a page's stream ended")
                        self.heard_bytes += len(data)
                if self._scrapes and time.monotonic() >= due:
                    due += SCRAPE_EVERY_S
                    scrape(self._server)
        except (OSError, ServerFailed) as error:
            self.harm = str(error)

    def leave(self) -> None:
        """End the operators. Raises ServerFailed."""
        self._over.set()
        self._thread.join()
        for sock in self._socks:
            sock.close()
        if self.harm or (self._socks and not self.heard_bytes):
            raise ServerFailed(self.harm or "the pages were told nothing")


def cost(server: Served, rate: int, seconds: float, pages: int, scrapes: bool) -> tuple[float, float]:
    """Return the server's processor time: ms in a second, µs for a request of the clients. Raises ServerFailed."""
    operators = Operators(server, pages, scrapes)
    try:
        time.sleep(1.0)  # the pages have received all queues
        probe = Probe(server.port, "changing", rate, OUR_CORE, CHANGING)
        time.sleep(0.5)
        before_ms, began = server.cpu_ms(), time.monotonic()
        time.sleep(seconds)
        used_ms, took = server.cpu_ms() - before_ms, time.monotonic() - began
        delays = probe.collect_delays()
    finally:
        operators.leave()
    if delays.harm:
        raise ServerFailed(delays.harm)
    return used_ms / took, used_ms * 1_000 / (delays.requests * took / (took + 0.5))


OPERATORS = {"a scrape a second": (0, True), "ten pages": (PAGES, False), "both": (PAGES, True)}


def load(options: Options) -> Iterator[Row]:
    """Measure how much a scrape a second and ten pages take from the clients: the share of a core that a server with a
    full core cannot give to them.
    """
    with served(CONFIG) as server:
        filled(server, QUEUES - CHANGING)
        cost(server, RATE, 1.0, 1, True)  # runs every path once
        for name, (pages, scrapes) in OPERATORS.items():
            shares = []
            for _ in range(options.rounds):
                without, _ = cost(server, RATE, options.seconds, 0, False)
                with_them, _ = cost(server, RATE, options.seconds, pages, scrapes)
                shares.append((with_them - without) / 10)
            goal = SHARE_MAX_PERCENT if name == "both" else None
            yield Row(f"{name}, {QUEUES:,} queues: of a core", median(shares), "%", goal)
        ratios = []
        for _ in range(options.rounds):
            _, without = cost(server, FLAT_OUT, options.seconds, 0, False)
            _, with_them = cost(server, FLAT_OUT, options.seconds, PAGES, True)
            ratios.append((with_them / without - 1) * 100)
        yield Row("both, clients flat out: more processor time a request", median(ratios), "%")


def metrics(options: Options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-turns-") as folder:
        longest = Longest(Path(folder) / "longest")
        program = (sys.executable, str(ROOT / "bench" / "own" / "turns.py"), str(longest.path))
        with served(CONFIG, program=program) as server:
            filled(server, SCRAPED_QUEUES)
            scrape(server)
            time.sleep(2)
            took_ms, turn_ms, size = [], [], 0
            for _ in range(max(SCRAPES, options.rounds)):
                longest.forget()
                before_ms = server.cpu_ms()
                size = len(scrape(server))
                took_ms.append(server.cpu_ms() - before_ms)
                turn_ms.append(longest.ms())
    yield Row(f"/metrics of {SCRAPED_QUEUES:,} queues: processor time", median(took_ms), "ms", SCRAPE_MS_MAX)
    # A turn that the machine interrupts is no longer for it, but cold caches are: the median of the scrapes' longest.
    yield Row(f"/metrics of {SCRAPED_QUEUES:,} queues: its longest turn", median(turn_ms), "ms", TURN_MS_MAX)
    yield Row(f"/metrics of {SCRAPED_QUEUES:,} queues: the longest turn of all", max(turn_ms), "ms")
    yield Row(f"/metrics of {SCRAPED_QUEUES:,} queues: size", size / 1e6, "MB")


@contextmanager
def left_spool(config: str, items: int) -> Iterator[Path]:
    """Yield the spool of a stopped server, with `items` items of 1 KB in one queue."""
    with served(config) as server:
        client = Client(server)
        client.put(["q"] * items, [os.urandom(ITEM_BYTES // 2).hex().encode()] * items)
        client.sock.close()
        os.kill(server.pid, signal.SIGTERM)
        os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
        yield server.folder / "spool"


def run(command: list[str]) -> tuple[float, float]:
    """Run a command. Return the seconds of processor time and of the clock. Raises ServerFailed."""
    began = time.monotonic()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, preexec_fn=child_setup(OUR_CORE))
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise ServerFailed(f"{' '.join(command)}: exit status {child.returncode}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began


KINDS = {
    "Kestrel's format, one file": "",
    "Kestrel's format, sealed files with sidecars": 'default_journal_size = "16MB"\nmax_memory_size = "16MB"\n',
    "libkestrel's format": 'journal_format = "libkestrel"\n',
}


def verify(options: Options) -> Iterator[Row]:
    """Measure the megabytes of journal that `journal verify` reads in a second, without its own start."""
    program = [sys.executable, "-m", "staniel.server", "journal", "verify", "-q"]
    for kind, settings in KINDS.items():
        with left_spool(CONFIG + settings, options.items) as spool, left_spool(CONFIG + settings, 1) as tiny:
            size_mb = sum(path.stat().st_size for path in spool.rglob("*") if path.is_file()) / 1e6
            run([*program, str(spool)])
            cpu, clock = [], []
            for _ in range(options.rounds):
                empty_cpu_s, empty_s = run([*program, str(tiny)])
                whole_cpu_s, whole_s = run([*program, str(spool)])
                cpu.append(size_mb / (whole_cpu_s - empty_cpu_s))
                clock.append(size_mb / (whole_s - empty_s))
        yield Row(f"journal verify, {kind}", median(cpu), "MB/s", VERIFY_MB_MIN, is_least=True)
        yield Row(f"journal verify, {kind}: by the clock", median(clock), "MB/s")


@contextmanager
def top_running(server: Served) -> Iterator[Callable[[], float]]:
    """Run `staniel top` on a terminal of its own. Yield a function that returns its processor time so far, in ms."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, TOP_WINDOW)
    command = [sys.executable, "-m", "staniel.server", "top", "--url", f"http://127.0.0.1:{admin_port(server)}"]
    child = subprocess.Popen(
        command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color"},
        preexec_fn=child_setup(OUR_CORE),
    )  # fmt: skip
    os.close(theirs)
    heard = [0]

    def swallow() -> None:
        with suppress(OSError):
            while data := os.read(ours, 1 << 16):
                heard[0] += len(data)

    reader = threading.Thread(target=swallow, daemon=True)
    reader.start()
    try:
        yield lambda: time.clock_gettime((~child.pid << 3) | 2) * 1_000
        if child.poll() is not None or heard[0] < 1_000:
            raise ServerFailed("top does not draw")
    finally:
        child.kill()
        child.wait()
        reader.join()
        os.close(ours)


def top(options: Options) -> Iterator[Row]:
    with served(CONFIG) as server:
        filled(server, QUEUES - CHANGING)
        for name, rate in (("all at rest", 0), (f"{CHANGING} of them changing each second", RATE)):
            probe = Probe(server.port, "changing", rate, OUR_CORE, CHANGING) if rate else None
            try:
                with top_running(server) as cpu_ms:
                    time.sleep(5.0)  # it has started, and has received all queues
                    before_ms, began = cpu_ms(), time.monotonic()
                    time.sleep(max(10.0, options.seconds))
                    percent = (cpu_ms() - before_ms) / (time.monotonic() - began) / 10
            finally:
                if probe:
                    probe.kill()
            yield Row(f"staniel top, {QUEUES:,} queues, {name}: of a core", percent, "%", TOP_MAX_PERCENT)


def start(options: Options) -> Iterator[Row]:
    """Measure the processor time until the server listens, with a port for operators and without one."""
    taken: dict[str, list[float]] = {CONFIG: [], BARE_CONFIG: []}
    for _ in range(3 * options.rounds):
        for config, times in taken.items():
            with served(config) as server:
                times.append(server.cpu_ms())
    with_it, without = taken.values()
    yield Row("start with [admin]: processor time", min(with_it), "ms")
    yield Row("start without: processor time", min(without), "ms")
    yield Row("start: what [admin] adds", median(a - b for a, b in zip(with_it, without, strict=True)), "ms")


def page(options: Options) -> Iterator[Row]:
    """Measure the page in a browser. It is imported here, so that the other parts can be measured without one."""
    from staniel.bench.own import admin_page

    with served(CONFIG) as server:
        filled(server, QUEUES - CHANGING)
        probe = Probe(server.port, "changing", RATE, OUR_CORE, CHANGING)
        try:
            for name, figure, unit, goal in admin_page.measured(admin_port(server), QUEUES, options.rounds):
                yield Row(name, figure, unit, goal)
        finally:
            probe.kill()


PARTS: dict[str, Callable[[Options], Iterator[Row]]] = {
    measure.__name__: measure for measure in (load, metrics, page, verify, top, start)
}


def line(row: Row) -> str:
    goal = "" if row.goal is None else f"{'>=' if row.is_least else '<='} {row.goal:g} {row.unit}"
    return f"{row.name:<72}{row.figure:>10.2f} {row.unit:<6}{goal:<12}{'  MISSED' if row.is_missed else ''}".rstrip()


@click.command()
@click.option("--only", multiple=True, type=click.Choice(tuple(PARTS)), help="A part; may be repeated.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="Of each round under load.")
@click.option("--items", default=300_000, show_default=True, help="Of 1 KB in the journals that are verified.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(only: tuple[str, ...], rounds: int, seconds: float, items: int, json_file: Path | None) -> None:
    """Measure the cost of the admin side. STANIEL_PURE=1 measures plain Python although there is a compiled build.

    Exit status: 0 every goal was reached; 1 one was missed, or a measurement failed.
    """
    rows = list[Row]()
    for name in only or PARTS:
        try:
            for row in PARTS[name](Options(rounds, seconds, items)):
                rows.append(row)
                click.echo(line(row))
        except (ServerFailed, OSError) as error:
            raise click.ClickException(f"{name}: {error}") from None
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
    sys.exit(any(row.is_missed for row in rows))


if __name__ == "__main__":
    exit_on_signals()
    main()
