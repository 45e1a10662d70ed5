"""Peers that say what a test wrote, whatever they are asked: one script for each connection, in order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio

Script = Callable[[trio.SocketStream], Awaitable[None]]
HEADER = {"cluster_id": "7", "member_id": "1", "revision": "5", "raft_term": "2"}


class Peer:
    """A listener on loopback. `asked` has the bytes of each connection. Its last script is for all further ones."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.asked: list[bytes] = []


@asynccontextmanager
async def scripted(*scripts: Script) -> AsyncIterator[Peer]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    peer = Peer(listener.socket.getsockname()[1])
    left = list(scripts)

    async def serve(stream: trio.SocketStream) -> None:
        script = left.pop(0) if len(left) > 1 else left[0]
        at = len(peer.asked)
        peer.asked.append(b"")
        try:
            await script(_Noting(stream, peer, at))  # type: ignore[arg-type]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has heard enough
        finally:
            await trio.aclose_forcefully(stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield peer
        nursery.cancel_scope.cancel()


class _Noting:
    """A stream whose received bytes are noted."""

    def __init__(self, stream: trio.SocketStream, peer: Peer, at: int) -> None:
        self._stream, self._peer, self._at = stream, peer, at

    async def receive_some(self, size: int = 65_536) -> bytes:
        data = bytes(await self._stream.receive_some(size))
        self._peer.asked[self._at] += data
        return data

    async def send_all(self, data: bytes) -> None:
        await self._stream.send_all(data)


async def request(stream: trio.SocketStream) -> bytes:
    """Receive one request: a head, and the body that it announces."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some(65_536)
        if not more:
            raise trio.BrokenResourceError
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    while len(body) < size:
        body += await stream.receive_some(65_536)
    return head + b"\r\n\r\n" + body


def reply(body: object, *, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """An HTTP reply; what is not bytes becomes JSON, with a head of etcd's unless it has one."""
    if isinstance(body, dict):
        body = json.dumps({"header": HEADER, **body}).encode()
    assert isinstance(body, bytes)
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def refusal(message: str, code: int) -> bytes:
    """An error of etcd's gateway."""
    body = json.dumps({"error": message, "message": message, "code": code}).encode()
    return reply(body, status="400 Bad Request")


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def message(body: object) -> bytes:
    """A message of a stream, in a chunk; what is not bytes becomes a result with a head of etcd's."""
    if isinstance(body, dict):
        body = json.dumps({"result": {"header": HEADER, **body}}).encode() + b"\n"
    assert isinstance(body, bytes)
    return b"%x\r\n%s\r\n" % (len(body), body)


def replies(*parts: bytes) -> Script:
    """A script that receives a request before each part, sends it, and waits for the client's end."""

    async def run(stream: trio.SocketStream) -> None:
        for part in parts:
            await request(stream)
            await stream.send_all(part)
        while await stream.receive_some(65_536):
            pass

    return run


def replies_and_ends(*parts: bytes) -> Script:
    """The same, but it ends the connection."""

    async def run(stream: trio.SocketStream) -> None:
        for part in parts:
            await request(stream)
            await stream.send_all(part)

    return run


def silence() -> Script:
    """A script that receives all and says nothing."""
    return replies()
