"""The time that everybody gets: it follows the steady clock and only leans towards the wall's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.server.clock import SLEW_DIVISOR, SteadyClock

DAY_MS = 86_400_000
STEPS = st.lists(st.tuples(st.integers(0, 5000), st.integers(-2 * DAY_MS, 2 * DAY_MS)), min_size=1, max_size=50)


def clock_at(steady_ms: int, wall_ms: int) -> SteadyClock:
    clock = SteadyClock()
    clock._steady_ms, clock._offset_ms = steady_ms, wall_ms - steady_ms
    return clock


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_wall_clock_that_jumps_a_day_moves_the_time_by_a_tenth_at_most(jump_ms: int) -> None:
    clock = clock_at(1000, 5_000_000)
    before = clock.advance(1000, 5_000_000)
    assert clock.advance(1000, 5_000_000 + jump_ms) == before
    after = clock.advance(2000, 5_001_000 + jump_ms)
    assert after - before == (1100 if jump_ms > 0 else 900)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_it_reaches_the_wall_clock_in_ten_times_the_difference_and_stays_there(jump_ms: int) -> None:
    clock = clock_at(0, DAY_MS * 100)
    clock.advance(9 * DAY_MS, DAY_MS * 109 + jump_ms)
    assert clock.advance(9 * DAY_MS, 0) != DAY_MS * 109 + jump_ms
    assert clock.advance(10 * DAY_MS, DAY_MS * 110 + jump_ms) == DAY_MS * 110 + jump_ms
    assert clock.advance(10 * DAY_MS + 500, DAY_MS * 110 + jump_ms + 500) == DAY_MS * 110 + jump_ms + 500


@given(STEPS)
def test_it_never_goes_back_and_never_runs_faster_than_eleven_tenths(steps: list[tuple[int, int]]) -> None:
    clock, steady_ms = clock_at(0, 10 * DAY_MS), 0
    last_ms, began_ms = clock.advance(0, 10 * DAY_MS), 10 * DAY_MS
    for passed_ms, wrong_ms in steps:
        steady_ms += passed_ms
        now_ms = clock.advance(steady_ms, 10 * DAY_MS + steady_ms + wrong_ms)
        assert now_ms >= last_ms
        assert abs(now_ms - began_ms - steady_ms) <= steady_ms // SLEW_DIVISOR + 1
        last_ms = now_ms


def test_many_small_steps_lean_as_much_as_a_large_one() -> None:
    clock = clock_at(0, 0)
    for steady_ms in range(1, 1001):
        clock.advance(steady_ms, steady_ms + DAY_MS)
    assert clock.advance(1000, 1000 + DAY_MS) == 1100
