"""Aborted items that rest before they are handed out again, and open reads that ask for more time."""

from __future__ import annotations

import pytest

from staniel.queues.changes import Aborted
from staniel.queues.checkpoint import JournalView
from staniel.queues.config import QueueConfig
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from staniel.sim.disk.durable import Crash
from tests.queues.model import Hand, Recorder, Replayed
from tests.support.world import World

NOW_MS = 1_700_000_000_000
CONFIG = QueueConfig(retry_delay_ms=1000)
TIMED = QueueConfig(open_timeout_ms=500)


def queue_with(*data: bytes, config: QueueConfig = CONFIG) -> Queue:
    queue = Queue("q", config, Recorder(), NOW_MS)
    for each in data:
        assert queue.add(Item(each, NOW_MS), NOW_MS)
    return queue


def opened(queue: Queue, now_ms: int = NOW_MS) -> Delivery:
    taken = queue.open(now_ms)
    assert taken is not None
    return taken


def test_an_aborted_item_rests_and_then_is_the_head_again() -> None:
    queue = queue_with(b"a", b"b")
    first = opened(queue)
    assert queue.abort(first, NOW_MS)
    assert not queue.confirm(first) and not queue.abort(first, NOW_MS)
    assert opened(queue).item.data == b"b"
    assert queue.peek(NOW_MS + 999) is None
    again = opened(queue, NOW_MS + 1000)
    assert (again.item.data, again.id, again.deliveries) == (b"a", first.id, 2)
    assert not queue.delayed


def test_the_journal_keeps_a_resting_item_as_an_open_read() -> None:
    queue = queue_with(b"a")
    queue.abort(opened(queue), NOW_MS)
    replayed = Replayed()
    for change in queue.journal.changes:  # type: ignore[attr-defined]
        replayed.apply(change)
    assert [taken.item.data for taken in replayed.open.values()] == [b"a"] and not len(replayed.line)
    assert [*JournalView(queue).snapshot()[0]] == [1] and Aborted not in map(type, queue.journal.changes)  # type: ignore[attr-defined]


def test_what_a_client_held_comes_back_in_its_old_order_after_the_delay() -> None:
    world = World('default.retry_delay = "1s"\n')
    client = world.client()
    for data in "abc":
        client.puts(data)
    holder = world.client().says("get q/open", "get q/open", "get q/open")
    world.turn()
    holder.hangs_up()
    world.turn(1100)
    assert world.items("q") == [b"a", b"b", b"c"]


def test_a_delay_that_was_made_shorter_holds_no_new_abort_behind_an_old_one() -> None:
    queue = queue_with(b"a", b"b")
    a, b = opened(queue), opened(queue)
    queue.abort(a, NOW_MS)
    queue.configure(QueueConfig(retry_delay_ms=10))
    queue.abort(b, NOW_MS + 5)
    assert queue.next_due_ms() == NOW_MS + 15
    assert [opened(queue, NOW_MS + 15).item.data for _ in range(2)] == [b"a", b"b"]


def test_several_that_rest_come_back_in_the_order_they_were_given_back() -> None:
    queue = queue_with(b"a", b"b", b"c")
    a, b = opened(queue), opened(queue)
    queue.abort(b, NOW_MS)
    queue.abort(a, NOW_MS + 10)
    assert queue.next_due_ms() == NOW_MS + 1000
    assert queue.time_out(NOW_MS + 999) == 0
    assert queue.time_out(NOW_MS + 1010) == 2
    assert [item.data for item in queue.line.items()] == [b"b", b"a", b"c"]
    assert queue.next_due_ms() == 0


def test_one_who_waits_gets_the_item_when_its_rest_is_over() -> None:
    queue, hand = queue_with(b"a"), Hand()
    queue.abort(opened(queue), NOW_MS)
    queue.park(hand)
    queue.time_out(NOW_MS + 999)
    assert hand.got == []
    queue.time_out(NOW_MS + 1000)
    assert [taken.item.data for taken in hand.got] == [b"a"]


