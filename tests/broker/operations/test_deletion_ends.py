"""A deletion that can be undone notes its end last. If that fails, no later start carries it out on the next queue of
that name.
"""

from __future__ import annotations

import errno

import pytest

from staniel.broker.session import TRY_LATER_MS, SessionState
from staniel.sim.disk.disk import Disk
from tests.broker.operations.test_undo import Admin, asked, goes_on, settles
from tests.support.spool import cut_at_each_step
from tests.support.streams import names
from tests.support.world import World

CONFIG = 'default.sync_journal = "always"\n'
FORMATS = [CONFIG, CONFIG + 'queues.q.journal_format = "libkestrel"\n']
UNDO_FILES = ".staniel/undo/"
HOUR_MS = 3_600_000


def with_child(config: str) -> World:
    world = World(config)
    world.client().puts("p", "q").says("set q+a 0 0 1", "1")
    settles(world)
    return world


def says(world: World, *lines: str) -> str:
    client = world.client().says(*lines)
    settles(world)
    return client.hears()


def uses_again(world: World) -> None:
    assert says(world, "set q+a 0 0 3", "new") == "STORED"
    assert says(world, "get q+a").startswith("VALUE")


def still_gets_items(config: str, disk: Disk, now_ms: int) -> bool:
    """Tell whether q+a is there after a start, and gets what is put to q."""
    world = World(config, disk, now_ms)
    settles(world)
    was_there = world.broker.queues.find("q+a") is not None
    assert says(world, "set q 0 0 3", "fan") == "STORED"
    return was_there and world.items("q+a") == [b"fan"]


@pytest.mark.parametrize("config", FORMATS)
@pytest.mark.parametrize("after", range(3))
def test_a_queue_that_is_made_again_is_not_deleted_by_a_later_start(config: str, after: int) -> None:
    world = with_child(config)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=after)
    status, _ = asked(world, "DELETE", "/api/queues/q+a")
    settles(world)
    if status == 200 and world.broker.queues.find("q+a") is None:
        uses_again(world)
    else:
        says(world, "get q+a")
    assert still_gets_items(config, world.disk.kill(), world.now_ms + HOUR_MS)


@pytest.mark.parametrize("config", FORMATS)
def test_no_queue_gets_the_name_while_the_end_cannot_be_noted_nor_after_a_stop(config: str) -> None:
    world = with_child(config)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=2, times=1000)
    assert asked(world, "DELETE", "/api/queues/q+a")[0] == 200
    assert "the end of its deletion cannot be noted" in says(world, "set q+a 0 0 3", "new")
    world = World(config, world.disk.kill(), world.now_ms + 1000)
    assert world.broker.queues.find("q+a") is None
    uses_again(world)
    assert still_gets_items(config, world.disk.kill(), world.now_ms + HOUR_MS)


@pytest.mark.parametrize("config", FORMATS)
def test_a_start_that_cannot_note_it_tries_again(config: str) -> None:
    world = with_child(config)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=2, times=1000)
    assert asked(world, "DELETE", "/api/queues/q+a")[0] == 200
    disk = world.disk.kill()
    disk.fail("write", UNDO_FILES, errno.ENOSPC, times=2)
    world = World(config, disk, world.now_ms + 1000)
    assert "the end of its deletion cannot be noted" in says(world, "set q+a 0 0 3", "new")
    world.turn(2000)
    assert not world.broker.undos.unended
    uses_again(world)
    assert still_gets_items(config, world.disk.kill(), world.now_ms + HOUR_MS)


@pytest.mark.parametrize("config", FORMATS)
def test_a_queue_whose_deletion_was_refused_is_not_deleted_by_a_later_start(config: str) -> None:
    world = with_child(config)
    world.disk.fail("remove", "q+a", errno.EPERM)
    world.disk.fail("remove", "q.read.a", errno.EPERM)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=2)
    status, _ = asked(world, "DELETE", "/api/queues/q+a")
    assert status != 200 and world.broker.queues.find("q+a") is not None
    assert still_gets_items(config, world.disk.kill(), world.now_ms + HOUR_MS)


def test_the_end_is_noted_even_if_the_undo_file_is_dropped_meanwhile() -> None:
    world = with_child(CONFIG)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=2, times=1)
    assert asked(world, "DELETE", "/api/queues/q+a")[0] == 200
    undos = world.broker.undos
    assert undos.unended
    undos.drop_all("no room")
    uses_again(world)
    assert not undos.unended and not world.disk.list(f"s/{UNDO_FILES}"[:-1])


@pytest.mark.parametrize("config", FORMATS)
def test_a_kill_at_any_step_leaves_the_next_queue_of_that_name(config: str) -> None:
    base = with_child(config)
    before, now_ms = base.disk.copy(), base.now_ms
    acknowledged: list[str] = []
    seen = set()
    for step, disk in cut_at_each_step(before, lambda disk: made_again(config, disk, now_ms + 10, acknowledged)):
        if acknowledged:
            assert still_gets_items(config, disk.kill(), now_ms + HOUR_MS), step
        seen.add(bool(acknowledged))
        acknowledged.clear()
    assert seen == {False, True}


def made_again(config: str, disk: Disk, now_ms: int, acknowledged: list[str]) -> None:
    """Put to the queue as soon as it is deleted, before the operation has ended. Raises PowerCut."""
    world = World(config, disk, now_ms)
    Admin(world).asks("DELETE", "/api/queues/q+a")
    while world.broker.queues.find("q+a") is not None:
        goes_on(world)
    client = world.client().says("set q+a 0 0 3", "new")
    for _ in range(20):
        goes_on(world)
    assert client.hears() == "STORED"
    assert says(world, "get q+a").startswith("VALUE")
    acknowledged.append("q+a")
    settles(world)


def test_a_deletion_that_a_start_ends_because_the_queue_is_gone_has_ended() -> None:
    world = with_child(CONFIG)
    world.disk.fail("write", UNDO_FILES, errno.ENOSPC, after=1, times=1000)
    Admin(world).asks("DELETE", "/api/queues/q+a")
    for _ in range(6):
        goes_on(world)
    disk = world.disk.kill()
    for name in names(disk):
        if name.startswith("q+a"):
            disk.remove(f"s/{name}")
    world = World(CONFIG, disk, world.now_ms + 1000)
    settles(world)
    uses_again(world)
    assert still_gets_items(CONFIG, world.disk.kill(), world.now_ms + HOUR_MS)


def test_a_put_rests_while_a_deletion_of_that_name_ends_instead_of_asking_in_each_turn() -> None:
    world = with_child(CONFIG)
    Admin(world).asks("DELETE", "/api/queues/q+a")
    while world.broker.queues.find("q+a") is not None:
        goes_on(world)
    assert world.broker.undos.is_ending("q+a")
    client = world.client().says("set q+a 0 0 3", "new")
    assert client.session.state is SessionState.SUSPENDED
    assert not client.session.wants_turn
    settles(world)
    world.turn(TRY_LATER_MS)
    settles(world)
    assert client.hears() == "STORED"
