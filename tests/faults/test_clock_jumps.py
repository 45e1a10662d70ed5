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

[queues.dated]
max_age = "none"

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
                assert wire.get("leased/t=60000") == b"mine"  # its time ran out, by the steady clock
                assert stats(victim.address)["queue_jobs_items"] == "50"
                assert stats(victim.address)["queue_jobs_expired_items"] == "0"
            assert [wire.get("jobs") for _ in range(50)] == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("shift_s", [DAY_S, -DAY_S])
def test_a_clock_that_jumps_before_a_restart_expires_lives_no_more_than_one_that_stands(
    tmp_path: Path, clock: WallClock, shift_s: int, ending: signal.Signals
) -> None:
    """A date is the clock's: so the server sees the clock that it is given."""
    victim = Victim(tmp_path, CONFIG)
    victim.environment = clock.environment
    with victim:
        victim.start()
        with Wire(victim.address) as wire:
            assert wire.put("jobs", b"old") == b"STORED"
            assert wire.put("jobs", b"short", b"0 2") == b"STORED"
            assert wire.put("dated", b"early", b"0 %d" % (time.time() + DAY_S // 2)) == b"STORED"
            put_s = time.monotonic()
        victim.end(ending)
        clock.jump_to(shift_s)
        victim.start()
        with Wire(victim.address) as wire:
            assert wire.get("dated/peek") == (None if shift_s > 0 else b"early")
            assert wire.get("jobs") == b"old"
            assert until(lambda: time.monotonic() > put_s + 2.1)
            assert wire.get("jobs") is None


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
