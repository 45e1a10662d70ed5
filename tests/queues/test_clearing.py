"""Clearing a long line: what comes after it has the ids that it would have had, and no step is long."""

from __future__ import annotations

from collections import OrderedDict, deque
from random import Random

import pytest

from staniel.queues.config import QueueConfig
from staniel.queues.deferred_free import BYTES_PER_STEP, ITEMS_PER_STEP, LEAST_ITEMS, DeferredFree
from staniel.queues.interfaces import NoJournal
from staniel.queues.item import Delivery, Item, Numbered
from staniel.queues.line import PlainLine
from staniel.queues.queue import COUNTED_PER_TURN, Queue

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("seed", range(20))
def test_a_line_counted_in_pieces_and_cleared_goes_on_with_the_ids_of_one_that_was_emptied(seed: int) -> None:
    rng = Random(seed)
    cleared, emptied = PlainLine(), PlainLine()
    now_ms = NOW_MS
    for _ in range(300):
        now_ms += rng.choice((-3, 0, 0, 0, 1, 5))
        for line in (cleared, emptied):
            line.append(Item(b"x", now_ms))
        if rng.random() < 0.3:
            cleared.count(rng.randrange(5))
        if rng.random() < 0.3:
            left = [line.pop() for line in (cleared, emptied)]
            assert left[0].id == left[1].id
            if rng.random() < 0.3:
                cleared.give_back(left[0])
                emptied.give_back(left[1])
        if rng.random() < 0.02:
            assert cleared.clear() == len(emptied)
            while len(emptied):
                emptied.drop()
            assert (cleared.last_id, cleared.left, cleared.bytes) == (emptied.last_id, emptied.left, emptied.bytes)


def test_as_much_of_a_line_is_counted_as_was_asked_for_and_its_order_stays() -> None:
    line = PlainLine()
    items = [Item(b"%d" % number, NOW_MS) for number in range(10)]
    for item in items:
        line.append(item)
    line.pop()
    assert [line.count(4), line.count(4), line.count(4)] == [False, False, True]
    assert line.items() == items[1:]
    line.append(items[0])
    assert not line.count(0) and line.count(1)


def test_a_flush_of_many_items_is_prepared_in_steps() -> None:
    queue = Queue("q", QueueConfig(), NoJournal(), NOW_MS)
    for _ in range(2 * COUNTED_PER_TURN + 1):
        queue.add(Item(b"", NOW_MS), NOW_MS)
    assert [queue.prepare_flush() for _ in range(3)] == [False, False, True]


def taken(number: int, size: int = 1) -> Delivery:
    return Delivery(Item(bytes(size), NOW_MS), number, xid=number)


@pytest.mark.parametrize("kind", ["line", "given back", "open"])
def test_what_is_abandoned_is_freed_a_number_a_step(kind: str) -> None:
    count = ITEMS_PER_STEP + 10
    items: deque[Item] | list[Delivery] | OrderedDict[int, Delivery] = deque([Item(b"x", NOW_MS)] * count)
    if kind == "given back":
        items = [taken(number) for number in range(count)]
    elif kind == "open":
        items = OrderedDict((number, taken(number)) for number in range(count))
    deferred_free = DeferredFree()
    deferred_free.add(items, count)
    deferred_free.free_some()
    assert len(items) == 10
    deferred_free.free_some()
    assert not items and not deferred_free.left


def test_large_items_are_freed_a_few_megabytes_a_step() -> None:
    items = deque([Item(bytes(BYTES_PER_STEP // 2), NOW_MS) for _ in range(5)])
    deferred_free = DeferredFree()
    deferred_free.add(items, 5 * BYTES_PER_STEP // 2)
    deferred_free.free_some()
    assert len(items) == 3


def test_a_few_small_items_are_freed_on_the_spot() -> None:
    items, deferred_free = deque([Item(b"x", NOW_MS)] * LEAST_ITEMS), DeferredFree()
    deferred_free.add(items, LEAST_ITEMS)
    assert not items and not deferred_free.left


def test_pieces_of_a_stream_are_freed_in_steps_that_need_not_end_with_a_piece() -> None:
    pieces = [[Numbered(b"x", NOW_MS)] * (ITEMS_PER_STEP // 2 + 1) for _ in range(3)]
    deferred_free = DeferredFree()
    deferred_free.add_pieces(pieces)
    deferred_free.free_some()
    assert sum(map(len, pieces)) == 3 * (ITEMS_PER_STEP // 2 + 1) - ITEMS_PER_STEP


@pytest.mark.parametrize("way", ["flush", "delete"])
def test_a_long_line_is_left_to_the_remains(way: str) -> None:
    queue, deferred_free = Queue("q", QueueConfig(), NoJournal(), NOW_MS), DeferredFree()
    queue.line.deferred_free = deferred_free
    for _ in range(LEAST_ITEMS + 1):
        queue.add(Item(b"", NOW_MS), NOW_MS)
    if way == "flush":
        assert queue.flush() == LEAST_ITEMS + 1
    else:
        queue.close()
    assert not len(queue.line) and len(deferred_free.left) == 1


@pytest.mark.parametrize("delays_ms", [(), (1000,)])
def test_the_open_reads_of_a_deleted_queue_and_what_rests_are_left_to_the_remains(delays_ms: tuple[int, ...]) -> None:
    queue, deferred_free = Queue("q", QueueConfig(retry_delays_ms=delays_ms), NoJournal(), NOW_MS), DeferredFree()
    queue.line.deferred_free = deferred_free
    for _ in range(LEAST_ITEMS + 1):
        queue.add(Item(b"", NOW_MS), NOW_MS)
        read = queue.open(NOW_MS)
        if delays_ms and read is not None:
            queue.abort(read, NOW_MS)
    queue.close()
    assert not queue.open_reads and not queue.delayed and len(deferred_free.left) == 1
