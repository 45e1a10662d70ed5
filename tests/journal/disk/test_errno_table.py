"""One call of the disk fails, at each kind of step of an operation: nothing is lost or doubled, and no error but the
ones that end a server in a line comes through.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from staniel.broker.operations.purge import ITEMS_PER_SLICE
from staniel.journal.disk.fs import FULL_ERRNOS, JournalFailure, SyncFailed
from staniel.journal.spool import SpoolError
from staniel.journal.undo_file import AppendFrames
from staniel.sim.disk.disk import Disk, Fault
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.broker.test_undo import asked, filled, settles

SIZES = "default.default_journal_size = 200\n"
CONFIGS = {"kestrel": SIZES, "libkestrel": SIZES + 'default.journal_format = "libkestrel"\n'}
ERRNOS = [errno.EIO, errno.ENOSPC, errno.EMFILE]
READS = ("read", "size", "reader", "list")
COUNT = 8
ITEMS = sorted(f"item {number}".encode() for number in range(COUNT))
Calls = list[tuple[str, str]]
Step = Callable[[World], object]


def purge(world: World) -> None:
    asked(world, "POST", "/api/queues/q/purge")


def move(world: World) -> None:
    asked(world, "POST", "/api/queues/q/move", {"to": "r"})


def delete(world: World) -> None:
    asked(world, "DELETE", "/api/queues/q", {})


def undo(world: World) -> None:
    for each in asked(world, "GET", "/api/undo")[1]:
        asked(world, "POST", f"/api/undo/{each['id']}")


def start(world: World) -> None:
    World(world.config, world.disk, world.now_ms)


def stop(world: World) -> None:
    world.broker.shutdown(world.now_ms)


def nothing(world: World) -> None:
    """Before an operation that needs no other one."""


OPERATIONS: dict[str, tuple[Step, Step]] = {
    "purge": (nothing, purge),
    "undo of a purge": (purge, undo),
    "move": (nothing, move),
    "undo of a move": (move, undo),
    "delete": (nothing, delete),
    "undo of a delete": (delete, undo),
    "stop": (nothing, stop),
    "start": (nothing, start),
    "start behind a purge": (purge, start),
    "start behind a move": (move, start),
}


@contextmanager
def counted(disk: Disk, fails_at: int = -1, number: int = 0) -> Iterator[Calls]:
    """The calls of `disk` that can fail, in their order; that with the number `fails_at` does, once."""
    calls: Calls = []
    before = disk._fault

    def fault(verb: str, path: str) -> Fault | None:
        calls.append((verb, path))
        return Fault(verb, path, number, 0, 1, 0) if len(calls) - 1 == fails_at else before(verb, path)

    disk._fault = fault  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        disk._fault = before  # type: ignore[method-assign]


def prepared(config: str, name: str) -> tuple[World, Step]:
    before, operation = OPERATIONS[name]
    world = filled(COUNT, config)
    before(world)
    if operation is start:
        world.disk = world.disk.kill()
    return world, operation


def kinds(config: str, name: str) -> dict[int, str]:
    """The first call of each kind, of a verb on paths that differ in numbers alone: its verb, by its number."""
    world, operation = prepared(config, name)
    with counted(world.disk) as calls:
        operation(world)
    first: dict[tuple[str, str], int] = {}
    for at, (verb, path) in enumerate(calls):
        first.setdefault((verb, re.sub(r"\d+", "N", path)), at)
    return {at: verb for (verb, _), at in first.items()}


def left(config: str, disk: Disk, now_ms: int) -> list[bytes]:
    """What a start on a sound disk has in both queues, when all that can be undone has been."""
    world = World(config, disk, now_ms + 1000)
    settles(world)
    undo(world)
    return sorted(item for queue in "qr" if world.broker.queues.known(queue) for item in world.items(queue))


def check_each_call(config: str, name: str) -> int:
    """How many failing calls were tried. READS never find a full disk."""
    calls = kinds(config, name)
    tried = 0
    for at in calls:
        for number in ERRNOS if calls[at] not in READS else [each for each in ERRNOS if each not in FULL_ERRNOS]:
            world, operation = prepared(config, name)
            with counted(world.disk, at, number) as seen, suppress(JournalFailure, SyncFailed, SpoolError):
                try:
                    operation(world)
                except OSError as error:  # a start that cannot read its spool: server/app.py makes a line of it
                    if operation is not start or error.filename is None:
                        raise
            tried += 1
            told = (seen[at], errno.errorcode[number])
            assert left(config, world.disk.crash(Crash.DROP), world.now_ms) == ITEMS, told
            assert left(config, world.disk.kill(), world.now_ms) == ITEMS, told
    return tried


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("form", CONFIGS)
def test_a_failing_call_neither_loses_nor_doubles_an_item(form: str, name: str) -> None:
    assert COUNT <= ITEMS_PER_SLICE
    assert check_each_call(CONFIGS[form], name) >= len(ERRNOS)


def test_an_undo_file_whose_failed_writes_are_passed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    work = AppendFrames.work

    def careless(task: AppendFrames) -> None:
        with suppress(OSError):
            work(task)

    monkeypatch.setattr(AppendFrames, "work", careless)
    with pytest.raises(AssertionError):
        check_each_call(CONFIGS["kestrel"], "purge")
