"""One connection that is in step or closed: the sans-IO conversation, driven over a trio stream.

Knows turns, time-outs and what cancellation does: a turn that does not end closes the connection, because what is
still to come would be taken for the answer to the next request. Refuses to know queues and items.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum

import trio

from staniel.client.errors import ConnectionLost
from staniel.protocol.client.conversation import Conversation
from staniel.protocol.client.replies import ProtocolViolation, Reply
from staniel.protocol.memcache.requests import Request

RECEIVE_BYTES = 65_536


class State(Enum):
    IDLE = "idle"
    BUSY = "busy"  # somebody's turn: a second task is refused, not queued
    CLOSED = "closed"


class Link:
    """`why` says what closed it, once it is closed."""

    def __init__(self, stream: trio.abc.Stream, answer_timeout_s: float) -> None:
        self.state = State.IDLE
        self.why = ""
        self._stream = stream
        self._answer_timeout_s = answer_timeout_s
        self._conversation = Conversation()
        self._heard: list[Reply] = []
        self._turn_over = trio.Event()

    async def idle(self) -> None:
        """Wait until no task has its turn; the caller's own may begin at once then."""
        while self.state is State.BUSY:
            await self._turn_over.wait()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """The body may send and hear. If it does not end, or leaves something unanswered, the connection closes.

        Raises ConnectionLost if it is closed already, trio.BusyResourceError while another task has its turn.
        """
        if self.state is State.CLOSED:
            raise ConnectionLost(self.why)
        if self.state is State.BUSY:
            raise trio.BusyResourceError("another task is using this connection; give each task one of its own")
        self.state = State.BUSY
        self._turn_over = trio.Event()
        try:
            yield
        finally:
            if self._conversation.unanswered or self._heard:
                await self.close("closed because a request was cut off before its answer")
            elif self.state is State.BUSY:
                self.state = State.IDLE
                self._turn_over.set()

    async def ask(self, requests: Sequence[Request], wait_s: float = 0) -> list[Reply]:
        """Send all, then hear one reply to each; a turn of its own. Raises ConnectionLost, ValueError."""
        async with self.turn():
            await self.send(requests)
            return [await self.hear(wait_s) for _ in requests]

    async def send(self, requests: Sequence[Request]) -> None:
        """Inside a turn. Send no more at a time than the server answers without being listened to."""
        data = self._conversation.say(*requests)
        with trio.move_on_after(self._answer_timeout_s) as limit:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await self._lose(f"the connection broke: {error.__cause__ or error}")
        if limit.cancelled_caught:
            await self._lose(f"the server took nothing for {self._answer_timeout_s:g} s")

    async def hear(self, wait_s: float = 0) -> Reply:
        """Inside a turn: the next reply. `wait_s` is what the server was asked to wait, before our patience begins."""
        while not self._heard:
            data = await self._receive(wait_s + self._answer_timeout_s)
            self._heard = self._conversation.hear(data)[::-1]
        reply = self._heard.pop()
        if isinstance(reply, ProtocolViolation):
            await self._lose(f"out of step with the server, {reply.why}: {reply.line!r}")
        return reply

    async def _receive(self, patience_s: float) -> bytes:
        data = b""
        with trio.move_on_after(patience_s) as limit:
            try:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                await self._lose(f"the connection broke: {error.__cause__ or error}")
        if limit.cancelled_caught:
            await self._lose(f"no answer for {patience_s:g} s")
        if not data:
            await self._lose("the server closed the connection")
        return data

    async def _lose(self, why: str) -> None:
        await self.close(why)
        raise ConnectionLost(why)

    async def close(self, why: str) -> None:
        """Close at once; the first reason stays. Never waits for the server."""
        if self.state is not State.CLOSED:
            self.state = State.CLOSED
            self.why = why
            self._turn_over.set()
            await trio.aclose_forcefully(self._stream)
