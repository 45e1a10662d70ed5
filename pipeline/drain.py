"""Draining live queues without losing an item: reserve, spool, sync, confirm.

Knows the order of these four and the limits of a batch. Refuses to know Spark. Whatever is killed, and when: an item is
in its queue (reserves of a dead connection go back) or in the spool; it is in both, and comes twice, if the kill falls
between sync and confirm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from functools import partial

from msgspec import Struct

from pipeline.spool import Drained, Spool
from pipeline.wire import Connection, Refused, ServerLost
from protocol.printed import ascii_word

OPEN_READS = 100  # a server's own default of how many one connection may have open in one queue
FIRST_ITEMS = 16  # of a queue whose items may be huge, for all we know
ROUND_BYTES = 32 << 20


class Step(Enum):
    """What has just been done, for whoever wants to know; tests kill here."""

    RESERVED = "reserve"
    SPOOLED = "spool"
    SYNCED = "fsync"
    CONFIRMED = "confirm"


class Limits(Struct):
    """What one batch may still take."""

    items: int
    bytes: int


class Tap:
    """One queue of one server, over several connections, because a server limits the open reads of each."""

    def __init__(self, server: str, queue: str, connections: int, timeout_s: float) -> None:
        self.server = server
        self.queue = queue
        self.count = connections
        self.timeout_s = timeout_s
        self.mean_bytes = ROUND_BYTES // FIRST_ITEMS
        self.open_reads = OPEN_READS
        self.lost: str = ""
        self._connections: list[Connection] = []
        self._held: list[tuple[Connection, int]] = []

    def want(self, limits: Limits, wait_ms: int) -> None:
        """Ask for as much as the limits and memory allow. Raises ServerLost."""
        while len(self._connections) < self.count:
            self._connections.append(Connection(self.server, self.timeout_s))
        budget = min(limits.items, max(1, min(limits.bytes, ROUND_BYTES) // max(self.mean_bytes, 1)))
        self._held = []
        for connection in self._connections:
            count = min(self.open_reads, budget)
            if count > 0:
                connection.want(self.queue, count, wait_ms)
                self._held.append((connection, count))
            budget -= count
            wait_ms = 0

    def got(self) -> Drained:
        """What came. Raises ServerLost, and Refused if the first read was refused."""
        items = []
        held = []
        for connection, _ in self._held:
            some = connection.got()
            if some:
                held.append((connection, len(some)))
            items += some
        self._held = held
        if items:
            mean = sum(len(item.data) for item in items) // len(items) + 64
            self.mean_bytes = max(mean, self.mean_bytes // 4)
        return self.server, self.queue, items

    def confirm(self) -> None:
        """Raises ServerLost: then the items are in the spool, and may come again."""
        for connection, count in self._held:
            connection.confirm(self.queue, count)
        self._held = []

    def drop(self, why: str = "") -> None:
        """Close the connections; what they had open goes back to its queue."""
        self.lost = why
        for connection in self._connections:
            connection.close()
        self._connections, self._held = [], []

    @property
    def capacity(self) -> int:
        return sum(count for _, count in self._held)


class Drain:
    """Fills batches of a spool from queues. `after` is told each step."""

    def __init__(
        self,
        servers: list[str],
        queues: list[str],
        spool: Spool,
        connections: int = 8,
        timeout_s: float = 30.0,
        after: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.taps = [Tap(server, queue, connections, timeout_s) for server in servers for queue in queues]
        self.spool = spool
        self.timeout_s = timeout_s
        self.after = after

    def fill(self, batch: int, limits: Limits, wait_ms: int) -> int:
        """Drain into a batch until the limits are reached or the queues are nearly empty; how many items that were.

        `wait_ms`: how long to wait for a first item. Raises ServerLost if no server answers for `timeout_s`, with
        nothing spooled; Refused if one refuses to be read; OSError if the spool cannot be written. Then all connections
        are closed, so that what was reserved goes back.
        """
        try:
            return self._fill(batch, limits, wait_ms)
        except BaseException:
            self.close()
            raise

    def _fill(self, batch: int, limits: Limits, wait_ms: int) -> int:
        taken = turn = 0
        until = time.monotonic() + self.timeout_s
        while limits.items > 0 and limits.bytes > 0:
            count, full = self._turn(batch, turn, limits, 0 if taken else wait_ms)
            taken += count
            turn += 1
            if all(tap.lost for tap in self.taps) and not taken:
                if time.monotonic() > until:
                    raise ServerLost("; ".join(sorted({tap.lost for tap in self.taps})))
                time.sleep(min(0.2, self.timeout_s / 10))
                continue
            if not full:
                break
        return taken

    def waiting(self) -> int:
        """How many items the servers say are there."""
        total = 0
        for tap in self.taps:
            try:
                connection = Connection(tap.server, self.timeout_s)
                stats, name = connection.stats(), f"queue_{tap.queue}_items"
                total += int(stats.get(ascii_word(name)) or stats.get(name, "0"))  # Kestrel escapes nothing
                connection.close()
            except ServerLost as error:
                tap.drop(str(error))
        return total

    def close(self) -> None:
        for tap in self.taps:
            tap.drop()

    def _turn(self, batch: int, turn: int, limits: Limits, wait_ms: int) -> tuple[int, bool]:
        """One round of reserve, spool, sync, confirm; how many items, and whether there seem to be more."""
        drained, capacity = self._reserve(limits, wait_ms)
        count = sum(len(items) for _, _, items in drained)
        if not count:
            return 0, False
        self.after(Step.RESERVED)
        self.spool.put(batch, turn, drained, lambda: self.after(Step.SPOOLED))
        self.after(Step.SYNCED)
        for tap in self.taps:
            self._try(tap, tap.confirm)
        self.after(Step.CONFIRMED)
        limits.items -= count
        limits.bytes -= sum(len(item.data) for _, _, items in drained for item in items)
        return count, count * 10 >= capacity

    def _reserve(self, limits: Limits, wait_ms: int) -> tuple[list[Drained], int]:
        """Ask all, then hear all: the servers work at the same time."""
        share = Limits(-(-limits.items // len(self.taps)), -(-limits.bytes // len(self.taps)))
        wait_ms //= len(self.taps)
        asked = [tap for tap in self.taps if self._try(tap, partial(tap.want, share, wait_ms))]
        capacity = sum(tap.capacity for tap in asked)
        drained: list[Drained] = []
        for tap in asked:
            self._try(tap, lambda: drained.append(tap.got()))  # noqa: B023 - called at once
        return drained, capacity

    def _try(self, tap: Tap, act: Callable[[], None]) -> bool:
        """Whether it went well. A server that is lost is asked again in the next round, over new connections."""
        try:
            act()
        except ServerLost as error:
            tap.drop(str(error))
            return False
        except Refused:
            tap.drop("refused")
            raise
        tap.lost = ""
        return True
