"""Draining live queues without losing an item, in four steps: reserve, spool, sync, confirm.

Whatever process is killed, an item is in its queue (open reads of a closed connection return there) or in the drain's
spool. If the kill falls between sync and confirm, it is in both, and comes twice.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Protocol

from msgspec import Struct

from staniel.pipeline.sources.access import PLAIN, Access
from staniel.pipeline.sources.connection import BlockingConnection, ServerLost
from staniel.pipeline.sources.drain_spool import Drained, DrainSpool, encode_items
from staniel.protocol.client.replies import Item

OPEN_READS = 100  # a server's default limit of one connection's open reads in one queue
FIRST_ITEMS = 16  # the first round is small, because the items may be huge
ROUND_BYTES = 32 << 20


class DrainStep(Enum):
    """The step just done; tests kill a process after each."""

    RESERVED = "reserve"
    SPOOLED = "spool"
    SYNCED = "fsync"
    CONFIRMED = "confirm"


class UnknownQueue(Exception):
    """No server has such a queue: the name is mistyped, or nothing was ever put."""


class BatchLimits(Struct):
    """The remaining limits of a batch. `bytes` counts payload; the last item may exceed them. `is_ended`: no more
    rounds, as another thread has decided, which must not write the numbers that this one counts down.
    """

    items: int
    bytes: int
    is_ended: bool = False

    @property
    def spent(self) -> bool:
        return self.is_ended or self.items <= 0 or self.bytes <= 0

    def subtract_items(self, items: list[Item]) -> None:
        self.items -= len(items)
        self.bytes -= sum([len(item.data) for item in items])


class ServerQueue:
    """A queue of one server, over several connections, because a server limits the open reads of each."""

    def __init__(self, server: str, queue: str, connections: int, timeout_s: float, access: Access = PLAIN) -> None:
        self.server = server
        self.queue = queue
        self.count = connections
        self.timeout_s = timeout_s
        self.access = access
        self.mean_bytes = ROUND_BYTES // FIRST_ITEMS
        self.open_reads = OPEN_READS
        self.lost: str = ""
        self.lost_s = 0.0  # the time when it was first lost
        self._connections: list[BlockingConnection] = []
        self._held: list[tuple[BlockingConnection, int]] = []
        self._surplus: list[BlockingConnection] = []  # connections with open reads beyond the room

    def request_reads(self, limits: BatchLimits, wait_ms: int) -> None:
        """Request as many reads as the limits and memory seem to allow. Raises ServerLost."""
        while len(self._connections) < self.count:
            self._connections.append(BlockingConnection(self.server, self.timeout_s, self.access))
        budget = min(limits.items, max(1, min(limits.bytes, ROUND_BYTES) // max(self.mean_bytes, 1)))
        self._held = []
        for connection in self._connections:
            count = min(self.open_reads, budget)
            if count > 0:
                connection.request_reads(self.queue, count, wait_ms)
                self._held.append((connection, count))
            budget -= count
            wait_ms = 0

    def receive_items(self, room: BatchLimits) -> Drained:
        """Return the received items, until the room is used up. Further items go back to the queue when their
        connection is closed, after the others are confirmed.

        Raises ServerLost, and ServerRefused if the first read was refused.
        """
        items: list[Item] = []
        held = []

        for connection, _ in self._held:
            some, more = connection.receive_items(room.items, room.bytes)
            room.subtract_items(some)
            if some:
                held.append((connection, len(some)))
            if more:
                self._surplus.append(connection)
            items += some
        self._held = held
        if items:
            last = items[-FIRST_ITEMS:] if self._surplus else items
            mean = sum(len(item.data) for item in last) // len(last) + 64
            self.mean_bytes = max(mean, self.mean_bytes // 4)
        return self.server, self.queue, items

    def confirm(self) -> None:
        """Confirm the received items. Raises ServerLost: then the items are in the spool, and may come again."""
        for connection, count in self._held:
            connection.confirm(self.queue, count)
        self._held = []
        for connection in self._surplus:
            connection.close()
            self._connections.remove(connection)
        self._surplus = []

    def mark_lost(self, why: str) -> None:
        """Note that the server cannot be reached or does not reply."""
        self.lost_s = self.lost_s if self.lost else time.monotonic()
        self.lost = why
        self.drop()

    def drop(self) -> None:
        """Close the connections; their open reads go back to the queue."""
        for connection in self._connections:
            connection.close()
        self._connections, self._held, self._surplus = [], [], []

    @property
    def is_overdue(self) -> bool:
        """True if the server has not replied for longer than the timeout."""
        return bool(self.lost) and time.monotonic() - self.lost_s > self.timeout_s

    @property
    def capacity(self) -> int:
        return sum(count for _, count in self._held)


class DrainSource(Protocol):
    """Part of the queues, drained by a round. `lost`: why its server was lost, "" if it was not."""

    lost: str

    @property
    def is_overdue(self) -> bool:
        """True if the server has not replied for longer than the timeout."""


class BatchDrain(ABC):
    """A drain of live queues into batches of a spool, in rounds. `after` is called after each step."""

    def __init__(
        self, spool: DrainSpool, sources: Sequence[DrainSource], timeout_s: float, after: Callable[[DrainStep], None]
    ) -> None:
        self.spool = spool
        self.after = after
        self._sources = sources
        self._pause_s = min(0.2, timeout_s / 10)  # before a lost server is tried again
        self._known = False  # True once the names of the queues were looked up

    def fill(self, batch: int, limits: BatchLimits, wait_ms: int) -> int:
        """Drain into a batch until the limits are reached or little is left. Return how much was drained.

        `wait_ms` is the wait for the first. Raises ServerLost if a server has not replied for the timeout, with nothing
        spooled; ServerRefused; what `waiting` raises the first time; SpoolTaken and OSError if the spool cannot be
        written. Then all connections are closed.
        """
        try:
            if not self._known:
                self.waiting()
            return self._fill(batch, limits, wait_ms)
        except BaseException:
            self.close()
            raise

    def _fill(self, batch: int, limits: BatchLimits, wait_ms: int) -> int:
        taken = number = 0
        while not limits.spent:
            if not taken and any(source.is_overdue for source in self._sources):
                raise ServerLost("; ".join(sorted({source.lost for source in self._sources if source.lost})))
            count, is_full = self._run_round(batch, number, limits, 0 if taken else wait_ms)
            taken += count
            number += 1
            if not taken and any(source.lost for source in self._sources):
                time.sleep(self._pause_s)  # an empty batch would mean that the queues are empty
                continue
            if not is_full:
                break
        return taken

    @abstractmethod
    def _run_round(self, batch: int, number: int, limits: BatchLimits, wait_ms: int) -> tuple[int, bool]:
        """Run one round of reserve, spool, sync, confirm. Return how much was drained, and True if there seems to be
        more.
        """

    @abstractmethod
    def waiting(self) -> int:
        """Return how much waits on the servers."""

    @abstractmethod
    def confirm_spooled(self, names: list[str]) -> None:
        """Confirm what is in these files, which a killed drain may not have done."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class Drain(BatchDrain):
    """A drain of items. Reserved items whose connection is closed go back."""

    def __init__(
        self,
        servers: list[str],
        queues: list[str],
        spool: DrainSpool,
        connections: int = 8,
        timeout_s: float = 30.0,
        after: Callable[[DrainStep], None] = lambda step: None,
        access: Access = PLAIN,
    ) -> None:
        self.server_queues = [
            ServerQueue(server, queue, connections, timeout_s, access) for server in servers for queue in queues
        ]
        super().__init__(spool, self.server_queues, timeout_s, after)
        self.timeout_s = timeout_s
        self.access = access
        self._first = 0  # the first queue of the next round; rotated, so that each queue gets its share of little room

    def confirm_spooled(self, names: list[str]) -> None:
        """Do nothing: unconfirmed items of these files are in their queues again, and no client can tell which."""

    def waiting(self) -> int:
        """Return how many items the servers report. Raises ServerLost if one does not reply, UnknownQueue if no server
        has one of the queues.
        """
        servers = list(dict.fromkeys(queue.server for queue in self.server_queues))
        queues = list(dict.fromkeys(queue.queue for queue in self.server_queues))
        counts = [self._items_of(server, queues) for server in servers]
        for queue in queues:
            if not any(queue in count for count in counts):
                raise UnknownQueue(f"there is no queue {queue} on {' and '.join(servers)}")
        self._known = True
        return sum(sum(count.values()) for count in counts)

    def _items_of(self, server: str, queues: list[str]) -> dict[str, int]:
        until = time.monotonic() + self.timeout_s
        while True:
            try:
                connection = BlockingConnection(server, self.timeout_s, self.access)
                try:
                    return connection.queue_items(queues)
                finally:
                    connection.close()
            except ServerLost:
                if time.monotonic() > until:
                    raise
                time.sleep(self._pause_s)

    def close(self) -> None:
        for queue in self.server_queues:
            queue.drop()
            queue.lost = ""

    def _run_round(self, batch: int, number: int, limits: BatchLimits, wait_ms: int) -> tuple[int, bool]:
        drained, capacity = self._reserve(limits, wait_ms)
        count = sum(len(items) for _, _, items in drained)
        if not count:
            return 0, False
        self.after(DrainStep.RESERVED)
        self.spool.put(batch, number, encode_items(drained), lambda: self.after(DrainStep.SPOOLED))
        self.after(DrainStep.SYNCED)
        for queue in self.server_queues:
            self._try(queue, queue.confirm)
        self.after(DrainStep.CONFIRMED)
        for _, _, items in drained:
            limits.subtract_items(items)
        return count, count * 10 >= capacity

    def _reserve(self, limits: BatchLimits, wait_ms: int) -> tuple[list[Drained], int]:
        """Send all requests, then receive all replies, so that the servers work at the same time. Return the received
        items, and the number requested, 0 if the room is used up.
        """
        server_queues = self.server_queues[self._first :] + self.server_queues[: self._first]
        self._first = (self._first + 1) % len(server_queues)
        share = BatchLimits(-(-limits.items // len(server_queues)), -(-limits.bytes // len(server_queues)))
        room = BatchLimits(limits.items, min(limits.bytes, ROUND_BYTES))
        wait_ms //= len(server_queues)
        asked = [queue for queue in server_queues if self._try(queue, partial(queue.request_reads, share, wait_ms))]
        capacity = sum(queue.capacity for queue in asked)
        drained: list[Drained] = []
        for queue in asked:
            self._try(queue, lambda: drained.append(queue.receive_items(room)))  # noqa: B023 - called at once
        return drained, 0 if room.spent else capacity

    def _try(self, queue: ServerQueue, act: Callable[[], None]) -> bool:
        """Return True if the call succeeds. A lost server is asked again in the next round, over new connections."""
        try:
            act()
        except ServerLost as error:
            queue.mark_lost(str(error))
            return False
        queue.lost = ""
        return True
