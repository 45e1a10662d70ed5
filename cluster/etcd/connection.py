"""A connection to one endpoint of etcd, on trio. It has no time-outs: its users set them.

Each call of the client has a connection of its own, so that a request is never lost in one that has ended unnoticed:
that could not be told from one that was carried out.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import trio
from msgspec import Struct

from staniel.cluster.etcd.errors import BadReplyError, EndpointFailure
from staniel.cluster.etcd.exchange import OK, Body, Exchange, Lines
from staniel.cluster.etcd.messages import Request, decode_fault

PORT = 2379
RECEIVE_BYTES = 65_536
BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Endpoint(Struct, frozen=True):
    """The address of a member of etcd."""

    url: str
    host: str
    port: int
    is_secure: bool

    @property
    def authority(self) -> str:
        """The host and port as HTTP writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(url: str) -> Endpoint:
    """Return the endpoint of a URL, such as http://127.0.0.1:2379. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ValueError(f"{url!r} is no address of etcd: write http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"the address of etcd at {parts.hostname} has more than a host and a port: remove the rest")
    port = PORT if parts.port is None else parts.port
    return Endpoint(url.rstrip("/"), parts.hostname, port, parts.scheme == "https")


class Connection:
    """An open connection: one request after the other, and behind the last one a stream of messages.

    Its methods raise what a socket does, and BadReplyError; `ask` and `receive_messages` also EtcdRefusal.
    """

    def __init__(self, endpoint: Endpoint, stream: trio.abc.Stream) -> None:
        self.endpoint = endpoint
        self._stream = stream
        self._exchange = Exchange(endpoint.authority)
        self._lines = Lines()

    async def close(self) -> None:
        """Close the connection, without a farewell that a peer could delay."""
        await trio.aclose_forcefully(self._stream)

    async def send(self, request: Request, token: str) -> None:
        """Send a request. The reply to the one before has been received."""
        await self._stream.send_all(self._exchange.encode(request, token))

    async def ask(self, request: Request, token: str) -> bytes:
        """Send a request and return the body of its reply."""
        await self.send(request, token)
        body = await self._receive_rest()
        if self._exchange.status != OK:
            raise decode_fault(body)
        return body

    async def receive_messages(self) -> list[bytes]:
        """Return the next messages of the stream, at least one."""
        while not self._exchange.has_reply:
            part = await self._receive()
            if self._exchange.status not in (0, OK):
                raise decode_fault(await self._receive_rest(part))
            if messages := self._lines.split(part):
                return messages
        raise BadReplyError("it has ended the stream")

    async def _receive_rest(self, begun: bytes = b"") -> bytes:
        body = Body()
        body.add(begun)
        while not self._exchange.has_reply:
            body.add(await self._receive())
        return body.join()

    async def _receive(self) -> bytes:
        return self._exchange.receive(bytes(await self._stream.receive_some(RECEIVE_BYTES)))


async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Connection:
    """Return a new connection. Raises what a socket does."""
    plain = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    if not endpoint.is_secure:
        return Connection(endpoint, plain)
    assert tls is not None, "checked by Endpoints"
    try:
        secure = trio.SSLStream(plain, tls, server_hostname=endpoint.host, https_compatible=True)
        await secure.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(plain)
        raise
    return Connection(endpoint, secure)


@contextmanager
def blamed_on(endpoint: Endpoint) -> Iterator[None]:
    """Raise what goes wrong with a connection as the EndpointFailure of its endpoint."""
    try:
        yield
    except BadReplyError as error:
        raise EndpointFailure(endpoint.url, str(error)) from None
    except BROKEN as error:
        raise EndpointFailure(endpoint.url, _reason(error)) from error


def _reason(error: BaseException) -> str:
    """Return why a connection failed: the words of the system or of OpenSSL are below trio's own."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):  # an error for each address of the host
        cause = cause.exceptions[0]
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'verify_message', '') or cause.reason or cause}"
    for known in (error, cause):
        if isinstance(known, OSError) and known.strerror:
            return known.strerror.rpartition(": ")[2]  # trio puts the address before it
    return str(error) or str(cause or "") or type(error).__name__
