"""A real server's writes and syncs are recorded, and the power is cut behind any of them: what a start makes of what is
left holds each item that was answered, whole, and nothing that was not put.

STANIEL_POWER_CUTS=6000 asks for so many states instead of a few hundred.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random

import pytest

from staniel.sim.disk.disk import Disk
from staniel.sim.world import content
from tests.crash.recording import Recording
from tests.faults.preloaded import build
from tests.support.process import Server, running
from tests.support.wire import Wire

STATES = int(os.environ.get("STANIEL_POWER_CUTS", "300"))
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
CUTS = 10  # states behind one event
REQUESTS = 250  # of each client
POLICIES = {"k1": "always", "k2": "always", "k3": "always", "stream": "always", "soon": "50ms", "later": "os"}
CONFIG = """
[server]
redo_log = "{log}"
[queues.stream]
journal_format = "libkestrel"
[queues.soon]
sync_journal = "50ms"
[queues.later]
sync_journal = "os"
[default]
sync_journal = "always"
default_journal_size = "16KB"
max_journal_size = "64KB"
"""

Step = tuple[str, bytes]
"""A put of this item; or a get."""


def steps_of(queue: str, rng: Random) -> list[Step]:
    """What the one client of a queue asks, one after the other."""
    steps = []
    for number in range(REQUESTS):
        if rng.random() < 0.3:
            steps.append(("get", b""))
        else:
            steps.append(("set", b"%b-%d-" % (queue.encode(), number) + b"x" * rng.choice((1, 30, 500, 3000))))
    return steps


def ask(server: Server, queue: str, steps: list[Step]) -> None:
    with Wire(server.address) as wire:
        for verb, item in steps:
            if verb == "get":
                wire.get(queue)
            else:
                wire.say(b"set %b 0 0 %d\r\n%b\r\n" % (queue.encode(), len(item), item))
                assert wire.line() == b"STORED"


def held_after(steps: list[Step]) -> list[bytes]:
    held: list[bytes] = []
    for verb, item in steps:
        if verb == "set":
            held.append(item)
        elif held:
            del held[0]
    return held


def record(folder: Path, log: str, all_steps: dict[str, list[Step]]) -> Recording:
    """A server that is asked all that, and killed."""
    recorded, spool = folder / "recorded", folder / "spool"
    environment = {**build("recorder.c", folder), "RECORD_TO": str(recorded), "RECORD_ROOT": str(spool)}
    wrapper = ("env", *[f"{name}={value}" for name, value in environment.items()])
    with running(folder, config=CONFIG.format(log=log), wrapper=wrapper) as server:
        threads = [threading.Thread(target=ask, args=(server, queue, steps)) for queue, steps in all_steps.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.kill()
    return Recording(recorded, str(spool))


def disk_of(files: dict[str, bytes], root: str) -> Disk:
    disk = Disk()
    for folder in ["s", *sorted({os.path.dirname(path).replace(root, "s", 1) for path in files})]:
        disk.make_folder(folder)
    for path, data in files.items():
        file = disk.append(path.replace(root, "s", 1))
        file.write(data)
        file.sync()
        file.close()
    return disk


def check(found: dict[str, list[bytes]], recording: Recording, all_steps: dict[str, list[Step]], *, torn: bool) -> None:
    """`torn`: of what no answer was promised for, the end may be there in part."""
    for queue, steps in all_steps.items():
        answered, asked = recording.answers.get(queue, 0), recording.asked.get(queue, 0)
        least = answered if POLICIES[queue] == "always" else 0
        held = found.get(queue, [])
        if torn and POLICIES[queue] != "always":
            continue
        possible = [held_after(steps[:count]) for count in range(least, asked + 1)]
        if torn and held and held not in possible:
            held = held[:-1]  # the put that was not answered: Kestrel's format has no checksums
        assert held in possible, f"{queue}: {answered} answered, {asked} asked, {len(held)} found"


@pytest.mark.parametrize("log", ["256KB", "none"])
def test_what_was_answered_is_there_and_whole(tmp_path: Path, log: str) -> None:
    rng = Random(SEED)
    all_steps = {queue: steps_of(queue, rng) for queue in POLICIES}
    recording = record(tmp_path, log, all_steps)
    total = sum(1 for letter in Recording(tmp_path / "recorded", recording.root).events() if letter in "WDETMUS")
    assert total > 1000
    chance = STATES / CUTS / total
    states = 0
    for letter in recording.events():
        if letter not in "WDETMUS" or rng.random() > chance:
            continue
        for _ in range(CUTS):
            files = recording.left(rng)
            states += 1
            try:
                check(content(disk_of(files, recording.root)), recording, all_steps, torn=log == "none")
            except Exception as wrong:
                raise AssertionError(f"seed {SEED}, state {states}") from wrong
    assert states > STATES / 2
