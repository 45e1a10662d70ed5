"""The collector of garbage: never over what the queues hold, and hardly ever needed."""

from __future__ import annotations

import gc
import socket
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import defaults
from staniel.journal.background import CallbackTask
from staniel.journal.disk.os_fs import OsFs
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item
from staniel.server.clock import ServerClock
from staniel.server.gc_policy import DELETED_MIN, EVERY_MS, HELD_BYTES_MAX, LOOKS_MAX, YOUNG, YOUNGER, GcPolicy
from staniel.server.hub import Hub
from staniel.server.machine import SystemMachine

SCRIPTS = {
    "puts and gets": [b"set jobs 0 0 1\r\nx\r\n", b"get jobs\r\n", b"get jobs\r\n"],
    "hangs up with an open read": [b"set jobs 0 0 1\r\nx\r\n", b"get jobs/open\r\n"],
    "hangs up while it waits": [b"get waits/t=60000\r\n"],
    "waits in vain": [b"get waits/t=1\r\n"],
    "monitors": [b"monitor waits 60\r\n"],
    "makes mistakes": [b"nonsense\r\n", b"set jobs 0 0 many\r\n", b"\x80"],
}


@pytest.fixture(autouse=True)
def collector_as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*thresholds)


@pytest.fixture
def generations() -> Iterator[list[int]]:
    """Those that have been collected meanwhile."""
    seen: list[int] = []

    def note(phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            seen.append(facts["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_no_full_collection_begins_by_itself_however_much_is_made(generations: list[int]) -> None:
    GcPolicy().enable()
    line = deque(Item(b"", number) for number in range(1000))
    made = [[number] for number in range(YOUNG * YOUNGER * 40)]
    assert len(line) == 1000 and len(made) > 0
    assert {0, 1} <= set(generations)
    assert 2 not in generations


def test_what_the_start_has_built_is_not_looked_at_again() -> None:
    built = [[number] for number in range(1000)]
    GcPolicy().enable()
    assert gc.get_freeze_count() > len(built)


def test_a_full_collection_waits_for_a_quiet_moment_with_little_in_memory(generations: list[int]) -> None:
    gc_policy = GcPolicy()
    gc_policy.enable()
    gc.disable()
    gc_policy.idle(HELD_BYTES_MAX + 1, 0, EVERY_MS)
    assert generations == []
    gc_policy.idle(HELD_BYTES_MAX, 0, EVERY_MS)
    assert generations == [2]
    gc_policy.idle(0, 0, 2 * EVERY_MS - 1)
    assert generations == [2]
    gc_policy.idle(0, 0, 2 * EVERY_MS)
    assert generations == [2, 2]


class Selfish:
    """What only the collector finds."""

    def __init__(self) -> None:
        self.me = self


def test_a_quiet_moment_does_not_look_through_thousands_of_new_queues(generations: list[int]) -> None:
    gc_policy = GcPolicy()
    gc_policy.enable()
    made = [[[number]] for number in range(YOUNG * YOUNGER * LOOKS_MAX)]
    generations.clear()
    gc.disable()
    gc_policy.idle(0, 0, EVERY_MS)
    assert generations == [1] and gc.get_freeze_count() > len(made)
    gc_policy.idle(0, 0, 2 * EVERY_MS)
    assert generations == [1, 2]  # of what is new since
    assert len(gc.get_objects()) < len(made), "what the next one looks at"
    gc_policy.idle(0, 0, 3 * EVERY_MS)
    assert generations == [1, 2, 2]


def test_deleted_queues_that_are_frozen_are_found_once_there_are_many() -> None:
    gc_policy = GcPolicy()
    gc_policy.enable()
    gc.disable()
    selfish = Selfish()
    gone = weakref.ref(selfish)
    gc_policy.idle(0, 0, EVERY_MS)
    del selfish
    gc_policy.idle(0, DELETED_MIN - 1, 2 * EVERY_MS)
    assert gone() is not None
    gc_policy.idle(0, DELETED_MIN, 3 * EVERY_MS)
    assert gone() is None


class Read(CallbackTask):
    def work(self) -> None:
        self.data = b"much"


def started() -> Read:
    def come(error: OSError | None, now_ms: int) -> None:
        assert task.data == b"much"

    task = Read(come)
    return task


def test_a_task_that_is_done_is_freed_with_what_it_has_read_although_its_end_knows_it() -> None:
    gc.disable()
    task = started()
    gone = weakref.ref(task)
    task.run()
    task.on_done(0)
    del task
    assert gone() is None


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_client_that_is_gone_leaves_nothing_for_the_collector(script: list[bytes], tmp_path: Path) -> None:
    broker = Broker(defaults(str(tmp_path / "spool")), OsFs())
    broker.recover(0)
    machine = SystemMachine(ServerClock())
    hub = Hub(broker, machine, 100)
    with closing(hub):
        come_and_go(hub, machine, script)  # what is made once stays
        gc.collect()
        gc.disable()
        come_and_go(hub, machine, script)
        assert gc.collect() == 0


def come_and_go(hub: Hub, machine: SystemMachine, script: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    hub.admit(ours, "", protocols.memcache(Dialect.MEMCACHED), Limits(1 << 16, 1 << 20), hub.clock.now_ms())
    with theirs:
        for request in script:
            theirs.sendall(request)
            turns(hub, machine)
    turns(hub, machine)
    assert not hub.broker.counters.curr_connections


def turns(hub: Hub, machine: SystemMachine) -> None:
    for _ in range(10):
        hub.turn(machine.poller.poll(0.005))
