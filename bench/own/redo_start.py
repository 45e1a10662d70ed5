"""The extra duration of a start after a power cut with a full redo log.

Journals are written with a log of bytes whose two halves are filled, while only the log is synced. Then each journal is
cut down to its durable part, and everything is dropped from the page cache: the worst that a power cut can leave.
Starts of the server on a copy of that alternate with starts on a spool with the same journals and no log. Every item
must be there.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from staniel.bench.harness.contestant import ROOT
from staniel.bench.harness.process import exit_on_signals
from staniel.bench.harness.served import PROGRAM
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.redo import log as redo_log
from staniel.journal.redo.replay import read_log
from staniel.journal.spool import Spool
from staniel.queues.changes import Added
from staniel.queues.config import QueueConfig
from staniel.queues.item import Item

ITEMS_A_BATCH = 10
NOW_MS = 1_700_000_000_000
EXTRA_SECONDS_MAX = 0.5


class RedoStartFailed(Exception):
    """The error when an item is missing, or the server does not start."""


def finish_tasks(spool: Spool) -> None:
    """Do the background thread's work."""
    while spool.redo.is_due:
        for task in spool.redo.tasks():
            task.run()
            task.on_done(NOW_MS)


def fill(folder: Path, log_bytes: int, queues: int, item_bytes: int) -> tuple[int, int]:
    """Fill a spool's log. Return the number of its items, and the bytes in the log."""
    (folder / "spool").mkdir()
    spool = Spool(OsFs(), str(folder / "spool"), log_bytes)
    redo, group = spool.redo, spool.group
    finish_tasks(spool)
    logs = [spool.create(f"queue-{number}", QueueConfig(), NOW_MS) for number in range(queues)]
    group.sync_all(NOW_MS)
    items = 0
    while True:
        for _ in range(ITEMS_A_BATCH):
            logs[items % queues].record(Added(Item(os.urandom(item_bytes // 2).hex().encode(), NOW_MS)))
            items += 1
        group.write(NOW_MS)
        has_grown = all(segment.size == redo.segment_bytes_max for segment in redo.segments)
        if has_grown and redo.is_due and not redo.running:
            redo.running += redo.tasks()  # the background thread does nothing from now on
        elif redo.running and redo.active.at > redo.active.size - 4 * redo.segment_bytes_max // 32:
            break
        elif not redo.running:
            finish_tasks(spool)
        sync = group.start_sync(NOW_MS)
        assert sync is not None
        sync.run()
        group.finish_sync(sync, NOW_MS)
    group.sync_all(NOW_MS)
    return items, cut_journals(folder / "spool", redo)


def cut_journals(spool: Path, redo: redo_log.RedoLog) -> int:
    """Cut the journals, in a copy, to their durable parts. Return the bytes in the log."""
    left = spool.with_name("left")
    shutil.copytree(spool, left)
    content = read_log(OsFs(), [f"{left}/.staniel/{name}" for name in redo_log.NAMES], redo.spool_id)
    for history in content.files.values():
        os.truncate(left / history.path, history.safe_bytes)
    for name in (*redo_log.NAMES, "version"):  # the other is as it was before it had a log
        (spool / ".staniel" / name).unlink()
    return content.bytes


def drop_from_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def start(made: Path, items: int) -> tuple[float, float]:
    """Start the server on a copy. Return the seconds until it serves, by the clock and of processor."""
    copy = made.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(made, copy)
    drop_from_cache(copy)
    command = [*PROGRAM, "serve", "--spool", str(copy), "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        greeting = child.stdout.readline().decode()
        cpu_seconds = time.clock_gettime((~child.pid << 3) | 2)
        child.kill()
    if f" {items} items recovered" not in greeting:
        raise RedoStartFailed(f"{items} items expected: {greeting.strip()}")
    return float(greeting.rpartition(" in ")[2].split()[0]) / 1000, cpu_seconds


@click.command(help=__doc__)
@click.option("--log-mb", default=64, show_default=True, type=click.IntRange(1, 4096))
@click.option("--queues", default=100, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--item-bytes", default=1000, show_default=True, type=click.IntRange(2, 100_000))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
def main(log_mb: int, queues: int, item_bytes: int, rounds: int) -> None:
    """Measure starts after a power cut.

    Exit status: 0 all items were there, and the start was no more than half a second longer; 1 not so.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-redo-start-"))
    try:
        items, log_bytes = fill(folder, log_mb << 20, queues, item_bytes)
        click.echo(f"{items:,} items in {queues:,} queues, {log_bytes / (1 << 20):.1f} MB in the log")
        seconds: dict[str, list[tuple[float, float]]] = {"left": [], "spool": []}
        for _ in range(rounds):
            for name, taken in seconds.items():
                taken.append(start(folder / name, items))
                label = "with the log" if name == "left" else "without"
                click.echo(f"{label}: {taken[-1][0]:.3f} s, {taken[-1][1]:.3f} s of processor")
        with_log, without = (list(map(statistics.median, zip(*taken, strict=True))) for taken in seconds.values())
        extra = with_log[0] - without[0]
        click.echo(f"longer by {extra:.3f} s, {with_log[1] - without[1]:.3f} s of processor (medians)")
    except RedoStartFailed as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(extra > EXTRA_SECONDS_MAX)


if __name__ == "__main__":
    exit_on_signals()
    main()
