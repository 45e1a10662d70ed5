"""Queues that are deleted, and made anew, while items are on their way from or to them: no transfer is finished in
another queue than it began in, wherever the power fails.
"""

from __future__ import annotations

from collections import Counter

import pytest

from staniel.journal.disk.replace_file import replace_file
from staniel.sim.disk.disk import PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import end_operations
from tests.broker.test_transfers import EXPIRING, crashes, settle_down, where
from tests.broker.test_unfinished_transfers import files_of
from tests.support.streams import LIB, asks, settle
from tests.support.world import World, send_copies

ONCE = "[queues.q]\nmax_deliveries = 1\ndead_letter_queue = 'dead'\n"

STORIES: dict[str, tuple[str, tuple[str, ...], Counter[bytes]]] = {
    "a put of the same size into the target": (
        "",
        ("set q 0 0 4", "AAAA", "move q dead 1", "delete dead", "set dead 0 0 4", "XXXX"),
        Counter({b"XXXX": 1}),
    ),
    "a dead letter's target, and a put": (
        ONCE,
        ("set q 0 0 4", "AAAA", "get q/open", "get q/abort", "delete dead", "set dead 0 0 4", "XXXX"),
        Counter({b"XXXX": 1}),
    ),
    "the source, and an equal item": (
        "",
        ("set q 0 0 4", "tick", "move q dead 1", "delete q", "set q 0 0 4", "tick"),
        Counter({b"tick": 2}),
    ),
    "the target between two moves": (
        "",
        ("set q 0 0 4", "AAAA", "set q 0 0 4", "BBBB", "move q dead 1", "delete dead", "move q dead 1"),
        Counter({b"BBBB": 1}),
    ),
    "the target between two moves of equal items": (
        "",
        ("set q 0 0 4", "tick", "set q 0 0 4", "tick", "move q dead 1", "delete dead", "move q dead 1"),
        Counter({b"tick": 1}),
    ),
}


class Telling:
    """All of it in one packet. `answered`: from which step of the disk on everything has been answered."""

    def __init__(self, config: str, lines: tuple[str, ...], stop: int | None = None) -> None:
        self.world = World(config)
        self.first = len(self.world.disk.log)
        self.world.disk.stop_at = stop
        self.answered = 1 << 30
        try:
            client = self.world.client().says(*lines)
            replies = 0
            is_going_on = True
            while is_going_on:
                is_going_on = self.world.sync() or bool(self.world.broker.operations.running)
                replies += len([word for word in client.hears().split() if word in ("STORED", "MOVED", "DELETED")])
                if replies == len([line for line in lines if line.split()[0] in ("set", "move", "delete")]):
                    self.answered = min(self.answered, len(self.world.disk.log))
                self.world.turn(bool(self.world.broker.operations.running))
        except PowerCut:
            pass
        self.last = len(self.world.disk.log)


@pytest.mark.parametrize("config", ["", LIB], ids=["kestrel", "libkestrel"])
@pytest.mark.parametrize("name", STORIES)
def test_what_was_answered_after_a_deletion_holds_wherever_the_power_fails(name: str, config: str) -> None:
    own, lines, expected = STORIES[name]
    config += own
    whole = Telling(config, lines)
    most = Counter(line.encode() for line in lines if " " not in line)
    assert whole.first + 10 < whole.answered <= whole.last
    for stop in range(whole.first, whole.last + 1):
        world = Telling(config, lines, stop).world
        for number, how in enumerate(crashes(10)):
            found = where(world.crash(how))
            assert found <= most, (stop, number, found)
            if stop >= whole.answered:
                assert found == expected, (stop, number, found)


def test_a_steady_flow_of_dead_letters_does_not_keep_their_queue_from_being_deleted() -> None:
    world = World(ONCE)
    client = world.client()
    for number in range(20):
        asks(world, "set q 0 0 2", f"{number:02}")
    client.says("get q/open", "get q/abort")
    dead = world.broker.queues.find("dead")
    operator = world.client().says("delete dead")
    assert operator.hears() == ""
    heard, syncs = "", 0
    while "DELETED" not in heard:
        sync = world.start_sync()
        client.says("get q/open", "get q/abort")
        assert sync is not None and syncs < 5
        sync.run()
        world.finish_sync(sync)
        world.turn()
        heard, syncs = heard + operator.hears(), syncs + 1
    settle(world)
    assert world.broker.queues.find("dead") is not dead
    again = world.crash(Crash.DROP)
    assert len(again.items("dead")) >= syncs and len(again.items("q") + again.items("dead")) == 19


