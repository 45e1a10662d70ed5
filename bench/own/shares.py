"""The delay that one request causes for the other clients: a table of requests, each sent once to a server of its own
while polite clients use it.

`turn ms` is the longest turn of the hub in processor time of its thread (`turns.py`), which other programs do not
affect. `worst ms` is the slowest put or get of the polite clients meanwhile, which they do affect.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.probe import Probe
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Served, ServerFailed, served
from staniel.bench.own.abuse import interpreter
from staniel.bench.own.turns import Longest
from staniel.broker.operations.audit import NAMES, AuditEntry, Result

CONFIG = """
[default]
sync_journal = "1s"
max_item_size = "256MB"
max_memory_size = "512MB"
[queues.rotated]
max_memory_size = "4MB"
[server]
max_pending_size_total = "1GB"
max_open_transactions = 1000000
max_fanout_children = "none"
[workq]
port = 0
[thrift]
port = 0
[admin]
port = 0
"""
LARGE_MS_MAX, SMALL_MS_MAX = 20.0, 5.0
RATE, POLITE = 250, 4
QUIET_SECONDS, AFTER_SECONDS = 0.5, 0.3
ANSWER_SECONDS_MAX = 100.0
BURST = 256


class Target(Struct, frozen=True):
    """A server's ports and folder, and the size of a request: 1.0 is the original size, less in a test."""

    memcache: int
    workq: int
    thrift: int
    admin: int
    folder: Path
    scale: float = 1.0

    def sized(self, count: int) -> int:
        return max(1, int(count * self.scale))


class Line:
    """A blocking connection; `measured` closes all of a row's."""

    opened: ClassVar[list[Line]] = []

    def __init__(self, port: int) -> None:
        self.opened.append(self)
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS_MAX)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    def close_all(cls) -> None:
        while cls.opened:
            cls.opened.pop().sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def hear(self, end: bytes, count: int = 1) -> None:
        """Read until `end` has come `count` times. Raises ServerFailed."""
        tail, seen = b"", 0
        while seen < count:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ServerFailed(f"hung up on after {seen} of {count} answers, the last bytes were {tail!r}")
            heard = tail + data
            seen += heard.count(end)
            tail = heard[1 - len(end) :] if len(end) > 1 else b""

    def ask(self, requests: list[bytes], end: bytes) -> None:
        """Send requests in bursts, and wait for the replies to each before the next."""
        for at in range(0, len(requests), BURST):
            some = requests[at : at + BURST]
            self.send(b"".join(some))
            self.hear(end, len(some))


Work = Callable[[Target], Iterator[None]]
"""A generator that prepares, yields, sends the request and waits for the replies, yields."""


class Row(Struct, frozen=True):
    """A request of the table. `is_large`: it asks for much, so others may wait longer. `flushes`: it also removes the
    items of the polite clients.
    """

    name: str
    work: Work
    is_large: bool = True
    flushes: bool = False

    @property
    def most_ms(self) -> float:
        return LARGE_MS_MAX if self.is_large else SMALL_MS_MAX


class Outcome(Struct, frozen=True):
    row: str
    turn_ms: float
    worst_ms: float
    quiet_ms: float
    most_ms: float

    @property
    def is_missed(self) -> bool:
        return self.turn_ms > self.most_ms


# what requests need


def names(count: int) -> list[bytes]:
    return [b"n%06d" % number for number in range(count)]


def put(queue: bytes, data: bytes) -> bytes:
    return b"set %b 0 0 %d\r\n%b\r\n" % (queue, len(data), data)


def make_queues(target: Target, count: int) -> None:
    Line(target.memcache).ask([put(name, b"x") for name in names(count)], b"STORED\r\n")


def make_jobs(target: Target, count: int) -> None:
    adds = [b"add %b %b 60000 3600000 1\r\nx\r\n" % (b"%08x-0000-4000-8000-%012x" % (at, at), name)
            for at, name in enumerate(names(count), 1)]  # fmt: skip
    Line(target.workq).ask(adds, b"+OK\r\n")


