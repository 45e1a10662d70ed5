"""What an operator does over HTTP, and that it is as safe as any client's change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.admin.asking import Operator
from tests.support.process import Server, running
from tests.support.wire import Wire

CONFIG = """
admin.port = 0
queues.work = { max_deliveries = 1, dead_letter_queue = "dead" }
queues.small.max_items = 1
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, config=CONFIG) as server:
        yield server


def fill(server: Server, queue: str, count: int) -> None:
    with Wire(server.address) as wire:
        for number in range(count):
            assert wire.put(queue, b"%d" % number) == b"STORED"


def held_by(server: Server, queue: str) -> list[bytes]:
    with Wire(server.address) as wire:
        found = []
        while (data := wire.get(queue)) is not None:
            found.append(data)
        return found


def test_an_item_is_put_and_taken(server: Server, operator: Operator) -> None:
    assert operator.post("/api/queues/q/put", {"data": "héllo", "flags": 7}) == {"stored": 1}
    assert operator.post("/api/queues/q/put", {"data": "/wA=", "encoding": "base64"}) == {"stored": 1}
    server.restart()
    operator = Operator(server.second_port)
    first, second = operator.post("/api/queues/q/take", {"count": 5})["items"]
    assert (first["data"], first["encoding"], first["flags"]) == ("héllo", "text", 7)
    assert (second["data"], second["encoding"]) == ("/wA=", "base64")
    server.restart()
    assert Operator(server.second_port).post("/api/queues/q/take") == {"items": []}


def test_an_item_is_put_byte_by_byte_and_only_by_that_path(server: Server, operator: Operator) -> None:
    data, raw = os.urandom(2_000_000), {"content_type": "application/octet-stream"}
    assert operator.post("/api/queues/q/put?flags=7&expires_in_ms=60000", data, **raw) == {"stored": 1}
    assert operator.post("/api/queues/q/put", b"", **raw) == {"stored": 1}
    with Wire(server.address) as wire:
        assert wire.get("q") == data and wire.get("q") == b""
    for wrong in ("flags=4294967296", "flags=x", "expires_in_ms=9007199254740993"):
        assert operator.ask("POST", f"/api/queues/q/put?{wrong}", b"x", **raw).status == 400
    assert operator.ask("POST", "/api/queues/q/take", b"{}", **raw).status == 400
    assert operator.get("/api/queues/q")["items"] == 0


def test_a_take_is_about_a_megabyte(server: Server, operator: Operator) -> None:
    with Wire(server.address) as wire:
        for _ in range(3):
            assert wire.put("q", b"x" * 700_000) == b"STORED"
    assert [len(operator.post("/api/queues/q/take", {"count": 9})["items"]) for _ in range(3)] == [2, 1, 0]


def test_a_purge_is_about_the_items_that_were_shown(server: Server, operator: Operator) -> None:
    fill(server, "q", 5)
    assert operator.post("/api/queues/q/purge", {"expected": 2})["purged"] == 2
    assert held_by(server, "q") == [b"2", b"3", b"4"]
    fill(server, "q", 5)
    assert operator.post("/api/queues/q/purge", {"expected": 2, "no_undo": True})["purged"] == 2
    server.restart()
    assert held_by(server, "q") == [b"2", b"3", b"4"]


def test_only_a_delete_for_good_asks_again_if_there_is_more_than_was_shown(server: Server, operator: Operator) -> None:
    fill(server, "q", 3)
    reply = operator.ask("DELETE", "/api/queues/q", {"expected": 2, "no_undo": True})
    assert reply.status == 409 and "3 items now, not 2: nothing was deleted" in reply.json["error"]
    assert operator.ask("DELETE", "/api/queues/q", {"expected": 2}).json["deleted"] == 3


def test_an_operation_can_be_begun_without_waiting_for_its_end(server: Server, operator: Operator) -> None:
    fill(server, "q", 300)
    reply = operator.ask("POST", "/api/queues/q/move", {"to": "r"}, prefer="respond-async")
    assert reply.status == 202 and reply.json["state"] == "running"
    path = f"/api/operations/{reply.json['id']}"
    while (found := operator.get(path))["state"] == "running":
        pass
    assert (found["state"], found["done"], found["undo"]) == ("done", 300, reply.json["id"])


def test_items_are_moved_and_dead_letters_go_back(server: Server, operator: Operator) -> None:
    fill(server, "q", 300)
    told = operator.post("/api/queues/q/move", {"to": "r", "count": 10})
    assert (told["moved"], told["to"], told["why"]) == (10, "r", "") and told["undo"]
    assert operator.post("/api/queues/q/move", {"to": "r", "expected": 289})["moved"] == 289
    assert operator.post("/api/queues/q/move", {"to": "r", "expected": 290})["moved"] == 1
    assert held_by(server, "r") == [b"%d" % number for number in range(300)]
    fill(server, "work", 2)
    with Wire(server.address) as wire:
        for _ in range(2):
            assert wire.get("work/open") is not None
            assert wire.ask(b"get work/abort") == b"END"
    assert operator.post("/api/queues/dead/redrive", {"expected": 1})["moved"] == 1
    assert operator.post("/api/queues/dead/redrive", {"expected": 2})["moved"] == 1
    assert held_by(server, "work") == [b"0", b"1"]
    fill(server, "q", 1)
    reply = operator.ask("POST", "/api/queues/q/redrive", {})
    assert reply.status == 409 and "does not say which queue it comes from" in reply.json["error"]


