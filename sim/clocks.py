"""The clocks of a simulated machine: time passes, and the wall clock is sometimes set, also while no server runs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from staniel.broker.wall_clock import ClockReading

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SIZES_MS = (1000, 5000, 70_000, HOUR_MS, 8 * HOUR_MS, DAY_MS, 400 * DAY_MS)


class Clocks:
    """The clocks of a machine. `passed_ms` is the true time, as if the wall clock had never been set. `wall_ms` is the
    time that the wall clock shows.
    """

    def __init__(self, start_ms: int) -> None:
        self.passed_ms = start_ms
        self.wall_ms = start_ms
        self._server_ms = start_ms
        self._boot, self._boot_ms = 1, start_ms - 1_000_000
        self.on_passed: Callable[[], None] = lambda: None  # called after time has passed, before the wall is set
        self.on_step: Callable[[], None] = lambda: None  # called before the wall is set
        self.is_noted = True  # the server has stored the last step; false if an accident came first
        self._stepped_ms = 0
        self.doubt_ms: int | None = None
        """If the last life ended while it stored a step: the moment of the step. The next start may know of it."""
        self._unnoted_ms = 0  # the part of the wall clock's offset from steps that were not stored

    def read(self) -> ClockReading:
        return ClockReading(self.wall_ms, self.passed_ms - self._boot_ms, f"boot {self._boot}")

    @property
    def since_start_ms(self) -> int:
        """Milliseconds by which the time that has passed is ahead of the clock of the running server."""
        return self.passed_ms - self._server_ms

    def pass_until(self, server_ms: int) -> None:
        """Let time pass until the clock of the running server shows `server_ms`."""
        ms = server_ms - self._server_ms
        self._server_ms = server_ms
        self.passed_ms += ms
        self.wall_ms += ms
        if ms > 0:
            self.on_passed()

    @property
    def noted_wall_ms(self) -> int:
        """The wall clock's time as far as a server can know it: only the next start sees a step that was not stored."""
        return self.wall_ms - self._unnoted_ms

    def step_wall(self, rng: Random) -> None:
        """Step the wall clock, but not twice in one moment, because a server checks it once a second."""
        if self._stepped_ms == self.passed_ms:
            return
        self._stepped_ms = self.passed_ms
        self.on_step()
        by_ms = rng.choice(SIZES_MS) * rng.choice((1, -1))
        self.wall_ms += by_ms
        self._unnoted_ms += by_ms
        self.is_noted = False

    def note_written(self) -> None:
        """Note that the server has stored all steps."""
        self.is_noted, self._unnoted_ms = True, 0

    def begin_life(self, server_ms: int, rng: Random) -> int:
        """Begin the life of a server and return its time, which begins as the wall clock's. While no server ran, the
        wall clock may have been set, or the machine restarted.
        """
        self.doubt_ms = None if self.is_noted else self._stepped_ms
        self.pass_until(server_ms)
        draw = rng.random()
        if draw < 0.4:
            self.step_wall(rng)
        elif draw < 0.5 and self.is_noted:
            self._boot, self._boot_ms = self._boot + 1, self.passed_ms
        self._server_ms = self.wall_ms
        return self.wall_ms
