"""A page that is told that more follows is told when it has all, at once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from staniel.broker.admin.http.events import ALIVE_MS, EVERY_MS
from staniel.broker.admin.sampler import WATCHED_MS
from staniel.broker.protocols import http
from tests.support.world import Client, World

MEMORY = "default.keep_journal = false\n"
AT_ONCE_MS = 100
REQUEST = b"GET /api/events HTTP/1.1\r\nHost: h\r\n\r\n"


def opened(world: World) -> Client:
    page = Client(world, http())
    world.clients.append(page)
    page.sends(REQUEST)
    return page


def events(world: World, page: Client, ms: int) -> list[dict[str, Any]]:
    """Return the events of the next `ms`."""
    for _ in range(0, ms, 10):
        world.turn(10)
    return [json.loads(line) for line in re.findall(r"data: (\{.*\})\n", page.hears() + "\n")]


@pytest.mark.parametrize("queues", [0, 3])
def test_a_new_page_is_told_at_once_that_it_has_all_queues(queues: int) -> None:
    world = World(MEMORY)
    for number in range(queues):
        world.client().puts("x", f"q{number}")
    told = events(world, opened(world), AT_ONCE_MS)
    assert told[0]["is_first"] and told[0]["more"]
    assert "more" not in told[-1]


@pytest.mark.pure
def test_a_page_that_reads_again_is_told_at_once_that_nothing_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MEMORY)
    world.client().puts("x")
    page = opened(world)
    events(world, page, 3 * ALIVE_MS)
    monkeypatch.setattr(world.broker, "has_sent_all", lambda session: False)
    assert events(world, page, WATCHED_MS + EVERY_MS) == []
    monkeypatch.setattr(world.broker, "has_sent_all", lambda session: True)
    told: list[dict[str, Any]] = []
    while not told:
        told = events(world, page, 10)
    assert "more" in told[-1]
    told = events(world, page, AT_ONCE_MS)
    assert told and "more" not in told[-1]
