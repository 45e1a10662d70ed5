"""The keeper: a thread that looks at the lanes while their functions run. It extends open items, so that a server with
an `open_transaction_timeout` does not hand them to others, interrupts calls that take too long, and hands items back
that wait behind a slow one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from staniel.client.errors import ClientError
from staniel.worker.lane import Lane, Shared

TICK_S = 0.1
SLOW_S = 0.5
"""Items behind a call that takes longer go back, so that other lanes or workers can take them."""
HUNG_S = 10.0
"""A thread that has not left its function so long after the time limit is given up."""


class Keeper:
    """A keeper of lanes. `replace` is called with a lane whose thread is given up."""

    def __init__(self, shared: Shared, lanes: list[Lane], replace: Callable[[Lane], None]) -> None:
        self._shared = shared
        self._lanes = lanes
        self._replace = replace
        self._extended_s = time.monotonic()
        self._limited: dict[Lane, float] = {}
        """The lanes that were interrupted, and since when their item runs."""
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._live, daemon=True, name="staniel-keeper")

    def end(self) -> None:
        """End the thread."""
        self._over.set()
        self.thread.join()

    def _live(self) -> None:
        while not self._over.wait(TICK_S):
            self.run_due(time.monotonic())

    def run_due(self, now_s: float) -> None:
        """Do what is due."""
        is_due = now_s - self._extended_s >= self._shared.settings.extend_s
        if is_due:
            self._extended_s = now_s
        for lane in list(self._lanes):
            if lane.running is None:
                continue
            since_s = lane.running_since_s
            self._limit(lane, since_s, now_s)
            if (is_due or now_s - since_s > SLOW_S) and lane.io.acquire(blocking=False):
                try:
                    self._look_after(lane, is_due)
                finally:
                    lane.io.release()

    def _look_after(self, lane: Lane, is_due: bool) -> None:
        try:
            if is_due:
                lane.extend()
            if lane.fresh or lane.done:
                lane.relieve()
        except ClientError as error:  # the lane notices it with its next request
            self._shared.teller.log("debug", "extension.failed", why=str(error))

    def _limit(self, lane: Lane, since_s: float, now_s: float) -> None:
        limit_s = self._shared.settings.limit_s
        if not limit_s or now_s - since_s <= limit_s:
            return
        if self._limited.get(lane) != since_s:
            self._limited[lane] = since_s
            self._shared.teller.counters.add("limited", _queue_of(lane))
            why = f"the function took longer than {limit_s:g} s"
            lane.runner.interrupt(why, lambda: lane.running_since_s == since_s)
        elif now_s - since_s > limit_s + HUNG_S and not lane.is_abandoned:
            lane.is_abandoned = True
            self._shared.teller.counters.add("hung", _queue_of(lane))
            self._shared.teller.log("error", "function.hung", limit_s=limit_s, id=getattr(lane.running, "id", 0) or 0)
            self._replace(lane)


def _queue_of(lane: Lane) -> str:
    """Return the queue of the item that a lane works on; "" if it has just ended."""
    running = lane.running
    return "" if running is None else running.queue
