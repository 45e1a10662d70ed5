"""SIGKILL under load, again and again: what was acknowledged is there, once, and what was taken stays away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.ledger import Ledger
from tests.crash.workers import PipeliningProducer, Producer, ReliableTaker, Taker, Worker
from tests.server.process import Server, running, until
from tests.server.wire import Wire, stats

KILLS = 24
OPERATIONS_MIN = 300  # a kill without load shows nothing
OPERATIONS_MAX = 1_500
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
QUEUES = ("at_once", "soon", "whenever")
CONFIG = """
[server]
max_open_transactions = 1000000

[default]
default_journal_size = "8KB"
max_memory_size = "16KB"

[queues.at_once]
sync_journal = "always"

[queues.soon]
sync_journal = "50ms"

[queues.whenever]
sync_journal = "os"
"""


def look(server: Server, queue: str) -> list[bytes]:
    """Everything in a queue, in order: opened by one client, which hangs up and so puts it all back as it was."""
    found: list[bytes] = []
    with Wire(server.address) as wire:
        while (item := wire.get(f"{queue}/open")) is not None:
            found.append(item)
    name = f"queue_{queue}_open_transactions"
    assert until(lambda: stats(server.address)[name] == "0"), "what a lost client held did not come back"
    return found


def crew(server: Server, queue: str, cycle: int, random: Random, killed: threading.Event) -> list[Worker]:
    """Who works in one queue this time. Some cycles fill it, some drain it: both ends of a journal are met."""
    workers: list[Worker] = []
    for each in range(random.randint(1, 2)):
        kind = random.choice([Producer, PipeliningProducer])
        workers.append(kind(queue, server.address, Random(random.random()), killed, f"c{cycle}p{each}"))
    takers = [Taker] * random.randint(0, 2) + [ReliableTaker] * random.randint(1, 2)
    workers += [kind(queue, server.address, Random(random.random()), killed) for kind in takers]
    return workers


def work_until_killed(server: Server, workers: list[Worker], killed: threading.Event, operations: int) -> None:
    """Kill the server in full flight once so many operations were answered."""
    for worker in workers:
        worker.start()
    busy = until(lambda: sum(worker.done for worker in workers) >= operations, 20)
    killed.set()
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
    failures = [worker.failure for worker in workers if worker.failure]
    assert not failures, (failures, server.stderr)
    assert busy, f"only {sum(worker.done for worker in workers)} operations in 20 s"


@pytest.mark.slow
def test_a_server_killed_under_load_keeps_every_promise(tmp_path: Path, closing_line: Callable[[str], None]) -> None:
    random = Random(SEED)
    ledgers = {queue: Ledger(queue) for queue in QUEUES}
    counted = dict.fromkeys(("journal_rotations", "journal_rewrites"), 0)
    done = 0
    with running(tmp_path, config=CONFIG) as server:
        for cycle in range(KILLS):
            killed = threading.Event()
            workers = [worker for queue in QUEUES for worker in crew(server, queue, cycle, random, killed)]
            operations = random.randint(OPERATIONS_MIN, OPERATIONS_MAX)
            with Wire(server.address) as watcher:
                threading.Thread(target=count_journals, args=(watcher, killed, counted), daemon=True).start()
                work_until_killed(server, workers, killed, operations)
            done += sum(worker.done for worker in workers)
            for worker in sorted(workers, key=lambda worker: not isinstance(worker, Producer)):
                worker.report(ledgers[worker.queue])
            server.start()
            for queue, ledger in ledgers.items():
                found = look(server, queue)
                assert ledger.check(found) == [], f"seed {SEED}, kill {cycle}, queue {queue}"
                ledger.settle(found)
    assert counted["journal_rotations"] >= KILLS and counted["journal_rewrites"] >= 1, (counted, SEED)
    closing_line(f"crash: {KILLS} kills amid {done} operations, {counted}, seed {SEED}")


def count_journals(watcher: Wire, killed: threading.Event, counted: dict[str, int]) -> None:
    """Adds up what the journals did in this life of the server, as far as it could be seen before the kill."""
    seen = dict.fromkeys(counted, 0)
    try:
        while not killed.wait(0.02):
            now = dict.fromkeys(counted, 0)
            watcher.say(b"stats\r\n")
            while (line := watcher.line()) not in (b"END", b""):
                _, name, value = line.decode().split(" ", 2)
                for each in counted:
                    if name.endswith(each):
                        now[each] += int(value)
            if line == b"END":
                seen = now
    except OSError:
        pass
    for each in counted:
        counted[each] += seen[each]


@pytest.mark.parametrize("sync", ["always", "50ms", "os"])
def test_a_kill_at_rest_changes_nothing(tmp_path: Path, sync: str) -> None:
    with running(tmp_path, "--sync", sync) as server:
        with Wire(server.address) as worker:
            for item in (b"a", b"b", b"c", b"d"):
                worker.put("jobs", item)
            assert worker.get("jobs") == b"a"
            assert worker.get("jobs/open") == b"b"
            assert worker.get("jobs/close/open") == b"c"
            server.restart()
        assert server.greeting.count("1 queues, 2 items recovered") == 1
        assert look(server, "jobs") == [b"c", b"d"]


def test_a_server_killed_at_its_start_has_changed_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            for number in range(50):
                wire.put("jobs", b"%d" % number)
        for _ in range(5):
            server.restart()
        assert look(server, "jobs") == [b"%d" % number for number in range(50)]


def test_a_torn_last_record_is_cut_off_kept_and_told(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with Wire(server.address) as wire:
            wire.put("jobs", b"whole")
            wire.put("jobs", b"torn")
        server.kill()
        journal = server.spool / "jobs"
        journal.write_bytes(journal.read_bytes()[:-2])
        server.start()
        assert look(server, "jobs") == [b"whole"]
        [line] = [line for line in server.stderr.splitlines() if "journal.damaged" in line]
        assert "queue=jobs" in line and "file=jobs" in line
        [kept] = (server.spool / ".staniel" / "damaged").iterdir()
        assert b"to" in kept.read_bytes()
