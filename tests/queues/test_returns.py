"""Very many open reads that end together come back some a turn, in the order of the line, and nobody comes between."""

from __future__ import annotations

from itertools import pairwise

import pytest

from staniel.broker.timers import SOON_WORK_PER_TURN
from staniel.queues.queue import Queue
from staniel.queues.time_outs import ENDED_AS_MANY, READS_PER_STEP
from tests.support.world import Client, World

MANY = 4 * READS_PER_STEP + 1
SETTINGS = f"server.max_open_transactions = {MANY}\n"


def open_many(world: World, client: Client, queue: str = "q", count: int = MANY) -> None:
    putter = world.client()
    for number in range(count):
        putter.sends(b"set %b 0 0 5\r\n%05d\r\n" % (queue.encode(), number))
        client.sends(b"get %b/open\r\n" % queue.encode())
    world.turn()
    world.sync()
    client.hears()
    assert len(world.broker.queues.by_name[queue].open_reads) == count


def turns_of(world: World, queue: str = "q") -> list[int]:
    """How many reads are open after each turn, until nothing more is to be done."""
    reads, left = world.broker.queues.by_name[queue].open_reads, list[int]()
    for _ in range(MANY):
        left.append(len(reads))
        if not world.broker.timers._soon:
            return left
        world.turn()
    raise AssertionError("returns without end")


def numbers(world: World, queue: str = "q") -> list[int]:
    return [int(data) for data in world.items(queue)]


def test_what_a_client_that_leaves_had_open_comes_back_some_a_turn_and_in_order() -> None:
    world = World(SETTINGS)
    client, waiter = world.client(), world.client()
    open_many(world, client)
    waiter.says("get q/t=60000")
    client.session.close(world.now_ms)
    left = turns_of(world)
    assert len(left) > 4 and max(before - after for before, after in pairwise(left)) <= READS_PER_STEP
    world.sync()
    assert waiter.hears() == "VALUE q/t=60000 0 5 00000 END"  # the oldest, though it was the last to come back
    assert numbers(world) == [*range(1, MANY)]
    assert world.broker.counters.cmd_get_open_dropped == MANY


@pytest.mark.parametrize("get", ["get q", "get q/open", "get q/peek", "get q/t=1000", "get q/n=1/t=0", "mg q v"])
def test_who_asks_meanwhile_gets_the_first_of_all(get: str) -> None:
    world = World(SETTINGS)
    client, asker = world.client(), world.client()
    open_many(world, client)
    client.session.close(world.now_ms)
    asker.sends(f"{get}\r\n".encode())
    turns_of(world)
    for _ in range(3):
        world.turn()
        world.sync()
    assert " 00000" in asker.hears().replace("VA 5", "")


def test_few_reads_are_back_at_once() -> None:
    world = World(SETTINGS)
    client, asker = world.client(), world.client()
    open_many(world, client, count=READS_PER_STEP)
    client.session.close(world.now_ms)
    asker.sends(b"get q\r\n")
    world.turn()
    world.sync()
    assert asker.hears() == "VALUE q 0 5 00000 END" and len(turns_of(world)) == 1


def test_reads_on_many_queues_come_back_some_a_turn() -> None:
    world, a_turn = World(), SOON_WORK_PER_TURN // ENDED_AS_MANY
    count = 2 * a_turn + 10
    client = world.client()
    for number in range(count):
        client.sends(b"set q%d 0 0 1\r\nx\r\nget q%d/open\r\n" % (number, number))
        world.turn()
    client.session.close(world.now_ms)
    back = []
    for _ in range(3):
        world.turn()
        back.append(sum(len(queue.line) for queue in world.broker.queues))
    assert back == [a_turn, 2 * a_turn, count]


