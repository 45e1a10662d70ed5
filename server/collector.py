"""When Python looks for garbage, and when not: never a pause that grows with what the queues hold.

Knows the three generations of CPython's collector. Refuses to know queues: it is told what their items weigh. Items
and requests are freed by counting; only what refers to itself waits for the collector (a client that hung up while it
waited, a deleted queue). A full collection visits every place of every line, 4 ns each: 20 ms for five million items.
So there is none by itself. It is made when nobody asks for anything and little is held, and what is held is left alone.
"""

from __future__ import annotations

import gc

YOUNG = 5_000  # new containers before a look at the youngest: well under 1 ms
YOUNGER = 5  # such looks before one at the middle generation: 25,000 objects at most
NEVER = 1 << 30
EVERY_MS = 60_000
HELD_BYTES_MAX = 32 << 20  # an item weighs 128 bytes at least: a quarter of a million places, 1 ms


class Collector:
    """Of this process."""

    def __init__(self) -> None:
        self._due_ms = 0

    def hold(self) -> None:
        """Nothing that a replay builds is garbage; looking through it again and again would double its time."""
        gc.disable()

    def begin(self) -> None:
        """The start is over: what it has built is never looked at again."""
        gc.freeze()
        gc.set_threshold(YOUNG, YOUNGER, NEVER)
        gc.enable()

    def idle(self, held_bytes: int, now_ms: int) -> None:
        """Nobody asks for anything just now, and items of this weight are in memory."""
        if now_ms >= self._due_ms and held_bytes <= HELD_BYTES_MAX:
            self._due_ms = now_ms + EVERY_MS
            gc.collect()
