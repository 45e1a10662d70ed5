"""An ordinary client's delays while a server is attacked in five ways, one after the other, with a rest before each.

The attackers are a process of their own on the client's core, so the delays include the machine's share.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.synchronize import Event
from pathlib import Path

import click
from msgspec import Struct

from staniel.bench.harness import chart, machine
from staniel.bench.harness.probe import MORE_URGENT, percentile
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import OUR_CORE, Client, Served, ServerFailed, served
from staniel.bench.own.crowds import drip, idle, slow

CONFIG = """
[server]
stall_timeout = "10m"
[default]
sync_journal = "1s"
[tls]
certificate = "%s"
[memcache]
tls_port = 0
"""
EVERY_S = 0.02
WINDOW_S = 0.5
FLOOD = b"get nothing\r\n" * 5_000
GARBAGE_BYTES = 4096
TIMEOUT_S = 10.0


class Attack(Struct, frozen=True):
    """An attack. `work` runs until it is told to stop."""

    name: str
    work: Callable[[Served, int, Event], None]
    count: int


class Sample(Struct, frozen=True):
    """A put and a get: the time when they were sent, in seconds, and the delay of their replies."""

    at: float
    delay_ms: float


class Story(Struct, frozen=True):
    samples: list[Sample]
    spans: list[chart.Span]


def crowd_idle(server: Served, count: int, over: Event) -> None:
    _socks = idle(server, count)
    over.wait()


def crowd_slow(server: Served, count: int, over: Event) -> None:
    socks = slow(server, count)
    while not over.is_set():
        drip(socks, 0.2)


def handshakes(server: Served, count: int, over: Event) -> None:
    """Make whole handshakes, one after the other."""
    context = trusting()
    while not over.is_set():
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", server.ports[1]), TIMEOUT_S) as sock,
            context.wrap_socket(sock),
        ):
            pass


def flood(server: Served, count: int, over: Event) -> None:
    """Open `count` connections that send requests as fast as they are served, in pipelines of thousands."""
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as first:
        socks = [first, *(socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) for _ in range(count - 1))]
        for sock in socks:
            sock.setblocking(False)
        while not over.is_set():
            for sock in socks:
                with suppress(BlockingIOError):
                    sock.send(FLOOD)
                with suppress(BlockingIOError):
                    sock.recv(1 << 18)


def garbage(server: Served, count: int, over: Event) -> None:
    """Open connections that send noise, to the plain port and to the one for TLS in turns."""
    number = 0
    while not over.is_set():
        number += 1
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", server.ports[number % 2]), TIMEOUT_S) as sock,
        ):
            sock.sendall(os.urandom(GARBAGE_BYTES))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass


def attacks(idle_count: int, slow_count: int) -> list[Attack]:
    return [
        Attack(f"{idle_count:,} idle", crowd_idle, idle_count),
        Attack(f"{slow_count:,} slow", crowd_slow, slow_count),
        Attack("TLS handshakes", handshakes, 1),
        Attack("flood of requests", flood, 4),
        Attack("garbage", garbage, 1),
    ]


def observe(client: Client, began: float, seconds: float) -> list[Sample]:
    """Send a put and a get together, EVERY_S apart. The client waits for its replies, so a late one delays the next.
    Raises ServerFailed.
    """
    samples, sent = list[Sample](), time.monotonic()
    end = sent + seconds
    while sent < end:
        client.sock.sendall(b"set ordinary 0 0 4\r\nitem\r\nget ordinary\r\n")
        if client.hear(b"END\r\n") != b"STORED\r\nVALUE ordinary 0 4\r\nitem\r\nEND\r\n":
            raise ServerFailed("a wrong answer")
        passed = time.monotonic() - sent
        samples.append(Sample(sent - began, passed * 1000))
        time.sleep(max(0.0, EVERY_S - passed))
        sent = time.monotonic()
    return samples


def measured(chosen: Sequence[Attack], seconds: float) -> Story:
    """Run each attack for `seconds`, with half of that quiet before it. Raises ServerFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-besieged-") as folder,
        served(CONFIG % certificate(Path(folder))) as server,
        ExitStack() as stack,
    ):
        client, began = Client(server), time.monotonic()
        stack.callback(os.setpriority, os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
        with suppress(OSError):  # the core is shared with the attackers; only root may do this
            os.setpriority(os.PRIO_PROCESS, 0, MORE_URGENT)
        story = Story([], [])
        for attack in chosen:
            story.samples.extend(observe(client, began, seconds / 2))
            start = time.monotonic() - began
            story.samples.extend(under(attack, server, client, began, seconds))
            story.spans.append(chart.Span(attack.name, start, time.monotonic() - began))
        client.sock.close()
    return story


def under(attack: Attack, server: Served, client: Client, began: float, seconds: float) -> list[Sample]:
    forked = multiprocessing.get_context("fork")
    over = forked.Event()
    attacker = forked.Process(target=attacking, args=(attack, server, over), daemon=True)
    attacker.start()
    try:
        samples = observe(client, began, seconds)
        if not attacker.is_alive():
            raise ServerFailed(f"{attack.name}: the attacker has ended")
    finally:
        over.set()
        attacker.join(TIMEOUT_S)
        attacker.kill()
    return samples


def attacking(attack: Attack, server: Served, over: Event) -> None:
    """Attack in a process of its own, with a lower priority than the ordinary client."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    attack.work(server, attack.count, over)


def trusting() -> ssl.SSLContext:
    """Return a context for a client that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def certificate(folder: Path) -> Path:
    """Make a self-signed certificate of P-256, with its key in the same file."""
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=localhost", "-keyout", str(path), "-out", str(folder / "public.pem")]
    subprocess.run(command, check=True, capture_output=True)
    with path.open("ab") as file:
        file.write((folder / "public.pem").read_bytes())
    return path


def picture(story: Story) -> str:
    """Draw the median and the longest delay of each window over time, with the attacks shaded."""
    windows: dict[int, list[float]] = {}
    for one in story.samples:
        windows.setdefault(int(one.at / WINDOW_S), []).append(one.delay_ms)
    shares = (("half within", 0.5), ("longest", 1.0))
    lines = [
        chart.Line(name, [(at * WINDOW_S, percentile(sorted(some), share)) for at, some in sorted(windows.items())])
        for name, share in shares
    ]
    spans = list[chart.Span]()
    for span in story.spans:  # every second one is shaded, so the rests between get spans without a name
        spans += [chart.Span("", spans[-1].end, span.start), span] if spans else [span]
    return chart.over_time("An ordinary client's put and get, beside attacks", [chart.Panel("ms", lines)], spans)


def table(story: Story) -> list[str]:
    """Return the median and the p99 of the delays in each attack, and in the rests."""
    rows = [f"{'attack':<20}{'requests':>9}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"]
    quiet = [one for one in story.samples if not any(span.start <= one.at < span.end for span in story.spans)]
    parts = [("none", quiet)]
    parts += [(span.name, [one for one in story.samples if span.start <= one.at < span.end]) for span in story.spans]
    for name, some in parts:
        ms = sorted(one.delay_ms for one in some)
        figures = "".join(f"{percentile(ms, share):>9.2f}" for share in (0.5, 0.99, 1.0))
        rows.append(f"{name:<20}{len(ms):>9}{figures}")
    return rows


@click.command()
@click.option("--idle", "idle_count", default=5_000, show_default=True, help="Clients that say nothing.")
@click.option("--slow", "slow_count", default=1_000, show_default=True, help="Clients that send a byte in 10 s.")
@click.option("--seconds", default=10.0, show_default=True, help="Of each attack; half of it quiet before it.")
@click.option("--chart", "chart_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here, as SVG.")
def main(idle_count: int, slow_count: int, seconds: float, chart_file: Path | None) -> None:
    """Show an ordinary client's delays while others attack. Exit status: 1 if it was not served."""
    before = machine.ticks()
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    try:
        story = measured(attacks(idle_count, slow_count), seconds)
    except (ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo("\n".join(table(story)))
    for warning in machine.busy_warning(machine.others_cores(before, machine.ticks())):
        click.echo(f"warning: {warning}", err=True)
    if chart_file:
        chart_file.write_text(picture(story))


if __name__ == "__main__":
    exit_on_signals()
    main()
