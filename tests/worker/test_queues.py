"""A worker of several queues against a real server: who is read when, and whose an item stays."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from staniel.client import Client
from staniel.worker import DeadLetter, Order, Server, Settings, Worker
from staniel.worker.lane import Lane
from tests.support import process
from tests.support.process import running, until
from tests.support.wire import drain, stats
from tests.worker.test_command import worker
from tests.worker.test_worker import Seen, numbered, working

QUEUES = ("urgent", "mail", "reports")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[process.Server]:
    with running(tmp_path) as started:
        yield started


def put(server: process.Server, queue: str, *items: bytes) -> None:
    with Client(*server.address) as client:
        client.put_many(queue, items)


def test_items_of_all_queues_are_done_once_and_confirmed_on_their_own(server: process.Server) -> None:
    for queue in QUEUES:
        put(server, queue, *[b"%b %b" % (queue.encode(), number) for number in numbered(500)], b"the same in all")
    seen = Seen()
    with working(server, seen, queue=QUEUES) as work:
        assert until(lambda: work.counts["done"] == 1503)
    assert seen.calls.pop(b"the same in all") == 3 and set(seen.calls.values()) == {1} and len(seen.calls) == 1500
    for queue in QUEUES:
        assert drain(server.address, queue) == []
        assert stats(server.address)[f"queue_{queue}_open_transactions"] == "0"
    assert " queue=urgent,mail,reports " in work.logged("worker.started")[0]
    metrics = work.worker.metrics().splitlines()
    for queue in QUEUES:
        labels = f'{{worker="{work.worker.settings.name}",queue="{queue}"}}'
        assert f"staniel_worker_done_total{labels} 501" in metrics
        assert f"staniel_worker_running{labels} 0" in metrics


@pytest.mark.parametrize("order", Order)
def test_a_long_queue_lets_the_others_have_their_turns_unless_it_comes_first(
    server: process.Server, order: Order
) -> None:
    for queue, count in zip(QUEUES, (6, 2, 2), strict=True):
        put(server, queue, *[queue.encode()] * count)
    calls: list[bytes] = []
    with working(server, calls.append, queue=QUEUES, order=order, concurrency=1, prefetch=1) as work:
        assert until(lambda: work.counts["done"] == 10)
    turns = [b"urgent", b"mail", b"reports"] * 2 + [b"urgent"] * 4
    priority = [b"urgent"] * 6 + [b"mail"] * 2 + [b"reports"] * 2
    assert calls == (turns if order is Order.TURNS else priority)


def test_lanes_that_read_in_turns_begin_with_different_queues() -> None:
    made = Worker(print, Settings(queue=QUEUES), Server())
    firsts = [Lane(made._shared, made._runner(), number)._reads[0][0] for number in range(4)]
    assert firsts == ["urgent", "mail", "reports", "urgent"]


def test_a_lane_waits_at_all_queues(server: process.Server) -> None:
    def is_waiting() -> bool:
        figures = stats(server.address)
        return all(figures.get(f"queue_{queue}_waiters") == "1" for queue in QUEUES)

    for queue in QUEUES:
        put(server, queue, b"first")
    seen = Seen()
    with working(server, seen, queue=QUEUES, concurrency=1, wait_s=1) as work:
        assert until(lambda: work.counts["done"] == 3 and is_waiting())
        for queue in QUEUES:
            put(server, queue, b"next")
        assert until(lambda: work.counts["done"] == 6)
    assert seen.calls == {b"first": 3, b"next": 3}


def test_a_failed_item_is_tried_again_and_then_a_dead_letter_of_its_own_queue(server: process.Server) -> None:
    def function(data: bytes) -> None:
        seen(data)
        raise ValueError(data.decode())

    seen = Seen()
    for queue in QUEUES:
        put(server, queue, queue.encode())
    with working(server, function, queue=QUEUES, attempts=2) as work:
        assert until(lambda: work.counts["dead"] == 3)
    assert seen.calls == {queue.encode(): 2 for queue in QUEUES}
    for queue in QUEUES:
        (letter,) = map(DeadLetter.decode, drain(server.address, f"{queue}-dead"))
        assert (letter.queue, letter.data, letter.attempts) == (queue, queue.encode(), 2)
        assert drain(server.address, queue) == []
        assert [line for line in work.logged("item.died") if f" queue={queue} " in line]


def test_resting_and_waiting_items_go_back_to_their_own_queues_at_a_stop(server: process.Server) -> None:
    def function(data: bytes) -> None:
        raise ValueError

    for queue in QUEUES:
        put(server, queue, queue.encode(), b"later")
    with working(server, function, queue=QUEUES, backoff_s=100) as work:
        assert until(lambda: work.counts["failed"] == 6)
    for queue in QUEUES:
        assert sorted(drain(server.address, queue)) == sorted([queue.encode(), b"later"])


def test_a_server_that_is_killed_under_load_loses_no_item_of_any_queue(server: process.Server) -> None:
    def function(data: bytes) -> None:
        time.sleep(0.0005)
        seen(data)

    seen, items = Seen(), numbered(900)
    for number, queue in enumerate(QUEUES):
        put(server, queue, *items[300 * number : 300 * (number + 1)])
    with working(server, function, queue=QUEUES) as work:
        assert until(lambda: work.counts["done"] > 200)
        port = server.port
        server.kill()
        server.options = ("--port", str(port))
        server.start()
        assert until(lambda: len(seen.calls) == 900)
        assert until(lambda: all(stats(server.address)[f"queue_{queue}_items"] == "0" for queue in QUEUES))
    assert seen.calls == Counter(items)
    assert [drain(server.address, queue) for queue in QUEUES] == [[], [], []]


def test_the_command_takes_several_queues(server: process.Server) -> None:
    put(server, "jobs", *numbered(3))
    put(server, "mail", b"of mail")
    with worker(server, "slow", "-q", "mail", "--order", "priority", "-c", "1", "--prefetch", "1") as one:
        assert until(lambda: len(one.done) == 5)
        one.child.send_signal(signal.SIGTERM)
        assert one.child.wait(60) == 0
    assert b" ".join(one.done) == b"0 1 2 of mail"
    assert "queue=jobs,mail" in one.log
