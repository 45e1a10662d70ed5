"""A connection: the conversation of `protocol/client` over a trio stream, with its time-outs.

An interrupted exchange closes the connection, because the rest of its reply would be read as the reply to the next
request. `client.py` interprets replies.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum

import trio

from staniel.client.errors import ConnectionLost, Outcome
from staniel.protocol.client.conversation import Conversation
from staniel.protocol.client.replies import ProtocolViolation, Reply
from staniel.protocol.memcache.requests import Request

RECEIVE_BYTES = 65_536


class ConnectionState(Enum):
    IDLE = "idle"
    BUSY = "busy"  # during an exchange: a second one is refused, not queued
    CLOSED = "closed"


class Connection:
    """A stream and its conversation. `why` is the reason it was closed."""

    def __init__(self, stream: trio.abc.Stream, answer_timeout_s: float) -> None:
        self.state = ConnectionState.IDLE
        self.why = ""
        self._stream = stream
        self._answer_timeout_s = answer_timeout_s
        self._conversation = Conversation()
        self._replies: list[Reply] = []
        self._exchange_over = trio.Event()

    async def wait_idle(self) -> None:
        """Wait until no exchange is under way. The caller may begin one on return."""
        while self.state is ConnectionState.BUSY:
            await self._exchange_over.wait()

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        """Let the block send and receive. If it is interrupted, or leaves a request unanswered, close the connection.

        Raises ConnectionLost if the connection is closed, trio.BusyResourceError during an exchange of another task.
        """
        if self.state is ConnectionState.CLOSED:
            raise ConnectionLost(self.why, Outcome.NOT_DONE)
        if self.state is ConnectionState.BUSY:
            raise trio.BusyResourceError("another task is using this connection; give each task one of its own")
        self.state = ConnectionState.BUSY
        self._exchange_over = trio.Event()
        try:
            yield
        finally:
            if self._conversation.unanswered or self._replies:
                await self.close("closed because a request was cut off before its answer")
            elif self.state is ConnectionState.BUSY:
                self.state = ConnectionState.IDLE
                self._exchange_over.set()

    async def request(self, requests: Sequence[Request], wait_s: float = 0) -> list[Reply]:
        """Send requests within an exchange. Receive replies before more are sent than fit the server's buffer."""
        async with self.exchange():
            await self.send(requests)
            return [await self.receive(wait_s) for _ in requests]

    async def send(self, requests: Sequence[Request]) -> None:
        """Send requests within an exchange. Receive replies before sending more than fits the server's send buffer."""
        data = self._conversation.send(*requests)
        with trio.move_on_after(self._answer_timeout_s) as limit:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await self._fail(f"the connection broke: {error.__cause__ or error}")
        if limit.cancelled_caught:
            await self._fail(f"the server took nothing for {self._answer_timeout_s:g} s")

    async def receive(self, wait_s: float = 0) -> Reply:
        """Return the next reply within an exchange. The wait of the request, `wait_s`, is added to the time-out."""
        while not self._replies:
            data = await self._read(wait_s + self._answer_timeout_s)
            self._replies = self._conversation.receive(data)[::-1]
        reply = self._replies.pop()
        if isinstance(reply, ProtocolViolation):
            await self._fail(f"out of step with the server, {reply.why}: {reply.line!r}")
        return reply

    async def _read(self, timeout_s: float) -> bytes:
        data = b""
        with trio.move_on_after(timeout_s) as limit:
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await self._fail(f"the connection broke: {error.__cause__ or error}")
        if limit.cancelled_caught:
            await self._fail(f"no answer for {timeout_s:g} s")
        if not data:
            await self._fail("the server closed the connection")
        return data

    async def _fail(self, why: str) -> None:
        await self.close(why)
        raise ConnectionLost(why)

    async def close(self, why: str) -> None:
        """Close at once, without waiting for the server. The first reason is kept."""
        if self.state is not ConnectionState.CLOSED:
            self.state = ConnectionState.CLOSED
            self.why = why
            self._exchange_over.set()
            await trio.aclose_forcefully(self._stream)
