"""The longest turn of the server while journals are rotated, packed and read back.

A broker runs in this process, on a real disk, without sockets. A turn is measured in processor time of its thread, so
that neither other programs nor a slow disk affect it; work of the server's threads (syncs, copies, reads) is not
counted, because no client waits for it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import defaultdict
from time import thread_time
from typing import cast

import click

from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel.log import Log
from staniel.sim.disk.disk import Disk
from staniel.sim.world import World

CONFIG = """
default.sync_journal = "1s"
default.max_memory_size = "16MB"
default.max_journal_size = "64MB"
default.min_journal_compact_delay = "1s"
"""
REQUESTS_PER_TURN = 32  # as many as ready clients could have sent meanwhile
LIMIT_MS = 10.0


class Turns:
    """A runner of turns that notes the duration of each by the background work in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = world.client()
        self.maintenance: MaintenanceScheduler = world.broker.maintenance
        self.took_ms: dict[str, list[float]] = defaultdict(list)
        self._rotations = 0

    def run_turn(self, requests: bytes) -> None:
        world = self.world
        began = thread_time()
        self.client.sends(requests)
        world.turn(1)
        took = thread_time() - began
        for task in world.start_tasks():
            world.run_task(task)
            began = thread_time()
            world.finish_task(task)
            took += thread_time() - began
        sync = world.start_sync()
        if sync is not None:
            sync.run()
            began = thread_time()
            world.finish_sync(sync)
            took += thread_time() - began
        self.took_ms[self._what()].append(1000 * took)
        self.client.hears()

    def _what(self) -> str:
        queue = self.world.broker.queues.find("q")
        rotations = queue.journal.rotations if queue is not None and isinstance(queue.journal, Log) else 0
        if rotations != self._rotations:
            self._rotations = rotations
            return "rotating"
        if self.maintenance.packs.is_busy:
            return "packing"
        return "reading back" if self.maintenance.read_ahead.pending else "nothing else"


def run(items: int, size: int) -> Turns:
    """Fill a queue, then drain it while a few items are still put, until its journal is small again."""
    # No method is called that only the simulated disk has.
    turns = Turns(World(CONFIG, cast(Disk, OsFs())))
    put = b"set q 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
    for _ in range(items // REQUESTS_PER_TURN):
        turns.run_turn(put * REQUESTS_PER_TURN)
    for _ in range(items // (REQUESTS_PER_TURN - 4)):
        turns.run_turn(put * 2 + b"get q\r\n" * (REQUESTS_PER_TURN - 2))
    while turns.maintenance.is_busy:
        turns.run_turn(b"")
    return turns


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--items", default=400_000, show_default=True, help="How many are put before they are taken.")
@click.option("--size", default=1024, show_default=True, help="Bytes each.")
def main(items: int, size: int) -> None:
    """Measure the longest turn during background work. Exit status: 1 if one turn in a thousand was longer than
    10 ms.
    """
    home = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="bench-slices-") as folder:
        os.chdir(folder)
        os.mkdir("s")
        turns = run(items, size)
        os.chdir(home)
    click.echo(f"{'meanwhile':14}{'turns':>10}{'p50 ms':>9}{'p99 ms':>9}{'p99.9 ms':>10}{'longest ms':>12}")
    for what, took in sorted(turns.took_ms.items()):
        took.sort()
        at = [took[min(len(took) - 1, int(share * len(took)))] for share in (0.5, 0.99, 0.999)]
        click.echo(f"{what:14}{len(took):>10,}{at[0]:>9.2f}{at[1]:>9.2f}{at[2]:>10.2f}{took[-1]:>12.2f}")
    every = sorted(ms for took in turns.took_ms.values() for ms in took)
    sys.exit(every[int(0.999 * len(every))] > LIMIT_MS)


if __name__ == "__main__":
    main()
