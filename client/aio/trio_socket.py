"""A transport on a socket that trio waits for: anyio's streams cost a client that waits for each reply more."""

from __future__ import annotations

import os
import select
import socket

import trio

from staniel.client.aio.transport import RECEIVE_BYTES, is_quiet, no_answer, shut_down, took_nothing


class TrioSocket:
    """A connected socket, without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._process = os.getpid()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)

    async def send(self, data: bytes, timeout_s: float) -> None:
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            await self._send_rest(memoryview(data)[sent:], timeout_s)

    async def _send_rest(self, data: memoryview, timeout_s: float) -> None:
        with trio.move_on_after(timeout_s):
            while data:
                try:
                    await trio.lowlevel.wait_writable(self._sock)
                    data = data[self._sock.send(data) :]
                except BlockingIOError:
                    continue
                except trio.ClosedResourceError as error:
                    raise OSError("the connection was closed") from error
            return
        raise took_nothing(timeout_s)

    async def receive(self, timeout_s: float) -> bytes:
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    await trio.lowlevel.wait_readable(self._sock)
                    return self._sock.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                except trio.ClosedResourceError as error:
                    raise OSError("the connection was closed") from error
        raise no_answer(timeout_s)

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes:
        await self.send(data, send_timeout_s)
        return await self.receive(timeout_s)

    @property
    def is_quiet(self) -> bool:
        return self._sock.fileno() >= 0 and is_quiet(self._sock)

    @property
    def has_unasked(self) -> bool:
        return bool(self._readable.poll(0))

    async def close(self) -> None:
        if os.getpid() == self._process:
            shut_down(self._sock)
            if self._sock.fileno() >= 0:
                trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


async def open_socket(host: str, port: int) -> TrioSocket:
    """Connect on trio. Raises OSError."""
    stream = await trio.open_tcp_stream(host, port)
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TrioSocket(sock)
