"""The clients' side of each protocol, over plain sockets and TLS.

It uses none of the server's own code, except the declaration of the thrift service.
"""

from __future__ import annotations

import socket
import ssl
import struct
from io import BytesIO
from typing import Any, ClassVar, Self

import trio
from thriftpy2.protocol.binary import TBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType

from staniel.bench.soak.clients import ServerBroken
from staniel.protocol.thrift.service import service

ANSWER_SECONDS_MAX = 60.0
LEASE_MS = 120_000  # longer than any reply takes: an item returns when its holder disconnects, not before
BRIEF_LEASE_MS = 3000  # for a holder that will disconnect: thrift's open reads outlive their connection
RESET = struct.pack("ii", 1, 0)
Address = tuple[str, int]


class ConnectionGone(Exception):
    """The connection has ended."""


class Link:
    """A connection."""

    def __init__(self, raw: trio.SocketStream, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._raw = raw
        self._stream = stream
        self._unread = bytearray()

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None) -> Self:
        """Connect. Raises ConnectionGone."""
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                raw = await trio.open_tcp_stream(*address)
                if tls is None:
                    return cls(raw, raw)
                secured = trio.SSLStream(raw, tls, server_hostname="localhost", https_compatible=True)
                await secured.do_handshake()
                return cls(raw, secured)
        except (OSError, trio.BrokenResourceError) as error:
            raise ConnectionGone(repr(error)) from None

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionGone(repr(error)) from None

    async def line(self) -> bytes:
        """Return a line without its end."""
        while (end := self._unread.find(b"\n")) < 0:
            await self._more()
        found = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return found.removesuffix(b"\r")

    async def exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            await self._more()
        found = bytes(self._unread[:count])
        del self._unread[:count]
        return found

    async def _more(self) -> None:
        try:
            with trio.fail_after(ANSWER_SECONDS_MAX):
                data = await self._stream.receive_some(1 << 16)
        except trio.TooSlowError:
            raise ServerBroken(f"no answer within {ANSWER_SECONDS_MAX:.0f} s") from None
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionGone(repr(error)) from None
        if not data:
            raise ConnectionGone("the end of the stream")
        self._unread += data

    def close(self) -> None:
        """Disconnect, without a close_notify of TLS."""
        self._raw.socket.close()

    def reset(self) -> None:
        """Disconnect like a client whose machine has lost all state: the server gets a reset."""
        try:
            self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        except (OSError, trio.ClosedResourceError):
            pass
        self._raw.socket.close()


class Speaker:
    """A client of one queue in one protocol. Its items stay open until they are confirmed, aborted, or the connection
    ends.
    """

    name: ClassVar[str]
    can_abort: ClassVar[bool] = True
    can_pull: ClassVar[bool] = True

    def __init__(self, link: Link, queue: str) -> None:
        self.link = link
        self.queue = queue.encode()

    def head(self, items: list[bytes]) -> bytes:
        """Return the bytes that put `items`."""
        raise NotImplementedError

    async def put(self, items: list[bytes]) -> list[bytes]:
        """Put items. Return the reply to each, b"" if it is stored."""
        raise NotImplementedError

    async def open_items(self, count_max: int, wait_ms: int, *, is_brief: bool = False) -> list[bytes]:
        """Open items."""
        raise NotImplementedError

    async def confirm(self) -> None:
        """Confirm all open items. Raises ServerBroken."""
        raise NotImplementedError

    async def abort(self) -> None:
        """Abort all open items. Raises ServerBroken."""
        raise NotImplementedError

    async def pull(self, wait_ms: int) -> list[bytes]:
        """Take an item for good."""
        raise NotImplementedError

    def must(self, answer: object, expected: object) -> None:
        if answer != expected:
            raise ServerBroken(f"{self.name}, {self.queue.decode()}: {answer!r} instead of {expected!r}")


class Memcache(Speaker):
    name = "memcache"

    def head(self, items: list[bytes]) -> bytes:
        return b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (self.queue, len(item), item) for item in items)

    async def put(self, items: list[bytes]) -> list[bytes]:
        await self.link.send(self.head(items))
        answers = [await self.link.line() for _ in items]
        return [b"" if answer == b"STORED" else answer for answer in answers]

    async def open_items(self, count_max: int, wait_ms: int, *, is_brief: bool = False) -> list[bytes]:
        return await self._get(b"t=%d/open" % wait_ms)

    async def confirm(self) -> None:
        self.must(await self._get(b"close"), [])

    async def abort(self) -> None:
        self.must(await self._get(b"abort"), [])

    async def pull(self, wait_ms: int) -> list[bytes]:
        return await self._get(b"t=%d" % wait_ms)

    async def _get(self, options: bytes) -> list[bytes]:
        await self.link.send(b"get %b/%b\r\n" % (self.queue, options))
        head = await self.link.line()
        if head == b"END":
            return []
        if not head.startswith(b"VALUE "):
            raise ServerBroken(f"{self.name}, {self.queue.decode()}: {head!r} to a get")
        item = await self.link.exactly(int(head.split()[3]))
        self.must(await self.link.exactly(7), b"\r\nEND\r\n")
        return [item]


