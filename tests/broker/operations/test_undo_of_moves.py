"""A move and a redrive can be undone: what still waits where it was moved to goes back, once, with its times."""

from __future__ import annotations

from itertools import product

import pytest

from staniel.broker.operations import moved_back
from staniel.broker.operations.transfer import ITEMS_PER_SLICE
from staniel.queues.item import Item
from staniel.sim.disk.durable import Crash
from staniel.sim.world import World
from tests.broker.operations.test_undo import Admin, asked, filled, settles, step

FORMATS = pytest.mark.parametrize("config", ["", 'default.journal_format = "libkestrel"'])


def times(world: World, queue: str) -> list[tuple[bytes, int, int]]:
    found = world.broker.queues.find(queue)
    return [] if found is None else [(item.data, item.added_ms, item.expires_ms) for item in found.line.items()]


def moved(world: World, source: str = "q", target: str = "r", how: str = "move") -> int:
    status, told = asked(world, "POST", f"/api/queues/{source}/{how}", {"to": target})
    assert status == 200 and told["undo"]
    return int(told["undo"])


@pytest.mark.parametrize(
    "config",
    [
        "",
        'default.sync_journal = "os"',
        'default.journal_format = "libkestrel"',
        'queues.r.journal_format = "libkestrel"',
        "default.keep_journal = false",
        'queues.r.max_age = "1h"',
    ],
)
@pytest.mark.parametrize("how", ["move", "redrive"])
def test_it_comes_back_with_its_times(how: str, config: str) -> None:
    world = filled(ITEMS_PER_SLICE + 3, config)
    world.client().says("set q 5 60 4", "temp")
    settles(world)
    before = times(world, "q")
    world.now_ms += 5000
    number = moved(world, how=how)
    assert not world.items("q") and len(world.items("r")) == len(before)
    shown = asked(world, "GET", "/api/undo")[1]
    assert [(each["operation"], each["queue"], each["target"], each["items"]) for each in shown] == [
        (how, "q", "r", len(before))
    ]
    world.client().puts("newer")
    returned = {"returned": len(before), "queue": "q", "why": "", "open": 0, "gone": 0}
    assert asked(world, "POST", f"/api/undo/{number}") == (200, returned)
    assert times(world, "q")[1:] == before and world.items("q")[0] == b"newer" and not world.items("r")
    assert asked(world, "GET", "/api/undo")[1] == [] and asked(world, "POST", f"/api/undo/{number}")[0] == 404
    if "keep_journal" not in config:
        again = World(config, world.disk.crash(Crash.DROP), world.now_ms)
        assert times(again, "q")[1:] == before and not again.items("r")


@FORMATS
def test_what_was_taken_stays_taken_and_what_is_open_stays_open(config: str) -> None:
    world = filled(6, config)
    number = moved(world)
    client = world.client()
    client.says("get r")
    client.says("get r/open")
    settles(world)
    told = asked(world, "POST", f"/api/undo/{number}")[1]
    assert told == {"returned": 4, "queue": "q", "why": "", "open": 1, "gone": 1}
    client.says("get r/abort")
    settles(world)
    told = asked(world, "POST", f"/api/undo/{number}")[1]
    assert told == {"returned": 1, "queue": "q", "why": "", "open": 0, "gone": 1}
    assert sorted(world.items("q")) == [b"item %d" % each for each in (1, 2, 3, 4, 5)] and not world.items("r")


@FORMATS
@pytest.mark.parametrize("is_paused", [False, True])
def test_those_ahead_and_behind_keep_their_places(is_paused: bool, config: str) -> None:
    world = filled(5, config)
    client = world.client()
    for number in range(3):
        client.puts(f"ahead {number}", "r")
    settles(world)
    undo = moved(world)
    client.puts("behind", "r")
    if is_paused:
        client.says("pause r")
    settles(world)
    assert asked(world, "POST", f"/api/undo/{undo}")[1]["returned"] == 5
    assert world.items("r") == [b"ahead 0", b"ahead 1", b"ahead 2", b"behind"]
    again = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    assert again.items("r") == world.items("r") and again.items("q") == world.items("q")


