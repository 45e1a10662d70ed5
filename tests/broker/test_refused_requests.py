"""What `[memcache] refuse` refuses, and refusals that are not sent."""

from __future__ import annotations

import pytest

from staniel.broker import protocols
from staniel.broker.rights import PASSER_BY
from staniel.broker.session import SessionState
from staniel.protocol.memcache.requests import Dialect
from tests.support.world import Client, World

ALL = frozenset(("noreply", "multi_get", "delete", "flush_all"))


def cautious(world: World, *refused: str) -> Client:
    client = Client(world, protocols.memcache(Dialect.MEMCACHED, refused=frozenset(refused) or ALL))
    world.clients.append(client)
    return client


def answer(client: Client, line: str) -> str:
    client.says(line)
    client.world.sync()
    return client.hears()


def filled(world: World) -> None:
    client = world.client()
    for data in "abc":
        client.puts(data)
    world.sync()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("get q q", "a get that removes several items is refused"),
        ("get q r", "a get that removes several items is refused"),
        ("gets q r/peek q", "a get that removes several items is refused"),
        ("get q/n=3", "a get that removes several items is refused"),
        ("get " + " ".join(["q"] * 65), "a get that removes several items is refused"),
        ("delete q", "delete removes a whole queue and is refused"),
        ("md q", "delete removes a whole queue and is refused"),
        ("flush_all", "flush_all empties every queue and is refused"),
    ],
)
def test_what_harms_is_refused_with_words_and_nothing_is_gone(line: str, why: str) -> None:
    world = World()
    filled(world)
    client = cautious(world)
    assert answer(client, line).startswith(f"CLIENT_ERROR {why} here ([memcache] refuse)")
    assert len(world.broker.queues.by_name["q"].line) == 3
    assert answer(client, "get q") == "VALUE q 0 1 a END", "the connection is in step"


@pytest.mark.parametrize("line", ["get q", "get q/open r/open", "get q/n=2/open", "get q/peek q/peek", "get q r/peek"])
def test_what_does_not_harm_is_served(line: str) -> None:
    world = World()
    filled(world)
    assert answer(cautious(world), line).startswith("VALUE q")


def test_one_word_refuses_one_thing() -> None:
    world = World()
    filled(world)
    client = cautious(world, "flush_all")
    assert answer(client, "get q q").count("VALUE") == 2
    assert answer(client, "flush_all").startswith("CLIENT_ERROR")
    client.says("delete q")
    world.do_tasks()
    world.turn()
    world.sync()
    assert client.hears() == "DELETED"


def test_a_put_without_an_answer_ends_its_connection_and_stores_nothing() -> None:
    world = World()
    client = cautious(world)
    client.says("set q 0 0 1 noreply", "x", "set q 0 0 1", "y")
    assert (
        client.hears().startswith("CLIENT_ERROR noreply is refused here")
        and client.session.state is SessionState.CLOSING
    )
    assert "q" not in world.broker.queues.by_name
    assert cautious(world).says("set q 0 0 1", "y") and world.broker.counters.noreply_refused == 1


def test_a_client_with_rights_is_refused_the_same_whichever_listener_came_first() -> None:
    world = World()
    filled(world)
    plain, careful = world.client(), cautious(world)
    for client in (plain, careful):
        world.broker.authorize(client.session, "", PASSER_BY)
    assert answer(plain, "get q q").count("VALUE") == 2
    assert answer(careful, "get q q").startswith("CLIENT_ERROR a get that removes several")
    assert answer(careful, "flush_all").startswith("CLIENT_ERROR")


def test_a_logged_in_user_is_asked_for_a_role_instead() -> None:
    world = World()
    filled(world)
    client = cautious(world)
    client.session.user = "ann"
    assert answer(client, "flush_all") == "OK"


@pytest.mark.parametrize(
    ("lines", "queue", "why"),
    [
        (["set full 0 0 1 noreply", "x"], "full", "the queue is full"),
        (["set full 0 0 9 noreply", "123456789"], "full", "the item is larger than max_item_size"),
        (["set a.b 0 0 1 noreply", "x"], "a.b", "a queue name cannot hold"),
        (["set q 0 bad 1 noreply", "x"], "unknown", "expiry"),
        (["set q 0 0 1001 noreply", "x" * 1001], "q", "larger than max_item_size"),
        (["incr q 1 noreply"], "unknown", "incr is not supported by a queue"),
    ],
)
def test_a_refusal_that_is_not_sent_is_counted_and_logged(lines: list[str], queue: str, why: str) -> None:
    world = World("[queues.full]\nmax_items = 0\nmax_item_size = 8\n[default]\nmax_item_size = 1000")
    client = world.client().says(*lines, "version")
    assert client.hears().startswith("VERSION") and client.hears() == ""
    assert world.broker.counters.noreply_refused == 1
    (event,) = world.reported("refusal.unheard")
    assert event["queue"] == queue and why in str(event["why"])
