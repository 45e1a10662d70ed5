"""A queue whose files the system refuses to remove: the request is refused, or the rest is tried again; no other queue
notices, and no start finds items of what was deleted.
"""

from __future__ import annotations

import errno
import os

import pytest

from staniel.broker.broker import REMOVAL_NS
from tests.journal.disk.test_refusals import ALWAYS, SMALL, drained, put
from tests.support.streams import asks
from tests.support.world import World

REFUSALS = [errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EIO]
STREAM = f'{SMALL}default.journal_format = "libkestrel"\n'
FORMATS = {"one file": ("", 3), "many files": (SMALL, 40), "libkestrel": (STREAM, 40)}


def served(world: World, first: int) -> None:
    put(world, first, 1, "other")
    assert drained(world, "other") == [first]


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_queue_of_which_no_file_can_be_removed_is_served_on(form: str, number: int) -> None:
    text, count = FORMATS[form]
    world = World(text)
    put(world, 0, count)
    world.disk.fail("remove", "s/q", number, times=ALWAYS)
    heard = asks(world, "delete q")
    assert heard.startswith("SERVER_ERROR queue q is not deleted: cannot ") and os.strerror(number) in heard
    (said,) = world.reported("queue.undeleted")
    assert said["queue"] == "q" and os.strerror(number) in str(said["why"])
    served(world, 7)
    put(world, count, 1)
    again = World(text, world.disk.fork(), world.now_ms)
    assert not again.reported("spool.renewed") and drained(again) == list(range(count + 1))
    world.disk._faults.clear()
    assert drained(world) == list(range(count + 1))
    put(world, 0, 1)
    assert asks(world, "delete q") == "DELETED"
    assert World(text, world.disk.kill(), world.now_ms).broker.queues.find("q") is None


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize(("verb", "path"), [("create", "s/q~~"), ("rename", "s/q"), ("rename", "s/q~~")])
def test_a_deletion_that_cannot_be_begun_changes_nothing(verb: str, path: str, number: int) -> None:
    world = World(SMALL)
    put(world, 0, 40)
    world.disk.fail(verb, path, number, times=1)
    assert asks(world, "delete q").startswith("SERVER_ERROR queue q is not deleted: ")
    put(world, 40, 1)
    again = World(SMALL, world.disk.fork(), world.now_ms)
    assert drained(again) == list(range(41)) == drained(world)


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("form", ["many files", "libkestrel"])
def test_a_deletion_that_is_refused_half_way_goes_on_each_second(form: str, number: int) -> None:
    text, count = FORMATS[form]
    world = World(text)
    put(world, 0, count)
    files = [name for name, _ in world.disk.list("s") if name.startswith("q.") and ".read." not in name]
    sidecars = int(form == "many files")
    world.disk.fail("remove", f"s/{files[1]}", number, after=sidecars, times=ALWAYS)
    assert asks(world, "delete q") == "DELETED"
    (said,) = world.reported("queue.unremoved")
    assert said["queue"] == "q" and files[1] in str(said["why"]) and os.strerror(number) in str(said["why"])
    assert asks(world, "set q 0 0 1", "x").startswith(
        "SERVER_ERROR queue q is not available: its files cannot be removed"
    )
    assert asks(world, "set q+new 0 0 1", "x").startswith("SERVER_ERROR queue q is not available")
    served(world, 7)
    world.turn(1000)
    assert drained(World(text, world.disk.fork(), world.now_ms)) == []
    world.disk._faults.clear()
    world.turn(1000)
    assert [name for name, _ in world.disk.list("s") if name.startswith("q")] == []
    put(world, 100, 40)
    again = World(text, world.disk.kill(), world.now_ms)
    assert drained(again) == list(range(100, 140))


def test_a_queue_that_has_outlived_its_age_and_cannot_be_removed_is_tried_again() -> None:
    world = World('default.max_queue_age = "10s"\nserver.expiration_timer_frequency = "1s"\n')
    assert asks(world, "set q 0 0 1", "x") == "STORED" and asks(world, "get q").startswith("VALUE")
    world.disk.fail("remove", "s/q", errno.EACCES, times=ALWAYS)
    for _ in range(30):
        world.turn(1000)
    assert "queue.undeleted" in world.events and world.broker.queues.find("q") is not None
    world.disk._faults.clear()
    for _ in range(3):
        world.turn(1000)
    assert world.broker.queues.find("q") is None


def test_what_is_left_of_many_deleted_queues_is_tried_again_in_shares_of_a_turn() -> None:
    world = World(SMALL)
    names = [f"q{number}" for number in range(10)]
    for name in names:
        put(world, 0, 40, name)
    world.disk.fail("remove", "/s/q", errno.EPERM, after=1, times=ALWAYS)
    for name in names:
        world.disk._faults[0].after = 1
        assert asks(world, f"delete {name}") == "DELETED"
    left = world.broker.deletions.unremoved
    assert list(left) == names
    ns = iter(range(0, 1 << 62, REMOVAL_NS // 2))
    world.broker.step_clock.now_ns = lambda: next(ns)
    world.turn(1000)
    assert list(left) == [*names[2:], *names[:2]]
    world.disk._faults.clear()
    for turn in range(5):
        assert len(left) == len(names) - 2 * turn
        world.turn(1000)
    assert not left and not [name for name, _ in world.disk.list("s") if name.startswith("q")]
