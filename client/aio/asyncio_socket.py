"""A transport on asyncio's own protocols, because anyio's streams cost a client that waits for each reply twice as
much.

A reply needs no timer of its own: the connection's timer checks the present deadline when it fires, and is set again.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections import deque

from staniel.client.sockets import is_quiet, no_answer, shut_down, took_nothing

UNREAD_BYTES_MAX = 1 << 20  # beyond this, nothing is read until the program receives


class AsyncioSocket(asyncio.Protocol):
    """A connected socket, and the bytes received so far."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._transport: asyncio.Transport | None = None
        self._readable: select.poll | None = None  # None under TLS
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._end: OSError | None = None  # the connection has ended; ConnectionError() for the server's end in order
        self._has_ended = False
        self._reader: asyncio.Future[bytes] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._is_full = False
        self._timeout_s = self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, data: bytes, timeout_s: float) -> None:
        if self._has_ended or self._transport is None:
            raise self._end or OSError("the server closed the connection")
        self._transport.write(data)
        if self._is_full:
            await self._until_taken(timeout_s)

    async def _until_taken(self, timeout_s: float) -> None:
        self._writer = writer = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await writer
        except TimeoutError:
            raise took_nothing(timeout_s) from None
        finally:
            self._writer = None

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        if self._has_ended or self._unread or self._transport is None:
            return None
        if self._readable is not None and self._readable.poll(0):  # the loop has not read the bytes yet
            return None
        self._transport.write(data)
        if self._is_full:
            await self._until_taken(send_timeout_s)
        return await self.receive(timeout_s)

    async def receive(self, timeout_s: float) -> bytes:
        if self._unread:
            return self._pop_unread()
        if self._has_ended:
            if self._end is not None:
                raise self._end
            return b""
        self._timeout_s = timeout_s
        self._deadline = deadline = self._loop.time() + timeout_s
        timer = self._timer
        if timer is None or timer.when() > deadline:
            self._set_timer()
        self._reader = self._loop.create_future()
        try:
            return await self._reader
        finally:
            self._reader = None

    def _pop_unread(self) -> bytes:
        data = self._unread.popleft()
        self._unread_bytes -= len(data)
        if not self._unread and self._transport is not None and not self._has_ended:
            self._transport.resume_reading()
        return data

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._look_at_deadline)

    def _look_at_deadline(self) -> None:
        self._timer = None
        reader = self._reader
        if reader is None or reader.done():
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            reader.set_exception(no_answer(self._timeout_s))

    @property
    def is_quiet(self) -> bool:
        if self._has_ended or self._unread or self._transport is None:
            return False
        return is_quiet(self._transport.get_extra_info("socket"))

    def has_unasked(self) -> bool:
        if self._has_ended or self._unread:
            return True
        return self._readable is not None and bool(self._readable.poll(0))  # the loop has not read the bytes yet

    def note_unused(self) -> None:
        """Do nothing: a cancelled call leaves no trace."""

    async def close(self) -> None:
        if os.getpid() != self._process or self._transport is None:
            return  # the loop's epoll is shared with the parent: leave it alone
        if self._timer is not None:
            self._timer.cancel()
        if not self._transport.is_closing():
            shut_down(self._transport.get_extra_info("socket"))
        self._transport.abort()
        await asyncio.sleep(0)  # connection_lost is called, and the socket closed

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if transport.get_extra_info("ssl_object") is None:
            self._readable = select.poll()
            self._readable.register(transport.get_extra_info("socket"), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(data)
            return
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > UNREAD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self._note_end(None)

    def connection_lost(self, error: Exception | None) -> None:
        if error is None or isinstance(error, OSError):
            self._note_end(error)
        else:
            self._note_end(OSError(str(error)))

    def _note_end(self, error: OSError | None) -> None:
        if not self._has_ended:
            self._has_ended, self._end = True, error
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(b"") if error is None else self._reader.set_exception(error)
        if self._writer is not None and not self._writer.done():
            self._writer.set_exception(error or OSError("the server closed the connection"))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


async def open_socket(host: str, port: int, tls: ssl.SSLContext | None) -> AsyncioSocket:
    """Connect on asyncio. Raises OSError."""
    loop = asyncio.get_running_loop()
    _, made = await loop.create_connection(
        AsyncioSocket, host, port, ssl=tls, server_hostname=host if tls is not None else None, happy_eyeballs_delay=0.25
    )
    raw = made._transport.get_extra_info("socket") if made._transport is not None else None
    if raw is not None and raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made
