"""Rests of aborted items before they are delivered again, and which resting items are due."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from zlib import crc32

from staniel.queues.config import QueueConfig
from staniel.queues.item import Delivery


def rest_ms(config: QueueConfig, delivery: Delivery) -> int:
    """Return how long `delivery` rests after this delivery, in ms. The jitter is derived from the item and the try, so
    that it is the same in every run; it never makes a delay shorter.
    """
    delays_ms = config.retry_delays_ms
    delay_ms = delays_ms[min(max(delivery.deliveries, 1), len(delays_ms)) - 1]
    if not config.retry_jitter_percent:
        return delay_ms
    chance = crc32(b"%d %d" % (delivery.id, delivery.deliveries))
    return delay_ms + (delay_ms * config.retry_jitter_percent * chance) // (100 << 32)


def longest_ms(config: QueueConfig) -> int:
    """Return the longest rest that `config` allows, in ms; 0 without a retry_delay."""
    longest = max(config.retry_delays_ms, default=0)
    return longest + longest * config.retry_jitter_percent // 100


class RestOrder:
    """The items of `delayed` (by xid) in the order of the moments at which they are due. An item that has left
    `delayed` otherwise is passed over.
    """

    __slots__ = ("_delayed", "_heap")

    def __init__(self, delayed: dict[int, Delivery]) -> None:
        self._delayed = delayed
        self._heap: list[tuple[int, int]] = []  # moment, xid

    def add(self, delivery: Delivery) -> None:
        """Note the item `delivery`, which has just been put into `delayed`."""
        heappush(self._heap, (delivery.opened_ms, delivery.xid))

    def first(self) -> Delivery | None:
        """Return the item that is due first."""
        heap, delayed = self._heap, self._delayed
        while heap:
            moment_ms, xid = heap[0]
            delivery = delayed.get(xid)
            if delivery is not None and delivery.opened_ms == moment_ms:
                return delivery
            heappop(heap)
        return None

    def take_due(self, now_ms: int) -> list[Delivery]:
        """Return the items that are due, the first one first; the caller ends their rest."""
        found = []
        while (delivery := self.first()) is not None and delivery.opened_ms <= now_ms:
            heappop(self._heap)
            found.append(delivery)
        return found

    def shorten(self, latest_ms: int) -> None:
        """Let no item rest beyond `latest_ms`: a reload has made the delays shorter."""
        for delivery in self._delayed.values():
            delivery.opened_ms = min(delivery.opened_ms, latest_ms)
        self._heap = [(delivery.opened_ms, delivery.xid) for delivery in self._delayed.values()]
        heapify(self._heap)