@pytest.mark.parametrize("name", ["q", "dead"])
def test_nothing_is_moved_from_or_to_a_queue_that_is_about_to_be_deleted(name: str) -> None:
    world = World()
    asks(world, "set q 0 0 1", "a", "set q 0 0 1", "b")
    world.client().says("move q dead 1")
    operator = world.client().says(f"delete {name}")
    assert world.client().says("move q dead 1") and operator.hears() == ""
    settle(world)
    assert operator.hears() == "DELETED"
    assert where(world) == {b"a": 1} if name == "q" else where(world) == {b"b": 1}


def test_a_queue_that_is_too_old_stays_while_a_transfer_to_it_is_under_way() -> None:
    world = World(EXPIRING + "[queues.late]\nmax_queue_age = '1s'\n")
    client = world.client()
    client.says("set q 0 1 1", "a", "set late 0 0 1", "z")
    settle(world)
    late = world.broker.queues.find("late")
    world.turn(2500)
    client.says("get late")
    assert client.says("get late").hears() and world.broker.transfers.has_under_way(late)
    world.turn(100)
    assert world.broker.queues.find("late") is late
    settle(world)
    world.turn(1000)
    assert world.broker.queues.find("late") is not late


@pytest.mark.parametrize("config", ["", LIB], ids=["kestrel", "libkestrel"])
def test_a_deletion_that_was_put_off_is_carried_out_when_the_server_stops(config: str) -> None:
    world = World(config)
    asks(world, "set q 0 0 1", "a", "set q 0 0 1", "b")
    send_copies(world, "move q dead 1")
    client = world.client().says("delete dead")
    world.broker.shutdown(world.now_ms)
    world.collect()
    assert client.hears() == "DELETED"
    again = world.crash(Crash.DROP)
    end_operations(again)
    assert again.broker.queues.find("dead") is None and again.items("q") == [b"b"]


def test_what_another_process_wrote_where_a_copy_should_be_is_not_taken_for_a_torn_copy() -> None:
    """Only the copy's own bytes, some of them zero, are what a power cut has left of it."""
    world = World()
    asks(world, "set q 0 0 4", "tick", "set dead 0 0 1", "z")
    send_copies(world, "move q dead 1")
    disk = world.disk.crash(Crash.KEEP)
    data = disk.read("s/dead", 0, disk.size("s/dead"))
    replace_file(disk, "s/dead", data.replace(b"tick", b"t\0ck"))
    torn = World("", disk.kill(), world.now_ms + 1)
    assert "transfer.torn" in torn.events and torn.items("dead") == [b"z"]
    replace_file(disk, "s/dead", data.replace(b"tick", b"t\0ok"))
    other = World("", disk.kill(), world.now_ms + 1)
    assert "transfer.torn" not in other.events
    assert other.items("dead") == [b"z", b"t\0ok"] and other.items("q") == [b"tick"]


def test_another_transfers_copy_is_not_taken_for_a_torn_one() -> None:
    """The first copy is lost with its segment; behind its place stands the second, of nothing but zeros."""
    world = World(LIB + "default.default_journal_size = 20\n")
    client = world.client()
    for data in (b"tick", bytes(4)):
        client.sends(b"set q 0 0 4\r\n" + data + b"\r\n")
    settle(world)
    send_copies(world, "move q dead 2")
    disk = world.disk.crash(Crash.KEEP)
    lost = files_of(disk, "dead")[-1]
    data = disk.read(f"s/{lost}", 0, disk.size(f"s/{lost}"))
    assert b"tick" in data
    replace_file(disk, f"s/{lost}", data[:4])
    again = World(world.config, disk, world.now_ms + 1)
    assert "transfer.torn" not in again.events
    assert where(again) == {b"tick": 1, bytes(4): 1}
    assert settle_down(again) == {b"tick": 1, bytes(4): 1}
