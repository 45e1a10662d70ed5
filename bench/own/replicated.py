"""The cost of followers, and how long a cluster is without a leader: `python -m staniel.bench.own.replicated`.

Durable puts to a server alone and to clusters with 0, 1 and 2 followers, in turns, with the load generator of
bench/peers; then kills of a leader, and hand-overs, with the lease's default. All processes, etcd too, share one
machine and one disk, so followers cost more here than on machines of their own.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
from msgspec import Struct

from staniel.bench.harness.machine import busy_warning, others_cores, ticks
from staniel.bench.harness.process import child_setup, exit_on_signals, free_port
from staniel.bench.peers import generator

FOLLOWERS = (0, 1, 2)
CONNECTIONS = {1: 1_000, 10: 4_000, 100: 12_000}  # and the puts of a round
ALONE = -1  # the number of followers of a server without [cluster]
SHARE_MIN, P99_TIMES_MAX = 0.6, 2.0  # of one follower to none, with 100 connections
FAILOVER_S_MAX, HANDOVER_S_MAX = 5.0, 1.0
START_S_MAX = 60.0
REPLY_S_MAX = 0.5
PUT = b"set moved 0 0 1\r\nx\r\n"


class Row(Struct, frozen=True):
    """The puts of one setup: medians of the rounds. `leader_us`: the leader's processor time for a put, which other
    programs disturb least.
    """

    followers: int
    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    leader_us: float


class Figures(Struct, frozen=True):
    """The content of --json. `failover_s` and `handover_s`: from the kill, or the order, to the first acknowledged
    put.
    """

    rows: list[Row]
    failover_s: list[float]
    handover_s: list[float]


class CannotMeasure(Exception):
    """The error when a process does not do its part; the text says which."""


class Server:
    """A server's process, whose ports stay the same over restarts."""

    def __init__(self, folder: Path, cluster: str, name: str, etcd: str) -> None:
        self.name = name
        self.port, self.admin_port = free_port(), free_port()
        self._config, self._log = folder / f"{cluster}-{name}.toml", folder / f"{cluster}-{name}.log"
        text = f'[server]\nspool = "{folder / cluster / name}"\n[memcache]\nport = {self.port}\n'
        text += f"[admin]\nport = {self.admin_port}\n"
        if etcd:
            text += f'[cluster]\nname = "{cluster}"\nmember = "{name}"\nlisten = "127.0.0.1:{free_port()}"\n'
            text += f'advertise = "127.0.0.1:{self.port}"\netcd = ["{etcd}"]\nmin_in_sync = 1\n'
        self._config.write_text(text)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "staniel.server", "serve", "--config", str(self._config)]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=child_setup(None))

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def kill(self) -> None:
        """End it as a crash does."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def ask(self, path: str, body: object = None) -> Any:
        """Return the reply of its admin listener; None if there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as reply:
                return json.load(reply)
        except OSError:
            return None

    def takes_put(self) -> bool:
        """Tell whether it acknowledges a put."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), REPLY_S_MAX) as sock:
                sock.sendall(PUT)
                return sock.recv(100) == b"STORED\r\n"
        except OSError:
            return False

    @property
    def log_tail(self) -> str:
        return " ".join(self._log.read_text(errors="replace").split())[-400:] if self._log.exists() else ""


def wait_for(
    condition: Callable[[], object], what: str, servers: list[Server], seconds_max: float = START_S_MAX
) -> None:
    """Wait until something holds. Raises CannotMeasure."""
    until = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > until:
            logs = "; ".join(f"{server.name}: {server.log_tail}" for server in servers)
            raise CannotMeasure(f"{what} did not happen in {seconds_max:g} s: {logs}")
        time.sleep(0.05)


class Cluster:
    """The servers of one setup. The first one leads at the start."""

    def __init__(self, folder: Path, followers: int, etcd: str) -> None:
        self.followers = followers
        name = f"c{followers}" if followers != ALONE else "alone"
        count = max(followers, 0) + 1
        self.servers = [Server(folder, name, f"m{at}", etcd if followers != ALONE else "") for at in range(count)]

    def start(self) -> None:
        """Start all, and wait until all are in sync. Raises CannotMeasure."""
        first = self.servers[0]
        first.start()
        if self.followers != ALONE:
            wait_for(lambda: first.ask("/cluster/init", {}), "the cluster", self.servers)
        wait_for(first.takes_put, "a put", self.servers)
        for server in self.servers[1:]:
            server.start()
        if self.followers != ALONE:
            self.wait_until_whole(first)

    def wait_until_whole(self, leader: Server) -> None:
        """Wait until all are in sync, and can be given the lead."""

        def is_whole() -> bool:
            others = (leader.ask("/cluster") or {}).get("followers", [])
            return len([other for other in others if other["may_lead"]]) == self.followers

        wait_for(is_whole, "all in sync", self.servers)

    def kill(self) -> None:
        for server in self.servers:
            server.kill()


@contextmanager
def etcd_in(folder: Path) -> Iterator[str]:
    """Yield the URL of a new etcd. Raises CannotMeasure."""
    if shutil.which("etcd") is None:
        raise CannotMeasure("there is no etcd on the PATH (Debian's etcd-server)")
    url, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    command = ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url]
    command += [
        "--listen-peer-urls",
        peer,
        "--initial-advertise-peer-urls",
        peer,
        "--initial-cluster",
        f"default={peer}",
    ]
    with (folder / "etcd.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=child_setup(None))
    try:
        yield url
    finally:
        child.kill()
        child.wait()


def put_rows(program: Path, clusters: list[Cluster], rounds: int, share: int) -> list[Row]:
    """Measure puts to all setups in turns. Raises CannotMeasure, GeneratorFailed."""
    reports: dict[tuple[int, int], list[generator.Report]] = {}
    for number in range(rounds):
        for connections, ops in CONNECTIONS.items():
            for cluster in clusters if number % 2 else clusters[::-1]:
                leader, wanted = cluster.servers[0], ops // share
                args = (
                    "--mode",
                    "put",
                    "--conns",
                    str(connections),
                    "--ops",
                    str(wanted),
                    "--queue",
                    f"q{connections}",
                )
                report = generator.run(program, args, leader.port, leader.pid, None)
                if wrongs := generator.wrongs(report, wanted):
                    raise CannotMeasure(f"{cluster.followers} followers: {', '.join(wrongs)}")
                reports.setdefault((cluster.followers, connections), []).append(report)
    return [_row(*key, made) for key, made in sorted(reports.items(), key=lambda item: (item[0][1], item[0][0]))]


def _row(followers: int, connections: int, reports: list[generator.Report]) -> Row:
    def middle(read: Callable[[generator.Latency], float]) -> float:
        return median([read(report.put_us) / 1000 for report in reports if report.put_us is not None])

    per_s = median([report.ops_per_s for report in reports])
    leader_us = median([report.server_cpu * 1e6 / report.ops_per_s for report in reports])
    return Row(followers, connections, per_s, middle(lambda us: us.p50), middle(lambda us: us.p99), leader_us)


def move_lead(cluster: Cluster, times: int, begin: Callable[[Server, Server], None]) -> list[float]:
    """Move the lead of a cluster of two there and back. Return the seconds from `begin`, of the leader and the other
    one, to the first put that the new leader has acknowledged.
    """
    took = []
    leader, heir = cluster.servers
    for _ in range(times):
        cluster.wait_until_whole(leader)
        began_s = time.monotonic()
        begin(leader, heir)
        wait_for(heir.takes_put, "a put at the new leader", cluster.servers)
        took.append(time.monotonic() - began_s)
        if leader.ask("/cluster") is None:
            leader.kill()
            leader.start()
        leader, heir = heir, leader
    cluster.servers = [leader, heir]
    return took


def kill_leader(leader: Server, heir: Server) -> None:
    leader.kill()


def order_hand_over(leader: Server, heir: Server) -> None:
    if leader.ask("/cluster/handover", {"to": heir.name}) is None:
        raise CannotMeasure("the hand-over was refused")


def table(figures: Figures) -> list[str]:
    """Return the lines of the report."""
    names = {ALONE: "no [cluster]", 0: "0 followers", 1: "1 follower", 2: "2 followers"}
    heads = f"{'connections':>12}{'per s':>10}{'p50 ms':>9}{'p99 ms':>9}{'leader us':>11}"
    lines = [f"{'durable puts of 1 KB':<22}{heads}{'to 0 followers':>16}"]
    base = {row.connections: row for row in figures.rows if row.followers == 0}
    for row in figures.rows:
        share = row.per_s / base[row.connections].per_s
        line = f"{names[row.followers]:<22}{row.connections:>12}{row.per_s:>10,.0f}{row.p50_ms:>9.2f}{row.p99_ms:>9.2f}"
        lines.append(f"{line}{row.leader_us:>11.0f}{share:>16.2f}")
    for name, took, most in (
        ("kill -9 of the leader", figures.failover_s, FAILOVER_S_MAX),
        ("hand-over", figures.handover_s, HANDOVER_S_MAX),
    ):
        told = ", ".join(f"{seconds:.2f}" for seconds in took)
        lines.append(f"{name}: {told} s to the first put{'  MISSED' * (median(took) > most)}")
    return lines


def misses_aim(figures: Figures) -> bool:
    """Tell whether a figure misses its aim."""
    by_key = {(row.followers, row.connections): row for row in figures.rows}
    one, none = by_key[1, 100], by_key[0, 100]
    is_slow = one.per_s < SHARE_MIN * none.per_s or one.p99_ms > P99_TIMES_MAX * none.p99_ms
    return is_slow or median(figures.failover_s) > FAILOVER_S_MAX or median(figures.handover_s) > HANDOVER_S_MAX


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Of puts, in turns.")
@click.option("--moves", default=4, show_default=True, type=click.IntRange(1), help="Kills, and hand-overs.")
@click.option("--quick", is_flag=True, help="A fifth of the puts.")
@click.option(
    "--dir", "base", default=tempfile.gettempdir(), show_default=True,
    type=click.Path(exists=True, file_okay=False, writable=True), help="Where the servers keep their files.",
)  # fmt: skip
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write all of it here.")
def main(rounds: int, moves: int, quick: bool, base: str, json_file: Path | None) -> None:
    """Measure durable puts with 0, 1 and 2 followers, and how long a cluster is without a leader.

    Exit status 1: with 100 connections one follower leaves less than 0.6 of the puts, or more than doubles their p99;
    or half of the take-overs take more than 5 s after a kill, or 1 s after an order.
    """
    before = ticks()
    folder = Path(tempfile.mkdtemp(prefix="bench-replicated-", dir=base))
    try:
        program = generator.build()
        with ExitStack() as stack:
            url = stack.enter_context(etcd_in(folder))
            clusters = [Cluster(folder, followers, url) for followers in (ALONE, *FOLLOWERS)]
            for cluster in clusters:
                stack.callback(cluster.kill)
                cluster.start()
            rows = put_rows(program, clusters, rounds, 5 if quick else 1)
            pair = clusters[2]
            for cluster in clusters:
                if cluster is not pair:
                    cluster.kill()
            figures = Figures(rows, move_lead(pair, moves, kill_leader), move_lead(pair, moves, order_hand_over))
    except (CannotMeasure, generator.CannotBuild, generator.GeneratorFailed) as error:
        raise click.ClickException(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo("\n".join(table(figures)))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    for warning in busy_warning(others_cores(before, ticks())):
        click.echo(f"warning: {warning}", err=True)
    raise SystemExit(misses_aim(figures))


if __name__ == "__main__":
    exit_on_signals()
    main()
