"""`delete q/id=` and `touch q/id=`: one open read of many is confirmed, extended or handed back."""

from __future__ import annotations

import binascii

import msgspec
import pytest

from staniel.broker.commands import by_id
from tests.support.world import Client, World

TIMEOUT = '[queues.q]\nopen_transaction_timeout = "1s"\n'


def _rest(world: World) -> None:
    for _ in range(20):
        world.turn()
        world.sync()


def asked(client: Client, line: str) -> str:
    assert isinstance(client.world, World)
    _rest(client.world)
    client.hears()
    client.says(line)
    _rest(client.world)
    return " ".join(client.hears().split())


def opened(client: Client, count: int) -> list[str]:
    """Open so many items of q and return their ids."""
    return [asked(client, "gets q/open").split()[4] for _ in range(count)]


def left(client: Client) -> list[str]:
    found = []
    while (heard := asked(client, "get q")) != "END":
        found.append(heard.split()[4])
    return found


def holding(config: str, *items: str) -> tuple[World, Client, list[str]]:
    world = World(config)
    client = world.client()
    for item in items:
        client.puts(item)
    return world, client, opened(client, len(items))


def test_reads_are_confirmed_in_any_order_and_the_others_go_back() -> None:
    world, client, ids = holding("", "a", "b", "c", "d")
    assert asked(client, f"delete q/id={ids[2]}") == "DELETED"
    assert asked(client, f"delete q/id={ids[0]}") == "DELETED"
    client.hangs_up()
    assert left(world.client()) == ["b", "d"]


def test_an_item_is_handed_back_by_its_id_and_the_others_stay_open() -> None:
    world, client, ids = holding("", "a", "b", "c")
    assert asked(client, f"touch q/id={ids[1]}/abort 0") == "TOUCHED"
    assert left(world.client()) == ["b"]
    assert asked(client, f"delete q/id={ids[0]}") == asked(client, f"delete q/id={ids[2]}") == "DELETED"
    assert asked(client, "get q") == "END"


def test_one_read_is_extended_and_the_other_times_out() -> None:
    world, client, ids = holding(TIMEOUT, "a", "b")
    world.turn(900)
    assert asked(client, f"touch q/id={ids[1]} 60") == "TOUCHED"
    world.turn(900)
    assert left(world.client()) == ["a"]
    assert asked(client, f"delete q/id={ids[0]}") == "NOT_FOUND"
    assert asked(client, f"delete q/id={ids[1]}") == "DELETED"


@pytest.mark.parametrize("line", ["delete q/id={}", "touch q/id={} 0", "touch q/id={}/abort 0"])
def test_what_another_connection_has_open_is_refused_and_stays_open(line: str) -> None:
    world, client, ids = holding("", "a", "b")
    other = world.client()
    refused = f"CLIENT_ERROR item {ids[0]} of q is open on another connection, only that one can end its read"
    assert asked(other, line.format(ids[0])) == refused
    assert asked(other, line.format(ids[0]) + " noreply") == ""
    assert asked(client, f"delete q/id={ids[0]}") == "DELETED"
    assert asked(client, f"delete q/id={ids[1]}") == "DELETED"


@pytest.mark.parametrize("line", ["delete q/id={}", "touch q/id={} 0", "touch q/id={}/abort 0"])
def test_what_is_not_open_is_not_found(line: str) -> None:
    world = World("")
    client = world.client()
    assert asked(client, line.format(7)) == "NOT_FOUND"
    client.puts("a")
    (item_id,) = opened(client, 1)
    assert asked(client, line.format(7)) == "NOT_FOUND"
    assert asked(client, f"delete q/id={item_id}") == "DELETED"
    assert asked(client, line.format(item_id)) == "NOT_FOUND"


def test_nothing_is_said_with_noreply_and_the_read_has_ended() -> None:
    world, client, ids = holding("", "a")
    assert asked(client, f"delete q/id={ids[0]} noreply") == ""
    client.hangs_up()
    assert left(world.client()) == []


def test_an_item_that_timed_out_and_was_opened_again_is_ended_once() -> None:
    world, client, ids = holding(TIMEOUT, "a")
    world.turn(1100)
    assert opened(client, 1) == ids
    assert asked(client, f"delete q/id={ids[0]}") == "DELETED"
    assert asked(client, f"delete q/id={ids[0]}") == "NOT_FOUND"
    assert asked(client, "get q") == "END"  # no read is left on the connection


@pytest.mark.pure
def test_many_reads_are_searched_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_id, "LOOKED_AT_ONCE", 1)
    world, client, ids = holding("", *"abcdefgh")
    for item_id in (ids[7], ids[3], ids[0]):
        assert asked(client, f"delete q/id={item_id}") == "DELETED"
    assert asked(world.client(), f"delete q/id={ids[6]}").startswith("CLIENT_ERROR item")
    client.hangs_up()
    assert left(world.client()) == list("bcefg")


def test_close_still_ends_the_oldest() -> None:
    world, client, ids = holding("", "a", "b", "c")
    assert asked(client, f"delete q/id={ids[0]}") == "DELETED"
    assert asked(client, "get q/close") == "END"
    client.hangs_up()
    assert left(world.client()) == ["c"]


DEAD = '[queues.q]\nmax_deliveries = 2\ndead_letter_queue = "dead"\n'


def test_the_deliveries_and_the_past_of_an_item_are_shown_to_its_reader() -> None:
    world = World(DEAD)
    client = world.client().puts("a")
    assert asked(client, "mg q d p") == "HD d1 p-"
    assert asked(client, "mg q/open v d") == "VA 1 d1 a"
    asked(client, "get q/abort")
    (item,) = opened(client, 1)
    assert asked(client, f"mg q/id={item} d p c") == f"HD d2 p- c{item}"
    asked(client, "get q/abort")
    (item,) = [asked(client, "gets dead/open").split()[4]]
    word, deliveries, past = asked(client, f"mg dead/id={item} d p").split()
    assert (word, deliveries) == ("HD", "d1")
    told = msgspec.json.decode(binascii.a2b_base64(past[1:]))
    assert (told["origin"], told["reason"], told["deliveries"], told["times"]) == ("q", "dead", 2, 1)
    assert told["put_at_ms"] <= told["left_at_ms"]


def test_a_look_at_an_open_item_ends_nothing() -> None:
    world, client, ids = holding("", "a", "b")
    assert asked(client, f"mg q/id={ids[1]} s q") == "HD s1"
    assert asked(client, f"delete q/id={ids[1]}") == "DELETED"
    assert asked(client, f"mg q/id={ids[1]} s") == "EN"
    assert asked(client, f"mg q/id={ids[1]} s q") == ""
    other = world.client()
    why = f"CLIENT_ERROR item {ids[0]} of q is open on another connection, only that one can see it"
    assert asked(other, f"mg q/id={ids[0]} s") == why
    client.hangs_up()
    assert left(other) == ["a"]


def test_an_open_item_that_has_timed_out_is_not_shown() -> None:
    world, client, (item,) = holding(TIMEOUT, "a")
    world.turn(1500)
    assert asked(client, f"mg q/id={item} d") == "EN"
