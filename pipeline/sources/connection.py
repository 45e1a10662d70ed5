"""Blocking connections to a live server, for tasks and the driver: protocol/client with a socket. That for jobs is in
job_connection.py.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from staniel.pipeline.sources.access import PLAIN, Access
from staniel.protocol.client.conversation import Conversation
from staniel.protocol.client.login import must_log_in
from staniel.protocol.client.replies import Answer, Dump, Error, Fault, Item, ProtocolViolation, Reply, StatsReply
from staniel.protocol.client.requests import read
from staniel.protocol.escaping import ascii_word
from staniel.protocol.memcache import requests as memcache

PORT = 22133
RECEIVE_BYTES = 1 << 18
QUEUE_HEAD = re.compile(r"queue '(.*)' \{")


class ServerLost(Exception):
    """The server cannot be reached, closed the connection, or broke the protocol. A request may have been executed."""


class ServerRefused(Exception):
    """The server refused a request, in its own words, or the connection: repeating it would not help."""


class ProtocolBroken(ServerLost):
    """The server sent bytes that are no reply to the request."""


def address(text: str, default: int = PORT) -> tuple[str, int]:
    """Parse `host:port`; the port may be left out. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, default
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"a server is host:port, not {text!r}")
    return host.strip("[]"), int(port)


AnyRequest = TypeVar("AnyRequest")
AnyReply = TypeVar("AnyReply")
SomeRequest = TypeVar("SomeRequest", contravariant=True)
SomeReply = TypeVar("SomeReply", covariant=True)


class Talk(Protocol[SomeRequest, SomeReply]):
    """The client's half of a protocol, without a socket."""

    @property
    def unanswered(self) -> int: ...
    def send(self, *requests: SomeRequest) -> bytes: ...
    def receive(self, data: bytes) -> Sequence[SomeReply]: ...


