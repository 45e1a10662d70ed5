"""The schedule of CPython's garbage collector: no pause grows with the size or number of queues.

Reference counting frees items and requests; only cycles wait for the collector, above all deleted queues. A full
collection visits every item of every line and some eighty objects of each queue, 20 ns each: 0.1 s for five million
items, 50 ms for 30,000 queues. So no full collection runs by itself. When no request waits, the objects that are new
since the last such moment are collected, if they are few, and then frozen: not visited again. Deleted queues among the
frozen objects are collected once there are so many that a full collection pays.
"""

from __future__ import annotations

import gc

YOUNG = 5_000  # new containers before a collection of the youngest: well under 1 ms
YOUNGER = 5  # such collections before one of the middle generation: 25,000 objects at most
NEVER = 1 << 30
EVERY_MS = 60_000
LOOKS_MAX = 10  # middle collections since the last quiet moment: their survivors are collected in 5 ms
DELETED_MIN = 10_000  # queues; some 60 MB
HELD_BYTES_MAX = 16 << 20  # an item weighs 128 bytes at least: 130,000 of them, 3 ms


class GcPolicy:
    """A controller of the garbage collector of this process."""

    def __init__(self) -> None:
        self._due_ms = 0
        self._looks = 0
        self._deleted = 0

    def disable(self) -> None:
        """Switch the collector off for recovery, which creates no garbage and would take twice as long with it."""
        gc.disable()

    def enable(self) -> None:
        """Freeze the objects that recovery has built, and switch the collector on."""
        gc.freeze()
        self._looks = _middle_looks()
        gc.set_threshold(YOUNG, YOUNGER, NEVER)
        gc.enable()

    def idle(self, held_bytes: int, deleted: int, now_ms: int) -> None:
        """Collect, if it is time, while no request waits. `held_bytes` counts items in memory; `deleted` the queues
        deleted since the start.
        """
        if now_ms < self._due_ms or held_bytes > HELD_BYTES_MAX:
            return
        self._due_ms = now_ms + EVERY_MS
        if deleted - self._deleted >= DELETED_MIN:
            self._deleted = deleted
            gc.unfreeze()
            gc.collect()
        else:
            looks = _middle_looks()
            gc.collect(2 if looks - self._looks <= LOOKS_MAX else 1)
        gc.freeze()
        self._looks = _middle_looks()


def _middle_looks() -> int:
    """Return how often the middle generation has been collected."""
    return int(gc.get_stats()[1]["collections"])