def test_items_that_are_passed_were_not_delivered() -> None:
    world = filled(2, 'queues.r.max_deliveries = 1\nqueues.r.dead_letter_queue = "dead"')
    world.client().puts("ahead", "r")
    settles(world)
    asked(world, "POST", f"/api/undo/{moved(world)}")
    taken = world.broker.queues.by_name["r"].remove_head(world.now_ms)
    assert taken is not None and taken.deliveries == 1


def test_equal_items_of_others_stay() -> None:
    world = filled(0)
    for queue in ("q", "r"):
        made = world.broker.queues.make(queue, world.now_ms)
        made.add(Item(b"same", world.now_ms), world.now_ms)
    settles(world)
    undo = moved(world)
    assert asked(world, "POST", f"/api/undo/{undo}")[1]["returned"] == 1
    assert world.items("q") == world.items("r") == [b"same"]


def test_those_behind_too_many_others_can_come_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_back, "PASSED_MAX", 3)
    world = filled(2)
    for number in range(4):
        world.client().puts(f"ahead {number}", "r")
    settles(world)
    undo = moved(world)
    status, told = asked(world, "POST", f"/api/undo/{undo}")
    assert status == 503 and "2 may wait behind more than 3 others in r" in told["error"]
    world.client().says("get r")
    settles(world)
    assert asked(world, "POST", f"/api/undo/{undo}")[1]["returned"] == 2
    assert world.items("r") == [b"ahead 1", b"ahead 2", b"ahead 3"]


def everything(world: World) -> list[bytes]:
    """All that there is, with what can be undone undone: nothing of that may be in the other queue."""
    settles(world)
    for each in asked(world, "GET", "/api/undo")[1]:
        assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
    return sorted(world.items("q") + world.items("r"))


@FORMATS
@pytest.mark.parametrize("how", list(Crash))
@pytest.mark.parametrize("does_undo", [False, True])
def test_a_crash_at_any_step_neither_loses_nor_doubles(how: Crash, does_undo: bool, config: str) -> None:
    count = ITEMS_PER_SLICE + 5
    start = filled(count, config)
    start.client().puts("ahead", "r")
    settles(start)
    number = moved(start) if does_undo else 0
    expected = sorted([b"ahead", *[b"item %d" % each for each in range(count)]])
    for steps in range(100):
        world = World(config, start.disk.copy(), start.now_ms)
        admin = Admin(world)
        if does_undo:
            admin.asks("POST", f"/api/undo/{number}")
        else:
            admin.asks("POST", "/api/queues/q/move", {"to": "r"})
        for _ in range(steps):
            is_more = step(world)
        is_answered = admin.hears() is not None
        after = World(config, world.disk.crash(how), world.now_ms)
        assert everything(after) == expected, steps
        if is_answered and not is_more:
            assert after.items("r") == [b"ahead"]  # what was answered can be undone, or was
            return
    raise AssertionError("it never ends")


@FORMATS
def test_an_undo_may_be_cut_off_twice(config: str) -> None:
    start = filled(3, config)
    start.client().puts("ahead", "r")
    settles(start)
    number = moved(start)
    for first in range(9):
        for second in range(9):
            world = World(config, start.disk.copy(), start.now_ms)
            for steps in (first, second):
                Admin(world).asks("POST", f"/api/undo/{number}")
                for _ in range(steps):
                    step(world)
                world = World(config, world.disk.crash(Crash.KEEP), world.now_ms)
            assert everything(world) == [b"ahead", b"item 0", b"item 1", b"item 2"], (first, second)


def test_a_move_ends_with_its_client_and_what_was_set_aside_comes_back() -> None:
    for steps in range(8):
        world = filled(ITEMS_PER_SLICE + 5)
        admin = Admin(world)
        admin.asks("POST", "/api/queues/q/move", {"to": "r"})
        for _ in range(steps):
            step(world)
        admin.session.close(world.now_ms)
        settles(world)
        there = world.items("q") + world.items("r")
        assert sorted(there) == sorted(b"item %d" % each for each in range(ITEMS_PER_SLICE + 5)), steps
        for each in asked(world, "GET", "/api/undo")[1]:
            assert asked(world, "POST", f"/api/undo/{each['id']}")[0] == 200
        assert len(world.items("q")) == ITEMS_PER_SLICE + 5


