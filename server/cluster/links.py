"""The connections between members: sockets that never block, with frames of messages on them, under TLS if [cluster]
has a certificate.

A connection is a stranger's until its first message was taken: a member that has connected says it at once. Strangers
have little time and few bytes, and a newer one takes the place of the oldest, so that they keep no member out.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable, Iterable

from staniel.broker.config.addresses import TcpAddress, parse_address
from staniel.cluster.messages import GREETING, Message, MessageDecoder, encode_message
from staniel.server import keepalive
from staniel.server.cluster.member_tls import MemberSecurity
from staniel.server.cluster.reactor import Reactor
from staniel.server.interfaces import Sock, close_quietly
from staniel.server.sockets import StartError
from staniel.server.tls_socket import TlsSocket

BACKLOG = 64
READ_BYTES = 1 << 20
SEND_BYTES = 256 << 10
LINKS_MAX = 64  # connections of members
STRANGERS_MAX = 16
STRANGERS_PER_ADDRESS = 4
STRANGER_MS = 5_000
STRANGER_BYTES_MAX = 64 << 10  # a member's first message has 20 KB at most
HANDSHAKE_BYTES = 16 << 10
TOO_MUCH = "it has sent too much before its first message"
UNSENT_BYTES_MAX = 256 << 20
"""A member with so much unsent is disconnected. It comes back, and goes on where it was, or is repaired."""


class MemberLink:
    """A connection to another member. `unsent_bytes` waits for its socket, which has taken `sent_bytes`. `until_ms`:
    when a stranger is dropped; None: a member. `tls`: set while its handshake goes on.
    """

    def __init__(self, number: int, sock: Sock, address: str, until_ms: int | None) -> None:
        self.number = number
        self.sock = sock
        self.address = address
        self.until_ms = until_ms
        self.read_bytes = 0
        self.tls: TlsSocket | None = None
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
    that has ended by itself, `on_drained` is called when a socket has taken all. `security` None: without TLS.
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
        self.security: MemberSecurity | None = None

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
            sock, peer = self._listening.accept()
        except OSError:
            return  # the peer is gone, or there are no descriptors: it comes again
        address = str(peer[0])
        strangers = [link for link in self._links.values() if link.until_ms is not None]  # the oldest first
        neighbours = [link for link in strangers if link.address == address]
        if len(self._links) - len(strangers) >= LINKS_MAX:
            close_quietly(sock)
            return
        if len(neighbours) >= STRANGERS_PER_ADDRESS:
            self._end(neighbours[0], "its address has too many connections that have said nothing")
        elif len(strangers) >= STRANGERS_MAX:
            self._end(strangers[0], "there are too many connections that have said nothing")
        self._add(sock, address, now_ms + STRANGER_MS)

    def drop_late(self, now_ms: int) -> None:
        """Drop the strangers whose time is over."""
        for link in list(self._links.values()):
            if link.until_ms is not None and link.until_ms <= now_ms:
                self._end(link, "it has said nothing")

    def add(self, sock: socket.socket) -> int:
        """Take over a socket that this member has connected. Return its number."""
        return self._add(sock, "", None)

    def _add(self, sock: socket.socket, address: str, until_ms: int | None) -> int:
        self._number += 1
        sock.setblocking(False)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keepalive.configure(sock, 2 * self._timeout_ms, 2 * self._timeout_ms)
        except OSError:
            pass  # it is gone: the first read says so
        link = MemberLink(self._number, sock, address, until_ms)
        if self.security is not None:
            link.sock = link.tls = self.security.wrap(sock, is_client=until_ms is None)
        self._links[link.number] = link
        self._reactor.dispatcher.watch(sock.fileno(), select.EPOLLIN, lambda now_ms: self._on_ready(link))
        self._send(link, GREETING)
        if link.tls is not None and until_ms is None:
            self._continue_handshake(link, link.tls)
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
        elif not (link.is_watched_for_writes or link.is_paused) and link.tls is None:
            self._flush(link)

    def _continue_handshake(self, link: MemberLink, tls: TlsSocket) -> None:
        try:
            is_done = tls.handshake(HANDSHAKE_BYTES)
        except OSError as error:
            self._end(link, error.strerror or str(error))
            return
        if link.until_ms is not None and tls.read_bytes > STRANGER_BYTES_MAX:
            self._end(link, TOO_MUCH)
        elif is_done and not tls.wants_write:
            link.tls = None
            self._flush(link)
            self._watch_for_writes(link, is_wanted=bool(link.unsent_bytes))
            self._receive(link)  # what has come with the end of the handshake is not in the kernel any more
        else:
            self._watch_for_writes(link, is_wanted=tls.wants_write)

    def _watch_for_writes(self, link: MemberLink, *, is_wanted: bool) -> None:
        if link.number in self._links and is_wanted != link.is_watched_for_writes:
            link.is_watched_for_writes = is_wanted
            mask = select.EPOLLIN | (select.EPOLLOUT if is_wanted else 0)
            self._reactor.dispatcher.change_events(link.sock.fileno(), mask)

    def _flush(self, link: MemberLink) -> None:
        try:
            link.send()
        except OSError as error:
            self._end(link, error.strerror or str(error))
            return
        wants_writes = bool(link.unsent_bytes)
        if wants_writes != link.is_watched_for_writes:
            self._watch_for_writes(link, is_wanted=wants_writes)
            if not wants_writes:
                self._on_drained()

    def _on_ready(self, link: MemberLink) -> None:
        if link.tls is not None:
            self._continue_handshake(link, link.tls)
            return
        if link.is_watched_for_writes:
            self._flush(link)
        self._receive(link)

    def _receive(self, link: MemberLink) -> None:
        if link.number not in self._links:
            return
        is_stranger = link.until_ms is not None
        try:
            data = link.sock.recv(STRANGER_BYTES_MAX if is_stranger else READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(link, error.strerror or str(error))
            return
        if not data:
            self._end(link, "the peer has closed it")
            return
        self._take_messages(link, link.decoder.feed(data))
        link.read_bytes += len(data)
        if link.decoder.failure and link.number in self._links:
            self._end(link, link.decoder.failure)
        elif link.until_ms is not None and link.read_bytes >= STRANGER_BYTES_MAX and link.number in self._links:
            self._end(link, TOO_MUCH)

    def _take_messages(self, link: MemberLink, messages: Iterable[Message]) -> None:
        for message in messages:
            if link.number not in self._links:
                return
            self._on_message(link.number, message)
            link.until_ms = None  # a message that was not taken has ended the connection

    def _end(self, link: MemberLink, why: str) -> None:
        if link.number in self._links:
            self.close(link.number)
            self._on_end(link.number, why)
