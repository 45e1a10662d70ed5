"""The command `python -m staniel.bench.soak.loop`: a server killed under load and started again, a thousand times.

A cycle: clients work (`clients.py`); the server is killed in the middle of it; sometimes it is killed again while it
recovers; it starts, and the contents of its queues are compared with the clients' knowledge (`ledger.py`). This file
has the queues and their clients.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import click

from staniel.bench.harness.process import StartFailed, exit_on_signals
from staniel.bench.soak.clients import Crew, Producer, ReliableTaker, ServerBroken, Taker, Vanisher, Watcher
from staniel.bench.soak.jobs import JobLoop
from staniel.bench.soak.ledger import Ledger
from staniel.bench.soak.totals import END_SECONDS_MAX, Cycle, play
from staniel.bench.soak.victim import Victim

LIFE_SECONDS = (0.05, 0.45)
OPERATIONS_MIN = 300  # a kill without load shows nothing
WORK_SECONDS_MAX = 60.0
READY_SECONDS_MAX = 2.0
CLIENTS_MIN = 16
PRODUCERS = (0, 1, 1, 2)  # of each source, by chance
TAKERS = (1, 1, 2, 3)  # of each queue
KILL_AGAIN_ONE_IN = 6
RELOAD_ONE_IN = 4
LOOK_PIPELINE = 128
COUNTED = ("journal_rotations", "journal_rewrites")

FAMILIES = (
    ("jobs", "dead"),
    ("soon",),
    ("whenever",),
    ("brief", "late"),
    ("events",),
    ("events+audit",),
    ("events+log",),
)
QUEUES = tuple(queue for family in FAMILIES for queue in family)
SOURCES = ("jobs", "soon", "whenever", "brief", "events")
MIXED = {"soon": "50ms", "whenever": "os", "brief": "50ms", "events": "os"}
SETTINGS = {
    "jobs": 'max_deliveries = 4\ndead_letter_queue = "dead"',
    "brief": 'max_age = "150ms"\nexpire_to_queue = "late"',
}
CONFIG = """
[server]
spool = "{spool}"
max_open_transactions = 1000000
expiration_timer_frequency = "20ms"