def test_a_target_that_gets_full_meanwhile_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = filled(5, "queues.r.max_items = 3")
    admin = Admin(world)
    admin.asks("POST", "/api/queues/q/move", {"to": "r"})
    world.client().puts("first", "r")
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[1]["moved"] == 2 and "full" in heard[1]["why"]
    assert world.items("q") == [b"item 2", b"item 3", b"item 4"]
    undone = asked(world, "POST", f"/api/undo/{heard[1]['undo']}")[1]
    assert (undone["returned"], undone["gone"]) == (2, 0)


def test_without_room_for_its_notes_a_move_is_done_all_the_same() -> None:
    world = filled(30, 'admin.undo_max_size = "1KB"')
    told = asked(world, "POST", "/api/queues/q/move", {"to": "r"})[1]
    assert told == {"moved": 30, "to": "r", "why": "", "undo": 0, "undo_until_at_ms": 0}


@FORMATS
def test_a_deleted_queue_comes_back_with_what_waited_in_it(config: str) -> None:
    world = filled(5, config)
    before = times(world, "q")
    status, told = asked(world, "DELETE", "/api/queues/q")
    assert status == 200 and told["deleted"] == 5 and world.broker.queues.find("q") is None
    world = World(config, world.disk.crash(Crash.DROP), world.now_ms)
    assert world.broker.queues.find("q") is None
    assert asked(world, "POST", f"/api/undo/{told['undo']}")[1]["returned"] == 5
    assert times(world, "q") == before
    gone = {"deleted": 5, "undo": 0, "undo_until_at_ms": 0}
    assert asked(world, "DELETE", "/api/queues/q", {"no_undo": True}) == (200, gone)


def test_what_comes_while_a_queue_is_deleted_can_be_undone_with_the_rest() -> None:
    world = filled(5)
    admin, client = Admin(world), world.client()
    admin.asks("DELETE", "/api/queues/q")
    for number in range(50):
        if world.broker.queues.find("q") is not None:
            client.puts(f"newer {number}")
        step(world)
    settles(world)
    heard = admin.hears()
    assert heard is not None and heard[0] == 200 and heard[1]["deleted"] > 5
    assert asked(world, "POST", f"/api/undo/{heard[1]['undo']}")[1]["returned"] == heard[1]["deleted"]
    assert len(world.items()) == heard[1]["deleted"] and world.items()[5] == b"newer 0"


@FORMATS
@pytest.mark.parametrize("how", list(Crash))
def test_a_crash_while_a_queue_is_deleted(how: Crash, config: str) -> None:
    start = filled(5, config)
    for steps in range(20):
        world = World(config, start.disk.copy(), start.now_ms)
        Admin(world).asks("DELETE", "/api/queues/q")
        for _ in range(steps):
            step(world)
        after = World(config, world.disk.crash(how), world.now_ms)
        assert everything(after) == [b"item %d" % each for each in range(5)], steps


@pytest.mark.parametrize("how", list(Crash))
def test_a_start_deletes_no_queue_whose_dead_letters_had_not_left_it(how: Crash) -> None:
    config = 'queues.q.max_deliveries = 1\nqueues.q.dead_letter_queue = "dead"\n'
    start = filled(5, config)
    for steps, more in product(range(14), range(8)):
        world = World(config, start.disk.copy(), start.now_ms)
        client = world.client()
        client.says("get q/open")
        settles(world)
        Admin(world).asks("DELETE", "/api/queues/q")
        for _ in range(steps):
            step(world)
        if world.broker.queues.find("q") is None:
            return
        client.says("get q/abort")
        for _ in range(more):
            step(world)
        after = World(config, world.disk.crash(how), world.now_ms)
        settles(after)
        found = sorted(everything(after) + after.items("dead"))
        assert found == [b"item %d" % each for each in range(5)], (steps, more)
