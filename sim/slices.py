"""Small slices for a history: what a parser, a session and a hub do in one go, so that few requests are many slices.

Knows the limits by their names. Refuses to know what is done in a slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import broker.broker
import broker.deadlines
import broker.leaving
import broker.monitor
import broker.puts
import broker.reads
import broker.session
import protocol.memcache
import queues.queue
import queues.remains
import queues.returns
import server.connection
from protocol.lines import lines_for

CHOICES: tuple[tuple[Any, str, tuple[int, ...]], ...] = (
    (protocol.memcache, "WORK_A_FEED", (1, 2, 5, 64)),
    (protocol.memcache, "REQUESTS_A_FEED", (1, 2, 5, 1024)),
    (protocol.memcache, "WINDOW_BYTES", (1, 30, 100, 1 << 16)),
    (broker.session, "REQUESTS_A_TURN", (1, 2, 5, 64)),
    (broker.session, "OUT_BYTES_A_TURN", (10, 300, 1 << 20)),
    (broker.reads, "ITEMS_AT_ONCE", (1, 2, 16)),
    (broker.monitor, "OUT_BYTES_A_TURN", (10, 300, 1 << 20)),
    (broker.monitor, "ITEMS_A_TURN", (1, 2, 256)),
    (broker.puts, "LEGS_AT_ONCE", (1, 8)),
    (broker.broker, "QUEUES_A_TURN", (1, 2, 16)),
    (broker.deadlines, "SOON_A_RING", (1, 10_000)),
    (queues.queue, "COUNTED_A_TURN", (1, 2, 4096)),
    (queues.queue, "SINCE_MAX", (1, 1 << 16)),
    (queues.queue, "READS_A_STEP", (1, 2, 256)),
    (queues.returns, "READS_A_STEP", (1, 2, 256)),
    (broker.leaving, "READS_A_STEP", (1, 2, 256)),
    (broker.leaving, "WORK_A_STEP", (1, 50_000)),
    (queues.remains, "LEAST_ITEMS", (0, 256)),
    (queues.remains, "ITEMS_A_STEP", (1, 2, 4096)),
    (server.connection, "READ_BYTES_MIN", (20, 100, 8 << 10)),
    (server.connection, "READ_BYTES_MAX", (400, 512 << 10)),
    (server.connection, "SEND_BYTES_MAX", (50, 500, 256 << 10)),
    (server.connection, "UNSENT_BYTES_MAX", (500, 1 << 20)),
    (server.connection, "UNREAD_BYTES_MAX", (200, 256 << 10)),
)

WITHIN_ANSWERS = ((broker.reads, "OUT_BYTES_A_TURN", (10, 300, 1 << 20)),)
"""An answer is begun in one turn and ended in another. Not for a judge who looks at what is open behind each turn."""


@contextmanager
def small_slices(seed: int, *, within_answers: bool) -> Iterator[None]:
    """Each limit is one of its choices until the end."""
    those = CHOICES + WITHIN_ANSWERS if within_answers else CHOICES
    rng = Random(seed)
    lines_for.cache_clear()  # lines that an earlier history has made known would be no work
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in those]
    try:
        for owner, name, choices in those:
            setattr(owner, name, rng.choice(choices))
        # What a hub may send without a further look is less than what it stops listening for.
        sent_max, unsent_max = server.connection.SEND_BYTES_MAX, server.connection.UNSENT_BYTES_MAX
        server.connection.SEND_BYTES_MAX = min(sent_max, unsent_max - 1)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