def test_who_asks_in_the_turn_of_a_leave_gets_the_first_item_of_each_queue() -> None:
    world = World()
    client, asker = world.client(), world.client()
    names = [f"q{number}" for number in range(3 + READS_PER_STEP // 100)]
    for name in names:
        open_many(world, client, name, 100)
    client.session.close(world.now_ms)
    asker.sends(b"".join(b"get %b\r\n" % name.encode() for name in names))
    for _ in range(2 * len(names)):
        world.turn()
        world.sync()
    assert asker.hears() == " ".join(f"VALUE {name} 0 5 00000 END" for name in names)
    assert world.broker.counters.cmd_get_open_dropped == 100 * len(names)


def test_more_queues_than_are_handed_their_reads_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.broker.session.WORK_PER_STEP", 150)
    world = World()
    client = world.client()
    for number in range(5):
        open_many(world, client, f"q{number}", 100)
    client.session.close(world.now_ms)
    queues = list(world.broker.queues)
    assert sum(bool(queue.batched_aborts.groups) for queue in queues) == 2
    for _ in range(5):
        world.turn()
    assert all(numbers(world, queue.name) == [*range(100)] for queue in queues)


def test_very_many_reads_time_out_some_a_turn_and_in_order() -> None:
    world = World(SETTINGS + "default.open_transaction_timeout = '1s'")
    open_many(world, world.client())
    world.turn(1010)
    left = turns_of(world)
    assert len(left) > 3 and max(before - after for before, after in pairwise([MANY, *left])) <= READS_PER_STEP
    assert numbers(world) == [*range(MANY)]
    assert world.broker.queues.by_name["q"].counters.timed_out_transactions == MANY


@pytest.mark.pure
def test_the_alarm_of_a_queue_does_not_ring_while_its_reads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(SETTINGS + "default.open_transaction_timeout = '1s'")
    open_many(world, world.client())
    queue, rung = world.broker.queues.by_name["q"], list[int]()
    due = Queue.on_timer

    def noted(queue: Queue, now_ms: int) -> int:
        rung.append(now_ms)
        return due(queue, now_ms)

    monkeypatch.setattr(Queue, "on_timer", noted)
    world.turn(1010)
    assert len(turns_of(world)) > 3 and len(rung) == 1
    client = world.client()
    client.says("get q/open")
    world.turn(1010)
    assert len(rung) == 2 and not queue.open_reads  # the next one has its own time


def test_very_many_delays_are_over_some_a_turn_and_in_order() -> None:
    world = World(SETTINGS + "default.retry_delay = '1s'")
    client = world.client()
    open_many(world, client)
    client.session.close(world.now_ms)
    turns_of(world)
    queue = world.broker.queues.by_name["q"]
    assert len(queue.delayed) == MANY and not numbers(world)
    world.turn(1010)
    world.turn()
    assert 0 < len(queue.delayed) < MANY
    turns_of(world)
    assert numbers(world) == [*range(MANY)] and queue.delayed_bytes == 0


def test_a_read_whose_client_asks_for_more_time_before_its_turn_stays_open_for_so_long() -> None:
    world = World(SETTINGS + "default.open_transaction_timeout = '1s'")
    client = world.client()
    open_many(world, client)
    world.turn(1010)
    world.turn()
    reads = world.broker.queues.by_name["q"].open_reads
    left = len(reads)
    assert 0 < left < MANY
    client.sends(b"touch q 0\r\n")
    turns_of(world)
    world.sync()
    assert client.hears() == "TOUCHED" and len(reads) == left
    client.says("get q/close")
    assert len(reads) == left - 1
    world.turn(1010)
    turns_of(world)
    assert not reads and numbers(world) == [*range(1, MANY)]


def test_a_read_that_is_closed_before_its_turn_does_not_come_back() -> None:
    world = World(SETTINGS + "default.open_transaction_timeout = '1s'")
    client = world.client()
    open_many(world, client)
    world.turn(1010)
    assert len(world.broker.queues.by_name["q"].open_reads) > 1
    client.says("get q/close")  # the oldest: it would be the last to come back
    turns_of(world)
    assert numbers(world) == [*range(1, MANY)]


@pytest.mark.parametrize("end", ["delete q", "flush q"])
def test_a_queue_may_be_deleted_or_flushed_meanwhile(end: str) -> None:
    world = World(SETTINGS)
    client, other = world.client(), world.client()
    open_many(world, client)
    client.session.close(world.now_ms)
    world.turn()
    other.says(end, "get q/t=50")
    for _ in range(10):
        world.turn(10)
        world.sync()
    heard = other.hears()
    assert heard == "DELETED END" if end == "delete q" else heard.startswith("END VALUE q/t=50 0 5 00000")


@pytest.mark.parametrize(("before", "after"), [("'1s'", "'none'"), ("'none'", "'1s'")])
def test_a_reload_that_changes_the_delay_meanwhile_reverses_nothing(before: str, after: str) -> None:
    world = World(SETTINGS + f"default.retry_delay = {before}")
    client = world.client()
    open_many(world, client)
    client.session.close(world.now_ms)
    world.turn()
    world.config = SETTINGS + f"default.retry_delay = {after}"
    world.broker.reload(world.now_ms)
    turns_of(world)
    at_once = numbers(world)
    assert at_once == sorted(at_once) and 0 < len(at_once) < MANY
    world.turn(1010)
    turns_of(world)
    assert numbers(world) == [*range(MANY)]
