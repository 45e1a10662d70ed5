"""A sidecar of a file with many open reads is made in slices: it says the same, and more urgent tasks come between."""

from __future__ import annotations

import pytest

from staniel.journal import slices
from staniel.journal.background import NextSlice
from staniel.journal.kestrel.log import Log
from staniel.queues.queue import Queue
from staniel.sim.disk.disk import Disk
from staniel.sim.world import World
from tests.journal.kestrel.test_derived_effect import History, Steps
from tests.journal.kestrel.test_recovery_by_sidecars import SIDECARS

CONFIG = 'default.sync_journal = "os"\ndefault.max_items = 1000'
# Reads of the first file stay open, end, or are opened again in the second; items go back in each.
STEPS: Steps = [
    ("burst", 40), ("open", 3), ("open", 3), ("abort", 1), ("abort", 3), ("seal",),
    ("open", 1), ("confirm", 0), ("abort", 1), ("burst", 20), ("open", 3), ("put", 9, 0, 0), ("seal",),
    ("take", 4), ("confirm", 2), ("open", 2), ("abort", 0), ("abort", 0), ("seal",), ("turn", 1),
]  # fmt: skip


def sidecars_on(disk: Disk) -> dict[str, bytes]:
    try:
        return {name: disk.read(f"{SIDECARS}/{name}", 0, 1 << 20) for name, _ in disk.list(SIDECARS)}
    except FileNotFoundError:
        return {}


def sidecars_of(steps: Steps) -> dict[str, bytes]:
    history = History("documents", "default.max_items = 1000")
    history.run(steps)
    return sidecars_on(history.world.disk)


@pytest.mark.parametrize("items", [1, 2, 7])
def test_slices_of_any_size_make_the_same_sidecars(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sidecars_of(STEPS)
    monkeypatch.setattr(slices, "ITEMS_PER_SLICE", items)
    assert len(expected) >= 3
    assert sidecars_of(STEPS) == expected


def sealed_with_open_reads(monkeypatch: pytest.MonkeyPatch, count: int = 100) -> tuple[World, Queue]:
    """A world in which a sidecar is being described, ten items at a time."""
    monkeypatch.setattr(slices, "ITEMS_PER_SLICE", 10)
    world = World(CONFIG)
    client = world.client()
    for _ in range(count):
        client.says("set q 0 0 1", "x")
    queue = world.broker.queues.by_name["q"]
    for _ in range(count):
        assert queue.open(world.now_ms) is not None
    assert isinstance(queue.journal, Log)
    queue.journal.seal_wanted = True
    world.broker.group.ask_for_sync(queue.journal)
    world.turn(1)
    world.sync()
    do_task(world)  # the checksums
    return world, queue


def do_task(world: World) -> object:
    """Do the task that is next, and return it."""
    (task,) = world.start_tasks()
    world.finish_task(task)
    return task


def test_other_tasks_come_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = sealed_with_open_reads(monkeypatch)
    for _ in range(10):
        assert isinstance(do_task(world), NextSlice)
        urgent = NextSlice(lambda error, now_ms: None)
        world.broker.maintenance.tasks.submit(urgent)
        assert do_task(world) is urgent
        assert not sidecars_on(world.disk)
    world.do_tasks()
    assert len(sidecars_on(world.disk)) == 1


def test_a_queue_is_deleted_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world, queue = sealed_with_open_reads(monkeypatch)
    do_task(world)
    world.broker.deletions.delete(queue, world.now_ms)
    world.do_tasks()
    assert not sidecars_on(world.disk)


@pytest.mark.parametrize("is_running", [False, True])
def test_a_file_is_replaced_between_two_slices(is_running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world, queue = sealed_with_open_reads(monkeypatch)
    assert isinstance(queue.journal, Log)
    (segment,) = queue.journal.segments.sealed
    started = world.start_tasks() if is_running else []
    segment.is_replaced = True
    for task in started:
        world.finish_task(task)
    world.do_tasks()
    assert not sidecars_on(world.disk)


@pytest.mark.parametrize("is_running", [False, True])
def test_a_server_stops_between_two_slices(is_running: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = sealed_with_open_reads(monkeypatch)
    if is_running:
        world.start_tasks()
    world.broker.maintenance.close(world.now_ms)
    assert not sidecars_on(world.disk)
    assert not world.start_tasks()
