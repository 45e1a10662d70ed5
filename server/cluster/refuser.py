"""The listeners of a member that does not lead: each client is told who leads, in the words of its protocol."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable

from staniel.broker.session import ProtocolSpec
from staniel.server.cluster.reactor import Reactor
from staniel.server.interfaces import SecureSock, Security, Sock, close_quietly
from staniel.server.spool_socket import credentials

READ_BYTES = 64 << 10
REQUEST_BYTES_MAX = 128 << 10  # of an operator's request
CLIENTS_MAX = 500
CLIENT_MS = 60_000
LINGER_MS = 5_000

Reply = Callable[[bytes, bool, tuple[str, ...]], bytes | None]
"""A function of an operator's request so far, whether it came over the spool's socket, and the names in the client's
certificate. None: it is not whole.
"""


class Refusal:
    """A client that is refused once it asks. `until_ms`: when it is dropped. `tls`: set while its handshake goes on.
    `unsent`: what its socket has not taken yet.
    """

    def __init__(self, sock: Sock, protocol: ProtocolSpec, is_of_spool: bool, until_ms: int) -> None:
        self.sock = sock
        self.protocol = protocol
        self.is_of_spool = is_of_spool
        self.until_ms = until_ms
        self.tls: SecureSock | None = None
        self.certificate: tuple[str, ...] = ()
        self.asked = b""
        self.unsent = b""
        self.is_told = False


class Refuser:
    """The refusals. `leader` returns the address of the leader, "" if none is known; `reply` serves operators. `uids`:
    the users whose programs may connect to the spool's socket, whose name any program of the machine can reach.
    `security`: of the listening sockets in `secure`, whose clients are refused under TLS.
    """

    def __init__(self, reactor: Reactor, leader: Callable[[], str], reply: Reply, uids: frozenset[int]) -> None:
        self._reactor = reactor
        self._uids = uids
        self._leader = leader
        self._reply = reply
        self._listening: list[int] = []
        self._clients: dict[int, Refusal] = {}
        self.secure: frozenset[socket.socket] = frozenset()
        self.security: Security | None = None

    def listen(self, sockets: Iterable[tuple[socket.socket, ProtocolSpec]], of_spool: socket.socket | None) -> None:
        """Accept clients; the sockets listen already."""
        for sock, protocol in sockets:
            sock.setblocking(False)
            self._listening.append(sock.fileno())
            self._reactor.dispatcher.watch(
                sock.fileno(),
                select.EPOLLIN,
                lambda now_ms, sock=sock, protocol=protocol: self._accept(sock, protocol, sock is of_spool, now_ms),  # type: ignore[misc]
            )

    def close(self) -> None:
        """Stop accepting, and drop all clients. The listening sockets stay open: a leader's hub accepts next."""
        for fd in self._listening:
            self._reactor.dispatcher.unwatch(fd)
        self._listening.clear()
        for client in list(self._clients.values()):
            self._drop(client)

    def drop_late(self, now_ms: int) -> None:
        """Drop the clients whose time is over."""
        for client in [client for client in self._clients.values() if client.until_ms <= now_ms]:
            self._drop(client)

    def _accept(self, listening: socket.socket, protocol: ProtocolSpec, is_of_spool: bool, now_ms: int) -> None:
        try:
            sock, _ = listening.accept()
        except OSError:
            return
        if len(self._clients) >= CLIENTS_MAX or (is_of_spool and not self._may_order(sock)):
            close_quietly(sock)
            return
        sock.setblocking(False)
        client = self._clients[sock.fileno()] = Refusal(sock, protocol, is_of_spool, now_ms + CLIENT_MS)
        if listening in self.secure:
            assert self.security is not None
            client.sock = client.tls = self.security.wrap(sock)
            client.until_ms = now_ms + self.security.timeout_ms
        self._reactor.dispatcher.watch(sock.fileno(), select.EPOLLIN, lambda now_ms: self._serve(client, now_ms))

    def _may_order(self, sock: socket.socket) -> bool:
        try:
            return credentials(sock)[1] in self._uids
        except OSError:
            return False

    def _serve(self, client: Refusal, now_ms: int) -> None:
        if client.tls is not None and not self._continue_handshake(client, client.tls, now_ms):
            return
        if client.unsent:
            self._send(client)
            return
        try:
            data = client.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client)
            return
        if client.is_told:
            return  # what comes behind the refusal is read, so that no reset overtakes it
        client.asked += data
        words = self._words_for(client)
        if words is None and len(client.asked) <= REQUEST_BYTES_MAX:
            return
        client.unsent, client.is_told = words or (b"", True)
        client.asked = b""
        if client.is_told:
            client.until_ms = now_ms + LINGER_MS
        self._send(client)

    def _continue_handshake(self, client: Refusal, tls: SecureSock, now_ms: int) -> bool:
        """Continue a handshake. Return True if it is done."""
        try:
            is_done = tls.handshake(READ_BYTES) and not tls.wants_write
            client.certificate = tls.names() if is_done else ()
        except OSError:
            self._drop(client)
            return False
        if is_done:
            client.tls, client.until_ms = None, now_ms + CLIENT_MS
        elif tls.read_bytes > REQUEST_BYTES_MAX:
            self._drop(client)
            return False
        self._watch_for_writes(client, is_wanted=tls.wants_write)
        return is_done

    def _send(self, client: Refusal) -> None:
        """Send what the client's socket takes, and end the stream behind it, unless the client has to ask once more."""
        try:
            while client.unsent:
                client.unsent = client.unsent[client.sock.send(client.unsent) :]
            self._watch_for_writes(client, is_wanted=False)
            if client.is_told:
                client.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            self._watch_for_writes(client, is_wanted=True)
        except OSError:
            self._drop(client)

    def _watch_for_writes(self, client: Refusal, *, is_wanted: bool) -> None:
        mask = select.EPOLLIN | (select.EPOLLOUT if is_wanted else 0)
        self._reactor.dispatcher.change_events(client.sock.fileno(), mask)

    def _words_for(self, client: Refusal) -> tuple[bytes, bool] | None:
        """Return the reply, and whether it is all that the client gets; None: its request is not whole."""
        if client.protocol.name == "admin":
            reply = self._reply(client.asked, client.is_of_spool, client.certificate)
            return None if reply is None else (reply, True)
        why = refusal_text(self._leader())
        if client.protocol.refusal is not None:
            return client.protocol.refusal(client.asked, why)
        return client.protocol.farewell(why), True

    def _drop(self, client: Refusal) -> None:
        self._clients.pop(client.sock.fileno(), None)
        self._reactor.dispatcher.unwatch(client.sock.fileno())
        self._reactor.dispatcher.dropped.append(client.sock)


def refusal_text(leader: str) -> str:
    """Return why a member refuses all requests: client/cluster.py reads the address in it."""
    return f"not the leader: {leader}" if leader else "not the leader"