def test_a_move_to_a_full_queue_says_how_far_it_came(server: Server, operator: Operator) -> None:
    fill(server, "q", 3)
    told = operator.post("/api/queues/q/move", {"to": "small"})
    assert (told["moved"], told["to"], told["why"]) == (1, "small", "small is full (max_items or max_size)")
    assert operator.ask("POST", "/api/queues/q/move", {"to": "small"}).status == 409
    assert operator.ask("POST", "/api/queues/q/move", {"to": "q"}).status == 400


def test_a_paused_queue_holds_back_what_was_asked_for(server: Server, operator: Operator) -> None:
    fill(server, "q", 1)
    assert operator.post("/api/queues/q/pause", {"puts": False}) == {"gets_paused": True, "puts_paused": False}
    assert operator.get("/api/queues/q")["paused"] == "gets"
    assert held_by(server, "q") == []
    assert [each["name"] for each in operator.get("/health/ready")["reasons"]].count("queues_paused") == 1
    assert operator.post("/api/queues/q/resume") == {"gets_paused": False, "puts_paused": False}
    assert held_by(server, "q") == [b"0"]


def test_a_put_or_a_move_to_a_paused_queue_is_told_what_ends_the_pause(server: Server, operator: Operator) -> None:
    fill(server, "q", 1)
    fill(server, "held", 1)
    operator.post("/api/queues/held/pause", {"gets": False})
    why = "puts to held are paused; `staniel resume held --puts` ends that"
    assert operator.ask("POST", "/api/queues/held/put", {"data": "x"}).json["error"] == why
    assert operator.ask("POST", "/api/queues/q/move", {"to": "held"}).json["error"] == why
    with Wire(server.address) as wire:
        assert wire.put("held", b"x") == b"SERVER_ERROR puts to held are paused"


def test_settings_that_are_no_number_are_the_words_of_the_file(operator: Operator) -> None:
    found = operator.get("/api/queues/any/config")
    none = ("max_items", "max_size", "max_waiters", "max_age", "max_deliveries", "expire_to_queue", "retry_delay")
    assert {found[key] for key in none} == {"none"}
    assert (found["sync_journal"], found["max_item_size"], found["keep_journal"]) == ("always", 16 << 20, True)


def test_open_reads_are_given_back_one_all_or_all_of_a_client(server: Server, operator: Operator) -> None:
    fill(server, "q", 3)
    with Wire(server.address) as one, Wire(server.address) as other:
        assert (one.get("q/open"), other.get("q/open")) == (b"0", b"1")
        first, second = operator.get("/api/queues/q/open")
        assert operator.post(f"/api/queues/q/open/{first['xid']}/abort") == {"aborted": 1}
        assert operator.ask("POST", f"/api/queues/q/open/{first['xid']}/abort").status == 404
        with Wire(server.address) as third:
            assert third.get("q") == b"0"
        (number,) = [each["number"] for each in operator.get("/api/clients") if each["address"] == second["client"]]
        assert operator.post(f"/api/clients/{number}/abort") == {"aborted": 1}
        assert other.get("q/open") == b"1"
        assert operator.post("/api/queues/q/open/abort") == {"aborted": 1}
    assert held_by(server, "q") == [b"1", b"2"]


def test_a_queue_is_deleted_and_the_server_stopped(server: Server, operator: Operator) -> None:
    fill(server, "q", 2)
    assert operator.ask("DELETE", "/api/queues/q").json["deleted"] == 2
    assert operator.ask("DELETE", "/api/queues/q").status == 404
    assert operator.post("/api/reload")["reloaded"] is True
    assert operator.post("/api/stop") == {"stopping": True}
    assert server.wait() == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/queues/q/put", {"dta": "x"}),
        ("/api/queues/q/put", {"data": "*", "encoding": "base64"}),
        ("/api/queues/q/put", {"data": "x", "encoding": "hex"}),
        ("/api/queues/q/put", {"data": "x", "flags": 1 << 32}),
        ("/api/queues/q/put", {"data": "x", "expires_in_ms": 1 << 63}),
        ("/api/queues/q/put", {"data": "x", "expires_in_ms": -1}),
        ("/api/queues/a~b/put", {"data": "x"}),
        ("/api/queues/q/move", {}),
        ("/api/queues/q/move", {"to": "r", "count": -1}),
        ("/api/status", {"status": "down"}),
        ("/api/queues/q/pause", []),
    ],
)
def test_a_body_that_is_not_what_the_path_takes_is_refused(operator: Operator, path: str, body: object) -> None:
    assert operator.post("/api/queues/q/put", {"data": "kept"}) == {"stored": 1}
    reply = operator.ask("POST", path, body)
    assert reply.status == 400 and reply.json["error"]
    assert operator.get("/api/queues/q")["items"] == 1
