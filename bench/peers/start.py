"""The duration of a start: from the creation of a process to its first reply, with nothing to recover and with a
million items, ours and redis in turns; also of the interpreter alone, and of `staniel --version`.

The table shows the best and the median of all rounds, because a busy machine only adds time. Processor time is the
process's own and the kernel's on its behalf, up to its reply.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import machine
from staniel.bench.harness.contestant import START_SECONDS_MAX, Contestant, Launch, Sync
from staniel.bench.harness.machine import cores
from staniel.bench.harness.process import StartFailed, child_setup, exit_on_signals, free_port
from staniel.bench.peers.servers import PEERS, ours, present

ITEM = b"x" * 100
BURST = 1_000
POLL_SECONDS = 0.0005
PROGRAM = f"{shlex.quote(sys.executable)} -m staniel"
SERVE = "serve --port {port} --spool {dir} --sync {sync}"
SERVER_CORE, _ = cores()


class Took(Struct, frozen=True):
    """A start. `what` is a row of the table."""

    what: str
    who: str
    wall_ms: float
    cpu_ms: float


class Words(Struct, frozen=True):
    """The requests to a server: one that needs no items, one that takes an item, one that puts it; and the beginning of
    the reply to a put.
    """

    hello: bytes
    get: bytes
    put: bytes
    stored: bytes


WORDS = {
    "memcache": Words(b"version\r\n", b"get q\r\n", b"set q 0 0 %d\r\n%b\r\n" % (len(ITEM), ITEM), b"STORED\r\n"),
    "redis": Words(b"PING\r\n", b"RPOP q\r\n", b"LPUSH q %b\r\n" % ITEM, b":"),
}


def ended(command: Sequence[str]) -> tuple[float, float]:
    """Return the milliseconds until a command has ended: by the clock, and of the processor. Raises StartFailed."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=child_setup(SERVER_CORE))
    _, status, used = os.wait4(child.pid, 0)
    wall_ms = (time.perf_counter() - began) * 1000
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise StartFailed(f"{shlex.join(command)} ended with status {child.returncode}")
    return wall_ms, (used.ru_utime + used.ru_stime) * 1000


@contextmanager
def started(contestant: Contestant, folder: Path, request: bytes) -> Iterator[tuple[socket.socket, bytes, Took]]:
    """Yield a connection to a server on `folder`, its first reply and how long that took. Raises StartFailed."""
    port = free_port()
    command = contestant.command(Launch(port, folder, Sync.JOURNALED))
    with (folder / "bench-log").open("wb") as log:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=child_setup(SERVER_CORE)
        )
        try:
            sock, answer = first_answer(child, port, request)
            wall_ms = (time.perf_counter() - began) * 1000
            with closing(sock):
                yield sock, answer, Took("", contestant.name, wall_ms, cpu_ms(child.pid))
        finally:
            child.kill()
            child.wait()


def first_answer(child: subprocess.Popen[bytes], port: int, request: bytes) -> tuple[socket.socket, bytes]:
    """Return a connection to a starting server, and its reply to `request`. Raises StartFailed."""
    give_up = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up and child.poll() is None:
        try:
            sock = socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS_MAX)
        except ConnectionRefusedError:
            time.sleep(POLL_SECONDS)
            continue
        sock.sendall(request)
        answer = sock.recv(1 << 16)
        if answer and not answer.startswith(b"-LOADING"):  # redis accepts clients before it serves them
            return sock, answer
        sock.close()
        time.sleep(POLL_SECONDS)
    raise StartFailed(f"no answer on port {port}")


def cpu_ms(pid: int) -> float:
    """Return the processor time of a process so far, from the process's clock as Linux numbers it."""
    return time.clock_gettime((~pid << 3) | 2) * 1000


