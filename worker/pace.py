"""The pace of a worker: at most so many calls of the function a second, over all of its lanes."""

from __future__ import annotations

import threading


class Pace:
    """A pace of `rate_per_s` calls, 0: no limit. A pause is not made up for: calls are evenly spaced."""

    def __init__(self, rate_per_s: float) -> None:
        self._step_s = 1 / rate_per_s if rate_per_s else 0.0
        self._next_s = 0.0
        self._lock = threading.Lock()

    @property
    def is_limited(self) -> bool:
        """True if there is a limit."""
        return self._step_s > 0

    def delay_s(self, now_s: float) -> float:
        """Take the next place, and return how long it is until then."""
        if not self._step_s:
            return 0.0
        with self._lock:
            at_s = max(self._next_s, now_s)
            self._next_s = at_s + self._step_s
            return at_s - now_s
