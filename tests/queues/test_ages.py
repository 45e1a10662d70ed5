"""How old the items of a queue are said to be."""

from __future__ import annotations

from staniel.queues.ages import oldest_ms, ready_ms
from staniel.queues.config import QueueConfig
from staniel.queues.item import Item
from staniel.queues.queue import Queue
from staniel.sim.disk.durable import Crash
from tests.queues.model import Recorder
from tests.support.world import World

NOW_MS = 1_700_000_000_000
UNLIMITED = QueueConfig()


def queue_with(*ages_ms: int, config: QueueConfig = UNLIMITED) -> Queue:
    """A queue of items that are so old, and never expire."""
    queue = Queue("q", config, Recorder(), NOW_MS)
    for age_ms in ages_ms:
        assert queue.add(Item(b"x", NOW_MS - age_ms), NOW_MS - age_ms)
    return queue


def ages(queue: Queue, now_ms: int = NOW_MS) -> tuple[int, int]:
    return ready_ms(queue, now_ms), oldest_ms(queue, now_ms)


def test_an_item_that_nobody_takes_grows_older() -> None:
    assert ages(queue_with()) == (0, 0)
    assert ages(queue_with(500, 300)) == (500, 500)
    assert ages(queue_with(500, 300), NOW_MS + 1000) == (1500, 1500)
    assert ages(queue_with(500), NOW_MS - 1000) == (0, 0)


def test_an_open_item_is_not_ready_and_not_gone() -> None:
    queue = queue_with(500, 300)
    first = queue.open(NOW_MS)
    assert first is not None and ages(queue) == (300, 500)
    queue.abort(first, NOW_MS)
    assert ages(queue) == (500, 500)
    second = queue.open(NOW_MS)
    assert second is not None and queue.confirm(second)
    assert ages(queue) == (300, 300)


def test_the_oldest_of_those_that_came_back_counts_wherever_it_stands() -> None:
    queue = queue_with(500, 300, 100)
    first, second = queue.open(NOW_MS), queue.open(NOW_MS)
    assert first is not None and second is not None
    queue.abort(first, NOW_MS)
    queue.abort(second, NOW_MS)
    assert ages(queue) == (500, 500)


def test_an_item_that_rests_before_another_try_is_not_ready() -> None:
    queue = queue_with(500, config=QueueConfig(retry_delays_ms=(1000,)))
    taken = queue.open(NOW_MS)
    assert taken is not None
    queue.abort(taken, NOW_MS)
    assert ages(queue) == (0, 500)
    assert queue.peek(NOW_MS + 1000) is not None
    assert ages(queue, NOW_MS + 1000) == (1500, 1500)


def test_an_item_that_has_expired_is_not_ready() -> None:
    queue = queue_with(config=QueueConfig(max_expire_sweep=0))
    for age_ms, expires_ms in ((500, NOW_MS - 1), (300, NOW_MS - 1), (200, NOW_MS + 1)):
        queue.add(Item(b"x", NOW_MS - age_ms, expires_ms), NOW_MS - age_ms)
    assert ages(queue) == (200, 500)


def test_after_a_restart_the_age_is_still_that_of_the_item() -> None:
    for config in ("", 'default.journal_format = "libkestrel"'):
        world = World(config)
        world.client().puts("a")
        again = world.crash(Crash.KEEP)
        again.turn(5000)
        queue = again.broker.queues.by_name["q"]
        assert ready_ms(queue, again.now_ms) == oldest_ms(queue, again.now_ms) == again.now_ms - world.now_ms
