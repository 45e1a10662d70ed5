# Made of client/aio/monitoring.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The items of one `monitor`, as an iterator that counts the items it has yielded. See Client.monitor."""

from __future__ import annotations

from staniel.client.blocking.connection import Connection
from staniel.client.headers import split
from staniel.client.messages import refused
from staniel.protocol.client.replies import Answer, Error, Item, Reply
from staniel.protocol.memcache.requests import Request


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
