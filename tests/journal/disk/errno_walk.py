"""One call of the disk fails, with one errno, amid one operation: what comes of it, and what the next starts find."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import cache

from msgspec import Struct

from staniel.journal.disk.fs import JournalFailure, SyncFailed
from staniel.journal.spool import SpoolError
from staniel.server.app import last_line
from staniel.sim.disk.disk import Disk, Fault, PowerCut
from staniel.sim.disk.durable import Crash, Folder
from tests.journal.disk.errno_operations import FORMS, OPERATIONS, Items, Operation, Run, Watched, settle, stop

CLASSES = {
    "broken": ("EIO", "EROFS", "ESTALE"),
    "full": ("ENOSPC", "EDQUOT"),
    "short": ("EMFILE", "ENFILE", "ENOMEM"),
    "refused": ("EACCES",),
    "interrupted": ("EINTR",),
}
ERRNOS = {name: getattr(errno, name) for names in CLASSES.values() for name in names}
CLASS_OF = {name: kind for kind, names in CLASSES.items() for name in names}
Call = tuple[str, str]
UNUSED = {
    r"statfs .*": "a figure",
    r"(is_at|is_locked) .*": "it is looked each second",
    r"is_same_device s/\.staniel/\w+": "whether one sync covers the command log, too; if not it is synced itself",
    r"(is_same_device|read) s/\w+": "whether the redo log takes a file up; one that it does not is synced itself",
    r"(size|open|create|allocate|reserve|remove) s/\.staniel/failed_sync(\.room)?": "room for a mark, tried again",
    r"size s/\.staniel/(ballast|version|failed_sync|audit)": "it is looked each second",
    r"\w+ s/\.staniel/segments.*": "sidecars; files are read whole. Lists of removals; only a second fault needs them",
    r"list s": "which removals of segments are still under way; it is asked again at the next one",
    r"list s/\.staniel/(cmdlog/\.staniel-)?held": "second names of an old backup; the next start tidies up",
    r"(reader|read) s/\.staniel/undo/\d+": "an undo that goes on at a start ends, and its items stay in the file",
    r"remove s/\.staniel/undo/\d+": "nothing is left in it; the next start tidies up",
    r"(make_folder|open|create) s/\.staniel/undo(/\d+)?": "a move that cannot be undone, as its answer says",
    r"(open|write) s/\.staniel/undo/\d+": "that a deletion is over: the next start finds it out",
    r"sync_folder ": "of the folder around the spool, where a killed server may have made it",
    r"(reader|read) s/\w+(\.\d+)?": "to read ahead, or for a sidecar",
}
"""Calls that may fail without a word, and why."""


class Lasts(Enum):
    """`TORN`: once, when a part of the write has been made. `ON`: all calls like it fail from then on."""

    ONCE = "once"
    TORN = "torn"
    ON = "on"


class Outcome(Enum):
    """What comes of a call that fails. All leave each acknowledged item where it is."""

    ENDED = "ends"  # the process, with a line that says why
    REFUSED = "refused"  # the request; nothing has changed
    WARNED = "warned"  # what the call was for waits or is missing, and the log says so
    RETRIED = "retried"
    UNUSED = "unused"  # nothing rests on the call


class Trial(Struct, frozen=True):
    form: str
    operation: str
    at: int
    errno: str
    lasts: Lasts

    def __str__(self) -> str:
        return f"{self.form} / {self.operation} / {self.at} / {self.errno} / {self.lasts.value}"


class Result(Struct):
    trial: Trial
    call: Call
    outcome: Outcome
    said: str  # the last line, the answer, the warnings
    wrong: list[str]  # what must not be


def kind_of(call: Call) -> Call:
    """The verb, and the path without numbers."""
    return call[0], re.sub(r"\d+", "N", call[1])


class Base(Struct):
    """Where an operation begins, and its calls and warnings if nothing fails."""

    config: str
    operation: Operation
    disk: Disk
    now_ms: int
    must: Items
    may: Items
    calls: list[Call] = []
    warnings: list[str] = []
    refused: int = 0
    found: dict[int, Items] = {}  # by the states of disks that were looked at
    cut: dict[tuple[int, int], list[Disk]] = {}
    """By what a kill left, and how much of it was durable: what power losses amid the next start leave of that."""


@contextmanager
def failing(disk: Disk, at: int = -1, number: int = 0, lasts: Lasts = Lasts.ONCE) -> Iterator[list[Call]]:
    """The calls of `disk` that can fail, in their order; that with the number `at` does."""
    calls: list[Call] = []
    before = disk._fault

    def fault(verb: str, path: str) -> Fault | None:
        calls.append((verb, path))
        is_hit = len(calls) - 1 == at or (
            lasts is Lasts.ON and 0 <= at < len(calls) and kind_of(calls[at]) == kind_of((verb, path))
        )
        short = 7 if lasts is Lasts.TORN and verb == "write" else 0
        return Fault(verb, path, number, 0, 1, short) if is_hit else before(verb, path)

    disk._fault = fault  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        disk._fault = before  # type: ignore[method-assign]


@cache
def base(form: str, name: str) -> Base:
    operation = OPERATIONS[name]
    config = FORMS[form] + operation.config
    world = Watched(config)
    before, disk = Run(world, Counter(), Counter()), world.disk
    if name == "first start":
        disk = Disk()
        disk.make_folder("s")
    else:
        operation.fill(before)
        if not before.cuts_off:
            settle(world)
    assert not before.refused, (name, before.refused)
    disk = operation.accident(disk)
    before.may.update([("q", item.encode()) for item in operation.unsure])
    found = Base(config, operation, disk, world.now_ms + 1000, before.must, before.may)
    run, found.calls, error = operate(found, disk.fork())
    assert error is None and run is not None, (form, name, error)
    found.warnings, found.refused = list(run.world.warnings), len(run.refused)
    return found


def operate(
    base: Base, disk: Disk, at: int = -1, number: int = 0, lasts: Lasts = Lasts.ONCE
) -> tuple[Run | None, list[Call], Exception | None]:
    """The operation, until it is over or an error ends the server."""
    operation, run = base.operation, None
    error: Exception | None = None

    def started() -> Run:
        run = Run(Watched(base.config, disk, base.now_ms), base.must, base.may)
        settle(run.world)
        return run

    if operation.act is not None:
        run = started()
        operation.before(run)
        settle(run.world)
    with failing(disk, at, number, lasts) as calls:
        try:
            if run is None or operation.act is None:
                run = started()
            else:
                operation.act(run)
                if operation.act is not stop:
                    settle(run.world)
        except (JournalFailure, SpoolError, OSError) as raised:
            error = raised
    return run, calls, error


def found_by_start(base: Base, disk: Disk, now_ms: int) -> Items:
    """What a start on a sound disk has, when all that can be undone has been."""
    world = Watched(base.config, disk, now_ms + 1000)
    run = Run(world, Counter(), Counter())
    settle(world)
    run.undo_all()
    settle(world)
    found: Items = Counter()
    for queue in list(world.broker.queues):
        for item in drained(world, queue.name):
            found[queue.name, item] += 1
    if world.broker.serves_jobs:
        assert not world.broker.workq.trouble
        for id in world.broker.workq.jobs.by_id:
            found["jobs", b"%d" % int.from_bytes(id[:4])] += 1
    return found


def state_of(disk: Disk) -> int:
    """Of what a start sees of a disk."""

    def walk(folder: Folder, path: str) -> Iterator[tuple[str, bytes, int]]:
        for name, node in sorted(folder.entries.items()):
            if isinstance(node, Folder):
                yield f"{path}{name}/", b"", 0
                yield from walk(node, f"{path}{name}/")
            else:
                yield f"{path}{name}", bytes(node.data), node.reserved

    return hash(tuple(walk(disk._root, "")))


def drained(world: Watched, name: str) -> list[bytes]:
    queue = world.broker.queues.by_name[name]
    found = [taken.item.data for taken in queue.open_reads.values()]
    queue.pause(gets=False, puts=False)
    for _ in range(1000):
        taken = queue.remove_head(world.now_ms)
        if taken is not None:
            found.append(taken.item.data)
        elif len(queue.line):
            assert not world.broker.queues.blocked and queue.line.read_error is None
            world.do_tasks()
            world.turn()
        else:
            return found
    raise AssertionError(f"{name} can never be emptied")


def differences(base: Base, run: Run | None, found: Items, is_power_loss: bool) -> list[str]:
    """What is lost, doubled or invented."""
    places, lax = base.operation.places, base.operation.lax if is_power_loss else ()

    def placed(items: Items) -> Items:
        left: Items = Counter()
        for (queue, item), count in items.items():
            left[places.get(queue, queue), item] += count
        return left

    must = placed(run.must if run is not None else base.must)
    may = placed(run.may if run is not None else base.may)
    wrong = []
    have = placed(found)
    for each in {*must, *may, *have}:
        least = 0 if each[0] in lax else must[each]
        if not least <= have[each] <= must[each] + may[each]:
            wrong.append(f"{each[0]} {each[1][:20]!r}: {have[each]} instead of {least} to {must[each] + may[each]}")
    return sorted(wrong)


def tried(trial: Trial) -> Result:
    its = base(trial.form, trial.operation)
    disk = its.disk.fork()
    run, calls, error = operate(its, disk, trial.at, ERRNOS[trial.errno], trial.lasts)
    now_ms = run.world.now_ms if run is not None else its.now_ms
    wrong: list[str] = []
    said, outcome = judged(its, trial, run, calls, error, wrong)
    is_read = calls[trial.at][0] in ("read", "reader", "size", "list")
    is_full = CLASS_OF[trial.errno] == "full" and not is_read
    if run is not None and "undo.kept" in run.world.warnings and is_full:
        run.must, run.may = Counter(), run.must + run.may  # moved aside, because it cannot be written to
    look(its, run, disk.crash(Crash.DROP), now_ms, "power loss", wrong)
    if error is None and its.operation.act is not stop and run is not None:
        try:
            run.puts("later", copies=its.operation.copies)
            settle(run.world)
        except (JournalFailure, SpoolError, OSError) as raised:
            said, outcome = judged(its, trial, run, calls, raised, wrong)
        look(its, run, disk.crash(Crash.DROP), now_ms, "power loss later", wrong)
    for cut in cut_in_start(its, disk.kill(), now_ms):
        look(its, run, cut.fork(), now_ms, "power loss in the start behind a kill", wrong)
    look(its, run, disk, now_ms, "kill", wrong)
    return Result(trial, calls[trial.at], outcome, said, wrong)


def cut_in_start(base: Base, disk: Disk, now_ms: int) -> list[Disk]:
    """What is left of a disk, whose caches are as a kill has left them, when the power is lost at one of the steps of
    the next start.
    """
    state = state_of(disk), state_of(disk.crash(Crash.DROP))
    if state not in base.cut:
        whole = disk.fork()
        with suppress(JournalFailure, SpoolError, OSError):
            Watched(base.config, whole, now_ms + 1000)
        last = len(whole.log)
        base.cut[state] = []
        for step in sorted({1, last // 4, last // 2, 3 * last // 4, last - 1} & {*range(1, last + 1)}):
            twin = disk.fork()
            twin.stop_at = step
            with suppress(PowerCut, JournalFailure, SpoolError, OSError):
                Watched(base.config, twin, now_ms + 1000)
            twin.stop_at = None
            base.cut[state].append(twin.crash(Crash.DROP))
    return base.cut[state]


def look(base: Base, run: Run | None, disk: Disk, now_ms: int, how: str, wrong: list[str]) -> None:
    state = state_of(disk)
    if state not in base.found:  # most errnos leave the same
        try:
            base.found[state] = found_by_start(base, disk, now_ms)
        except (JournalFailure, SpoolError, OSError, AssertionError) as error:
            wrong.append(f"{how}: {type(error).__name__}: {error}")
            return
    found = base.found[state]
    wrong += [f"{how}: {each}" for each in differences(base, run, found, how.startswith("power"))]


def judged(
    base: Base,
    trial: Trial,
    run: Run | None,
    calls: list[Call],
    error: Exception | None,
    wrong: list[str],
) -> tuple[str, Outcome]:
    number, call = ERRNOS[trial.errno], calls[trial.at]
    if error is not None:
        line = last_line(error) or ""
        if not line:
            wrong.append(f"no line for {error!r}")
        if isinstance(error, OSError) and not isinstance(error, SyncFailed) and base.operation.serves:
            wrong.append(f"a plain OSError came through: {error!r}")
        if os.strerror(number) not in line or not re.search(r"\bs\b", line):
            wrong.append(f"the line does not say what has failed: {line}")
        return line, Outcome.ENDED
    assert run is not None
    if len(run.refused) > base.refused:
        return run.refused[-1], Outcome.REFUSED
    new = Counter(run.world.warnings) - Counter(base.warnings)
    if new:
        return " ".join(sorted(new)), Outcome.WARNED
    if calls.count(call) > base.calls.count(call) or (call in calls[trial.at + 1 :] and trial.lasts is not Lasts.ON):
        return "", Outcome.RETRIED
    if not any(re.fullmatch(pattern, " ".join(call)) for pattern in UNUSED):
        wrong.append("it was passed over without a word")
    return " ".join(call), Outcome.UNUSED


def trials(form: str, name: str) -> Iterator[Trial]:
    """All of an operation."""
    for at, (verb, _) in enumerate(base(form, name).calls):
        for lasts in Lasts:
            if lasts is Lasts.TORN and verb != "write":
                continue
            for word in ERRNOS:
                yield Trial(form, name, at, word, lasts)


def pairs() -> list[tuple[str, str]]:
    return [(form, name) for name, operation in OPERATIONS.items() for form in operation.forms]
