"""The difference between the two kinds of client: the socket, and the turn to use it. The blocking twin is
`client/blocking/transport.py`.
"""

from __future__ import annotations

import select
import ssl
from contextlib import AbstractContextManager

import anyio
from anyio.abc import ByteStream, SocketAttribute

RECEIVE_BYTES = 65_536


class Transport:
    """A connected socket. Its methods raise OSError, TimeoutError among them."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of the bytes."""
        try:
            with anyio.fail_after(timeout_s):
                await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _as_os_error(error) from error

    async def receive(self, timeout_s: float) -> bytes:
        """Return the bytes that come next, none at the end of the stream."""
        try:
            with anyio.fail_after(timeout_s):
                return await self._stream.receive(RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise _as_os_error(error) from error

    @property
    def is_quiet(self) -> bool:
        """True if nothing has come since the last reply: neither the server's end nor bytes beyond its replies."""
        raw = self._stream.extra(SocketAttribute.raw_socket)
        poll = select.poll()
        poll.register(raw, select.POLLIN | select.POLLHUP)
        return not poll.poll(0)

    async def close(self) -> None:
        """Close at once, without waiting for the server."""
        await anyio.aclose_forcefully(self._stream)


async def open_transport(host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> Transport:
    """Connect, with a TLS handshake if `tls` is given. Raises OSError."""
    try:
        with anyio.fail_after(timeout_s):
            if tls is None:
                return Transport(await anyio.connect_tcp(host, port))
            return Transport(
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
    """The turn to use a connection: that of one task at a time."""

    def __init__(self) -> None:
        self._is_taken = False
        self._over: anyio.Event | None = None

    def take(self) -> bool:
        """Take the turn if it is free. Return False if it is not."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the turn and take it. Return False if it does not come in time."""
        with anyio.move_on_after(timeout_s):
            while not self.take():
                if self._over is None:
                    self._over = anyio.Event()
                await self._over.wait()
            return True
        return False

    def end(self) -> None:
        self._is_taken = False
        if self._over is not None:
            self._over.set()
            self._over = None


def shielded() -> AbstractContextManager[object]:
    """Return a block that is not cancelled. On asyncio this holds for anyio's cancellation; `Task.cancel` comes
    through, and closes the connection.
    """
    return anyio.CancelScope(shield=True)
