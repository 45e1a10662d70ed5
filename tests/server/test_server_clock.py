"""Server time begins with the wall and then follows the time since the machine's start alone."""

from __future__ import annotations

import time

import pytest

from staniel.server import clock
from staniel.server.clock import ServerClock

HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize("step_ns", [8 * HOUR_NS, -8 * HOUR_NS])
def test_a_wall_that_is_set_moves_no_server_time(monkeypatch: pytest.MonkeyPatch, step_ns: int) -> None:
    since_boot, wall = 5 * HOUR_NS, 1_700_000_000 * 10**9
    monkeypatch.setattr(clock, "_clock_ns", lambda which: since_boot)
    monkeypatch.setattr(time, "time_ns", lambda: wall)
    server = ServerClock()
    assert server.now_ms() == wall // 10**6
    wall += step_ns
    since_boot += HOUR_NS
    assert server.now_ms() == 1_700_000_000_000 + 3_600_000
    assert server.read().wall_ms == wall // 10**6 and server.read().steady_ms == since_boot // 10**6


def test_time_in_which_the_machine_sleeps_counts() -> None:
    assert clock._SINCE_BOOT == time.CLOCK_BOOTTIME
