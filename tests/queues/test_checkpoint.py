"""The checkpoint of a queue: what it says, and that a rotation can make one on the loop."""

from __future__ import annotations

import gc

from staniel.queues.config import QueueConfig
from staniel.queues.item import Item
from staniel.queues.journal_view import JournalView
from staniel.queues.queue import Queue
from tests.queues.model import Recorder

NOW_MS = 1_700_000_000_000


def queue_of(items: int, config: QueueConfig) -> Queue:
    queue = Queue("q", config, Recorder(), NOW_MS)
    for at in range(items):
        assert queue.add(Item(b"%d" % at, NOW_MS), NOW_MS)
    return queue


def test_a_checkpoint_has_no_object_for_each_open_read() -> None:
    queue = queue_of(2000, QueueConfig())
    for _ in range(2000):
        assert queue.open(NOW_MS) is not None
    gc.collect()
    before = len(gc.get_objects())
    checkpoint = JournalView(queue).checkpoint()
    assert len(gc.get_objects()) - before < 100
    assert len(checkpoint.xids) == len(checkpoint.open_seqs) == len(checkpoint.ids) == 2000


def test_a_checkpoint_lists_what_is_open_then_what_rests_then_what_was_handed_back() -> None:
    queue = queue_of(6, QueueConfig(retry_delays_ms=(1000,)))
    view = JournalView(queue)
    taken = [queue.open(NOW_MS) for _ in range(4)]
    first, second, third, fourth = [each for each in taken if each is not None]
    queue.abort(first, NOW_MS)
    queue.give_back(queue.open_reads.pop(third.xid))
    queue.give_back(queue.open_reads.pop(fourth.xid))
    checkpoint = view.checkpoint()
    assert checkpoint.xids == (second.xid, first.xid)
    assert checkpoint.open == {second.xid: 1, first.xid: 0}
    assert checkpoint.heads == (3, 2)
    assert checkpoint.ids == tuple(each.id for each in (second, first, fourth, third))
    assert checkpoint.deliveries == (1, 1, 1, 1)
    assert (checkpoint.left, checkpoint.end, checkpoint.length) == (4, 6, 4)
    assert view.under_way == {second.xid: second, first.xid: first}
