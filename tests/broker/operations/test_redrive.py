"""A redrive without a target: each dead letter goes to the queue that it left, and can be brought back from there."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

from staniel.broker.operations import moved_back
from staniel.broker.operations.transfer import ITEMS_PER_SLICE
from staniel.queues.item import Item, item_with
from staniel.queues.past import Why, next_past
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from tests.broker.operations.test_undo import Admin, asked, goes_on, settles, step
from tests.support.world import World

MIXED = 'default.journal_format = "libkestrel"\nqueues.dead.journal_format = "kestrel"\n'  # where pasts are kept
FORMATS = pytest.mark.parametrize("form", ["", MIXED])
CRASHES = pytest.mark.parametrize("how", list(Crash))
HOMES = ("mails", "orders", "calls")
SHARED = "".join(f'[queues.{name}]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n' for name in HOMES)


def died(world: World, *puts: tuple[str, str]) -> World:
    """Each item is put into its queue, and dies there."""
    client = world.client()
    for queue, data in puts:
        client.puts(data, queue).says(f"get {queue}/open", f"get {queue}/abort")
        settles(world)
    return world


def test_items_of_a_shared_dead_letter_queue_go_home_each() -> None:
    world = died(World(SHARED), ("mails", "a"), ("orders", "b"), ("mails", "c"), ("orders", "d"))
    assert world.items("dead") == [b"a", b"b", b"c", b"d"]
    status, found = asked(world, "POST", "/api/queues/dead/redrive", {})
    assert (status, found["moved"], found["to"]) == (200, 4, "")
    settles(world)
    assert (world.items("mails"), world.items("orders"), world.items("dead")) == ([b"a", b"c"], [b"b", b"d"], [])
    again = World(SHARED, world.disk.crash(Crash.DROP), world.now_ms + 1)
    assert (again.items("mails"), again.items("orders"), again.items("dead")) == ([b"a", b"c"], [b"b", b"d"], [])


def test_so_many_go_as_were_asked_for() -> None:
    world = died(World(SHARED), *[("mails", f"{number:03}") for number in range(100)])
    assert asked(world, "POST", "/api/queues/dead/redrive", {"count": 70})[1]["moved"] == 70
    assert (len(world.items("mails")), len(world.items("dead"))) == (70, 30)


def test_one_that_does_not_say_where_it_comes_from_ends_it() -> None:
    world = died(World(SHARED), ("mails", "a"))
    world.client().puts("stranger", "dead")
    world = died(world, ("orders", "b"))
    status, found = asked(world, "POST", "/api/queues/dead/redrive", {})
    assert (status, found["moved"]) == (200, 1) and "does not say which queue" in found["why"]
    assert (world.items("mails"), world.items("dead")) == ([b"a"], [b"stranger", b"b"])
    assert asked(world, "POST", "/api/queues/dead/redrive", {})[0] == 409


def test_a_home_that_is_full_ends_it() -> None:
    world = died(World(SHARED.replace("[queues.orders]\n", "[queues.orders]\nmax_items = 1\n")), ("mails", "a"))
    world = died(world, ("orders", "b"), ("orders", "c"), ("mails", "d"))
    found = asked(world, "POST", "/api/queues/dead/redrive", {})[1]
    assert found["moved"] == 2 and found["why"] == "orders is full (max_items or max_size)"
    assert world.items("dead") == [b"c", b"d"]


def test_a_home_that_the_user_has_no_right_to_ends_it() -> None:
    user = '[users.op]\nroles = ["operate"]\nqueues = ["dead", "mails"]\nuids = [1000]\n'
    world = died(World(SHARED), ("mails", "a"), ("orders", "b"))
    world = World(SHARED + user, world.disk.crash(Crash.DROP), world.now_ms + 1)
    admin = Admin(world)
    world.broker.authorize(admin.session, "op", world.broker.users.by_name["op"].rights)
    admin.asks("POST", "/api/queues/dead/redrive", {})
    settles(world)
    while (heard := admin.hears()) is None:
        goes_on(world)
    assert heard[0] == 200 and heard[1]["moved"] == 1 and "may not operate on orders" in heard[1]["why"]
    assert world.items("mails") == [b"a"] and world.items("orders") == []


@pytest.mark.parametrize("cut", range(0, 24, 2))
def test_a_power_cut_leaves_each_item_in_one_place(cut: int) -> None:
    world = died(World(SHARED), ("mails", "a"), ("orders", "b"), ("mails", "c"))
    world.disk.stop_at = len(world.disk.log) + cut
    with suppress(PowerCut):
        asked(world, "POST", "/api/queues/dead/redrive", {})
    for how in Crash:
        again = World(SHARED, world.disk.crash(how), world.now_ms + 1000)
        settles(again)
        assert sorted(again.items("mails") + again.items("orders") + again.items("dead")) == [b"a", b"b", b"c"]


def letters(count: int, form: str = "", homes: tuple[str, ...] = HOMES, data: bytes = b"item %d") -> World:
    """A queue of so many dead letters, from each home in turn."""
    world = World(form + SHARED)
    dead = world.broker.queues.make("dead", world.now_ms)
    for number in range(count):
        item = Item(data % number if b"%d" in data else data, world.now_ms)
        past = next_past(item, Why.DEAD, homes[number % len(homes)], 1, "c", world.now_ms)
        dead.add(item_with(past, item.data, item.added_ms, 0, 0), world.now_ms)
    settles(world)
    world.now_ms += 1000
    return world


def redriven(world: World, **body: object) -> int:
    status, found = asked(world, "POST", "/api/queues/dead/redrive", body)
    assert status == 200 and found["undo"], found
    return int(found["undo"])


def undone(world: World, number: int) -> dict[str, object]:
    status, told = asked(world, "POST", f"/api/undo/{number}")
    assert status == 200, told
    return dict(told)


def there(world: World) -> list[list[bytes]]:
    return [world.items(name) for name in ("dead", *HOMES)]


@FORMATS
@pytest.mark.parametrize("config", ["", 'default.sync_journal = "os"\n', "default.keep_journal = false\n"])
def test_each_comes_back_from_the_home_that_it_went_to(form: str, config: str) -> None:
    count = 2 * ITEMS_PER_SLICE + 5
    world = letters(count, form + config)
    before = [(item.data, item.added_ms, item.expires_ms) for item in world.broker.queues.by_name["dead"].line.items()]
    number = redriven(world)
    assert [len(items) for items in there(world)] == [0, 87, 87, 87]
    [shown] = asked(world, "GET", "/api/undo")[1]
    assert (shown["operation"], shown["items"], shown["targets"]) == ("redrive", count, list(HOMES))
    assert undone(world, number) == {"returned": count, "queue": "dead", "why": "", "open": 0, "gone": 0}
    after = [(item.data, item.added_ms, item.expires_ms) for item in world.broker.queues.by_name["dead"].line.items()]
    assert sorted(after) == sorted(before) and [len(items) for items in there(world)] == [count, 0, 0, 0]
    redriven(world)  # they still say where they come from
    assert [len(items) for items in there(world)] == [0, 87, 87, 87]
    if "keep_journal" not in config:
        again = World(form + config + SHARED, world.disk.crash(Crash.DROP), world.now_ms)
        assert there(again) == there(world)


def test_what_was_taken_at_home_stays_taken_and_is_counted() -> None:
    world = letters(9)
    number = redriven(world)
    client = world.client()
    client.says("get mails", "get orders/open")
    settles(world)
    told = undone(world, number)
    assert (told["returned"], told["open"], told["gone"]) == (7, 1, 1)
    client.says("get orders/abort")
    settles(world)
    # It has died again: what it was at home is gone, and the dead letter that it is now is none of the redrive's.
    told = undone(world, number)
    assert (told["returned"], told["open"], told["gone"]) == (0, 0, 1)
    assert [len(items) for items in there(world)] == [8, 0, 0, 0]


def test_a_home_that_is_deleted_takes_its_items_along() -> None:
    world = letters(9)
    number = redriven(world)
    world.client().says("delete mails")
    settles(world)
    told = undone(world, number)
    assert (told["returned"], told["gone"]) == (6, 3) and asked(world, "GET", "/api/undo")[1] == []
    number = redriven(world)
    for name in HOMES:
        world.client().says(f"delete {name}")
    settles(world)
    assert undone(world, number)["gone"] == 6


def test_a_home_that_cannot_be_looked_through_is_left_out_and_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_back, "PASSED_MAX", 3)
    world = letters(9)
    world.client().puts("ahead", "mails")
    for number in range(4):
        world.client().puts(f"ahead {number}", "mails")
    settles(world)
    number = redriven(world)
    told = undone(world, number)
    assert told["returned"] == 6 and told["why"] == "3 may wait behind more than 3 others in mails"
    world.client().says("get mails", "get mails")
    settles(world)
    assert undone(world, number)["returned"] == 3


@FORMATS
@CRASHES
@pytest.mark.parametrize("does_undo", [False, True])
def test_a_crash_at_any_step_neither_loses_nor_doubles_and_it_goes_on(how: Crash, does_undo: bool, form: str) -> None:
    count = 7
    expected = sorted(b"item %d" % number for number in range(count))
    start = letters(count, form)
    number = redriven(start) if does_undo else 0
    path, body = (f"/api/undo/{number}", None) if does_undo else ("/api/queues/dead/redrive", {})
    Admin(start).asks("POST", path, body)
    for steps in range(100):
        world = World(form + SHARED, start.disk.crash(how), start.now_ms)
        has_begun = bool(world.broker.operations.running)
        settles(world)
        found = there(world)
        assert sorted(chain(*found)) == expected, steps
        if has_begun or not start.broker.operations.running:
            assert bool(found[0]) is does_undo, steps
        for each in asked(world, "GET", "/api/undo")[1]:
            assert each["operation"] == "redrive"
            undone(world, each["id"])
        if has_begun:
            assert sorted(world.items("dead")) == expected, steps
        if not start.broker.operations.running:
            return
        step(start)
    raise AssertionError("it never ends")


@FORMATS
def test_equal_items_of_several_redrives_are_neither_doubled_nor_lost(form: str) -> None:
    world = letters(12, form, data=b"same")
    first, second = redriven(world, count=6), redriven(world, count=6)
    world.client().says("get mails")
    settles(world)
    admins = [Admin(world), Admin(world)]
    for admin, number in zip(admins, (first, second), strict=True):
        admin.asks("POST", f"/api/undo/{number}")
    for _ in range(30):
        after = World(form + SHARED, world.disk.crash(Crash.KEEP), world.now_ms)
        settles(after)
        assert len(list(chain(*there(after)))) == 11
        if not step(world):
            break
    settles(world)
    assert [len(items) for items in there(world)] == [11, 0, 0, 0]


def test_it_is_cancelled_between_items_shown_and_noted() -> None:
    count = 20 * ITEMS_PER_SLICE
    world = letters(count)
    Admin(world).asks("POST", "/api/queues/dead/redrive", {})
    while not world.items("mails"):
        step(world)
    [shown] = asked_now(world, "GET", "/api/operations")
    assert (shown["operation"], shown["state"], shown["queue"], shown["total"]) == ("redrive", "running", "dead", count)
    asked_now(world, "POST", f"/api/operations/{shown['id']}/cancel")
    settles(world)
    [shown] = asked(world, "GET", "/api/operations")[1]
    assert shown["state"] == "cancelled" and 0 < shown["done"] < count and shown["undo"] == shown["id"]
    lines = [line for line in asked(world, "GET", "/api/audit")[1] if line["id"] == shown["id"]]
    ended, begun = (line for line in lines if line["operation"] == "redrive")
    assert (begun["result"], begun["items"], ended["result"], ended["items"]) == ("begun", count, "done", shown["done"])
    assert undone(world, shown["undo"])["returned"] == shown["done"]
    assert sorted(world.items("dead")) == sorted(b"item %d" % number for number in range(count))


def asked_now(world: World, method: str, path: str) -> Any:
    admin = Admin(world)
    admin.asks(method, path)
    heard = admin.hears()
    assert heard is not None and heard[0] == 200
    return heard[1]


def test_it_does_not_count_as_a_delivery() -> None:
    world = letters(3)
    number = redriven(world)
    for name in HOMES:
        taken = world.broker.queues.by_name[name].peek(world.now_ms)
        assert taken is not None and taken.deliveries == 1
    undone(world, number)
    assert not any(taken.deliveries for taken in world.broker.queues.by_name["dead"].line.returned)


def test_what_was_sent_before_it_ended_early_can_be_undone() -> None:
    world = letters(7, "", ("mails", "orders"))
    asked(world, "POST", "/api/queues/orders/put", {"data": "another"})
    asked(world, "POST", "/api/queues/orders/pause", {"puts": True})
    status, found = asked(world, "POST", "/api/queues/dead/redrive", {})
    assert (status, found["moved"], found["why"]) == (200, 1, "puts to orders are paused"), found
    assert undone(world, found["undo"])["returned"] == 1 and len(world.items("dead")) == 7


def test_it_does_not_go_on_with_the_rights_of_a_user_that_is_gone() -> None:
    user = '[users.op]\nroles = ["operate"]\nqueues = ["*"]\nuids = [1000]\n'
    world = letters(6 * ITEMS_PER_SLICE)
    world = World(SHARED + user, world.disk.crash(Crash.DROP), world.now_ms + 1)
    admin = Admin(world)
    world.broker.authorize(admin.session, "op", world.broker.users.by_name["op"].rights)
    admin.asks("POST", "/api/queues/dead/redrive", {})
    while not world.items("mails"):
        step(world)
    again = World(SHARED, world.disk.crash(Crash.KEEP), world.now_ms)
    assert again.broker.operations.running
    settles(again)
    [shown] = asked(again, "GET", "/api/operations")[1]
    assert shown["state"] == "failed" and shown["why"].startswith("there is no user op any more")
    assert shown["done"] == sum(len(again.items(name)) for name in HOMES)


def test_it_waits_while_another_operation_brings_items_to_a_home() -> None:
    world = letters(6)
    for number in range(3 * ITEMS_PER_SLICE):
        world.client().puts(f"other {number}", "other")
    settles(world)
    Admin(world).asks("POST", "/api/queues/other/move", {"to": "orders"})
    step(world)
    redriven(world)
    assert [len(items) for items in there(world)] == [0, 2, 2 + 3 * ITEMS_PER_SLICE, 2]
