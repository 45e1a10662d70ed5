"""A real server whose wall clock jumps, back and forth, by a day and to years that some clocks do not know."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.bench.soak.clients import Crew
from staniel.bench.soak.loop import Loop
from staniel.bench.soak.victim import Victim
from tests.faults.preloaded import build
from tests.support.process import until
from tests.support.wire import Wire, stats

pytestmark = [pytest.mark.slow, pytest.mark.programs("cc")]

DAY_S = 86_400
YEAR_2040_S = 2_208_988_800
SEED = int(os.environ.get("STANIEL_CRASH_SEED", "0")) or int.from_bytes(os.urandom(4), "big")
KILLS = 4
CONFIG = """
[server]
spool = "spool"

[default]
max_age = "1h"

[queues.leased]
open_transaction_timeout = "300ms"
"""


class WallClock:
    """The wall clock of the servers that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shift"
        self.jump_to(0)
        self.environment = {**build("shifted_clock.c", folder), "FAULT_CLOCK": str(self.path)}

    def jump_to(self, shift_s: int) -> None:
        """From now on it is so far ahead of the machine's; behind, if negative."""
        with open(self.path, "r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("q", shift_s))


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    return WallClock(tmp_path)


def test_a_clock_that_jumps_expires_nothing_at_once_and_keeps_nobody_waiting(tmp_path: Path, clock: WallClock) -> None:
    victim = Victim(tmp_path, CONFIG)
    victim.environment = clock.environment
    with victim:
        victim.start()
        with Wire(victim.address) as wire, Wire(victim.address) as holder:
            for number in range(50):
                assert wire.put("jobs", b"%d" % number, b"0 600") == b"STORED"
            for shift_s in (DAY_S, -DAY_S, 0, YEAR_2040_S - int(time.time()), -400 * DAY_S):
                assert wire.put("leased", b"mine") == b"STORED"
                assert holder.get("leased/open") == b"mine"
                clock.jump_to(shift_s)
                assert wire.get("empty/t=100") is None
                assert wire.get("leased/t=8000") == b"mine"  # its time ran out, by the steady clock
                assert stats(victim.address)["queue_jobs_items"] == "50"
                assert stats(victim.address)["queue_jobs_expired_items"] == "0"
            assert [wire.get("jobs") for _ in range(50)] == [b"%d" % number for number in range(50)]


def test_the_server_sees_the_clock_that_it_is_given(tmp_path: Path, clock: WallClock) -> None:
    """Else the other tests of this file would show nothing: at a restart a day is over, and the hour with it."""
    victim = Victim(tmp_path, CONFIG)
    victim.environment = clock.environment
    with victim:
        victim.start()
        with Wire(victim.address) as wire:
            assert wire.put("jobs", b"old") == b"STORED"
        victim.end(signal.SIGTERM)
        clock.jump_to(DAY_S)
        victim.start()
        with Wire(victim.address) as wire:
            assert wire.get("jobs") is None
            assert until(lambda: stats(victim.address)["queue_jobs_expired_items"] == "1")


class JumpingLoop(Loop):
    """The clock jumps in the middle of each life, and perhaps before the next."""

    clock: WallClock

    def work(self, crew: Crew, seconds: float) -> int:
        for _ in range(3):
            self.insist(crew, seconds / 3)
            self.clock.jump_to(self.random.choice((-DAY_S, -3, 0, 3, DAY_S, YEAR_2040_S - int(time.time()))))
        return 0


def test_jumps_under_load_and_between_lives_break_no_promise_and_no_order(
    tmp_path: Path, clock: WallClock, closing_line: Callable[[str], None]
) -> None:
    (tmp_path / "run").mkdir()
    loop = JumpingLoop(tmp_path / "run", SEED, life_seconds=(0.05, 0.15))
    loop.clock, loop.victim.environment = clock, clock.environment
    operations = 0
    with loop.victim:
        for _ in range(KILLS):
            cycle = loop.cycle()
            operations += cycle.operations
            assert cycle.wrong == [], f"seed {SEED}, cycle {loop.number}"
    closing_line(f"clock jumps: {KILLS} kills amid {operations} operations, seed {SEED}")
