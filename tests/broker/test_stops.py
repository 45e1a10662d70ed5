"""A stop takes the time of two syncs, however many queues there are and whatever is on its way to the disk."""

from __future__ import annotations

import errno

import pytest

from staniel.journal.group_commit import GroupCommit
from staniel.journal.spool import SpoolError
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import ClockReading
from tests.support.streams import asks
from tests.support.world import START_MS, World

SYNCS = ("sync", "sync_folder", "sync_all")
LOGS = ["none", "checksums", "1MB"]
SMALL = 'default.max_memory_size = "4KB"\ndefault.default_journal_size = 2000\n'


def config(form: str, sync: str, redo: str) -> str:
    text = f'{SMALL}default.journal_format = "{form}"\ndefault.sync_journal = "{sync}"\nserver.redo_log = "{redo}"\n'
    return f'{text}admin.audit_log = "1MB"\nworkq.listen = ["127.0.0.1:1"]\n'


def loaded(text: str, queues: int) -> World:
    """A server with items that are on the disk, others that are written, and rotations that are due."""
    world = World(text, read_clocks=lambda: ClockReading(START_MS, 0, "boot"))
    for number in range(queues):
        asks(world, f"set q{number} 0 0 500", "1".ljust(500, "x"))
        asks(world, f"get q{number}")
    for number in range(queues):
        client = world.client()
        for each in range(12):
            client.puts(f"{each:03}".ljust(500, "x"), f"q{number}")
    asks(world, "flush q0")
    client = world.client()
    client.puts("2", "q0")
    return world


def stop(world: World) -> list[str]:
    """The syncs that it took."""
    before = len(world.disk.log)
    world.broker.status.stop_cause = {"why": "signal SIGTERM"}
    world.broker.shutdown(world.now_ms)
    return [op.verb for op in world.disk.log[before:] if op.verb in SYNCS]


@pytest.mark.parametrize("redo", LOGS)
@pytest.mark.parametrize("sync", ["always", "1s", "os"])
@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("queues", [1, 20])
def test_a_stop_takes_two_syncs(queues: int, form: str, sync: str, redo: str) -> None:
    text = config(form, sync, redo)
    world = loaded(text, queues)
    held = {queue.name: queue.line.present for queue in world.broker.queues.all()}
    assert stop(world) == ["sync_all", "sync_folder"]
    again = World(text, world.disk.crash(Crash.DROP), world.now_ms + 1000)
    assert {queue.name: queue.line.present for queue in again.broker.queues.all()} == held
    assert world.disk.read("s/.staniel/version", 0, 100) == b"staniel-spool 1\n"


def cut_at_each_step(form: str, redo: str) -> list[str]:
    """Stops with a power cut at each step of the disk, and one behind the last: where what is there then is not what
    was answered.
    """
    text = config(form, "always", redo)
    wrong: list[str] = []
    step, is_over = 0, False
    while not is_over:
        world = loaded(text, 2)
        while world.sync():
            pass
        answered = {queue.name: world.items(queue.name) for queue in world.broker.queues.all()}
        world.client().puts("late", "q1")  # not answered
        world.disk.stop_at = len(world.disk.log) + step
        try:
            stop(world)
            assert step > 4
            is_over = True
        except PowerCut:
            pass
        for how in (Crash.DROP, Crash.KEEP):
            again = World(text, world.disk.crash(how), world.now_ms + 1000)
            found = {queue.name: again.items(queue.name) for queue in again.broker.queues.all()}
            if found not in (answered, answered | {"q1": [*answered["q1"], b"late"]}):
                wrong.append(f"step {step}, {how.value}")
        step += 1
    return wrong


@pytest.mark.parametrize("redo", LOGS)
@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
def test_a_power_cut_at_any_step_of_a_stop_loses_nothing_that_was_answered(form: str, redo: str) -> None:
    assert cut_at_each_step(form, redo) == []


@pytest.mark.pure
def test_files_that_are_renamed_before_the_sync_of_all_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCommit, "sync_for_shutdown", GroupCommit.write)
    with pytest.raises(SpoolError, match="version is damaged"):
        cut_at_each_step("kestrel", "1MB")


def cut_short(form: str, sync: str, redo: str, after: int) -> World:
    """A server that is about to stop, which has begun when so many calls of a running sync had been made."""
    world = loaded(config(form, sync, redo), 5)
    while world.sync():
        pass
    for number in range(5):
        world.client().puts("late", f"q{number}")
    world.client().puts("new", "q9")  # whose name is new in the folder
    group = world.broker.group
    world.turn(1000)
    running = group.start_sync(world.now_ms)
    assert running is not None and not running.then
    calls = [0]
    stop_now = world.disk.before_step

    def count() -> None:
        stop_now()
        calls[0] += 1
        if calls[0] == after:
            group.cut_short()

    world.disk.before_step = count
    if not after:
        group.cut_short()
    running.run()
    world.disk.before_step = stop_now
    group.finish_sync(running, world.now_ms)
    return world


@pytest.mark.parametrize("redo", LOGS)
@pytest.mark.parametrize("sync", ["always", "1s"])
@pytest.mark.parametrize("form", ["kestrel", "libkestrel"])
@pytest.mark.parametrize("after", range(4))
def test_a_stop_leaves_the_files_of_the_running_sync_to_its_own(form: str, sync: str, redo: str, after: int) -> None:
    world = cut_short(form, sync, redo, after)
    held = {queue.name: queue.line.present for queue in world.broker.queues.all()}
    assert stop(world) == ["sync_all", "sync_folder"]
    again = World(world.config, world.disk.crash(Crash.DROP), world.now_ms + 1000)
    assert {queue.name: queue.line.present for queue in again.broker.queues.all()} == held and "q9" in held


@pytest.mark.parametrize("verb", ["create", "rename"])
@pytest.mark.parametrize("redo", LOGS[1:])
def test_a_stop_that_cannot_end_the_redo_log_has_all_on_the_disk(redo: str, verb: str) -> None:
    text = config("kestrel", "1s", redo)
    world = loaded(text, 2)
    world.turn(2000)
    while world.sync():
        pass
    for number in range(5):
        assert asks(world, "set q1 0 0 5", f"new{number}".ljust(5)) == "STORED"
    held = {queue.name: queue.line.present for queue in world.broker.queues.all()}
    world.disk.fail(verb, "version.new", errno.EACCES)
    with pytest.raises(OSError, match="Permission denied"):
        stop(world)
    again = World(text, world.disk.crash(Crash.DROP), world.now_ms + 1000)
    assert {queue.name: queue.line.present for queue in again.broker.queues.all()} == held
