"""Items that leave a queue for another at every moment: files are cut all the same, and a power cut harms nothing."""

from __future__ import annotations

import errno
from collections import Counter

import pytest

import staniel.journal.transfer_log
from staniel.sim.disk.durable import Crash
from tests.broker.test_transfers import crashes, where
from tests.support.streams import LIB
from tests.support.world import World

SMALL = "server.expiration_timer_frequency = '1ms'\ndefault.max_memory_size = 400\n"
SMALL += "default.max_journal_size = 1500\ndefault.default_journal_size = 400\ndefault.min_journal_compact_delay = 1\n"
LIMIT_BYTES = 6000
Q_AND_LATE = "[queues.q]\nexpire_to_queue = 'late'\nmax_age = '20ms'\n"


class Flow:
    """Each turn an item is put, and one that expired is taken; a sync is always under way, and takes three turns."""

    def __init__(self, config: str) -> None:
        self.world = World(config)
        self.client = self.world.client()
        self.sync = self.world.start_sync()
        self.count = self.left = 0
        self.heard = ""
        self.sizes: dict[str, int] = {}

    def go_on(self, turns: int) -> None:
        world = self.world
        for _ in range(turns):
            self.count += 1
            self.client.says("set q 0 0 20", f"{self.count:020}", "get late")
            world.turn(1)
            self.left -= 1
            if self.sync is not None and self.left <= 0:
                self.sync.run()
                world.finish_sync(self.sync)
                world.turn()
                self.sync = None
            if self.sync is None:
                self.sync, self.left = world.start_sync(), 3
            self.heard += self.client.hears() + " "
        sizes = {"intents": world.disk.size("s/.staniel/intents")}
        for name, regular in world.disk.list("s"):
            queue = name.split(".")[0]
            sizes[queue] = sizes.get(queue, 0) + (world.disk.size(f"s/{name}") if regular else 0)
        self.sizes = {name: max(size, self.sizes.get(name, 0)) for name, size in sizes.items()}

    def check(self) -> None:
        """Nothing that was answered is lost, and nothing is there twice, however the power fails now."""
        answered = {b"%020d" % number for number in range(1, self.heard.count("STORED") + 1)}
        on_its_way = b"".join(data for _, data in self.client._held)
        taken = {word for word in (self.heard.encode() + on_its_way).split() if len(word) == 20}
        for how in crashes(2):
            found = where(self.world.crash(how))
            assert answered - taken <= set(found) and max(found.values(), default=1) == 1


@pytest.mark.parametrize("own", ["", LIB], ids=["kestrel", "libkestrel"])
def test_files_stay_small_under_a_steady_flow_of_transfers(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staniel.journal.transfer_log, "RESTART_BYTES", LIMIT_BYTES)
    flow = Flow(own + SMALL + Q_AND_LATE)
    for _ in range(40):
        flow.go_on(15)
        flow.check()
    assert flow.heard.count("VALUE") > 400
    assert flow.sizes["intents"] < 2 * LIMIT_BYTES, flow.sizes
    assert max(flow.sizes.values()) < 3 * LIMIT_BYTES, flow.sizes  # Kestrel's policy rewrites at some 14 KB here


def test_intents_are_written_anew_while_some_are_always_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journals are far from their limits: nothing is held back for their sake."""
    monkeypatch.setattr(staniel.journal.transfer_log, "RESTART_BYTES", LIMIT_BYTES)
    flow = Flow("server.expiration_timer_frequency = '1ms'\n" + Q_AND_LATE)
    flow.go_on(30)
    for _ in range(10):
        flow.go_on(15)
        assert flow.world.broker.transfers.transfer_log._under_way
        flow.check()
    assert flow.heard.count("VALUE") > 100
    assert flow.sizes["intents"] < 2 * LIMIT_BYTES, flow.sizes


def test_intents_that_cannot_be_written_anew_for_want_of_room_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staniel.journal.transfer_log, "RESTART_BYTES", LIMIT_BYTES)
    flow = Flow(SMALL + Q_AND_LATE)
    flow.world.disk.fail("create", "intents", errno.ENOSPC, times=1 << 20)
    for _ in range(10):
        flow.go_on(15)
        flow.check()
    assert flow.sizes["intents"] > LIMIT_BYTES


def test_whoever_waits_for_calm_gets_it_and_what_was_held_back_goes_on() -> None:
    flow = Flow(SMALL + Q_AND_LATE)
    flow.go_on(100)
    world = flow.world
    if flow.sync is not None:
        flow.sync.run()
        world.finish_sync(flow.sync)
    for _ in range(40):
        world.turn(5)
        while world.sync():
            world.turn()
    expected = Counter(b"%020d" % number for number in range(1, 101))
    expected -= Counter(word.encode() for word in (flow.heard + flow.client.hears()).split() if len(word) == 20)
    assert where(world) == expected and len(world.items("late")) == len(expected)
    assert where(world.crash(Crash.DROP)) == expected
