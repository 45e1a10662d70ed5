# Made of client/aio/monitoring.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The items of one `monitor`, as an iterator that knows the items it has yielded. See Client.monitor and the one of
MultiClient.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from staniel.client.blocking.connection import Connection
from staniel.client.headers import split
from staniel.client.messages import ServerBatch, ServerItem, refused
from staniel.protocol.client.replies import Answer, Error, Item, Reply
from staniel.protocol.memcache.requests import Request

MONITORED_TOGETHER = 32
"""The most items that are opened in one round trip before a loop has asked for them."""


class Monitoring:
    """An iterator for one loop. `handed_over` counts the items given to the loop, `left_over` the others."""

    def __init__(self, connection: Connection[Request, Reply], wait_s: float, *, has_headers: bool) -> None:
        self.handed_over = 0
        self.left_over = 0
        self._connection = connection
        self._wait_s = wait_s
        self._has_headers = has_headers
        self._end: Reply | None = None

    def __iter__(self) -> Monitoring:
        return self

    def __next__(self) -> Item:
        """Return the next item. Raises Refused if the server refuses to monitor, ConnectionLost."""
        item = self._next()
        if item is None:
            raise StopIteration
        self.handed_over += 1
        return split(item) if self._has_headers else item

    def drain(self) -> None:
        """Wait for the monitor's end, and count further items as left over."""
        while self._next() is not None:
            self.left_over += 1

    def _next(self) -> Item | None:
        if self._end is None:
            reply = self._connection.receive(self._wait_s)
            if isinstance(reply, Item):
                return reply
            self._end = reply
        if isinstance(self._end, Error):
            raise refused(self._end)
        assert self._end is Answer.END
        return None


class MultiMonitoring:
    """An iterator over the items of several servers. `handed_over` has the items given to the loop, `left_over` those
    that were opened beside them.
    """

    def __init__(
        self, next_items: Callable[..., ServerBatch], queue: str, until_s: float, max_items: int | None
    ) -> None:
        self.handed_over: list[ServerItem] = []
        self.left_over: list[ServerItem] = []
        self._next_items = next_items
        self._queue = queue
        self._until_s = until_s
        self._max_items = max_items

    def __iter__(self) -> MultiMonitoring:
        return self

    def __next__(self) -> ServerItem:
        """Return the next item. Raises what MultiClient.next_items does."""
        if not self.left_over:
            room = MONITORED_TOGETHER
            if self._max_items is not None:
                room = min(room, self._max_items - len(self.handed_over))
            wait_s = max(0.0, self._until_s - time.monotonic())
            if room > 0 and (wait_s or not self.handed_over):
                self.left_over = (self._next_items(self._queue, room, wait_s=wait_s)).items
            if not self.left_over:
                raise StopIteration
        item = self.left_over[0]
        self.handed_over.append(item)  # first, so that an item is in one of the two whatever exception comes
        del self.left_over[0]
        return item
