"""Many backups of servers at work, each of them restored, started, and read to its end:

    python -m tests.server.backup.long_run --backups 200

In every copy all queues must be as they were at one moment, not before what was answered when the backup began, and
items that are being moved around must be there once each. Half of the servers sync every put, with the redo log; the
others leave it to the system. Each server is backed up TIMES times, into one place, so that the later backups build on
the earlier ones; then all of the place is verified.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from pathlib import Path

from tests.server.admin.asking import Operator
from tests.server.backup.copies import SMALL, back_up, drained, restored, staniel
from tests.server.backup.test_cut import PAD, Pairs, at_work, check_pairs, numbers
from tests.support import process
from tests.support.process import Server, running, until
from tests.support.wire import Wire

TIMES = 20
QUEUES = ("orders", "mail", "calls")  # the second one is in libkestrel's format
CIRCLE = ("here", "there", "elsewhere")
MOVED_ITEMS = 60
LOADED = 100  # pairs between two backups
PATIENCE_S = 120.0
LOGGED = SMALL.replace("[server]", '[server]\nredo_log = "1MB"')


class Mover:
    """Moves the same items around in a circle."""

    def __init__(self, server: Server) -> None:
        self.operator = Operator(server.spool)
        self.moves = 0
        with Wire(server.address) as wire:
            for number in range(MOVED_ITEMS):
                assert wire.put(CIRCLE[0], b"%d%b" % (number, PAD)) == b"STORED"

    def __call__(self, stop: threading.Event) -> None:
        while not stop.is_set():
            source, target = CIRCLE[self.moves % 3], CIRCLE[(self.moves + 1) % 3]
            assert self.operator.ask("POST", f"/api/queues/{source}/move", {"to": target}).status == 200
            self.moves += 1


def one_server(folder: Path, times: int, is_logged: bool) -> tuple[int, int, int]:
    """(items that were read back from all copies, moves of items meanwhile, ms that the slowest backup took)."""
    made, slowest_ms = [], 0
    dest, config = folder / "dest", LOGGED if is_logged else SMALL
    with running(folder / "server", "--sync", "always" if is_logged else "os", config=config) as server:
        pairs, mover = Pairs(server, QUEUES), Mover(server)
        with at_work(pairs, mover):
            for _ in range(times):
                wanted = pairs.put + LOADED
                assert until(lambda wanted=wanted: pairs.put > wanted, PATIENCE_S)
                answered = pairs.put, pairs.taken
                made.append((back_up(server.spool, dest), answered))
                slowest_ms = max(slowest_ms, made[-1][0]["took_ms"])
    assert "0 faults" in staniel("backup", "verify", dest).stdout
    items = 0
    for told, answered in made:
        found = drained(restored(dest, folder / "copy", "--backup", told["id"]), (*QUEUES, *CIRCLE), config)
        check_pairs({name: found[name] for name in QUEUES}, pairs, answered)
        moved = sorted(number for name in CIRCLE for number in numbers(found[name]))
        assert moved == list(range(MOVED_ITEMS)), moved
        assert told["items"] <= sum(map(len, found.values())) <= told["items"] + MOVED_ITEMS, told
        items += sum(map(len, found.values()))
    return items, mover.moves, slowest_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=200)
    wanted = parser.parse_args().backups
    process.START_SECONDS_MAX = PATIENCE_S  # the machine may be busy with other things
    began, done, items, moves, slowest_ms = time.monotonic(), 0, 0, 0, 0
    while done < wanted:
        folder = Path(tempfile.mkdtemp(prefix="staniel-backups-"))
        try:
            times = min(TIMES, wanted - done)
            more_items, more_moves, ms = one_server(folder, times, is_logged=done // TIMES % 2 == 0)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        done, items, moves, slowest_ms = done + times, items + more_items, moves + more_moves, max(slowest_ms, ms)
        took_s = time.monotonic() - began
        told = f"{done} backups, the slowest {slowest_ms:,} ms; {items:,} items read back, {moves:,} moves"
        print(f"{told}, {took_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