class Text(Speaker):
    name = "text"
    can_abort = can_pull = False

    def head(self, items: list[bytes]) -> bytes:
        return b"put %b:\n%b\n\n" % (self.queue, b"\n".join(items))

    async def put(self, items: list[bytes]) -> list[bytes]:
        await self.link.send(self.head(items))
        answer = await self.link.line()
        if not answer.startswith(b"+"):
            return [answer] * len(items)
        stored = int(answer[1:])
        return [b""] * stored + [b"-cut short"] * (len(items) - stored)

    async def open_items(self, count_max: int, wait_ms: int, *, is_brief: bool = False) -> list[bytes]:
        await self.link.send(b"get %b %d\n" % (self.queue, wait_ms))
        answer = await self.link.line()
        if answer == b"*":
            return []
        self.must(answer[:1], b":")
        return [answer[1:]]

    async def confirm(self) -> None:
        await self.link.send(b"confirm %b 1\n" % self.queue)
        self.must(await self.link.line(), b"+1")


class Thrift(Speaker):
    name = "thrift"

    def __init__(self, link: Link, queue: str) -> None:
        super().__init__(link, queue)
        self._seqid = 0
        self._ids: set[int] = set()

    def head(self, items: list[bytes]) -> bytes:
        return self._call("put", queue_name=self.queue.decode(), items=items, expiration_msec=0)

    async def put(self, items: list[bytes]) -> list[bytes]:
        await self.link.send(self.head(items))
        try:
            stored = int(await self._answer("put"))
        except ThriftRefusal as refusal:
            return [str(refusal).encode()] * len(items)
        return [b""] * stored + [b"cut short"] * (len(items) - stored)

    async def open_items(self, count_max: int, wait_ms: int, *, is_brief: bool = False) -> list[bytes]:
        lease_ms = BRIEF_LEASE_MS if is_brief else LEASE_MS
        found = await self._get(count_max, wait_ms, lease_ms)
        self._ids = {item.id for item in found}
        return [item.data for item in found]

    async def confirm(self) -> None:
        self.must(await self._ask("confirm", ids=self._ids), len(self._ids))

    async def abort(self) -> None:
        self.must(await self._ask("abort", ids=self._ids), len(self._ids))

    async def pull(self, wait_ms: int) -> list[bytes]:
        return [item.data for item in await self._get(1, wait_ms, 0)]

    async def _get(self, count_max: int, wait_ms: int, lease_ms: int) -> list[Any]:
        found = await self._ask("get", max_items=count_max, timeout_msec=wait_ms, auto_abort_msec=lease_ms)
        return list(found)

    async def _ask(self, method: str, **arguments: object) -> Any:
        await self.link.send(self._call(method, queue_name=self.queue.decode(), **arguments))
        return await self._answer(method)

    def _call(self, method: str, **arguments: object) -> bytes:
        self._seqid += 1
        sink = BytesIO()
        protocol = TBinaryProtocol(sink)
        protocol.write_message_begin(method, TMessageType.CALL, self._seqid)
        protocol.write_struct(getattr(service, f"{method}_args")(**arguments))
        return struct.pack("!i", len(sink.getvalue())) + sink.getvalue()

    async def _answer(self, method: str) -> Any:
        """Return the result of a call. Raises ThriftRefusal."""
        (size,) = struct.unpack("!i", await self.link.exactly(4))
        protocol = TBinaryProtocol(BytesIO(await self.link.exactly(size)))
        name, kind, seqid = protocol.read_message_begin()
        self.must((name, seqid), (method, self._seqid))
        if kind != TMessageType.REPLY:
            exception = TApplicationException()
            protocol.read_struct(exception)
            raise ThriftRefusal(exception.message)
        result: Any = getattr(service, f"{method}_result")()
        protocol.read_struct(result)
        return result.success


class ThriftRefusal(ServerBroken):
    """An exception of thrift's."""


SPEAKERS: tuple[type[Speaker], ...] = (Memcache, Text, Thrift)
