"""A share of a turn's time, for work that may be long. Begin a share, work, and stop once it is spent.

Work is counted in time, because the number of requests, queues or items does not say how long they take. The clock is
the driver's. Without one it stands still, and no share is ever spent.
"""

from __future__ import annotations

from collections.abc import Callable

STEP_NS = 500_000  # of one step of a request that takes many turns; many such steps may be due in one turn


def standing_clock() -> int:
    """Return 0: the clock of a broker whose driver has none."""
    return 0


class StepClock:
    """The clock that measures steps of work. The driver sets `now_ns`."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns: Callable[[], int] = standing_clock


class Share:
    """A share of a turn. Check `is_spent` after each piece of work, so that at least one is done."""

    __slots__ = ("_now_ns", "_until_ns")

    def __init__(self, clock: StepClock, ns: int | None = None) -> None:
        """Begin a share of `ns`; None: of STEP_NS."""
        self._now_ns = clock.now_ns
        self._until_ns = self._now_ns() + (STEP_NS if ns is None else ns)

    @property
    def is_spent(self) -> bool:
        """True if other work has to come first now."""
        return self._now_ns() >= self._until_ns