def fill(contestant: Contestant, folder: Path, items: int) -> None:
    """Put `items` items, and kill the server. Raises StartFailed."""
    words = WORDS[contestant.proto]
    with started(contestant, folder, words.hello) as (sock, _, _):
        for _ in range(0, items, BURST):
            sock.sendall(words.put * BURST)
            heard = b""
            while heard.count(b"\n") < BURST:
                heard += sock.recv(1 << 16)
            if heard.count(words.stored) != BURST:
                raise StartFailed(f"{contestant.name} does not take items")


def empty_start(contestant: Contestant, base: Path) -> Took:
    """Measure a start in an empty folder, to the reply to a request that needs no items."""
    folder = Path(tempfile.mkdtemp(prefix="bench-start-", dir=base))
    try:
        with started(contestant, folder, WORDS[contestant.proto].hello) as (_, _, took):
            return msgspec.structs.replace(took, what="empty start")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restart(contestant: Contestant, folder: Path, what: str) -> Took:
    """Measure a start after a kill, to the first item. Raises StartFailed if it is not the item that was put."""
    with started(contestant, folder, WORDS[contestant.proto].get) as (_, answer, took):
        if ITEM not in answer:
            raise StartFailed(f"{contestant.name} answers {answer[:80]!r}")
        return msgspec.structs.replace(took, what=what)


def measure(contestants: Sequence[Contestant], program: str, rounds: int, items: int, base: Path) -> Iterator[Took]:
    """Yield every start as it ends, round after round. Raises StartFailed."""
    folders = {one.name: Path(tempfile.mkdtemp(prefix=f"bench-start-{one.name}-", dir=base)) for one in contestants}
    commands = {"interpreter alone": [sys.executable, "-c", "pass"], "--version": [*shlex.split(program), "--version"]}
    try:
        for one in contestants:
            fill(one, folders[one.name], items)
        for number in range(rounds):
            for what, command in commands.items():
                yield Took(what, contestants[0].name, *ended(command))
            turns = contestants if number % 2 == 0 else contestants[::-1]
            yield from (empty_start(one, base) for one in turns)
            yield from (restart(one, folders[one.name], f"restart, {items:,} items") for one in turns)
    finally:
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)


def lines(found: Sequence[Took]) -> Iterator[str]:
    """Yield the table: a line for each row and server."""
    yield f"{'':28}{'':10}{'clock, ms: best':>17}{'median':>10}{'processor, ms: best':>22}{'median':>10}"
    for what, who in dict.fromkeys((took.what, took.who) for took in found):
        mine = [took for took in found if (took.what, took.who) == (what, who)]
        figures: list[Callable[[Took], float]] = [lambda took: took.wall_ms, lambda took: took.cpu_ms]
        text = "".join(
            f"{min(map(figure, mine)):{width}.1f}{median(map(figure, mine)):10.1f}"
            for figure, width in zip(figures, (17, 22), strict=True)
        )
        yield f"{what:28}{who:10}{text}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="How often each is started.")
@click.option("--items", default=1_000_000, show_default=True, type=click.IntRange(BURST), help="To restart with.")
@click.option("--program", default=PROGRAM, metavar="COMMAND", help="Our command line, for --version and serve.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Also write every run here.")
def main(rounds: int, items: int, program: str, json_path: Path | None) -> None:
    """Measure starts of our server, beside redis if that is installed.

    Exit status: 0 all replied, 1 one did not.
    """
    contestants = [ours(f"{program} {SERVE}"), *(one for one in PEERS if one.proto == "redis" and present(one))]
    if sys.dont_write_bytecode:
        click.echo(
            "warning: bytecode files are not written here; a start compiles the modules that have none", err=True
        )
    before = machine.ticks()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-start-") as base:
            found = list(measure(contestants, program, rounds, items - items % BURST, Path(base)))
    except StartFailed as failure:
        click.echo(f"bench.start: {failure}", err=True)
        sys.exit(1)
    click.echo("\n".join(lines(found)))
    for warning in machine.busy_warning(machine.others_cores(before, machine.ticks())):
        click.echo(f"warning: {warning}", err=True)
    if json_path is not None:
        json_path.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    exit_on_signals()
    main()
