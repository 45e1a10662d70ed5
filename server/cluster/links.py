"""The connections between members: sockets that never block, with frames of messages on them."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable

from staniel.broker.config.addresses import TcpAddress, parse_address
from staniel.cluster.messages import GREETING, Message, MessageDecoder, encode_message
from staniel.server import keepalive
from staniel.server.cluster.reactor import Reactor
from staniel.server.interfaces import close_quietly
from staniel.server.sockets import StartError

BACKLOG = 64
READ_BYTES = 1 << 20
SEND_BYTES = 256 << 10
LINKS_MAX = 64  # connections of strangers, too
UNSENT_BYTES_MAX = 256 << 20
"""A member with so much unsent is disconnected. It comes back, and goes on where it was, or is repaired."""


class MemberLink:
    """A connection to another member. `unsent_bytes` waits for its socket, which has taken `sent_bytes`."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.decoder = MessageDecoder()
        self.unsent_bytes = self.sent_bytes = 0
        self.is_watched_for_writes = self.is_paused = False
        self._unsent: deque[bytes | memoryview] = deque()

    def put(self, data: bytes) -> None:
        """Have bytes sent."""
        self._unsent.append(data)
        self.unsent_bytes += len(data)

    def send(self) -> None:
        """Send what the socket takes. Raises OSError."""
        while self._unsent:
            data = self._unsent[0]
            try:
                sent = self.sock.send(memoryview(data)[:SEND_BYTES])
            except BlockingIOError:
                return
            self.unsent_bytes -= sent
            self.sent_bytes += sent
            if sent < len(data):
                self._unsent[0] = memoryview(data)[sent:]
            else:
                self._unsent.popleft()


class Links:
    """All connections to other members, by number. `on_message` gets each message, `on_end` the number of a connection
    that has ended by itself, `on_drained` is called when a socket has taken all.
    """

    def __init__(
        self,
        reactor: Reactor,
        timeout_ms: int,
        on_message: Callable[[int, Message], None],
        on_end: Callable[[int, str], None],
        on_drained: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._timeout_ms = timeout_ms
        self._on_message, self._on_end, self._on_drained = on_message, on_end, on_drained
        self._links: dict[int, MemberLink] = {}
        self._number = 0
        self._listening: socket.socket | None = None

    def listen(self, address: str) -> None:
        """Accept other members' connections. Raises StartError."""
        where = parse_address(address)
        assert isinstance(where, TcpAddress)
        sock = socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((where.host, where.port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise StartError(f"cannot listen on {address} ([cluster] listen): {error.strerror or error}") from error
        sock.setblocking(False)
        self._listening = sock
        self._reactor.dispatcher.watch(sock.fileno(), select.EPOLLIN, self._accept)

    def _accept(self, now_ms: int) -> None:
        assert self._listening is not None
        try:
            sock, _ = self._listening.accept()
        except OSError:
            return  # the peer is gone, or there are no descriptors: it comes again
        if len(self._links) >= LINKS_MAX:
            close_quietly(sock)
            return
        self.add(sock)

    def add(self, sock: socket.socket) -> int:
        """Take over a connected socket. Return its number."""
        self._number += 1
        link = self._links[self._number] = MemberLink(self._number, sock)
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keepalive.configure(sock, 2 * self._timeout_ms, 2 * self._timeout_ms)
        except OSError:
            pass  # it is gone: the first read says so
        self._reactor.dispatcher.watch(sock.fileno(), select.EPOLLIN, lambda now_ms: self._on_ready(link))
        self._send(link, GREETING)
        return link.number

    def has(self, number: int) -> bool:
        """Tell whether a connection is there still."""
        return number in self._links

    def send(self, number: int, message: Message) -> None:
        """Send a message, unless the connection has ended."""
        link = self._links.get(number)
        if link is not None:
            self._send(link, encode_message(message))

    def unsent_bytes(self, number: int) -> int:
        """Return how much waits for a connection's socket."""
        link = self._links.get(number)
        return 0 if link is None else link.unsent_bytes

    def sent_bytes(self, number: int) -> int:
        """Return how much a connection's socket has taken."""
        link = self._links.get(number)
        return 0 if link is None else link.sent_bytes

    def pause(self, number: int, *, is_paused: bool) -> None:
        """Stop reading from a connection, and writing what its socket does not take at once, or go on."""
        link = self._links.get(number)
        if link is None or link.is_paused == is_paused:
            return
        link.is_paused = is_paused
        if is_paused:  # its end would be an event in every turn, if it were watched
            self._reactor.dispatcher.unwatch(link.sock.fileno())
        else:
            link.is_watched_for_writes = False
            self._reactor.dispatcher.watch(link.sock.fileno(), select.EPOLLIN, lambda now_ms: self._on_ready(link))
            self._flush(link)

    def close(self, number: int) -> None:
        """Close a connection, once what its socket takes at once is sent."""
        link = self._links.pop(number, None)
        if link is not None:
            self._reactor.dispatcher.unwatch(link.sock.fileno())
            close_quietly(link.sock)

    def close_all(self) -> None:
        """Close everything."""
        for number in list(self._links):
            self.close(number)
        if self._listening is not None:
            self._reactor.dispatcher.unwatch(self._listening.fileno())
            close_quietly(self._listening)
            self._listening = None

    def _send(self, link: MemberLink, data: bytes) -> None:
        link.put(data)
        if link.unsent_bytes > UNSENT_BYTES_MAX:
            self._end(link, "it does not read")
        elif not (link.is_watched_for_writes or link.is_paused):
            self._flush(link)

    def _flush(self, link: MemberLink) -> None:
        try:
            link.send()
        except OSError as error:
            self._end(link, error.strerror or str(error))
            return
        wants_writes = bool(link.unsent_bytes)
        if wants_writes != link.is_watched_for_writes:
            link.is_watched_for_writes = wants_writes
            mask = select.EPOLLIN | (select.EPOLLOUT if wants_writes else 0)
            self._reactor.dispatcher.change_events(link.sock.fileno(), mask)
            if not wants_writes:
                self._on_drained()

    def _on_ready(self, link: MemberLink) -> None:
        if link.is_watched_for_writes:
            self._flush(link)
        try:
            data = link.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(link, error.strerror or str(error))
            return
        if not data:
            self._end(link, "the peer has closed it")
            return
        for message in link.decoder.feed(data):
            if link.number not in self._links:
                return
            self._on_message(link.number, message)
        if link.decoder.failure and link.number in self._links:
            self._end(link, link.decoder.failure)

    def _end(self, link: MemberLink, why: str) -> None:
        if link.number in self._links:
            self.close(link.number)
            self._on_end(link.number, why)
