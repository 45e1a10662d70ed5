"""A redrive without a target: each dead letter goes to the queue that it left."""

from __future__ import annotations

from contextlib import suppress

import pytest

from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from tests.broker.test_undo import Admin, asked, goes_on, settles
from tests.support.world import World

SHARED = "".join(f'[queues.{name}]\nmax_deliveries = 1\ndead_letter_queue = "dead"\n' for name in ("mails", "orders"))


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
    assert (status, found["moved"], found["to"], found["undo"]) == (200, 4, "", 0)
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
