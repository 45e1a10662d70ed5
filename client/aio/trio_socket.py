"""A transport on a socket that trio waits for, because anyio's streams cost a client that waits for each reply more.

A reply needs no cancel scope, which would cost as much as the rest: a task of the connection checks the present
deadline when its alarm fires, and sets the alarm again.
"""

from __future__ import annotations

import math
import os
import select
import socket

import trio

from staniel.client.sockets import RECEIVE_BYTES, is_quiet, no_answer, shut_down, took_nothing


class TrioSocket:
    """A connected socket, without TLS."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._process = os.getpid()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._deadline = math.inf  # of the reply that is waited for
        self._alarm = trio.CancelScope()
        self._is_late = self._is_closed = False

    async def watch(self) -> None:
        """End a wait for a reply at its deadline, until the connection is closed."""
        while True:
            with self._alarm:
                await trio.sleep_forever()
            if self._is_closed:
                return
            if trio.current_time() >= self._deadline:
                self._is_late, self._deadline = True, math.inf
                trio.lowlevel.notify_closing(self._sock)  # the wait ends, and then the connection
            self._alarm = trio.CancelScope(deadline=self._deadline)

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
        self._is_late = False
        self._deadline = deadline = trio.current_time() + timeout_s
        if self._alarm.deadline > deadline:
            self._alarm.deadline = deadline
        try:
            while True:
                await trio.lowlevel.wait_readable(self._sock)
                try:
                    return self._sock.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
        except trio.ClosedResourceError as error:
            if self._is_late:
                raise no_answer(timeout_s) from None
            raise OSError("the connection was closed") from error
        finally:
            self._deadline = math.inf

    async def exchange(self, data: bytes, send_timeout_s: float, timeout_s: float) -> bytes | None:
        if self._readable.poll(0):
            return None
        await self.send(data, send_timeout_s)
        return await self.receive(timeout_s)

    @property
    def is_quiet(self) -> bool:
        return self._sock.fileno() >= 0 and is_quiet(self._sock)

    def has_unasked(self) -> bool:
        return bool(self._readable.poll(0))

    def note_unused(self) -> None:
        """Do nothing: a cancelled call leaves no trace."""

    async def close(self) -> None:
        if os.getpid() == self._process:
            self._is_closed = True
            self._alarm.cancel()
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
    made = TrioSocket(sock)
    trio.lowlevel.spawn_system_task(made.watch)
    return made
