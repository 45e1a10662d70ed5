"""The time in which a member gets a leader's spool: `python -m staniel.bench.own.catch_up`.

First a member with an empty spool joins a leader with items. Then it is killed, the leader gets as many items again,
more than it keeps as records, and the member returns: it tells the digests of what it has, and gets the rest. The
leader, the member and etcd share one machine and one disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

import click
from msgspec import Struct

from staniel.bench.harness.machine import busy_warning, others_cores, ticks
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.own.replicated import CannotMeasure, Cluster, Server, etcd_in, wait_for

ITEM = os.urandom(500_000)
REPLY = b"STORED\r\n"
QUEUES = 4
MB = 1_000_000
MB_PER_S_MIN = 150.0
LOOK_S = 0.02
COPY_S_MAX = 600.0


class CopyTime(Struct, frozen=True):
    """A copy. `seconds`: from the start of the member's process until it is in sync; `leader_s` and `member_s`: of the
    processors.
    """

    name: str
    copied_bytes: int
    seconds: float
    leader_s: float
    member_s: float

    @property
    def mb_per_s(self) -> float:
        return self.copied_bytes / MB / self.seconds


def cpu_s(server: Server) -> float:
    """Return the processor time of a server's process."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(leader: Server, count: int) -> None:
    """Put items to a leader. Raises CannotMeasure."""
    with socket.create_connection(("127.0.0.1", leader.port), 60) as sock:
        for number in range(count):
            sock.sendall(b"set q%d 0 0 %d\r\n%s\r\n" % (number % QUEUES, len(ITEM), ITEM))
            if sock.recv(100) != REPLY:
                raise CannotMeasure(f"the leader has not taken an item: {leader.log_tail}")


def copy_to(name: str, cluster: Cluster, copied_bytes: int) -> CopyTime:
    """Start the second member, and wait until it is in sync. Raises CannotMeasure."""
    leader, member = cluster.servers
    before_s, began_s = cpu_s(leader), time.monotonic()
    member.start()

    def is_in_sync() -> bool:
        time.sleep(LOOK_S)
        mine, own = leader.ask("/cluster") or {}, member.ask("/cluster") or {}
        return own.get("id", "-") in mine.get("in_sync", [])

    wait_for(is_in_sync, f"the copy of {name}", cluster.servers, COPY_S_MAX)
    return CopyTime(name, copied_bytes, time.monotonic() - began_s, cpu_s(leader) - before_s, cpu_s(member))


def measure(folder: Path, url: str, count: int) -> list[CopyTime]:
    """Measure both copies. Raises CannotMeasure."""
    cluster = Cluster(folder, 1, url)
    leader, member = cluster.servers
    try:
        leader.start()
        wait_for(lambda: leader.ask("/cluster/init", {}), "the cluster", cluster.servers)
        wait_for(leader.takes_put, "a put", cluster.servers)
        fill(leader, count)
        copies = [copy_to("an empty member", cluster, count * len(ITEM))]
        member.kill()
        wait_for(lambda: len((leader.ask("/cluster") or {}).get("in_sync", [])) == 1, "it is out", cluster.servers)
        fill(leader, count)
        return [*copies, copy_to("a returned member", cluster, count * len(ITEM))]
    finally:
        cluster.kill()


def table(copies: list[CopyTime]) -> list[str]:
    """Return the lines of the report."""
    lines = [f"{'copy to':<20}{'MB':>7}{'s':>8}{'MB/s':>8}{'leader s':>10}{'member s':>10}"]
    for copy in copies:
        line = f"{copy.name:<20}{copy.copied_bytes / MB:>7.0f}{copy.seconds:>8.2f}{copy.mb_per_s:>8.0f}"
        missed = "  MISSED" * (copy.mb_per_s < MB_PER_S_MIN)
        lines.append(f"{line}{copy.leader_s:>10.2f}{copy.member_s:>10.2f}{missed}")
    return lines


@click.command()
@click.option("--mb", default=1000, show_default=True, type=click.IntRange(100), help="Of items, twice.")
@click.option(
    "--dir", "base", default=tempfile.gettempdir(), show_default=True,
    type=click.Path(exists=True, file_okay=False, writable=True), help="Where the servers keep their files.",
)  # fmt: skip
def main(mb: int, base: str) -> None:
    """Measure how fast a leader's spool is copied to an empty member, and to one that returns.

    Exit status 1: less than 150 MB/s, the start of the member's process included.
    """
    before = ticks()
    folder = Path(tempfile.mkdtemp(prefix="bench-catch-up-", dir=base))
    try:
        with etcd_in(folder) as url:
            copies = measure(folder, url, mb * MB // len(ITEM))
    except CannotMeasure as error:
        raise click.ClickException(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo("\n".join(table(copies)))
    for warning in busy_warning(others_cores(before, ticks())):
        click.echo(f"warning: {warning}", err=True)
    raise SystemExit(any(copy.mb_per_s < MB_PER_S_MIN for copy in copies))


if __name__ == "__main__":
    exit_on_signals()
    main()
