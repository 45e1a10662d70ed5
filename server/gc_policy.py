"""When CPython's garbage collector runs: no pause grows with what the queues hold, nor with how many there are.

Items and requests are freed by reference counting; only cycles wait for the collector (a deleted queue, above all). A
full collection visits every item of every line and some eighty objects of each queue, 20 ns each: 0.1 s for five
million items, 50 ms for 30,000 queues. So there is none by itself. When no request waits, what is new since the
last such moment is looked at, if that is little, and then frozen: not looked at again. Deleted queues among what is
frozen are found once there are so many of them that a look at everything pays.
"""

from __future__ import annotations

import gc

YOUNG = 5_000  # new containers before a look at the youngest: well under 1 ms
YOUNGER = 5  # such looks before one at the middle generation: 25,000 objects at most
NEVER = 1 << 30
EVERY_MS = 60_000
LOOKS_MAX = 10  # at the middle generation since the last quiet moment: what they passed on is seen through in 5 ms
DELETED_MIN = 10_000  # queues; some 60 MB
HELD_BYTES_MAX = 16 << 20  # an item weighs 128 bytes at least: 130,000 of them, 3 ms


class GcPolicy:
    """Controls the garbage collector of this process."""

    def __init__(self) -> None:
        self._due_ms = 0
        self._looks = 0
        self._deleted = 0

    def disable(self) -> None:
        """Switch the collector off for recovery: nothing that it builds is garbage, and collections double its time."""
        gc.disable()

    def enable(self) -> None:
        """Recovery is over: freeze what it has built, and switch the collector on."""
        gc.freeze()
        self._looks = _middle_looks()
        gc.set_threshold(YOUNG, YOUNGER, NEVER)
        gc.enable()

    def idle(self, held_bytes: int, deleted: int, now_ms: int) -> None:
        """Collect, if it is time, while no request waits. `held_bytes`: of items in memory; `deleted`: how many queues
        have been deleted since the start.
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
    """How often the middle generation has been collected."""
    return int(gc.get_stats()[1]["collections"])
