"""Delays before an aborted item is delivered again, and which delayed items are due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from operator import attrgetter
from zlib import crc32

from staniel.queues.config import QueueConfig
from staniel.queues.item import Delivery


def delay_ms(config: QueueConfig, delivery: Delivery) -> int:
    """Return how long `delivery` is delayed when it ends. The jitter is computed from the item and its number of
    deliveries, so that it is the same in every run; it never makes a delay shorter.
    """
    delays_ms = config.retry_delays_ms
    shortest_ms = delays_ms[min(max(delivery.deliveries, 1), len(delays_ms)) - 1]
    if not config.retry_jitter_percent:
        return shortest_ms
    chance = crc32(b"%d %d" % (delivery.id, delivery.deliveries))
    return shortest_ms + (shortest_ms * config.retry_jitter_percent * chance) // (100 << 32)


def longest_delay_ms(config: QueueConfig) -> int:
    """Return the longest delay that `config` allows; 0 without a retry_delay."""
    longest_ms = max(config.retry_delays_ms, default=0)
    return longest_ms + longest_ms * config.retry_jitter_percent // 100


class DelayOrder:
    """The items of `delayed` (by xid) in the order of the moments at which their delays end, their `opened_ms`. An item
    that has left `delayed` otherwise is skipped.

    `may_be_too_long`: a reload may have made the delays shorter than some of these.
    """

    __slots__ = ("_delayed", "_heap", "may_be_too_long")

    def __init__(self, delayed: dict[int, Delivery]) -> None:
        self._delayed = delayed
        self._heap: list[tuple[int, int]] = []  # moment, xid
        self.may_be_too_long = False

    def add(self, delivery: Delivery) -> None:
        """Add an item that was just put into `delayed`."""
        heappush(self._heap, (delivery.opened_ms, delivery.xid))

    def first(self) -> Delivery | None:
        """Return the item whose delay ends first; None without a delayed item."""
        heap, delayed = self._heap, self._delayed
        while heap:
            moment_ms, xid = heap[0]
            delivery = delayed.get(xid)
            if delivery is not None and delivery.opened_ms == moment_ms:
                return delivery
            heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> list[Delivery]:
        """Remove the items whose delays have ended from the order and return them, the first one first; the caller
        removes them from `delayed`. Those of one moment were held by one client that has disconnected: they are in the
        order that they had in the line.
        """
        due: list[Delivery] = []
        while (delivery := self.first()) is not None and delivery.opened_ms <= now_ms:
            heappop(self._heap)
            due.append(delivery)
        due.sort(key=attrgetter("seq"))
        due.sort(key=attrgetter("opened_ms"))  # twice by a number takes a quarter of the time of once by a pair
        return due

    def shorten(self, latest_ms: int) -> None:
        """End all delays at `latest_ms` or earlier, because a reload may have made the delays shorter."""
        self.may_be_too_long = False
        for delivery in self._delayed.values():
            delivery.opened_ms = min(delivery.opened_ms, latest_ms)
        self._heap = [(delivery.opened_ms, delivery.xid) for delivery in self._delayed.values()]
        heapify(self._heap)
