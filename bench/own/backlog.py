"""The cost of a backlog far larger than memory: memory, disk, a restart, the drain, and requests meanwhile.

A backlog that fits into memory comes first, then the large one, a kill, a restart, the drain, and the small one again.
The drain goes in slices with a small backlog between them, because machines change their speed within a minute. Every
item is numbered, and all must come back, once, whole and in order.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness import chart, machine
from staniel.bench.harness.probe import Delays, Probe
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import BURST, OUR_CORE, Client, Served, ServerFailed, served

GIB, MIB = 1 << 30, 1 << 20
PROBE_RATE = 500  # requests a second
RESTART_SECONDS_MAX = 5.0
SMALL_SHARE = 0.5  # of the memory bound: the backlog that fits
SMALL_ROUNDS = 3  # before the large backlog, and as many after
DRAIN_SLICES = 8
BETWEEN_SHARE = 0.125  # of the memory bound: the backlog between two slices
POOL = bytes(33 + 7 * number * number % 94 for number in range(1 << 16))
SIZES = {"KB": 1 << 10, "MB": MIB, "GB": GIB}


class Part(Struct, frozen=True):
    """A phase of the run: `items` in `seconds`, from `start` on, and the polite client's delays meanwhile.
    `cpu_seconds`: the processor time of all threads, the server's own and the kernel's for it.
    """

    name: str
    start: float
    seconds: float
    items: int
    cpu_seconds: float
    delays: Delays | None = None

    @property
    def rate(self) -> float:
        return self.items / self.seconds

    @property
    def cpu_us(self) -> float:
        """The microseconds of processor for each item."""
        return 1e6 * self.cpu_seconds / self.items


class Sample(Struct, frozen=True):
    """A sample, taken once a second."""

    at: float
    rss_mb: float
    disk_gib: float


class Outcome(Struct, frozen=True):
    """The result. `drain_shares`: for each slice of the large drain, its rate divided by the rates of the small drains
    before and after it. `drain_cpu_shares`: the same for processor seconds, which a host that takes the processor away
    does not change.
    """

    machine: machine.Machine
    others_cores: float
    item_bytes: int
    memory_bytes: int
    rss_bound_mb: float
    rss_most_mb: float
    restart_seconds: float
    drain_shares: list[float]
    drain_cpu_shares: list[float]
    parts: list[Part]
    samples: list[Sample]


def size(text: str) -> int:
    """Return the bytes of "128MB". Raises ValueError."""
    found = re.fullmatch(r"(\d+)(KB|MB|GB)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a size like 128MB")
    return int(found[1]) * SIZES[found[2]]


class Items:
    """The items of one queue, by their number: every byte is known without keeping any."""

    def __init__(self, queue: bytes, item_bytes: int, count: int) -> None:
        self._head = b"set %b 0 0 %d\r\n" % (queue, item_bytes)
        self._shown = b"VALUE %b 0 %d\r\n" % (queue, item_bytes)
        self.get = b"get %b\r\n" % queue
        self.numbers = range(count)
        self._rest_bytes = item_bytes - 16
        self._pool = POOL * (2 + item_bytes // len(POOL))

    def data(self, number: int) -> bytes:
        at = number * 7919 % len(POOL)
        return b"%016d" % number + self._pool[at : at + self._rest_bytes]

    def puts(self, first: int, count: int) -> tuple[bytes, bytes]:
        """Return requests, and their expected replies."""
        sets = [self._head + self.data(number) + b"\r\n" for number in range(first, first + count)]
        return b"".join(sets), b"STORED\r\n" * count

    def gets(self, first: int, count: int) -> tuple[bytes, bytes]:
        shown = [self._shown + self.data(number) + b"\r\nEND\r\n" for number in range(first, first + count)]
        return self.get * count, b"".join(shown)


def exchange(server: Served, burst_of: Callable[[int, int], tuple[bytes, bytes]], numbers: range) -> None:
    """Exchange items with these numbers, two bursts in flight. Raises ServerFailed at the first unexpected byte."""
    sock = Client(server).sock
    in_flight: list[tuple[int, bytes]] = []
    with sock:
        for first in numbers[::BURST]:
            requests, wanted = burst_of(first, min(BURST, numbers.stop - first))
            sock.sendall(requests)
            in_flight.append((first, wanted))
            if len(in_flight) == 2:
                hear(sock, *in_flight.pop(0))
        for first, wanted in in_flight:
            hear(sock, first, wanted)


def hear(sock: socket.socket, first: int, wanted: bytes) -> None:
    """Compare the received bytes with the expected ones. Raises ServerFailed."""
    heard = bytearray(len(wanted))
    view, got = memoryview(heard), 0
    while got < len(wanted):
        count = sock.recv_into(view[got:])
        if not count:
            raise ServerFailed(f"the server hung up within the burst of item {first}")
        got += count
    if heard != wanted:
        at = next(at for at, (one, other) in enumerate(zip(heard, wanted, strict=True)) if one != other)
        raise ServerFailed(f"burst of item {first}: {bytes(heard[at : at + 60])!r} instead of {wanted[at : at + 60]!r}")


class Watch(threading.Thread):
    """A thread that notes resident size and disk use once a second, until it is stopped."""

    def __init__(self, server: Served, began: float) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self._server = server
        self._began = began
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1.0):
            self.add_sample()

    def add_sample(self) -> None:
        try:
            rss_mb = self._server.rss_kb() / 1024
        except (FileNotFoundError, IndexError):
            rss_mb = 0.0  # just being killed
        disk = disk_bytes(self._server.folder / "spool") / GIB
        self.samples.append(Sample(round(time.monotonic() - self._began, 2), round(rss_mb, 1), round(disk, 3)))

    def stop(self) -> None:
        self._over.set()
        self.join()


def disk_bytes(folder: Path) -> int:
    """Return the size of the blocks of the files of `folder`, without files that are renamed meanwhile."""
    total = 0
    for name in os.listdir(folder):
        try:
            total += (folder / name).stat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


class Story:
    """The run so far."""

    def __init__(self, server: Served) -> None:
        self.server = server
        self.began = time.monotonic()
        self.parts: list[Part] = []
        self.watch = Watch(server, self.began)
        self.rss_most_mb = 0.0

    def part(self, name: str, items: int, work: Callable[[], None]) -> None:
        """Run `work` with the polite client beside it. Raises ServerFailed."""
        probe = Probe(self.server.port, "small", PROBE_RATE, OUR_CORE)
        try:
            start, used_ms = time.monotonic(), self.server.cpu_ms()
            work()
            seconds, used_ms = time.monotonic() - start, self.server.cpu_ms() - used_ms
            delays = probe.collect_delays()
        except BaseException:
            probe.kill()
            raise
        if delays.harm:
            raise ServerFailed(f"the polite client, during {name}: {delays.harm}")
        self.add(Part(name, round(start - self.began, 2), round(seconds, 3), items, round(used_ms / 1000, 3), delays))

    def add(self, part: Part) -> None:
        self.parts.append(part)
        self.rss_most_mb = max(self.rss_most_mb, self.server.most_rss_kb() / 1024)
        click.echo(line(part), err=True)

    def restart(self, first: bytes, wanted: bytes) -> float:
        """Kill the server with SIGKILL, and start it again. Return the seconds until the first item is shown. Raises
        ServerFailed.
        """
        start = time.monotonic()
        self.server.kill()
        self.server.start()
        with Client(self.server).sock as sock:
            sock.sendall(first)
            hear(sock, 0, wanted)
        seconds = time.monotonic() - start
        used = round(self.server.cpu_ms() / 1000, 3)
        self.add(Part("restart", round(start - self.began, 2), round(seconds, 3), 1, used))
        return seconds


def measure(server: Served, item_bytes: int, memory_bytes: int, backlog_bytes: int) -> tuple[Story, float]:
    """Make the whole run. Return the story, and the restart in seconds. Raises ServerFailed."""
    story = Story(server)
    story.watch.start()
    try:
        fits = Items(b"fits", item_bytes, max(BURST, int(memory_bytes * SMALL_SHARE) // item_bytes))
        between = Items(b"fits", item_bytes, max(BURST, int(memory_bytes * BETWEEN_SHARE) // item_bytes))
        large = Items(b"large", item_bytes, backlog_bytes // item_bytes)
        small_rounds(story, fits)
        story.part("fill", len(large.numbers), partial(exchange, server, large.puts, large.numbers))
        _, shown = large.gets(0, 1)
        restart_seconds = story.restart(b"get large/peek\r\n", shown.replace(b"large", b"large/peek", 1))
        slice_items = -(-len(large.numbers) // DRAIN_SLICES)
        for first in large.numbers[::slice_items]:
            some = large.numbers[first : first + slice_items]
            story.part("drain", len(some), partial(exchange, server, large.gets, some))
            small_round(story, between)
        empty(server, b"large")
        small_rounds(story, fits)
        story.watch.add_sample()
    finally:
        story.watch.stop()
    return story, restart_seconds


def drain_shares(parts: list[Part]) -> tuple[list[float], list[float]]:
    """Return the shares of the clock and of the processor; see Outcome."""
    drains = [part for part in parts if part.name.startswith("drain")]
    shares, cpu_shares = [], []
    for before, one, after in zip(drains, drains[1:], drains[2:], strict=False):
        if one.name == "drain":
            shares.append(round(2 * one.rate / (before.rate + after.rate), 3))
            cpu_shares.append(round((before.cpu_us + after.cpu_us) / (2 * one.cpu_us), 3))
    return shares, cpu_shares


def small_rounds(story: Story, fits: Items) -> None:
    for _ in range(SMALL_ROUNDS):
        small_round(story, fits)


def small_round(story: Story, fits: Items) -> None:
    story.part("fill in memory", len(fits.numbers), partial(exchange, story.server, fits.puts, fits.numbers))
    story.part("drain in memory", len(fits.numbers), partial(exchange, story.server, fits.gets, fits.numbers))


def empty(server: Served, queue: bytes) -> None:
    """Check that no more items come from the disk than were put. Raises ServerFailed."""
    with Client(server).sock as sock:
        sock.sendall(b"get %b\r\n" % queue)
        hear(sock, -1, b"END\r\n")


# what is shown


def line(part: Part) -> str:
    text = f"{part.name:<18}{part.start:>9.1f} s{part.seconds:>10.2f} s{part.items:>12,}"
    if part.items > 1:
        text += f"{part.rate / 1000:>9.1f} k/s{part.cpu_us:>9.2f}"
    if part.delays is not None:
        one = part.delays
        text += f"{one.requests:>9,}" + "".join(
            f"{ms:>9.2f}" for ms in (one.p50_ms, one.p99_ms, one.p999_ms, one.max_ms)
        )
    return text


def table(outcome: Outcome) -> Iterator[str]:
    words = f"{'part':<18}{'from':>11}{'took':>12}{'items':>12}{'rate':>13}{'cpu us':>9}{'asked':>9}"
    yield words + "".join(f"{name:>9}" for name in ("p50 ms", "p99", "p99.9", "max"))
    yield from map(line, outcome.parts)
    backlog = max(part.items for part in outcome.parts) * outcome.item_bytes
    shares, cpu_shares = map(spread, (outcome.drain_shares, outcome.drain_cpu_shares))
    yield ""
    yield f"backlog            {backlog / GIB:.2f} GiB of {outcome.item_bytes} byte items"
    bound = f"{outcome.rss_bound_mb:.0f} (max_memory_size x 1.5 + 64 MB)"
    yield f"memory, most       {outcome.rss_most_mb:.0f} MB, of {bound}"
    yield f"first get          {outcome.restart_seconds:.2f} s after kill -9 and start, of {RESTART_SECONDS_MAX:.0f} s"
    yield f"drain              {shares} of the rate at which a backlog in memory is drained"
    yield f"                   {cpu_shares} by what an item costs in processor time"
    yield f"disk at the end    {outcome.samples[-1].disk_gib:.2f} GiB"


def spread(shares: list[float]) -> str:
    return f"{median(shares):.2f} ({min(shares):.2f}..{max(shares):.2f})"


def picture(outcome: Outcome) -> str:
    """Draw resident size and disk over time."""
    samples = outcome.samples
    rss = chart.Line("resident size", [(one.at, one.rss_mb) for one in samples])
    disk = chart.Line("files on the disk", [(one.at, one.disk_gib) for one in samples])
    spans = []
    for name in ("fill", "restart", "drain"):
        large = [one for one in outcome.parts if one.name == name]
        spans.append(chart.Span(name, large[0].start, large[-1].start + large[-1].seconds))
    bound = ("max_memory_size x 1.5 + 64 MB", outcome.rss_bound_mb)
    panels = [chart.Panel("MB", [rss], bound), chart.Panel("GiB", [disk])]
    backlog = max(part.items for part in outcome.parts) * outcome.item_bytes / GIB
    memory = outcome.memory_bytes // MIB
    title = f"{backlog:.1f} GiB of {outcome.item_bytes} byte items, max_memory_size {memory} MB"
    return chart.over_time(title, panels, spans)


@contextmanager
def failures_as_messages() -> Iterator[None]:
    try:
        yield
    except (ServerFailed, OSError) as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.option("--gib", type=click.FloatRange(min=0.001), default=10.0, show_default=True, help="The backlog.")
@click.option("--item", "item_bytes", type=click.IntRange(min=32), default=1024, show_default=True, help="Bytes each.")
@click.option("--memory", default="128MB", show_default=True, help="max_memory_size of every queue.")
@click.option("--dir", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="For the files.")
@click.option("--chart", "chart_file", type=click.Path(dir_okay=False, path_type=Path), help="Draw it here, as SVG.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all of it here.")
def main(
    gib: float, item_bytes: int, memory: str, folder: Path | None, chart_file: Path | None, json_file: Path | None
) -> None:
    """Measure a backlog far larger than memory.

    Exit status: 0 every item came back in its order and the bounds held; 1 they did not; 2 wrong options.
    """
    try:
        memory_bytes = size(memory)
    except ValueError as error:
        raise click.UsageError(f"--memory: {error}") from None
    if OUR_CORE is not None:
        os.sched_setaffinity(0, {OUR_CORE})
    config = f'[default]\nsync_journal = "1s"\nmax_memory_size = "{memory}"\n'
    before = machine.ticks()
    with failures_as_messages(), served(config, folder) as server:
        facts = machine.facts(server.folder, [])
        story, restart_seconds = measure(server, item_bytes, memory_bytes, int(gib * GIB))
    # The server must be killed before it is reaped: until then its time would count as another program's.
    others = machine.others_cores(before, machine.ticks())
    bound_mb = (1.5 * memory_bytes + 64 * MIB) / MIB
    shares, cpu_shares = drain_shares(story.parts)
    outcome = Outcome(
        facts, round(others, 3), item_bytes, memory_bytes, bound_mb, round(story.rss_most_mb, 1),
        round(restart_seconds, 3), shares, cpu_shares, story.parts, story.watch.samples,
    )  # fmt: skip
    click.echo("\n".join(table(outcome)))
    for warning in machine.busy_warning(others):
        click.echo(f"warning: {warning}", err=True)
    if chart_file:
        chart_file.write_text(picture(outcome))
    if json_file:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)) + b"\n")
    sys.exit(outcome.rss_most_mb > bound_mb or restart_seconds > RESTART_SECONDS_MAX)


if __name__ == "__main__":
    exit_on_signals()
    main()
