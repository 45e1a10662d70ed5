"""Expired items behind a live head cost no room, and an operator's flush of them counts them."""

from __future__ import annotations

import pytest

from staniel.queues.config import QueueConfig
from staniel.queues.item import Item, is_remnant
from staniel.queues.queue import Queue
from staniel.queues.sweeping import LOOKED_AT_ONCE, LOOKED_PER_MS
from staniel.sim.disk.durable import Crash
from tests.queues.model import Recorder, Replayed
from tests.support.world import Client, World

START_MS = 1_700_000_000_000
STREAM = 'queues.q.journal_format = "libkestrel"\n'


def filled(live: int, dying: int, **settings: object) -> Queue:
    """A queue that is full: `live` items and behind them `dying` ones with a life of a second."""
    config = QueueConfig(max_items=live + dying, **settings)  # type: ignore[arg-type]
    queue = Queue("q", config, Recorder(), START_MS)
    for number in range(live + dying):
        expires_ms = START_MS + 1000 if number >= live else 0
        assert queue.add(Item(b"%d" % number, START_MS, expires_ms), START_MS)
    return queue


def test_expired_items_behind_a_live_head_make_room_when_the_queue_is_full() -> None:
    queue = filled(1, 10)
    assert not queue.add(Item(b"early", START_MS), START_MS + 1000)
    now_ms = START_MS + 1001
    assert queue.has_room(Item(b"new", now_ms), now_ms)
    for number in range(10):
        assert queue.add(Item(b"new %d" % number, now_ms), now_ms)
    assert not queue.add(Item(b"one more", now_ms), now_ms)
    queue.check()
    assert (queue.line.present, queue.counters.expired_items) == (11, 10)
    wanted = [b"0", *(b"new %d" % number for number in range(10))]
    assert [taken.item.data for _ in wanted if (taken := queue.remove_head(now_ms)) is not None] == wanted
    assert queue.remove_head(now_ms) is None and not len(queue.line)
    assert queue.counters.expired_items == 10
    queue.check()


def test_bytes_of_expired_items_make_room_too() -> None:
    queue = filled(1, 1, max_bytes=2)
    queue.configure(QueueConfig(max_bytes=2))
    assert not queue.add(Item(b"x", START_MS), START_MS)
    assert queue.add(Item(b"x", START_MS), START_MS + 1001)
    queue.check()


def test_live_items_are_not_discarded_while_expired_ones_take_room() -> None:
    queue = filled(2, 1, discard_old_when_full=True)
    now_ms = START_MS + 1001
    assert queue.add(Item(b"new", now_ms), now_ms)
    assert queue.counters.discarded == 0
    assert queue.add(Item(b"newer", now_ms), now_ms)
    assert queue.counters.discarded == 1
    assert [taken.item.data for _ in range(4) if (taken := queue.remove_head(now_ms)) is not None] == [
        b"1",
        b"new",
        b"newer",
    ]


def test_what_the_journal_is_told_leads_to_the_same_line() -> None:
    queue = filled(2, 3)
    journal = queue.journal
    assert isinstance(journal, Recorder)
    now_ms = START_MS + 1001
    assert queue.add(Item(b"new", now_ms), now_ms)
    for _ in range(2):
        assert queue.remove_head(now_ms) is not None
    taken = queue.remove_head(now_ms)
    assert taken is not None and taken.item.data == b"new"
    replayed = Replayed()
    for change in journal.changes:
        replayed.apply(change)  # asserts that ids are the same
    assert not len(replayed.line)


def test_an_item_that_was_handed_back_and_expired_behind_another_makes_room() -> None:
    queue = filled(0, 2)
    first, second = queue.open(START_MS), queue.open(START_MS)
    assert first is not None and second is not None
    queue.abort(second, START_MS)
    first.item.expires_ms = 0
    queue.abort(first, START_MS)
    assert queue.add(Item(b"new", START_MS), START_MS + 1001)
    assert [is_remnant(taken.item) for taken in queue.line.returned] == [True, False]
    queue.check()


def test_a_put_looks_through_a_part_of_a_long_line_and_the_timer_goes_on() -> None:
    queue = filled(LOOKED_AT_ONCE, 1)
    now_ms = START_MS + 1001
    assert not queue.add(Item(b"new", now_ms), now_ms)
    queue.on_timer(now_ms)
    assert queue.add(Item(b"new", now_ms), now_ms)


def test_puts_to_a_queue_that_stays_full_do_not_look_through_it_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = filled(1, LOOKED_PER_MS * 10)
    looked: list[int] = []
    step = queue.sweeping.sweep_some
    monkeypatch.setattr(queue.sweeping, "sweep_some", lambda *args: looked.append(args[2]) or step(*args))
    for ms in range(30):
        assert not queue.add(Item(b"new", START_MS), START_MS + ms)
    assert looked == [START_MS, START_MS + 10, START_MS + 20]


def test_an_item_that_goes_to_expire_to_queue_stays_whole_until_it_is_sent() -> None:
    queue = filled(1, 1, expire_to_queue="late")
    assert not queue.add(Item(b"new", START_MS), START_MS + 1001)
    assert [item.data for item in queue.line.items()] == [b"0", b"1"]


def asked(world: World, client: Client, *lines: str) -> str:
    client.says(*lines)
    world.sync()
    world.turn()
    return client.hears()


@pytest.mark.parametrize("config", ["", STREAM, "queues.q.keep_journal = false\n"])
@pytest.mark.parametrize("line", ["flush_expired q", "flush_all_expired"])
def test_an_operator_drops_expired_items_behind_a_live_head(config: str, line: str) -> None:
    world = World(config)
    client = world.client()
    for expiry in (0, 1, 1, 0, 1):
        asked(world, client, f"set q 0 {expiry} 4", "data")
    world.now_ms += 1500
    assert asked(world, client, line) == "3"
    assert asked(world, client, line) == "0"
    shown = asked(world, client, "stats")
    assert "STAT queue_q_items 2 " in shown and "STAT queue_q_expired_items 3 " in shown
    assert asked(world, client, "get q") == asked(world, client, "get q") == "VALUE q 0 4 data END"
    assert asked(world, client, "get q") == "END"


@pytest.mark.parametrize("config", ["", STREAM])
def test_a_restart_finds_swept_items_expired(config: str) -> None:
    world = World(config)
    client = world.client()
    for expiry in (0, 1, 1, 0):
        asked(world, client, f"set q 0 {expiry} 4", "data")
    world.now_ms += 1500
    assert asked(world, client, "flush_expired q") == "2"
    world.sync()
    world = world.crash(Crash.DROP)
    client = world.client()
    assert asked(world, client, "get q") == asked(world, client, "get q") == "VALUE q 0 4 data END"
    assert asked(world, client, "get q") == "END"