def test_a_read_that_times_out_rests_as_well() -> None:
    queue = queue_with(b"a", config=QueueConfig(open_timeout_ms=500, retry_delay_ms=1000))
    opened(queue)
    assert queue.peek(NOW_MS + 500) is None
    assert queue.peek(NOW_MS + 1499) is None
    assert queue.peek(NOW_MS + 1500) is not None


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP])
def test_a_resting_item_survives_a_crash_and_rests_anew(how: Crash) -> None:
    """The journal has no field for the moment at which the rest ends: it is longer than asked for, never shorter."""
    world = World('[default]\nretry_delay = "10s"\n')
    client = world.client().puts("a").puts("b").says("get q/open", "get q/abort")
    world.sync()
    assert client.says("get q/peek") and world.items() == [b"b"]
    again = world.crash(how)
    again.turn()
    assert again.items() == [b"b"]
    again.turn(9_900)
    assert again.items() == [b"b"]
    again.turn(200)
    assert again.items() == [b"a", b"b"]


def test_a_read_that_was_open_when_the_server_ended_rests_too() -> None:
    world = World('[default]\nretry_delay = "10s"\n')
    world.client().puts("a").puts("b").says("get q/open")
    world.sync()
    again = world.crash(Crash.KEEP)
    assert again.client().says("get q").hears() == ""  # recovery has not ended the read yet
    again.turn()
    again.sync()
    assert again.items() == []
    again.turn(10_100)
    assert again.items() == [b"a"]


def test_a_delay_that_is_switched_off_leaves_nothing_resting_after_a_restart() -> None:
    world = World('[default]\nretry_delay = "10s"\n')
    world.client().puts("a").says("get q/open", "get q/abort")
    world.sync()
    assert World("", world.disk.crash(Crash.KEEP)).items() == [b"a"]


def test_the_server_wakes_up_for_an_item_whose_rest_is_over() -> None:
    world = World(
        'server.expiration_timer_frequency = "none"\ndefault.keep_journal = false\ndefault.retry_delay = "1s"'
    )
    world.client().puts("a").says("get q/open", "get q/abort")
    waiter = world.client().says("get q/t=60000")
    assert waiter.hears() == "" and 0 < world.broker.next_ms() - world.now_ms <= 1010
    world.turn(990)
    assert waiter.hears() == ""
    world.turn(20)
    assert waiter.hears() == "VALUE q/t=60000 0 1 a END"


def test_an_extended_read_times_out_later_and_the_others_when_they_should() -> None:
    queue = queue_with(b"a", b"b", config=TIMED)
    first, second = opened(queue), opened(queue, NOW_MS + 100)
    assert queue.extend(first, NOW_MS + 400)
    assert queue.next_due_ms() == NOW_MS + 600
    assert queue.time_out(NOW_MS + 600) == 1
    assert not queue.extend(second, NOW_MS + 600)
    assert queue.confirm(first)


def test_an_extended_read_ends_in_its_time() -> None:
    queue = queue_with(b"a", config=TIMED)
    first = opened(queue)
    assert queue.extend(first, NOW_MS + 400)
    assert queue.time_out(NOW_MS + 899) == 0
    assert queue.time_out(NOW_MS + 900) == 1
    assert not queue.extend(first, NOW_MS + 900) and not queue.confirm(first)
    assert [item.data for item in queue.line.items()] == [b"a"]


@pytest.mark.parametrize("journal_format", ["kestrel", "libkestrel"])
def test_no_more_rests_in_memory_than_the_queue_may_keep_there(journal_format: str) -> None:
    text = f'journal_format = "{journal_format}"\nmax_memory_size = "100KB"\nretry_delay = "1h"\n'
    world = World(f"[default]\n{text}")
    client = world.client()
    for number in range(40):
        client.puts(f"{number:010000}")
    for _ in range(40):
        client.says("get q/open", "get q/abort")
    queue = world.broker.queues.by_name["q"]
    assert len(queue.delayed) == 10 and len(queue.line) == 30
    heads = [int(item.data[-4:]) for item in queue.line.items()]
    assert sorted([*heads, *(int(taken.item.data[-4:]) for taken in queue.delayed.values())]) == list(range(40))
    world.turn(3_700_000)
    assert not queue.delayed and len(queue.line) == 40 and queue.delayed_bytes == 0
