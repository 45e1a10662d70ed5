"""The difference between the two kinds of client: the socket, and the turn to use it. The blocking twin is
`client/blocking/transport.py`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import anyio
from anyio.abc import ByteStream, SocketAttribute

from staniel.client.sockets import RECEIVE_BYTES, is_quiet, no_answer, shut_down, took_nothing

ResultT = TypeVar("ResultT")


class Transport(Protocol):
    """A connected socket. Its methods raise OSError; a TimeoutError says what did not happen."""

    async def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of the bytes."""

    async def receive(self, timeout_s: float) -> bytes:
        """Return the bytes that come next, none at the end of the stream."""

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        """Send, and return the bytes that come next: `has_unasked`, `send` and `receive` in fewer steps, for a request
        and its reply. Return None, and send nothing, if something has been received since the last reply.
        """

    @property
    def is_quiet(self) -> bool:
        """True if nothing has come since the last reply: neither the server's end nor bytes beyond its replies."""

    def has_unasked(self) -> bool:
        """Return True if it is certain that something has been received since the last reply: a cheaper check than
        `is_quiet`, made for each request. With TLS a readable socket is no proof.
        """

    def note_unused(self) -> None:
        """Note that no call of this transport is under way, though one may have been cut off."""

    async def close(self) -> None:
        """Close at once, without waiting for the server. In a forked process, the connection belongs to the parent, and
        stays open. May be called again.
        """


class StreamTransport:
    """A transport on one of anyio's streams."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._process = os.getpid()

    async def send(self, data: bytes, timeout_s: float) -> None:
        try:
            with anyio.move_on_after(timeout_s):
                await self._stream.send(data)
                return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _as_os_error(error) from error
        raise took_nothing(timeout_s)

    async def receive(self, timeout_s: float) -> bytes:
        try:
            with anyio.move_on_after(timeout_s):
                return await self._stream.receive(RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _as_os_error(error) from error
        raise no_answer(timeout_s)

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        await self.send(data, send_timeout_s)
        return await self.receive(timeout_s)

    @property
    def is_quiet(self) -> bool:
        return is_quiet(self._stream.extra(SocketAttribute.raw_socket))

    def has_unasked(self) -> bool:
        return False

    def note_unused(self) -> None:
        """Do nothing: a cancelled call of a stream leaves no trace."""

    async def close(self) -> None:
        if os.getpid() == self._process:  # a loop's epoll is shared with the parent: leave it alone
            shut_down(self._stream.extra(SocketAttribute.raw_socket))
            await anyio.aclose_forcefully(self._stream)


async def open_transport(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> Transport:
    """Connect, with a TLS handshake if `tls` is given. Raises OSError."""
    try:
        with anyio.fail_after(timeout_s):
            if anyio.get_cancelled_exc_class().__module__.startswith("asyncio"):
                from staniel.client.aio.asyncio_socket import open_socket

                return await open_socket(host, port, tls)
            if tls is None:
                from staniel.client.aio.trio_socket import open_socket as open_trio_socket

                return await open_trio_socket(host, port)
            return StreamTransport(
                await anyio.connect_tcp(
                    host, port, tls=True, ssl_context=tls, tls_standard_compatible=False, tls_hostname=host
                )
            )
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream) as error:
        raise _as_os_error(error) from error


def _as_os_error(error: Exception) -> OSError:
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else OSError(str(cause or error) or "the connection broke")


class Turn:
    """The right to use a connection, which one call at a time has. A call takes it with an object of its own, its
    hold: with it the call can tell whether the turn was taken, and `end` may be called twice.
    """

    def __init__(self) -> None:
        self._hold: object | None = None
        self._over: anyio.Event | None = None

    def acquire(self, hold: object) -> bool:
        """Take the turn if it is free. Return False if it is not."""
        if self._hold is None:
            self._hold = hold
            return True
        return False

    def is_held_by(self, hold: object) -> bool:
        return self._hold is hold

    async def wait(self, hold: object, timeout_s: float) -> bool:
        """Wait for the turn and take it. Return False if it does not come in time."""
        with anyio.move_on_after(timeout_s):
            while not self.acquire(hold):
                if self._over is None:
                    self._over = anyio.Event()
                await self._over.wait()
            return True
        return self.acquire(hold)

    def end(self, hold: object) -> None:
        """Give the turn back, if this hold has it."""
        if self._hold is hold:
            self._hold = None
            if self._over is not None:
                self._over.set()
                self._over = None


class Places:
    """The places of a pool, each taken with a hold, like a turn. `is_over` once the pool is closed; then no further
    place is given.
    """

    def __init__(self, count: int) -> None:
        self.is_over = False
        self._count = count
        self._holds: set[object] = set()
        self._waiting: dict[object, anyio.Event] = {}

    @property
    def free(self) -> int:
        return self._count - len(self._holds)

    async def acquire(self, hold: object, timeout_s: float) -> bool:
        """Take a place, in the order of those who wait. Return False if none becomes free in time."""
        if self.is_over or (self.free and not self._waiting):
            return self._take_free(hold)
        given = self._waiting[hold] = anyio.Event()
        try:
            with anyio.move_on_after(timeout_s):
                await given.wait()
        finally:
            self._waiting.pop(hold, None)
        return self._take_free(hold)

    def _take_free(self, hold: object) -> bool:
        """Return True if this hold has been given a place, or gets a free one."""
        if not self.is_over and self.free:
            self._holds.add(hold)
        return not self.is_over and hold in self._holds

    def give_back(self, hold: object) -> None:
        """Give a place back, if this hold has one, to the task that has waited longest."""
        if hold not in self._holds:
            return
        self._holds.discard(hold)
        for next_hold, given in self._waiting.items():
            if next_hold not in self._holds:
                self._holds.add(next_hold)
                given.set()
                return

    def end(self) -> None:
        """Give no further place, and tell those who wait."""
        self.is_over = True
        for given in self._waiting.values():
            given.set()


def shielded() -> AbstractContextManager[object]:
    """Return a block that is not cancelled. On asyncio this holds for anyio's cancellation; `Task.cancel` comes
    through, and closes the connection.
    """
    return anyio.CancelScope(shield=True)


async def in_shield(call: Awaitable[ResultT]) -> ResultT:
    """Return the result of a call: `shielded` for one call. The blocking twin makes the call without it."""
    with anyio.CancelScope(shield=True):
        return await call
    raise AssertionError("a scope that is never cancelled was left")


async def pause(seconds: float) -> None:
    """Wait for a while, in which other tasks go on."""
    await anyio.sleep(seconds)
