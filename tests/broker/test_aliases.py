"""Aliases: each queue gets one copy, what a reload takes away comes back, and no transfer falls into one."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.config.load import ConfigError, parse
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.interfaces import Reason
from tests.support.streams import all_of, asks, fill, settle
from tests.support.world import Client, World

TWICE = 'aliases.both = ["one", "more"]\naliases.more = ["one", "two"]\n'


@pytest.mark.parametrize("more", ["", "queues.one.max_items = 1\n", 'default.journal_format = "libkestrel"\n'])
def test_a_queue_that_an_alias_reaches_twice_gets_one_copy(more: str) -> None:
    world = World(TWICE + more)
    assert asks(world, "set both 0 0 1", "x") == "STORED"
    assert (all_of(world, "one"), all_of(world, "two")) == (["x"], ["x"])
    assert [world.broker.queues.aliases[name].put_items for name in ("both", "more")] == [1, 1]


@pytest.mark.parametrize("more", ["", 'default.journal_format = "libkestrel"\n'])
def test_a_fan_out_child_that_an_alias_names_beside_its_parent_gets_one_copy(more: str) -> None:
    world = World('aliases.all = ["q+child", "q"]\n' + more)
    asks(world, "get q+child", "get q")
    assert asks(world, "set all 0 0 1", "x") == "STORED"
    assert (all_of(world, "q"), all_of(world, "q+child")) == (["x"], ["x"])


def test_what_expires_from_one_destination_into_another_is_counted_before_anything_is_stored() -> None:
    world = World('aliases.all = ["a", "b"]\nqueues.a.expire_to_queue = "b"\nqueues.b.max_items = 1\n')
    asks(world, "set a 0 1 1", "x")
    world.now_ms += 2500
    assert asks(world, "set all 0 0 1", "y") == "NOT_STORED"
    assert (all_of(world, "a"), all_of(world, "b")) == ([], ["x"])


def test_a_text_put_of_several_items_says_how_many_of_the_first_are_stored() -> None:
    world = World("queues.q.max_items = 2\nqueues.r.max_item_size = 2\n")
    client = Client(world, protocols.text(Dialect.MEMCACHED))
    world.clients.append(client)
    client.sends(b"put q:\na\nb\nc\nd\n\nput r:\na\nlong\nb\n\n")
    world.turn()
    settle(world)
    assert client.hears().split() == ["+2", "+1"]
    assert (all_of(world, "q"), all_of(world, "r")) == (["a", "b"], ["a"])


def test_a_text_put_that_is_refused_midway_does_not_call_stored_items_refused() -> None:
    world = World()
    client = Client(world, protocols.text(Dialect.MEMCACHED))
    world.clients.append(client)
    group = world.broker.group
    group.budget_bytes, room = 200, group.ballast.has_room_for
    group.ballast.has_room_for = lambda size: False  # type: ignore[method-assign]
    client.sends(b"put q:\n" + b"x" * 60 + b"\n" + b"y" * 60 + b"\n\nput q:\n" + b"z" * 60 + b"\n\n")
    group.ballast.has_room_for = room  # type: ignore[method-assign]
    world.turn()
    settle(world)
    assert client.hears().replace("\n", " ") == "+1 -disk full, nothing can be stored until there is space"
    assert all_of(world, "q") == ["x" * 60]


def test_a_moved_item_whose_target_became_an_alias_stays_in_its_source() -> None:
    world = World()
    fill(world, "a", "b")
    queue = world.broker.queues.make("q", world.now_ms)
    group = world.broker.group
    budget, group.budget_bytes = group.budget_bytes, -1  # the disk is full: it waits
    world.broker.transfers.accept(queue, queue.open_head_for_transfer(), Reason.MOVED, world.now_ms, "dead")
    assert all_of(world, "q") == ["b"]
    group.budget_bytes = budget
    world.config = 'aliases.dead = ["other"]\n'
    asks(world, "reload")
    world.turn(2000)
    settle(world)
    assert all_of(world, "q") == ["a", "b"] and world.broker.queues.find("dead") is None
    assert asks(world, "get dead") == "END"


def test_no_queue_is_made_under_the_name_of_an_alias() -> None:
    world = World('aliases.a = ["q"]\n')
    for line in ("get a", "get a/open", "get a/peek", "gets a", "monitor a 1", "mg a v", "delete a", "flush a"):
        asks(world, line)
    assert world.broker.queues.find("a") is None and "a" not in world.broker.queues.hidden_by_alias


def test_a_queue_that_an_alias_had_hidden_comes_back_with_the_settings_of_now() -> None:
    world = World("queues.q.max_items = 1\n")
    fill(world, "a")
    world.config = 'aliases.q = ["other"]\n'
    asks(world, "reload")
    world.config = "queues.q.max_items = 2\n"
    asks(world, "reload")
    fill(world, "b")
    assert asks(world, "set q 0 0 1", "c") == "NOT_STORED"


@pytest.mark.parametrize("exists", [False, True])
def test_who_waits_for_a_queue_is_told_when_an_alias_hides_it(exists: bool) -> None:
    world = World()
    if exists:
        fill(world, "a")
        asks(world, "get q")
    waiting = world.client().says("get q/t=60000")
    assert ("q" in world.broker.queues.by_name) is exists
    world.config = 'aliases.q = ["other"]\n'
    asks(world, "reload")
    assert waiting.hears() == "END"
    world.broker.shutdown(world.now_ms)


@pytest.mark.parametrize("more", ["", 'default.journal_format = "libkestrel"\n'])
def test_a_hidden_child_is_not_fed(more: str) -> None:
    world = World(more)
    asks(world, "get q+child")
    fill(world, "a")
    world.config = more + 'aliases."q+child" = ["other"]\n'
    asks(world, "reload")
    fill(world, "b")
    world.config = more
    asks(world, "reload")
    fill(world, "c")
    assert (all_of(world, "q"), all_of(world, "q+child")) == (["a", "b", "c"], ["a", "c"])


def test_an_alias_named_like_a_queues_table_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"aliases\.q"):
        parse(b'[queues.q]\nmax_items = 1\n[aliases]\nq = ["other"]\n', "")


def test_a_chain_of_thousands_of_aliases_is_followed() -> None:
    lines = [f'a{number} = ["a{number + 1}", "b"]\n' for number in range(1500)]
    world = World("[aliases]\n" + "".join(lines))
    assert asks(world, "set a0 0 0 1", "x") == "STORED"
    assert (all_of(world, "a1500"), all_of(world, "b")) == (["x"], ["x"])
