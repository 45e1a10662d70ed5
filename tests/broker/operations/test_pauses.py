"""Paused queues: what is held back, who is told, and what a restart remembers."""

from __future__ import annotations

import errno
import json

import pytest

from staniel.journal.disk.replace_file import replace_file
from staniel.sim.disk.durable import Crash
from tests.support.world import Client, World

PAUSED = "s/.staniel/paused"


def asked(client: Client, *lines: str) -> str:
    client.says(*lines)
    while client.world.sync():
        client.world.turn()
    return client.hears()


def content(world: World) -> object:
    return json.loads(world.disk.read(PAUSED, 0, 1000))


def paused_stats(client: Client) -> list[str]:
    lines = asked(client, "stats").split("STAT ")
    return [line.strip() for line in lines if "_paused" in line]


def test_the_numbers_show_a_pause_only_while_there_is_one() -> None:
    client = World().client()
    asked(client.puts("x"), "version")
    assert paused_stats(client) == []
    for what in ("gets", "puts", "all"):
        assert asked(client, f"pause q {what}", "resume q") == "OK OK"
        asked(client, f"pause q {what}")
        assert paused_stats(client)[0].split()[:2] == ["queue_q_paused", what]
        asked(client, "resume q")
    assert paused_stats(client) == []


def test_halves_are_paused_and_resumed_on_their_own() -> None:
    world = World()
    client = world.client().puts("x")
    asked(client, "pause q gets", "pause q puts", "resume q gets")
    assert content(world) == {"version": 1, "queues": {"q": {"gets": False, "puts": True}}}
    assert asked(client, "get q") == "VALUE q 0 1 x END"


def test_a_resumed_queue_serves_who_waits_in_their_order() -> None:
    world = World()
    client = world.client().puts("a").puts("b")
    asked(client, "pause q gets")
    first, second = world.client().says("get q/t=9000"), world.client().says("get q/t=9000/open")
    assert asked(client, "resume q gets") == "OK"
    assert (first.hears(), second.hears()) == ("VALUE q/t=9000 0 1 a END", "VALUE q/t=9000/open 0 1 b END")


def test_a_wait_in_a_paused_queue_ends_when_its_time_is_over() -> None:
    world = World()
    client = world.client().puts("a")
    asked(client, "pause q")
    waiting = world.client().says("get q/t=500")
    world.turn(600)
    assert asked(waiting) == "END"


@pytest.mark.parametrize("how", Crash)
def test_a_pause_that_was_acknowledged_is_there_after_a_power_cut(how: Crash) -> None:
    world = World()
    client = world.client().puts("a")
    assert asked(client, "pause q").endswith("OK")
    after = world.crash(how).client()
    assert asked(after, "get q", "set q 0 0 1", "x") == "END SERVER_ERROR puts to q are paused"
    assert asked(after, "resume q", "get q") == "OK VALUE q 0 1 a END"


def test_a_queue_that_keeps_nothing_on_the_disk_is_still_paused_after_a_restart() -> None:
    world = World("[queues.q]\nkeep_journal = false\n")
    asked(world.client().puts("a"), "pause q")
    assert asked(world.crash(Crash.DROP).client(), "set q 0 0 1", "x") == "SERVER_ERROR puts to q are paused"


def test_a_deleted_queue_is_forgotten_and_its_successor_serves() -> None:
    world = World()
    client = world.client().puts("a")
    asked(client, "pause q", "delete q")
    assert content(world) == {"version": 1, "queues": {}}
    assert asked(client, "set q 0 0 1", "x", "get q") == "STORED VALUE q 0 1 x END"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version": 2, "queues": {}}', b'{"version": 1, "queues": {"q": 1}}']
)
def test_a_damaged_file_is_reported_and_no_queue_is_paused(data: bytes) -> None:
    world = World()
    asked(world.client().puts("a"), "pause q")
    replace_file(world.disk, PAUSED, data)
    after = world.crash(Crash.DROP)
    assert "pauses.damaged" in after.events
    assert asked(after.client(), "get q") == "VALUE q 0 1 a END"


def test_an_impossible_name_in_the_file_is_reported_and_the_others_are_paused() -> None:
    world = World()
    asked(world.client().puts("a"), "pause q")
    pauses = {"a/b": {"gets": True, "puts": True}, "q": {"gets": True, "puts": False}}
    replace_file(world.disk, PAUSED, json.dumps({"version": 1, "queues": pauses}).encode())
    after = world.crash(Crash.DROP)
    assert "pauses.unserved" in after.events
    assert asked(after.client(), "get q") == "END"


def test_a_pause_that_cannot_be_remembered_is_refused_and_does_not_happen() -> None:
    world = World()
    client = world.client().puts("a")
    asked(client, "version")

    world.disk.fail("write", f"{PAUSED}.new", errno.ENOSPC, short=7)
    assert asked(client, "pause q") == "SERVER_ERROR the pause cannot be kept: No space left on device"
    assert asked(client, "get q") == "VALUE q 0 1 a END"
