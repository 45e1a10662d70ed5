"""`get q/n=`: how much one reply may hold; `touch`: how long an open read may take."""

from __future__ import annotations

from staniel.broker.session import OUT_BYTES_PER_TURN
from tests.support.world import Client, World


def asked(client: Client, *lines: str) -> str:
    client.says(*lines)
    while client.world.sync():
        client.world.turn()
    return client.hears()


def test_a_reply_stops_with_the_item_that_fills_a_turn() -> None:
    world = World()
    client = world.client()
    size = OUT_BYTES_PER_TURN // 2
    for letter in "abcd":
        asked(client, f"set q 0 0 {size}", letter * size)
    heard = asked(client, "get q/n=1000")
    assert heard.count("VALUE") == 3 and heard.endswith("END")
    assert asked(client, "get q/n=1000").count("VALUE") == 1


def test_every_item_counts_as_a_get_and_only_an_empty_answer_as_a_miss() -> None:
    world = World()
    client = world.client()
    for data in "abc":
        client.puts(data)
    asked(client, "get q/n=5", "get q/n=5")
    counters = world.broker.counters
    assert (counters.cmd_get, counters.get_hits, counters.get_misses) == (4, 3, 1)


def test_several_items_may_not_be_taken_beside_an_open_read() -> None:
    client = World().client().puts("a").puts("b")
    asked(client, "get q/open")
    assert asked(client, "get q/n=2").startswith("CLIENT_ERROR a read of q is open")


def test_a_touched_read_has_its_full_time_again_and_all_of_them_have() -> None:
    world = World('[queues.q]\nopen_transaction_timeout = "1s"\n')
    client = world.client().puts("a").puts("b")
    other = world.client()
    asked(client, "get q/n=2/open")
    world.turn(900)
    assert asked(client, "touch q 0") == "TOUCHED"
    world.turn(900)
    assert asked(other, "get q") == "END"
    world.turn(200)
    assert asked(other, "get q/n=2") == "VALUE q/n=2 0 1 a VALUE q/n=2 0 1 b END"
    assert asked(client, "touch q 0") == "NOT_FOUND"


def test_a_touch_that_comes_too_late_finds_nothing() -> None:
    world = World('[queues.q]\nopen_transaction_timeout = "1s"\n')
    client = world.client().puts("a")
    asked(client, "get q/open")
    world.turn(1100)
    assert asked(client, "touch q 0") == "NOT_FOUND"


def test_a_plain_key_behind_an_open_one_of_the_same_queue_is_refused_and_nothing_is_taken() -> None:
    world = World("default.keep_journal = false")
    client = world.client().puts("1", "a").puts("2", "a").puts("x", "b")
    client.hears()
    assert client.says("get b a/open a").hears() == (
        "CLIENT_ERROR a read of a is open on this connection, close or abort it first"
    )
    assert not client.session.reads and world.items("a") == [b"1", b"2"] and world.items("b") == [b"x"]


def test_a_key_behind_the_close_or_abort_of_its_queue_is_read() -> None:
    world = World("default.keep_journal = false")
    client = world.client().puts("1", "a").puts("2", "a").puts("3", "a")
    client.says("get a/open").hears()
    assert client.says("get a/abort a").hears() == "VALUE a 0 1 1 END"
    client.says("get a/open").hears()
    assert client.says("get a/close a").hears() == "VALUE a 0 1 3 END"
    assert client.says("get a/open a/peek").hears() == "END" and not client.session.reads
