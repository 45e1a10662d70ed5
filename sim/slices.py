"""Small limits for a history: what parser, session and hub do in one slice, so that few requests take many slices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import staniel.broker.broker
import staniel.broker.commands.gets
import staniel.broker.commands.monitor
import staniel.broker.commands.puts
import staniel.broker.operations.move
import staniel.broker.operations.moved_back
import staniel.broker.operations.purge
import staniel.broker.operations.transfer
import staniel.broker.selection.chosen
import staniel.broker.selection.search
import staniel.broker.session
import staniel.broker.streams
import staniel.broker.timers
import staniel.journal.group_commit
import staniel.journal.redo.records
import staniel.protocol.memcache.parser
import staniel.queues.deferred_free
import staniel.queues.queue
import staniel.queues.time_outs
import staniel.server.connection
import staniel.sim.hub.net
from staniel.protocol.memcache.parser import line_cache_for

Choices = tuple[tuple[Any, str, tuple[int, ...]], ...]
CHOICES: Choices = (
    (staniel.protocol.memcache.parser, "WORK_PER_FEED", (1, 2, 5, 64)),
    (staniel.protocol.memcache.parser, "REQUESTS_PER_FEED", (1, 2, 5, 1024)),
    (staniel.protocol.memcache.parser, "WINDOW_BYTES", (1, 30, 100, 1 << 16)),
    (staniel.broker.session, "REQUESTS_PER_TURN", (1, 2, 5, 64)),
    (staniel.broker.session, "OUT_BYTES_PER_TURN", (10, 300, 1 << 20)),
    (staniel.broker.commands.gets, "ITEMS_AT_ONCE", (1, 2, 16)),
    (staniel.broker.commands.monitor, "OUT_BYTES_PER_TURN", (10, 300, 1 << 20)),
    (staniel.broker.commands.monitor, "ITEMS_PER_TURN", (1, 2, 256)),
    (staniel.broker.commands.puts, "TARGETS_AT_ONCE", (1, 8)),
    (staniel.broker.broker, "QUEUES_PER_TURN", (1, 2, 16)),
    (staniel.broker.timers, "SOON_WORK_PER_TURN", (1, 10_000)),
    (staniel.queues.queue, "COUNTED_PER_TURN", (1, 2, 4096)),
    (staniel.queues.queue, "SINCE_MAX", (1, 1 << 16)),
    (staniel.queues.time_outs, "READS_AT_ONCE", (1, 2, 256)),
    (staniel.queues.time_outs, "READS_PER_STEP", (1, 2, 256)),
    (staniel.broker.session, "READS_PER_STEP", (1, 2, 256)),
    (staniel.broker.session, "WORK_PER_STEP", (1, 50_000)),
    (staniel.queues.deferred_free, "LEAST_ITEMS", (0, 256)),
    (staniel.queues.deferred_free, "ITEMS_PER_STEP", (1, 2, 4096)),
    (staniel.server.connection, "READ_BYTES_MIN", (20, 100, 8 << 10)),
    (staniel.server.connection, "READ_BYTES_MAX", (400, 512 << 10)),
    (staniel.server.connection, "SEND_BYTES_MAX", (50, 500, 256 << 10)),
    (staniel.server.connection, "UNSENT_BYTES_MAX", (500, 1 << 20)),
    (staniel.server.connection, "UNREAD_BYTES_MAX", (200, 256 << 10)),
)

OF_UNDO: Choices = (
    (staniel.broker.operations.purge, "ITEMS_PER_SLICE", (1, 2, 192)),
    (staniel.broker.operations.move, "ITEMS_PER_SLICE", (1, 2, 128)),
    (staniel.broker.operations.moved_back, "ITEMS_PER_SLICE", (1, 2, 128)),
    (staniel.broker.operations.moved_back, "READ_AHEAD_ITEMS", (1, 2, 512)),
    (staniel.broker.operations.moved_back, "PASSING_ITEMS", (1, 2, 512)),
    (staniel.broker.operations.transfer, "UNDER_WAY_MAX", (1, 2, 16)),
    (staniel.broker.operations.transfer, "STEPS_PER_TURN", (1, 4)),
    (staniel.journal.group_commit, "PATIENCE_MS", (1, 4, 100)),
    (staniel.journal.group_commit, "DEFERRED_MS", (100, 5000)),
)
"""Limits of purges, moves and returns between two syncs, and of the time between syncs."""

OF_CHOSEN: Choices = (
    (staniel.broker.selection.chosen, "PASSED_PER_TURN", (1, 2, 200)),
    (staniel.broker.selection.chosen, "ASIDE_ITEMS_MAX", (3, 500_000, 500_000)),
    (staniel.broker.selection.search, "PIECE_ITEMS", (1, 2, 250)),
    (staniel.broker.operations.purge, "RETURNED_PER_TURN", (1, 2, 500)),
    (staniel.broker.operations.move, "RETURNED_PER_TURN", (1, 2, 500)),
)
"""Limits of the items that are checked, set aside and returned in one turn."""

WITHIN_ANSWERS = ((staniel.broker.commands.gets, "OUT_BYTES_PER_TURN", (10, 300, 1 << 20)),)
"""Limits that let a reply begin in one turn and end in another. Not for a judge that checks open reads after
each turn.
"""


@contextmanager
def small_undos(seed: int, *, by_terms: bool) -> Iterator[None]:
    """Split purges and undos into many slices."""
    with _chosen(OF_UNDO + OF_CHOSEN if by_terms else OF_UNDO, Random(seed)):
        yield


@contextmanager
def few_redo_files(most: int) -> Iterator[None]:
    """Limit the file numbers of a redo log to `most`."""
    with _chosen(((staniel.journal.redo.records, "FILES_MAX", (most,)),), Random(0)):
        yield


LAST_REDO_NUMBERS: Choices = (
    (staniel.journal.redo.records, "FIRST_BATCH", (2**31 - 3, 2**32 - 3, 2**63 - 3)),
    (staniel.journal.redo.records, "FIRST_FILE", (2**31 - 3, 2**32 - 3, 2**32 - 12)),
)


@contextmanager
def last_redo_numbers(seed: int) -> Iterator[None]:
    """Begin a redo log with numbers of batches, and of files, that soon need another bit, or are nearly used up."""
    with _chosen(LAST_REDO_NUMBERS, Random(seed)):
        yield


@contextmanager
def small_cuts() -> Iterator[None]:
    """Let a segment be cut however little is gained."""
    with _chosen(((staniel.broker.streams, "RECLAIMED_BYTES_MIN", (1,)),), Random(0)):
        yield


@contextmanager
def wide_windows() -> Iterator[None]:
    """Let sockets take long replies, so that their clients need not read meanwhile."""
    with _chosen(((staniel.sim.hub.net, "WINDOW_BYTES", (64 << 20,)),), Random(0)):
        yield


@contextmanager
def _chosen(those: Choices, rng: Random) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in those]
    try:
        for owner, name, choices in those:
            setattr(owner, name, rng.choice(choices))
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def small_slices(seed: int, *, within_answers: bool) -> Iterator[None]:
    """Set each limit to one of its choices until the end."""
    those = CHOICES + WITHIN_ANSWERS if within_answers else CHOICES
    rng = Random(seed)
    line_cache_for.cache_clear()  # lines known from an earlier history would not be parsed
    with _chosen(those, rng):
        # A hub may send less without another check than the amount at which it stops reading.
        sent_max, unsent_max = staniel.server.connection.SEND_BYTES_MAX, staniel.server.connection.UNSENT_BYTES_MAX
        staniel.server.connection.SEND_BYTES_MAX = min(sent_max, unsent_max - 1)
        yield