[default]
journal_format = "{format}"
default_journal_size = "{small}KB"
max_memory_size = "16KB"
max_journal_size = "48KB"
min_journal_compact_delay = "10ms"
"""


class Loop:
    """A spool over all lives of its server. `sync`: a policy for every queue, or "mixed"."""

    refusal = b""  # the beginning of a reply to a put that is allowed instead of STORED
    spool = "spool"
    settings: Mapping[str, str] = SETTINGS

    def __init__(
        self,
        folder: Path,
        seed: int,
        sync: str = "mixed",
        death: signal.Signals = signal.SIGKILL,
        life_seconds: tuple[float, float] = LIFE_SECONDS,
        wrapper: tuple[str, ...] = (),
        journal_format: str = "kestrel",
        reload_one_in: int = RELOAD_ONE_IN,
    ) -> None:
        self.random = Random(seed)
        self.reload_one_in = reload_one_in
        self.journal_format = journal_format
        self.life_seconds = life_seconds
        self.sync = sync
        self.death = death
        self.number = 0
        self.ledgers = [Ledger(*family) for family in FAMILIES]
        self.victim = Victim(folder, self.config(), wrapper)
        self.moved = 0  # items seen in queues that they moved on to

    def config(self) -> str:
        """Return the configuration. Its sizes are so small that every life rotates and rewrites; the smallest one
        changes from reload to reload.
        """
        config = CONFIG.format(spool=self.spool, small=self.random.choice((4, 8, 12)), format=self.journal_format)
        for queue in (*SOURCES, "late", "dead"):
            policy = MIXED.get(queue, "always") if self.sync == "mixed" else self.sync
            config += f'\n[queues.{queue}]\nsync_journal = "{policy}"\n{self.settings.get(queue, "")}\n'
        return config

    def cycle(self) -> Cycle:
        """Work, die, recover, and be checked. Raises ServerBroken or StartFailed."""
        self.number += 1
        if self.number == 1:
            self.victim.start()
            self.read_queues()  # children of a fan-out exist after the first read
        crew = Crew(self.victim.address, self.refusal)
        watcher = self.hire(crew)
        began_s = time.monotonic()
        reloads = self.work(crew, self.random.uniform(*self.life_seconds))
        seconds = time.monotonic() - began_s
        code = self.victim.end(self.death)
        end_s = self.victim.end_s
        crew.hear_out()
        wrong = [line for ledger in self.ledgers for line in ledger.wrong]
        if code != (-self.death if self.death is signal.SIGKILL else 0):
            wrong.append(f"exit code {code}: {self.victim.said[-2000:]}")
        kills = 1 + self._kill_again()
        self.victim.start()
        found = self.read_queues()
        for ledger in self.ledgers:
            wrong += ledger.check(found)
            ledger.accept_recovered(found)
        if end_s > END_SECONDS_MAX:
            wrong.append(f"it ended after {end_s:.2f} s")
        if "Traceback" in self.victim.said:
            wrong.append(self.victim.said[-2000:])
        count = sum(map(len, found.values()))
        ready_s, recovery_s = self.victim.ready_s, self.victim.recovery_s
        return Cycle(crew.done, seconds, ready_s, recovery_s, count, watcher.seen, kills, reloads, wrong, end_s)

    def work(self, crew: Crew, seconds: float) -> int:
        """Let the crew work, perhaps with a reload in the middle. Return the number of reloads."""
        reloads = 0
        if not self.random.randrange(self.reload_one_in):
            self.insist(crew, seconds / 2)
            self.victim.configure(self.config())
            self.victim.send_signal(signal.SIGHUP)
            seconds /= 2
            reloads = 1
        self.insist(crew, seconds)
        return reloads

    def insist(self, crew: Crew, seconds: float) -> None:
        """Let the crew work for `seconds`, and until it has done enough for a kill. Raises ServerBroken."""
        try:
            if not crew.work(seconds, OPERATIONS_MIN, WORK_SECONDS_MAX):
                raise ServerBroken(f"only {crew.done} operations in {WORK_SECONDS_MAX:.0f} s")
        except ServerBroken as broken:
            raise ServerBroken(f"{broken}; the server said: {self.victim.said[-1000:]}") from None

    def _kill_again(self) -> int:
        """Kill the next start sometimes, anywhere between its first instruction and its first client. Return the number
        of kills.
        """
        if self.random.randrange(KILL_AGAIN_ONE_IN):
            return 0
        self.victim.spawn()
        time.sleep(self.random.uniform(0.2, 1) * self.victim.ready_s)  # as long as the last start took, at most
        self.victim.end(signal.SIGKILL)
        return 1

    def hire(self, crew: Crew) -> Watcher:
        """Hire this life's clients: some lives fill a queue, some drain it, so that both ends of a journal are
        tested.
        """
        for queue in SOURCES:
            ledgers = [ledger for ledger in self.ledgers if ledger.queues[0].split("+")[0] == queue]
            for number in range(self.random.choice(PRODUCERS)):
                pipeline = self.random.choice((1, 16))
                Producer(crew, queue, ledgers, self._chance(), f"{queue}.{self.number}.{number}", pipeline)
        for queue in QUEUES:
            for _ in range(self.random.choice(TAKERS)):
                self._hire_taker(crew, queue)
        while len(crew.members) < CLIENTS_MIN:
            self._hire_taker(crew, self.random.choice(QUEUES))
        return Watcher(crew, self.ledgers[0], self._chance(), COUNTED)

    def _hire_taker(self, crew: Crew, queue: str) -> None:
        kind = self.random.choice((Taker, ReliableTaker, Vanisher))
        [ledger] = [ledger for ledger in self.ledgers if queue in ledger.queues]
        kind(crew, queue, ledger, self._chance())

    def _chance(self) -> Random:
        return Random(self.random.getrandbits(64))

    def read_queues(self) -> dict[str, list[bytes]]:
        """Return the contents of every queue, in order: one client opens all items, and its disconnection puts
        them back.
        """
        found: dict[str, list[bytes]] = {}
        with socket.create_connection(self.victim.address, 30) as sock, sock.makefile("rb") as heard:
            for queue in QUEUES:
                found[queue] = _open_all(sock, heard.readline, heard.read, queue)
        self.moved += len(found["dead"]) + len(found["late"])
        return found


def _open_all(sock: socket.socket, line: Callable[[], bytes], read: Callable[[int], bytes], queue: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        sock.sendall(b"get %b/open\r\n" % queue.encode() * LOOK_PIPELINE)
        misses = 0
        for _ in range(LOOK_PIPELINE):
            head = line()
            if head == b"END\r\n":
                misses += 1
                continue
            if not head.startswith(b"VALUE "):
                raise ServerBroken(f"{head!r} to an open of {queue}")
            found.append(read(int(head.split()[3])))
            read(7)
        if misses:
            return found


@click.command()
@click.option("--cycles", type=click.IntRange(min=1), default=1000, show_default=True, help="How many must count.")
@click.option("--seed", type=int, default=0, help="0, the default: a new one each time.")
@click.option(
    "--sync", type=click.Choice(["mixed", "always", "os", "50ms", "interval"]), default="mixed", show_default=True,
    help="The sync policy of every queue; mixed: each its own. Of jobs: always, interval or os; mixed: in turns.",
)  # fmt: skip
@click.option(
    "--format", "journal_format", type=click.Choice(["kestrel", "libkestrel"]), default="kestrel", show_default=True,
    help="How the queues are kept.",
)  # fmt: skip
@click.option(
    "--serve", type=click.Choice(["queues", "jobs"]), default="queues", show_default=True, help="What clients work on.",
)  # fmt: skip
@click.option("--death", type=click.Choice(["kill", "term"]), default="kill", show_default=True, help="The signal.")
@click.option(
    "--life", type=click.FloatRange(min=0.1), default=LIFE_SECONDS[1], show_default=True, metavar="SECONDS",
    help="How long a life lasts at most; long ones find other defects than short ones.",
)  # fmt: skip
@click.option(
    "--reload-one-in", type=click.IntRange(min=1), default=RELOAD_ONE_IN, show_default=True, metavar="LIVES",
    help="One in so many lives has a reload in its middle; 1: each. Of queues.",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Loops that run side by side.")
@click.option(
    "--dir", "folder", type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    default=Path(tempfile.gettempdir()), show_default=True, help="Where the spools are made.",
)  # fmt: skip
def main(
    cycles: int, seed: int, sync: str, journal_format: str, serve: str, death: str, life: float, reload_one_in: int,
    jobs: int, folder: Path,
) -> None:  # fmt: skip
    """Kill a server under load again and again. Exit status 1: a promise was broken, or a start took too long."""
    exit_on_signals()
    seed = seed or int.from_bytes(os.urandom(4), "big")
    if jobs > 1:
        options = [
            f"--sync={sync}",
            f"--format={journal_format}",
            f"--serve={serve}",
            f"--death={death}",
            f"--life={life}",
            f"--reload-one-in={reload_one_in}",
            f"--dir={folder}",
        ]
        sys.exit(_side_by_side(cycles, seed, options, jobs))
    place = Path(tempfile.mkdtemp(prefix="kill-loop-", dir=folder))
    number = signal.SIGKILL if death == "kill" else signal.SIGTERM
    loop: Loop | JobLoop
    if serve == "jobs":
        loop = JobLoop(place, seed, sync, number)
    else:
        lives = (LIFE_SECONDS[0], life)
        loop = Loop(place, seed, sync, number, lives, journal_format=journal_format, reload_one_in=reload_one_in)
    try:
        totals = play(loop, cycles, lambda line: print(line, flush=True))
    except (ServerBroken, StartFailed, OSError) as error:
        print(f"cycle {loop.number}: {error!r}; seed {seed}, files in {place}")
        sys.exit(1)
    print(f"seed {seed}: {totals.text()}")
    if totals.wrong:
        print(f"the files are left in {place}")
    else:
        shutil.rmtree(place)
    sys.exit(bool(totals.wrong or totals.counting < cycles or totals.ready_s_max > READY_SECONDS_MAX))


def _side_by_side(cycles: int, seed: int, options: list[str], jobs: int) -> int:
    """Run one process for each job, with a share of the cycles and a seed of its own."""
    shares = [cycles // jobs + (at < cycles % jobs) for at in range(jobs)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "staniel.bench.soak.loop", f"--cycles={share}", f"--seed={seed + at}", *options]
        )
        for at, share in enumerate(shares)
        if share
    ]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    main()