def http(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
    if method == "POST":
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def ask_http(target: Target, request: bytes) -> None:
    """Send a request, and read until the server disconnects. Raises ServerFailed."""
    line = Line(target.admin)
    line.send(request)
    begin = line.sock.recv(1 << 16)
    if not begin.startswith(b"HTTP/1.1 200"):
        raise ServerFailed(f"{begin[:300]!r}")
    while line.sock.recv(1 << 20):
        pass


# rows


def take_large(target: Target) -> Iterator[None]:
    line = Line(target.memcache)
    line.send(put(b"large", b"0123456789abcdef" * target.sized(100 << 16)))
    line.hear(b"STORED\r\n")
    yield
    ask_http(target, http("POST", "/api/queues/large/take", b"{}"))
    yield


def take_control_bytes(target: Target) -> Iterator[None]:
    line = Line(target.memcache)
    line.send(put(b"large", b"\1" * target.sized(16 << 20)))
    line.hear(b"STORED\r\n")
    yield
    ask_http(target, http("POST", "/api/queues/large/take", b"{}"))
    yield


def browse_control_bytes(target: Target) -> Iterator[None]:
    line = Line(target.memcache)
    line.send(put(b"large", b"\1" * target.sized(16 << 20)))
    line.hear(b"STORED\r\n")
    yield
    ask_http(target, http("GET", "/api/queues/large/items?limit=1&bytes=1048576"))
    yield


def browse_many(target: Target) -> Iterator[None]:
    Line(target.memcache).ask([put(b"large", b"\1" * 1000)] * target.sized(1000), b"STORED\r\n")
    yield
    ask_http(target, http("GET", "/api/queues/large/items?limit=1000&bytes=1048576"))
    yield


def stats_of_jobs(count: int, target: Target) -> Iterator[None]:
    make_jobs(target, target.sized(count))
    yield
    line = Line(target.memcache)
    line.send(b"stats\r\n")
    line.hear(b"END\r\n")
    yield


def inspect_queues(target: Target) -> Iterator[None]:
    make_jobs(target, target.sized(100_000))
    yield
    line = Line(target.workq)
    line.send(b"inspect queues 0 10\r\n" * 64)
    line.hear(b"+OK ", 64)
    yield


def open_reads(count: int, target: Target) -> Iterator[None]:
    """List the open reads of a memcache client, while a thrift client has `leases` leases."""
    leases = target.sized(count)
    line = Line(target.memcache)
    line.ask([put(b"leased", b"x")] * leases + [put(b"open", b"x")] * 1000, b"STORED\r\n")
    line.ask([b"get open/open\r\n"] * 1000, b"END\r\n")
    call, thrift = thrift_get(b"leased", 1000), Line(target.thrift)
    for _ in range(-(-leases // 1000)):
        thrift.send(call)
        left = int.from_bytes(exactly(thrift.sock, 4), "big")
        exactly(thrift.sock, left)
    yield
    ask_http(target, http("GET", "/api/queues/open/open?limit=1000"))
    yield


def thrift_get(queue: bytes, count: int) -> bytes:
    from thriftpy2.protocol.binary import TBinaryProtocol
    from thriftpy2.thrift import TMessageType

    from staniel.protocol.thrift.service import service

    sink = BytesIO()
    protocol = TBinaryProtocol(sink)
    protocol.write_message_begin("get", TMessageType.CALL, 1)
    protocol.write_struct(service.get_args(queue_name=queue.decode(), max_items=count, timeout_msec=0,
                                           auto_abort_msec=600_000))  # fmt: skip
    call = sink.getvalue()
    return len(call).to_bytes(4, "big") + call


def exactly(sock: socket.socket, size: int) -> bytes:
    heard = bytearray()
    while len(heard) < size:
        data = sock.recv(size - len(heard))
        if not data:
            raise ServerFailed("hung up on")
        heard += data
    return bytes(heard)


def waiters(count: int, behind: bytes, ends: int, end: str, target: Target) -> Iterator[None]:
    """Let `count` clients wait, each with 64 requests behind; their waits end in one turn, by a timer or a deletion."""
    count = target.sized(count)
    keys = [b"k%02d" % number for number in range(16)]
    owner = Line(target.memcache)
    owner.ask([put(key, b"x") for key in (*keys, b"waited")], b"STORED\r\n")
    owner.ask([b"get waited\r\n"], b"END\r\n")
    if end == "dump":
        make_queues(target, target.sized(1000))
    lines = [Line(target.memcache) for _ in range(count)]
    until = 8000 if end == "timer" else 600_000
    for line in lines:
        line.send(b"get waited/t=%d\r\n" % until + behind)
    time.sleep(0.5)
    yield
    if end != "timer":
        owner.send(b"delete waited\r\n")
        owner.hear(b"DELETED\r\n")
    for line in lines:
        line.hear(b"END\r\n", 1 + ends)
    yield


GETS = b"get k00 k01 k02 k03 k04 k05 k06 k07 k08 k09 k10 k11 k12 k13 k14 k15\r\n" * 64


def pipelined_gets(count: int, target: Target) -> Iterator[None]:
    """Let `count` clients each send 64 gets of 16 keys at once."""
    lines = [Line(target.memcache) for _ in range(target.sized(count))]
    lines[0].ask([put(b"k%02d" % number, b"x") for number in range(16)], b"STORED\r\n")
    yield
    for _ in range(3):
        for line in lines:
            line.send(GETS)
        for line in lines:
            line.hear(b"END\r\n", 64)
    yield


def reloads(count: int, target: Target) -> Iterator[None]:
    make_queues(target, target.sized(count))
    yield
    line = Line(target.memcache)
    line.send(b"reload\r\n" * 64)
    line.hear(b"\r\n", 64)
    yield


def reload_of_all(target: Target) -> Iterator[None]:
    """Reload a change of the settings of every queue."""
    make_queues(target, target.sized(10_000))
    file = target.folder / "staniel.toml"
    file.write_text(file.read_text().replace('"1s"', '"2s"'))
    yield
    line = Line(target.memcache)
    line.send(b"reload\r\n")
    line.hear(b"\r\n")
    yield


def pipeline(requests: bytes, end: bytes, count: int, target: Target) -> Iterator[None]:
    line = Line(target.memcache)
    line.ask([put(b"here", b"x")], b"STORED\r\n")
    yield
    line.send(requests)
    line.hear(end, count)
    yield


def pages(target: Target) -> Iterator[None]:
    make_queues(target, target.sized(1000))
    lines = []
    yield
    for _ in range(target.sized(256)):
        line = Line(target.admin)
        line.send(http("GET", "/api/events"))
        lines.append(line)
    until = time.monotonic() + 4
    changer = Line(target.memcache)
    while time.monotonic() < until:
        changer.ask([put(name, b"y") for name in names(target.sized(200))], b"STORED\r\n")
        for line in lines:
            line.sock.setblocking(False)
            try:
                while line.sock.recv(1 << 20):
                    pass
            except BlockingIOError:
                pass
        time.sleep(0.1)
    yield


def flush(request: bytes, end: bytes, queues: int, target: Target) -> Iterator[None]:
    line, left = Line(target.memcache), target.sized(1_000_000) // queues
    for name in names(queues):
        line.ask([put(name, b"x")] * left, b"STORED\r\n")
    yield
    line.send(request)
    line.hear(end)
    yield


def fan_out(target: Target) -> Iterator[None]:
    line = Line(target.memcache)
    line.ask([put(b"wide+c%04d" % number, b"x") for number in range(target.sized(1000))], b"STORED\r\n")
    yield
    line.send(put(b"wide", b"x") * 100)
    line.hear(b"STORED\r\n", 100)
    yield


def scrape(path: str, count: int, target: Target) -> Iterator[None]:
    make_queues(target, target.sized(count))
    yield
    ask_http(target, http("GET", path))
    yield


def of_open_reads(request: bytes, target: Target) -> Iterator[None]:
    """Send a request about all open reads of one client."""
    count = target.sized(100_000)
    line = Line(target.memcache)
    line.ask([put(b"open", b"x")] * count, b"STORED\r\n")
    line.ask([b"get open/open\r\n"] * count, b"END\r\n")
    yield
    line.send(request.replace(b"100000", b"%d" % count))
    line.hear(b"\r\n")
    yield


def rotation(target: Target) -> Iterator[None]:
    """Put until a file of the queue is full, while a client has many open reads; wait for its sidecar, too."""
    count, queue = target.sized(100_000), b"rotated"
    line = Line(target.memcache)
    line.ask([put(queue, b"x")] * count, b"STORED\r\n")
    line.ask([b"get rotated/open\r\n"] * count, b"END\r\n")
    yield
    line.ask([put(queue, b"x" * 1000)] * 4500, b"STORED\r\n")
    sidecars = target.folder / "spool" / ".staniel" / "segments"
    until = time.monotonic() + 20
    while not list(sidecars.glob("rotated.*")):
        if time.monotonic() > until:
            raise ServerFailed("no file was sealed")
        time.sleep(0.1)
    yield


def first_noted(target: Target) -> Iterator[None]:
    """Record an operation after 1 MB of lines of earlier runs, in both files."""
    folder = target.folder / "spool" / ".staniel"
    entry = AuditEntry(1, 1_700_000_000_000, "purge", "some queue", "", 12, Result.DONE, "", "127.0.0.1:40000", "admin")
    for name in NAMES:
        (folder / name).write_bytes((msgspec.json.encode(entry) + b"\n") * target.sized(2500))
    line = Line(target.memcache)
    line.ask([put(b"here", b"x")], b"STORED\r\n")
    yield
    line.send(b"flush here\r\n")
    line.hear(b"END\r\n")
    yield


FIRST = "the first request of an operator"
ROWS = (
    Row("take of a 100 MB item by HTTP", take_large),
    Row("take of 16 MB of control bytes by HTTP", take_control_bytes),
    Row("1 MB of a 16 MB item of control bytes on the page", browse_control_bytes),
    Row("1,000 items of 1 KB of control bytes on the page", browse_many),
    Row("stats with 10,000 job names", partial(stats_of_jobs, 10_000)),
    Row("stats with 100,000 job names", partial(stats_of_jobs, 100_000)),
    Row("64 x inspect queues with 100,000 job names", inspect_queues),
    Row("1,000 open reads beside 2,000 leases", partial(open_reads, 2_000)),
    Row("1,000 open reads beside 20,000 leases", partial(open_reads, 20_000)),
    Row("1,000 open reads beside 60,000 leases", partial(open_reads, 60_000)),
    Row("64 waits end at once, 64 gets of 16 keys behind each", partial(waiters, 64, GETS, 64, "timer")),
    Row("256 waits end at once, 64 gets of 16 keys behind each", partial(waiters, 256, GETS, 64, "timer")),
    Row("256 waiters of a deleted queue, the same behind each", partial(waiters, 256, GETS, 64, "delete")),
    Row("256 waiters of a deleted queue, 1,000 queues' dump_config",
        partial(waiters, 256, b"dump_config\r\n", 1, "dump")),
    Row("64 gets of 16 keys by each of 64 clients at once", partial(pipelined_gets, 64)),
    Row("64 reloads in one pipeline, 1,000 queues", partial(reloads, 1_000)),
    Row("64 reloads in one pipeline, 10,000 queues", partial(reloads, 10_000)),
    Row("a reload that changes 10,000 queues", reload_of_all),
    Row("400 x status in one pipeline",
        partial(pipeline, b"status writeavoid\r\nstatus up\r\n" * 200, b"END\r\n", 400), is_large=False),
    Row("400 x pause and resume in one pipeline",
        partial(pipeline, b"pause here\r\nresume here\r\n" * 200, b"OK\r\n", 400), is_large=False),
    Row("256 pages follow the stream of events", pages),
    Row("flush of 1,000,000 items", partial(flush, b"flush n000000\r\n", b"END\r\n", 1)),
    Row("flush_all of 1,000,000 items in 100 queues", partial(flush, b"flush_all\r\n", b"\r\n", 100), flushes=True),
    Row("100 puts to a queue with 1,000 children", fan_out),
    Row("/metrics with 10,000 queues", partial(scrape, "/metrics", 10_000)),
    Row("/stats.json with 10,000 queues", partial(scrape, "/stats.json", 10_000)),
    Row("/api/queues with 10,000 queues", partial(scrape, "/api/queues", 10_000)),
    Row("touch of 100,000 open reads", partial(of_open_reads, b"touch open 0\r\n")),
    Row("confirm of 100,000 open reads", partial(of_open_reads, b"confirm open 100000\r\n")),
    Row("a rotation beside 100,000 open reads", rotation),
    Row("the first operation noted after a start", first_noted, is_large=False),
    Row(FIRST, partial(scrape, "/ping", 10)),
)  # fmt: skip


# measured


def measured(row: Row, checkout: Path, scale: float = 1.0) -> Outcome:
    """Measure a server of its own, with polite clients, before and during the request. Raises ServerFailed."""
    with tempfile.TemporaryDirectory(prefix="bench-turns-") as folder, ExitStack() as stack:
        longest = Longest(Path(folder) / "longest")
        program = [interpreter(checkout), str(ROOT / "bench" / "own" / "turns.py"), str(longest.path)]
        server = stack.enter_context(served(CONFIG, None, program, checkout))
        target = target_at(server, scale)
        work = row.work(target)
        stack.callback(Line.close_all)
        next(work)
        if row.name != FIRST:
            ask_http(target, http("GET", "/ping"))
        quiet_ms = polite(server, lambda: time.sleep(QUIET_SECONDS))
        longest.forget()
        worst_ms = polite(server, lambda: next(work), flushes=row.flushes)
        return Outcome(row.name, round(longest.ms(), 2), worst_ms, quiet_ms, row.most_ms)


def target_at(server: Served, scale: float) -> Target:
    memcache, workq, admin, thrift = server.ports
    return Target(memcache, workq, thrift, admin, server.folder, scale)


def polite(server: Served, meanwhile: Callable[[], None], *, flushes: bool = False) -> float:
    """Return the worst delay of the polite clients, whose items `meanwhile` may flush. Raises ServerFailed."""
    probe = Probe(server.port, "polite", RATE, OUR_CORE, POLITE)
    try:
        time.sleep(0.1)
        meanwhile()
        time.sleep(AFTER_SECONDS)
        delays = probe.collect_delays()
    except BaseException:
        probe.kill()
        raise
    if delays.harm and not (flushes and delays.gone):
        raise ServerFailed(f"the polite clients: {delays.harm}")
    return delays.max_ms


def head() -> str:
    return f"{'request':<56}{'turn ms':>9}{'worst ms':>10}{'quiet':>8}{'bar':>6}"


def line(found: Outcome) -> str:
    figures = f"{found.turn_ms:>9.1f}{found.worst_ms:>10.1f}{found.quiet_ms:>8.1f}{found.most_ms:>6.0f}"
    return f"{found.row:<56}{figures}{'  MISSED' if found.is_missed else ''}"


@click.command()
@click.option("--only", multiple=True, metavar="WORD", help="Rows with this in their name; may be given again.")
@click.option(
    "--server",
    "checkout",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=ROOT,
    metavar="FOLDER",
    help="The checkout whose server is asked, run by its own .venv if it has one.  [default: this one]",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the rows here.")
def main(only: tuple[str, ...], checkout: Path, json_file: Path | None) -> None:
    """Send each request once, and show how long the others waited.

    Exit status: 0 no turn took more of its thread's time than the bar; 1 one did, or a measurement failed.
    """
    rows = [row for row in ROWS if not only or any(word in row.name for word in only)]
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    click.echo(head())
    found, failures = list[Outcome](), 0
    for row in rows:
        try:
            found.append(measured(row, checkout.resolve()))
        except (ServerFailed, OSError, subprocess.TimeoutExpired) as error:
            failures += 1
            click.echo(f"{row.name:<56}  FAILED: {error}")
        else:
            click.echo(line(found[-1]))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    sys.exit(failures > 0 or any(share.is_missed for share in found))


if __name__ == "__main__":
    exit_on_signals()
    main()
