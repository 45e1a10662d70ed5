"""Reservations over HTTP: held by no connection, ended by token, back by themselves when their time is over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from staniel.broker import protocols
from staniel.broker.admin.http.reservations import TOKENS_MAX
from staniel.sim.disk.durable import Crash
from tests.support.world import Client, World

Answer = tuple[int, Any]


class Http(Client):
    """A client of the admin listener."""

    def __init__(self, world: World) -> None:
        super().__init__(world, protocols.http())
        world.clients.append(self)

    def begin(self, path: str, body: object) -> None:
        data = json.dumps(body).encode()
        head = f"POST /api/queues/{path} HTTP/1.1\r\nHost: staniel\r\nContent-Type: application/json\r\n"
        self.sends(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(data), data))

    def answer(self) -> Answer:
        """The status and the body of the one answer that is there; 0 if there is none."""
        for _ in range(20):
            self.world.turn()
            self.world.sync()
        heard, self._heard = self._heard, b""
        if not heard:
            return 0, None
        head, _, body = heard.partition(b"\r\n\r\n")
        if b"chunked" in head:
            body = unchunked(body)
        return int(head.split()[1]), json.loads(body)

    def asks(self, path: str, **body: object) -> Answer:
        self.begin(path, body)
        return self.answer()


def unchunked(body: bytes) -> bytes:
    found = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        if not int(size, 16):
            return found
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]


def filled(*items: str, config: str = "") -> World:
    world = World(config)
    client = world.client()
    for item in items:
        client.puts(item)
    world.sync()
    return world


def reserved(world: World, **body: object) -> list[dict[str, Any]]:
    """What one request reserves, on a connection that ends at once."""
    client = Http(world)
    status, answer = client.asks("q/reserve", **body)
    assert status == 200, answer
    client.hangs_up()
    world.clients.remove(client)
    return list(answer["items"])


def tokens(items: list[dict[str, Any]]) -> list[str]:
    return [item["token"] for item in items]


def test_reserved_items_outlive_their_connection_and_are_confirmed_by_another() -> None:
    world = filled("a", "b", "c")
    items = reserved(world, count=2)
    assert [(item["data"], item["deliveries"], item["encoding"]) for item in items] == [
        ("a", 1, "text"),
        ("b", 1, "text"),
    ]
    assert world.items() == [b"c"]
    found = Http(world).asks("q/reserved/confirm", tokens=[items[1]["token"], "7-7", items[1]["token"]])
    assert found == (200, {"done": 1, "gone": ["7-7", items[1]["token"]]})
    world.turn(30_100)
    world.turn()
    assert world.items() == [b"a", b"c"], "the other came back when its time was over"


def test_those_that_are_handed_back_are_in_their_old_order() -> None:
    world = filled("a", "b", "c", "d")
    items = reserved(world, count=3)
    assert Http(world).asks("q/reserved/abort", tokens=tokens(items)) == (200, {"done": 3, "gone": []})
    assert world.items() == [b"a", b"b", b"c", b"d"]
    (again,) = reserved(world)
    assert (again["data"], again["deliveries"], again["id"]) == ("a", 2, items[0]["id"])


def test_an_extended_reservation_ends_later() -> None:
    world = filled("a")
    items = reserved(world, timeout_ms=1000)
    world.turn(900)
    assert Http(world).asks("q/reserved/extend", tokens=tokens(items), timeout_ms=5000) == (
        200,
        {"done": 1, "gone": []},
    )
    world.turn(4900)
    assert world.items() == []
    world.turn(200)
    world.turn()
    assert world.items() == [b"a"]
    for act in ("extend", "confirm", "abort"):
        assert Http(world).asks(f"q/reserved/{act}", tokens=tokens(items)) == (200, {"done": 0, "gone": tokens(items)})
    assert world.items() == [b"a"]


def test_a_wait_ends_with_the_item_that_comes_or_with_its_time() -> None:
    world = World()
    early, late = Http(world), Http(world)
    early.begin("q/reserve", {"wait_ms": 1000})
    assert early.answer() == (0, None)
    world.client().puts("a")
    status, answer = early.answer()
    assert status == 200 and [item["data"] for item in answer["items"]] == ["a"]
    late.begin("q/reserve", {"wait_ms": 1000})
    world.turn(1100)
    assert late.answer() == (200, {"items": []})


def test_one_that_waits_and_leaves_gets_nothing() -> None:
    world = World()
    client = Http(world)
    client.begin("q/reserve", {"wait_ms": 60_000})
    client.hangs_up()
    world.clients.remove(client)
    world.client().puts("a")
    world.sync()
    assert world.items() == [b"a"] and not world.broker.leases.by_session()


def test_a_restart_hands_everything_back_and_old_tokens_name_nothing() -> None:
    world = filled("a", "b")
    items = reserved(world)
    again = world.crash(Crash.DROP)
    assert again.items() == [b"a", b"b"]
    (other,) = reserved(again)
    assert other["token"].split("-")[0] == items[0]["token"].split("-")[0], "numbers begin anew"
    assert Http(again).asks("q/reserved/confirm", tokens=tokens(items)) == (200, {"done": 0, "gone": tokens(items)})
    assert len(again.broker.queues.by_name["q"].open_reads) == 1


def test_a_confirmation_is_on_the_disk_before_it_is_answered() -> None:
    world = filled("a")
    items = reserved(world)
    client = Http(world)
    client.begin("q/reserved/confirm", {"tokens": tokens(items)})
    world.turn()
    assert client.hears() == ""
    world.sync()
    assert "done" in client.hears()


def test_a_large_item_comes_in_pieces_and_whole() -> None:
    data = "é" * 100_000
    world = filled(config="default.max_item_size = '1MB'")
    world.client().says(f"set q 7 0 {len(data.encode())}", data)
    world.sync()
    (item,) = reserved(world)
    assert item["data"] == data and item["flags"] == 7 and item["ends_at_ms"] > item["added_at_ms"]


def test_a_shell_gets_the_bytes_and_the_token_in_a_header() -> None:
    world = filled("a\\b")
    client = Http(world)
    request = b"POST /api/queues/q/reserve HTTP/1.1\r\nHost: staniel\r\nContent-Type: application/json\r\n"
    request += b"Accept: application/octet-stream\r\nContent-Length: %d\r\n\r\n%b"
    for body, said in (({}, 200), ({}, 204), ({"count": 2}, 400)):
        data = json.dumps(body).encode()
        client.sends(request % (len(data), data))
        world.turn()
        world.sync()
        head, _, rest = client._heard.partition(b"\r\n\r\n")
        client._heard = b""
        assert head.startswith(b"HTTP/1.1 %d " % said)
        if said == 200:
            token = head.partition(b"staniel-token: ")[2].partition(b"\r\n")[0].decode()
            assert rest == b"a\\b" and b"staniel-deliveries: 1\r\n" in head
        if said == 204:
            assert not rest and b"content-length" not in head and b"chunked" not in head
    assert client.asks("q/reserved/confirm", tokens=[token]) == (200, {"done": 1, "gone": []})


def test_a_dead_letter_says_where_it_comes_from() -> None:
    world = filled("a", config='[queues.p]\nmax_deliveries = 1\ndead_letter_queue = "q"\n')
    assert reserved(world)[0]["origin"] == ""
    reader = world.client()
    reader.puts("dead", "p")
    world.sync()
    reader.says("get p/open", "get p/abort")
    for _ in range(10):
        world.turn(1)
        world.sync()
    (item,) = reserved(world)
    assert (item["data"], item["origin"], item["reason"]) == ("dead", "p", "dead")


def test_no_more_are_open_than_the_queue_allows() -> None:
    world = filled("a", "b", "c", config="default.max_open_reads = 2")
    assert len(reserved(world, count=3)) == 2
    assert Http(world).asks("q/reserve")[0] == 409


def test_the_first_of_several_queues_that_has_an_item_is_reserved_from() -> None:
    world = World("default.keep_journal = false")
    for item in ("1", "2"):
        world.client().puts(item, "mail")
    client = Http(world)
    status, answer = client.asks("urgent/reserve", also=["none", "mail"], count=3)
    assert status == 200 and [(item["queue"], item["data"]) for item in answer["items"]] == [
        ("mail", "1"),
        ("mail", "2"),
    ]
    assert client.asks("urgent/reserved/confirm", tokens=tokens(answer["items"]))[1]["done"] == 0
    assert client.asks("mail/reserved/confirm", tokens=tokens(answer["items"]))[1]["done"] == 2
    assert client.asks("urgent/reserve", also=["mail"]) == (200, {"items": []})
    client.begin("urgent/reserve", {"also": ["none", "mail"], "wait_ms": 1000})
    assert client.answer() == (0, None)
    world.client().sends(b"set none 0 0 1\r\nx\r\nset urgent 0 0 1\r\ny\r\n")
    (item,) = client.answer()[1]["items"]
    assert (item["queue"], item["data"]) == ("none", "x") and world.items("urgent") == [b"y"]
    client.begin("mail/reserve", {"also": ["none"], "wait_ms": 100})
    world.turn(200)
    assert client.answer() == (200, {"items": []})
    assert not world.broker.queues.by_name["mail"].waiters and not world.broker.queues.by_name["none"].waiters


def test_one_that_waits_at_several_and_leaves_gets_nothing() -> None:
    world = World("default.keep_journal = false")
    client = Http(world)
    client.begin("a/reserve", {"also": ["b"], "wait_ms": 1000})
    client.hangs_up()
    world.clients.remove(client)
    world.client().puts("x", "b")
    assert world.items("b") == [b"x"] and not list(world.broker.queues.waiters_by_name)


def test_a_shell_learns_the_queue_of_an_item_as_a_part_of_a_path() -> None:
    world = World("default.keep_journal = false")
    world.client().puts("x", "b%c")
    client = Http(world)
    data = b'{"also": ["b%c"]}'
    request = b"POST /api/queues/a/reserve HTTP/1.1\r\nHost: staniel\r\nContent-Type: application/json\r\n"
    client.sends(request + b"Accept: application/octet-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
    world.turn()
    assert b"staniel-queue: b%25c\r\n" in client._heard


def test_a_token_is_of_its_queue_alone() -> None:
    world = filled("a")
    items = reserved(world)
    assert Http(world).asks("r/reserved/confirm", tokens=tokens(items)) == (200, {"done": 0, "gone": tokens(items)})
    assert Http(world).asks("q/reserved/confirm", tokens=tokens(items))[1]["done"] == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("q/reserve", {"count": 0}, 400),
        ("q/reserve", {"count": 65}, 400),
        ("q/reserve", {"wait_ms": -1}, 400),
        ("q/reserve", {"wait_ms": 1 << 60}, 400),
        ("q/reserve", {"timeout_ms": 99}, 400),
        ("q/reserve", {"timeout_ms": 1 << 60}, 400),
        ("q/reserve", {"timeout": 5}, 400),
        ("a.b/reserve", {}, 400),
        ("q/reserve", {"also": ["q"]}, 400),
        ("q/reserve", {"also": ["r", "r"]}, 400),
        ("q/reserve", {"also": [""]}, 400),
        ("q/reserve", {"also": ["a.b"]}, 400),
        ("q/reserve", {"also": "r"}, 400),
        ("q/reserve", {"also": ["all"]}, 404),
        ("q/reserve", {"also": [f"r{number}" for number in range(64)]}, 400),
        ("all/reserve", {}, 404),
        ("q/reserved/confirm", {"tokens": []}, 400),
        ("q/reserved/confirm", {"tokens": ["1-1"] * (TOKENS_MAX + 1)}, 400),
        ("q/reserved/confirm", {}, 400),
        ("q/reserved/extend", {"tokens": ["1-1"], "timeout_ms": 0}, 400),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_reserved(path: str, body: dict[str, object], status: int) -> None:
    world = filled("a", config='[aliases]\nall = ["q"]\n')
    assert Http(world).asks(path, **body)[0] == status
    assert world.items() == [b"a"]


@pytest.mark.parametrize("token", ["", "-", "1", "x-1", "1-x", "9" * 400, "1-" + "9" * 400, "²-1", "-1-1"])
def test_a_token_that_is_none_is_gone(token: str) -> None:
    world = filled("a")
    started = world.broker.status.started_ms
    for text in (token, f"{token}-{started}"):
        assert Http(world).asks("q/reserved/confirm", tokens=[text]) == (200, {"done": 0, "gone": [text]})