class ServerConnection(Generic[AnyRequest, AnyReply]):
    """A connection over one socket. Every method raises ServerLost, and then closes it."""

    PORT = PORT

    def __init__(
        self, server: str, talk: Talk[AnyRequest, AnyReply], timeout_s: float = 30.0, access: Access = PLAIN
    ) -> None:
        """Connect. Raises ServerLost; ServerRefused if another try would not help; AccessError for an unusable file of
        `access`.
        """
        self.server = server
        self._conversation = talk
        try:
            self._socket = access.connect(address(server, self.PORT), timeout_s)
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise ServerLost(f"{server} hung up amid the TLS handshake; is that its tls_port?") from error
        except ssl.SSLCertVerificationError as error:
            why = f"{server}: its certificate is not accepted: {error.verify_message.rstrip('.')}"
            raise ServerRefused(f"{why}; caFile names its authority") from error
        except ssl.SSLError as error:
            raise ServerRefused(f"{server}: no TLS: {error.reason or error}; is that its tls_port?") from error
        except OSError as error:
            raise ServerLost(f"no answer from {server}: {error}") from error
        try:
            self._greet(access)
        except BaseException:
            self.close()
            raise

    def _greet(self, access: Access) -> None:
        """Send the first request, and log in. Raises what the constructor raises."""

    def _ask_first(self, request: AnyRequest) -> AnyReply:
        """Send the first request. Raises ServerRefused if the server does not accept the certificate."""
        try:
            (reply,) = self.ask(request)
            return reply
        except ServerLost as lost:
            refusal = lost.__cause__  # in TLS 1.3 a client learns only now that its certificate was refused
            if isinstance(refusal, ssl.SSLError) and not isinstance(refusal, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                why = f"{self.server} refuses TLS: {refusal.reason or refusal}"
                raise ServerRefused(f"{why}; give certificateFile, or another one") from refusal
            raise

    def send(self, requests: Sequence[AnyRequest]) -> None:
        """Send, without waiting for replies."""
        try:
            self._socket.sendall(self._conversation.send(*requests))
        except OSError as error:
            self._fail(f"{self.server}: {error}")

    def receive(self) -> list[AnyReply]:
        """Return the replies to all requests sent so far."""
        return [reply for some in self._replies() for reply in some]

    def _replies(self) -> Iterator[list[AnyReply]]:
        """Yield the replies as they come, so that a caller need not store them."""
        while self._conversation.unanswered:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError as error:
                self._fail(f"{self.server}: {error}", error)
            if not data:
                self._fail(f"{self.server} hung up")
            replies = self._conversation.receive(data)
            if replies and isinstance(bad := replies[-1], ProtocolViolation):
                self.close()
                raise ProtocolBroken(f"{self.server} said {bad.line[:80]!r}: {bad.why}")
            yield list(replies)

    def ask(self, *requests: AnyRequest) -> list[AnyReply]:
        self.send(requests)
        return self.receive()

    def close(self) -> None:
        self._socket.close()

    def _fail(self, why: str, cause: OSError | None = None) -> NoReturn:
        self.close()
        raise ServerLost(why) from cause


class BlockingConnection(ServerConnection[memcache.Request, Reply]):
    """A connection for items."""

    def __init__(self, server: str, timeout_s: float = 30.0, access: Access = PLAIN) -> None:
        """Connect and log in. Raises what the base class raises."""
        super().__init__(server, Conversation(), timeout_s, access)

    def _greet(self, access: Access) -> None:
        if not must_log_in(self._ask_first(memcache.Version())):
            return
        if not access.user:
            raise ServerRefused(f"{self.server} asks who its clients are: give user and tokenFile, or certificateFile")
        (reply,) = self.ask(access.login())
        if isinstance(reply, Error):
            why = f"{self.server} does not let {access.user} in: {reply.fault.value} {reply.why}"
            raise ServerLost(why) if reply.fault is Fault.SERVER else ServerRefused(why)  # too many logins: again

    def request_reads(self, queue: str, count: int, wait_ms: int) -> None:
        """Ask for up to `count` open reads; the first may wait."""
        first = read(queue, wait_ms, open=True, with_id=True)
        self.send([first, *[read(queue, open=True, with_id=True)] * (count - 1)])

    def receive_items(self, most: int, most_bytes: int) -> tuple[list[Item], bool]:
        """Return the items that `request_reads` has opened, up to `most` items or `most_bytes` of payload, and True if
        more came.

        The others go back to the queue when the connection is closed; if no item was kept, this method closes it.
        Raises ServerRefused if an error came before any item.
        """
        items: list[Item] = []
        more = False
        for replies in self._replies():
            for reply in replies:
                if isinstance(reply, Item):
                    if most_bytes > 0 and len(items) < most:
                        items.append(reply)
                        most_bytes -= len(reply.data)
                    else:
                        more = True
                elif isinstance(reply, Error) and not items and not more:
                    raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}")
            if more and not items:
                self.close()  # no item will be confirmed, so the rest need not be read
                break
        return items, more

    def confirm(self, queue: str, count: int) -> None:
        """Close the `count` oldest open reads. Raises ServerRefused if the server no longer has them."""
        (reply,) = self.ask(memcache.Confirm(queue, count))
        if reply is Answer.END:
            return
        for reply in self.ask(*[read(queue, close=True)] * count):  # for servers before 2.2
            if reply is not Answer.END:
                raise ServerRefused(f"{self.server}: {reply}")

    def queue_items(self, queues: Sequence[str]) -> dict[str, int]:
        """Return the server's item counts of those of the queues that it has. Raises ServerRefused."""
        (reply,) = self.ask(memcache.Stats())
        if isinstance(reply, StatsReply):
            stats = reply.values
            return {queue: int(count) for queue in queues if (count := _printed(stats, f"queue_{queue}_items"))}
        (reply,) = self.ask(memcache.DumpStats(tuple(queues)))  # for users who may not read all queues
        if isinstance(reply, Dump):
            counts = _dumped_items(reply.lines)
            return {queue: int(count) for queue in queues if (count := _printed(counts, queue))}
        if isinstance(reply, Error):
            raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}")
        raise ServerLost(f"{self.server}: no stats: {reply}")


def _printed(values: Mapping[str, str], name: str) -> str | None:
    """Return the value under `name` as a server prints it: Kestrel escapes nothing."""
    return values.get(ascii_word(name)) or values.get(name)


def _dumped_items(lines: Sequence[str]) -> dict[str, str]:
    """Return the item counts by printed name. A queue that does not exist has a block without lines."""
    counts: dict[str, str] = {}
    queue = ""
    for line in lines:
        if head := QUEUE_HEAD.fullmatch(line.strip()):
            queue = head[1]
        elif line.strip().startswith("items="):
            counts[queue] = line.strip().removeprefix("items=")
    return counts
