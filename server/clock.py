"""The server's clock: epoch milliseconds that never jump.

It follows the monotonic clock, and is slewed towards the wall clock by at most a tenth of the time that passes. So a
wall clock set back or forward by a day neither expires a queue at once nor prolongs a wait by a day.
"""

from __future__ import annotations

import time
from time import monotonic_ns

SLEW_DIVISOR = 10  # while the clock is slewed, waits stay within a tenth of what was asked for


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SteadyClock:
    """Epoch milliseconds. `advance` holds the rule and takes the readings as arguments."""

    def __init__(self) -> None:
        self._steady_ms = steady_ms()
        self._offset_ms = wall_ms() - self._steady_ms

    def now_ms(self) -> int:
        now_steady_ms = monotonic_ns() // 1_000_000
        if now_steady_ms - self._steady_ms < SLEW_DIVISOR:
            return now_steady_ms + self._offset_ms  # too soon for a correction of 1 ms
        return self.advance(now_steady_ms, wall_ms())

    def advance(self, now_steady_ms: int, now_wall_ms: int) -> int:
        """The time at these two readings."""
        room_ms = (now_steady_ms - self._steady_ms) // SLEW_DIVISOR
        if room_ms:
            wrong_ms = now_wall_ms - now_steady_ms - self._offset_ms
            self._offset_ms += max(-room_ms, min(room_ms, wrong_ms))
            self._steady_ms = now_steady_ms
        return now_steady_ms + self._offset_ms
