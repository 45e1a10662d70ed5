"""Requests of HTTP that take several turns, or that answer for what the disk does not have yet."""

from __future__ import annotations

import re

import pytest

from staniel.broker import protocols
from staniel.broker.admin import metrics
from staniel.broker.admin.http import queries
from staniel.broker.admin.metrics import QueueMetrics, queue_samples
from staniel.broker.figures import METRICS
from staniel.broker.operations.purge import DROPPED_PER_TURN
from staniel.queues.item import Item
from staniel.queues.queue import COUNTED_PER_TURN
from staniel.sim.world import Client
from tests.support.world import World


def fill(world: World, name: str, count: int) -> None:
    queue = world.broker.queues.make(name, world.now_ms)
    for _ in range(count):
        queue.add(Item(b"x", world.now_ms), world.now_ms)


def asks(world: World, method: str, path: str, body: str = "") -> Client:
    """No turn ends."""
    client = Client(world, protocols.http())
    world.clients.append(client)
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    client.sends(f"{head}\r\n{body}".encode())
    return client


def answer(world: World, client: Client) -> str:
    while client.session.wants_turn or world.broker.operations.running:
        world.turn()
    world.turn()
    world.sync()
    return client.hears()


@pytest.mark.parametrize("late", [0, 1])
def test_a_purge_of_many_turns_takes_no_more_than_was_expected(late: int) -> None:
    world, there = World(), 4 * COUNTED_PER_TURN
    fill(world, "q", there)
    client = asks(world, "POST", "/api/queues/q/purge", f'{{"expected": {there}, "no_undo": true}}')
    assert client.session.wants_turn
    fill(world, "q", late)
    heard = answer(world, client)
    assert f'{{"purged":{there},' in heard and len(world.broker.queues.by_name["q"].line) == late


def test_a_purge_for_good_of_what_was_shown_goes_on_when_its_client_hangs_up() -> None:
    world, there = World('admin.audit_log = "64KB"'), 3 * DROPPED_PER_TURN
    fill(world, "q", there)
    client = asks(world, "POST", "/api/queues/q/purge", f'{{"expected": {there - 1}, "no_undo": true}}')
    client.hangs_up()
    assert len(world.broker.queues.by_name["q"].line) > DROPPED_PER_TURN
    while world.broker.operations.running:
        world.turn()
    assert len(world.broker.queues.by_name["q"].line) == 1
    told = [(each.result.value, each.items) for each in world.broker.audit.newest(0, 9) if each.operation == "purge"]
    assert told == [("done", there - 1), ("begun", there - 1)]


def test_a_purge_of_a_queue_that_is_deleted_meanwhile_says_that_there_is_none() -> None:
    world = World()
    fill(world, "q", 4 * COUNTED_PER_TURN)
    client = asks(world, "POST", "/api/queues/q/purge", '{"no_undo": true}')
    world.client().says("delete q")
    assert answer(world, client).startswith("HTTP/1.1 404 ")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_that_a_queue_is_gone_is_told_once_the_disk_knows(method: str) -> None:
    world = World("default.sync_journal = 'always'")
    world.client().puts("x", "q")
    world.sync()
    world.client().sends(b"delete q\r\n")
    client = asks(world, method, "/api/queues/q")
    assert client.session.batch > world.broker.group.durable, "a power cut could bring the queue back"
    assert answer(world, client).startswith("HTTP/1.1 404 ")


def test_what_queues_have_together_is_told_to_the_last_digit() -> None:
    world = World()
    fill(world, "q", 1)
    at = [figure.metric for figure in METRICS].index("bytes")
    values = list(queue_samples(world.broker.spool, world.broker.queues.by_name["q"], world.now_ms))
    assert values[at] == 1
    values[at] = 12_345_678
    together = QueueMetrics()
    for _ in range(2):
        together.add_to_others(tuple(values))
    assert [*together.families()][at].endswith(b'\nstaniel_queue_bytes{queue=""} 24691356\n')


def test_of_many_queues_the_longest_are_named_and_the_others_are_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "QUEUES_MAX", 3)
    monkeypatch.setattr(queries, "RANKED_PER_TURN", 2)  # more than one turn
    world = World()
    for length in (0, 1, 9, 1, 40, 0, 5):
        fill(world, f"q{len(world.broker.queues)}", length)
    heard = answer(world, asks(world, "GET", "/metrics"))
    found = dict(re.findall(r'staniel_queue_items{queue="(\w*)"} (\d+)', heard))
    assert found == {"q2": "9", "q4": "40", "q6": "5", "": "2"}


def test_no_more_are_named_than_may_be_although_queues_grow_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "QUEUES_MAX", 2)
    monkeypatch.setattr(queries, "METRICS_PER_TURN", 1)
    world = World()
    for name in "abcd":
        fill(world, name, 1)
    client = asks(world, "GET", "/metrics")
    for name in "abcd":
        fill(world, name, 100)
    assert len(re.findall(r'staniel_queue_items{queue="\w', answer(world, client))) == 2
