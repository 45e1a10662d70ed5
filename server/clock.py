"""The server's clock: epoch milliseconds that advance evenly and never step.

The clock starts with the wall clock's time and follows the time since the machine's boot, which also advances while the
machine sleeps. The wall clock may be set meanwhile: `broker/wall_clock.py` notes that.
"""

from __future__ import annotations

import time
from pathlib import Path

from staniel.broker.wall_clock import ClockReading

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
READINGS_MAX = 5
_clock_ns, _SINCE_BOOT = time.clock_gettime_ns, time.CLOCK_BOOTTIME


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ServerClock:
    """A clock: `now_ms` is server time; `read` returns the machine's clocks."""

    def __init__(self) -> None:
        try:
            self._boot = BOOT_ID.read_text().strip()
        except OSError:
            self._boot = ""  # then each start counts as one of the machine
        reading = self.read()
        self._ahead_ms = reading.wall_ms - reading.steady_ms

    def now_ms(self) -> int:
        return _clock_ns(_SINCE_BOOT) // 1_000_000 + self._ahead_ms

    def read(self) -> ClockReading:
        """Read both clocks at one moment. The quickest of several readings counts: the process may be stopped between
        the two.
        """
        tries = [self._read_once() for _ in range(READINGS_MAX)]
        return min(tries, key=lambda timed: timed[0])[1]

    def _read_once(self) -> tuple[int, ClockReading]:
        """Return (nanoseconds that the reading took, the reading)."""
        before_ns = _clock_ns(_SINCE_BOOT)
        now_ms = wall_ms()
        return _clock_ns(_SINCE_BOOT) - before_ns, ClockReading(now_ms, before_ns // 1_000_000, self._boot)
