"""Aborted items that rest before they are handed out again, and open reads that ask for more time."""

from __future__ import annotations

import pytest

from staniel.broker.config.load import ConfigError
from staniel.queues.changes import Aborted
from staniel.queues.config import QueueConfig
from staniel.queues.item import Delivery, Item
from staniel.queues.journal_view import JournalView
from staniel.queues.queue import Queue
from staniel.queues.time_outs import delay_ms as delay_of
from staniel.sim.disk.durable import Crash
from staniel.sim.world import config_of
from tests.queues.model import Hand, Recorder, Replayed
from tests.support.world import World

NOW_MS = 1_700_000_000_000
CONFIG = QueueConfig(retry_delays_ms=(1000,))
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
    queue.configure(QueueConfig(retry_delays_ms=(10,)))
    queue.abort(b, NOW_MS + 5)
    assert queue.next_due_ms() == NOW_MS + 15
    assert [opened(queue, NOW_MS + 15).item.data for _ in range(2)] == [b"a", b"b"]


def test_delays_grow_from_try_to_try_and_the_last_one_stays() -> None:
    queue = queue_with(b"a", config=QueueConfig(retry_delays_ms=(10, 100, 5000)))
    now_ms = NOW_MS
    for delay_ms in (10, 100, 5000, 5000):
        queue.abort(opened(queue, now_ms), now_ms)
        assert queue.next_due_ms() == now_ms + delay_ms
        now_ms += delay_ms
    assert opened(queue, now_ms).deliveries == 5


def test_an_item_with_a_short_rest_does_not_wait_for_one_with_a_long_rest() -> None:
    queue = queue_with(b"a", b"b", config=QueueConfig(retry_delays_ms=(10, 5000)))
    queue.abort(opened(queue), NOW_MS)
    queue.abort(opened(queue), NOW_MS)  # b
    again = opened(queue, NOW_MS + 10)
    assert again.item.data == b"a"
    queue.abort(again, NOW_MS + 10)
    queue.abort(opened(queue, NOW_MS + 10), NOW_MS + 10)
    queue.add(Item(b"c", NOW_MS + 10), NOW_MS + 10)
    queue.abort(opened(queue, NOW_MS + 10), NOW_MS + 10)
    assert queue.next_due_ms() == NOW_MS + 20
    assert opened(queue, NOW_MS + 20).item.data == b"c" and queue.peek(NOW_MS + 5009) is None
    assert [opened(queue, NOW_MS + 5010).item.data for _ in range(2)] == [b"a", b"b"]


def test_a_try_can_have_no_delay() -> None:
    queue = queue_with(b"a", config=QueueConfig(retry_delays_ms=(0, 100)))
    queue.abort(opened(queue), NOW_MS)
    queue.abort(opened(queue), NOW_MS)
    assert queue.peek(NOW_MS + 99) is None and queue.peek(NOW_MS + 100) is not None


def test_jitter_spreads_delays_and_is_the_same_in_every_run() -> None:
    config = QueueConfig(retry_delays_ms=(1000,), retry_jitter_percent=50)

    def all_rests(tries: int) -> list[int]:
        return [delay_of(config, Delivery(Item(b"", 0), number, tries)) for number in range(200)]

    rests = [all_rests(1), all_rests(2)]
    assert rests == [all_rests(1), all_rests(2)]
    assert all(1000 <= rest <= 1500 for each in rests for rest in each) and rests[0] != rests[1]
    assert len(set(rests[0])) > 100 and min(rests[0]) < 1050 and max(rests[0]) > 1450


def test_growing_delays_count_the_tries_before_a_restart() -> None:
    world = World('default.retry_delay = ["10ms", "10s"]\n')
    world.client().puts("a").says("get q/open", "get q/abort")
    world.turn(20)
    world.client().says("get q/open")
    world.sync()
    again = World(world.config, world.disk.kill(), world.now_ms + 1)
    again.turn()
    again.turn(9_900)
    assert again.items() == []
    again.turn(200)
    assert again.items() == [b"a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('"none"', "none"),
        ("0", "none"),
        ('"1s"', 1000),
        ('["1s"]', 1000),
        ('["1s", "10s", "1m"]', [1000, 10_000, 60_000]),
        ("[0, 5]", [0, 5]),
    ],
)
def test_the_setting_takes_a_duration_or_an_array(text: str, shown: object) -> None:
    config = config_of(f"default.retry_delay = {text}\ndefault.retry_jitter = 10\n")
    worded = dict(config.worded("q"))
    assert (worded["retry_delay"], worded["retry_jitter"]) == (shown, 10)


@pytest.mark.parametrize("text", ["[]", "-1", '["1s", "soon"]', '[["1s"]]', str(["1s"] * 21), "true"])
def test_a_wrong_delay_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"default\.retry_delay"):
        config_of(f"default.retry_delay = {text}\n")


def test_jitter_is_a_percentage() -> None:
    with pytest.raises(ConfigError, match=r"default\.retry_jitter: expected a whole number <= 100"):
        config_of("default.retry_jitter = 101\n")


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
    queue = queue_with(b"a", config=QueueConfig(open_timeout_ms=500, retry_delays_ms=(1000,)))
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
