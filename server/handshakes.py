"""TLS handshakes of clients, a few in each turn.

A connection with a session exists only after the handshake; until then a socket's cost is bounded here. A handshake
takes up to a millisecond of OpenSSL's time, as much as a hundred requests. With a few in each turn, a crowd of new
clients does not delay the connected ones.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from staniel.broker.events import CLIENT_EVENTS_MAX, EventSink, Level, RateLimitedSink
from staniel.broker.timers import Timers
from staniel.server.connection_limits import ConnectionLimits
from staniel.server.dispatcher import Dispatcher
from staniel.server.interfaces import HandshakeError, SecureSock, Sock
from staniel.server.listener import Endpoint
from staniel.server.read_schedule import ReadSchedule
from staniel.server.timeouts import Grace

Admit = Callable[[SecureSock, str, Endpoint, tuple[str, ...], int], None]
"""A function that serves a client whose handshake is done: its socket, address, endpoint, names in its certificate, and
the time in ms.
"""

# A client's certificate chain has some 5 KB, and OpenSSL accepts 100 KB.
HANDSHAKE_BYTES_MAX = 128 << 10
READ_BYTES = 16 << 10
# Unfinished ones. An honest client takes two round trips: if there are more, the oldest have stopped.
HANDSHAKES_MAX = 1024
TURN_NS = 2_000_000  # all steps of one turn; the last one may exceed it
WORK = 5_000  # a step in the timers' unit: some ten steps a turn, whatever the clock


class Handshake:
    """A handshake. `heard_ms` is when the client last sent bytes, or took some."""

    def __init__(self, owner: Handshakes, sock: SecureSock, name: str, endpoint: Endpoint, timeout_ms: int) -> None:
        self.owner = owner
        self.sock = sock
        self.fd = sock.fileno()
        self.name = name
        self.endpoint = endpoint
        self.watched = select.EPOLLIN
        self.heard_ms = self.due_ms = 0
        self.grace = Grace(timeout_ms)

    def on_timer(self, now_ms: int) -> None:
        self.owner.time_out(self, now_ms)


class Handshakes:
    """The unfinished handshakes. `done` and `refused` count those that have ended. Each ends with a call of `admit`, or
    its socket is dropped, and its connection does not count any more.
    """

    def __init__(
        self,
        timers: Timers,
        dispatcher: Dispatcher,
        schedule: ReadSchedule,
        limits: ConnectionLimits,
        report: EventSink,
        admit: Admit,
        elapsed_ns: Callable[[], int],
    ) -> None:
        self._timers = timers
        self._dispatcher = dispatcher
        self._schedule = schedule
        self._limits = limits
        self._admit = admit
        self._elapsed_ns = elapsed_ns
        self._rate_limited = RateLimitedSink(report, CLIENT_EVENTS_MAX)
        self._under_way: dict[int, Handshake] = {}  # by descriptor, the oldest first
        self._ready: dict[int, None] = {}
        self.done = self.refused = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def time_out(self, handshake: Handshake, now_ms: int) -> None:
        """End a handshake that timed out, unless its client has just sent something, or its bytes are still unread."""
        if self._schedule.heard_ms < handshake.due_ms:
            self._timers.set(handshake, now_ms)
            return
        heard_ms = now_ms if self._schedule.is_postponed(handshake.fd) else handshake.heard_ms
        until_ms = handshake.grace.until_ms(heard_ms)
        if until_ms > self._schedule.heard_ms:
            handshake.due_ms = until_ms
            self._timers.set(handshake, max(until_ms, now_ms))
            return
        self._limits.reached.count("handshake_timeout")
        self.refuse(handshake, "its handshake did not end within [tls] handshake_timeout", now_ms)

    def begin_handshake(self, endpoint: Endpoint, plain: Sock, name: str, now_ms: int) -> None:
        """Begin the handshake of a new client."""
        security = endpoint.security
        assert security is not None, "a client of a plain endpoint has no handshake"
        try:
            sock = security.wrap(plain)
        except OSError as error:
            self._log_refusal(endpoint, name, error.strerror or str(error), now_ms)
            self._drop(plain, name, now_ms)
            return
        if len(self._under_way) >= HANDSHAKES_MAX:
            oldest = next(iter(self._under_way.values()))
            self._limits.reached.count("max_handshakes")
            self.refuse(oldest, "there were too many handshakes at a time, and this was the oldest", now_ms)
        handshake = Handshake(self, sock, name, endpoint, security.timeout_ms)
        self._under_way[handshake.fd] = handshake
        try:
            self._dispatcher.watch(handshake.fd, handshake.watched, lambda now_ms: self._on_ready(handshake, now_ms))
        except OSError as error:
            self.refuse(handshake, f"cannot watch its socket: {error.strerror}", now_ms)
            return
        handshake.due_ms = now_ms + security.timeout_ms
        self._timers.set(handshake, handshake.due_ms)

    def close(self) -> None:
        """Close all handshakes when the server stops."""
        for handshake in list(self._under_way.values()):
            self._forget(handshake)
            handshake.sock.close()

    def _on_ready(self, handshake: Handshake, now_ms: int) -> None:
        handshake.heard_ms = now_ms
        self._ready[handshake.fd] = None
        self._timers.soon(self)

    def on_timer(self, now_ms: int) -> int:
        """Continue the handshakes that can continue, up to a turn's share of time. Return the work done."""
        work, until_ns = 0, self._elapsed_ns() + TURN_NS
        while self._ready and (not work or self._elapsed_ns() < until_ns):
            fd = next(iter(self._ready))
            del self._ready[fd]
            self._continue_handshake(self._under_way[fd], now_ms)
            work += WORK
        if self._ready:
            self._timers.soon(self)
        return work

    def _continue_handshake(self, handshake: Handshake, now_ms: int) -> None:
        sock = handshake.sock
        try:
            is_done = sock.handshake(READ_BYTES)
            names = sock.names() if is_done else ()
        except HandshakeError as error:
            self.refuse(handshake, str(error), now_ms)
            return
        except OSError as error:
            self.refuse(handshake, error.strerror or "gone", now_ms)
            return
        if is_done and not sock.wants_write:
            self._forget(handshake)
            self.done += 1
            self._admit(sock, handshake.name, handshake.endpoint, names, now_ms)
            return
        if sock.read_bytes > HANDSHAKE_BYTES_MAX:
            self.refuse(handshake, f"it sent more than {HANDSHAKE_BYTES_MAX} bytes before its handshake ended", now_ms)
            return
        wanted = select.EPOLLOUT if sock.wants_write else select.EPOLLIN
        if wanted != handshake.watched:
            handshake.watched = wanted
            try:
                self._dispatcher.change_events(handshake.fd, wanted)
            except OSError as error:
                self.refuse(handshake, f"cannot watch its socket: {error.strerror}", now_ms)

    def refuse(self, handshake: Handshake, why: str, now_ms: int) -> None:
        """Log why, and disconnect."""
        self._log_refusal(handshake.endpoint, handshake.name, why, now_ms)
        self._forget(handshake)
        self._drop(handshake.sock, handshake.name, now_ms)

    def _drop(self, sock: Sock, client: str, now_ms: int) -> None:
        self._dispatcher.dropped.append(sock)
        self._limits.remove(client, now_ms)

    def _log_refusal(self, endpoint: Endpoint, client: str, why: str, now_ms: int) -> None:
        self.refused += 1
        address = endpoint.acceptor.name
        self._rate_limited(Level.WARNING, "tls.refused", now_ms, client=client, address=address, why=why)

    def _forget(self, handshake: Handshake) -> None:
        del self._under_way[handshake.fd]
        self._ready.pop(handshake.fd, None)
        self._timers.drop(handshake)
        self._dispatcher.unwatch(handshake.fd)
