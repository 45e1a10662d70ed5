"""The items of one `monitor`, as an async iterator. Knows which of them have been handed over. See Client.monitor."""

from __future__ import annotations

from staniel.client.errors import Refused
from staniel.client.connection import Link
from staniel.protocol.client.replies import Answer, Error, Item, Reply


class Monitoring:
    """Iterate over it once. `handed_over` counts the items that the loop has been given."""

    def __init__(self, link: Link, wait_s: float) -> None:
        self.handed_over = 0
        self.left_over = 0
        self._link = link
        self._wait_s = wait_s
        self._end: Reply | None = None

    def __aiter__(self) -> Monitoring:
        return self

    async def __anext__(self) -> Item:
        """The next item. Raises Refused if the server will not monitor, ConnectionLost."""
        item = await self._next()
        if item is None:
            raise StopAsyncIteration
        self.handed_over += 1
        return item

    async def drain(self) -> None:
        """Wait for the monitor's end; what still comes is nobody's."""
        while await self._next() is not None:
            self.left_over += 1

    async def _next(self) -> Item | None:
        if self._end is None:
            reply = await self._link.hear(self._wait_s)
            if isinstance(reply, Item):
                return reply
            self._end = reply
        if isinstance(self._end, Error):
            raise Refused(f"{self._end.fault.value} {self._end.why}".strip())
        assert self._end is Answer.END
        return None
