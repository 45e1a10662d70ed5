"""A client's socket: its state, the replies that wait for the disk or for the socket, and the sending of bytes.

The session executes requests; the hub decides when to read and write.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from enum import Enum

from staniel.broker.session import PARKED, READY, RequestParser, Session, SessionState
from staniel.protocol.limits import Limits
from staniel.queues.interfaces import TimerOwner
from staniel.server.client_socket import channel_of, send_pieces
from staniel.server.interfaces import Sock

UNSENT_BYTES_MAX = 1 << 20  # beyond this, nothing new is executed until the client has read some replies
READ_BYTES_MIN = 8 << 10  # the buffer of one read; it grows for clients that fill it
READ_BYTES_MAX = 512 << 10
# The bytes given to a socket in one turn: the kernel copies them while all other clients wait. Less than
# UNSENT_BYTES_MAX, because `send_held` does not set the poller's events: it serves only clients that are read from.
SEND_BYTES_MAX = 256 << 10
LONG_BYTES = 64 << 10  # a longer reply may have to let others go first
UNREAD_BYTES_MAX = 256 << 10  # beyond this behind a wait, a client is not read from until the wait ends
READABLE_OR_ENDED = select.EPOLLIN | select.EPOLLRDHUP
ENDED = select.EPOLLRDHUP
NOT_ANSWERED, WAITS_FOR_SYNC = -1, -2  # returned by `answer_now` instead of a number of bytes
# The same figures for what every request compares: compiled, these are C numbers (connection.pxd).
_SEND_BYTES_MAX, _LONG_BYTES, _UNSENT_BYTES_MAX = SEND_BYTES_MAX, LONG_BYTES, UNSENT_BYTES_MAX
_NOT_ANSWERED, _WAITS_FOR_SYNC = NOT_ANSWERED, WAITS_FOR_SYNC


class ConnectionState(Enum):
    """The remaining work for a client. `CONNECTION_TRANSITIONS` has the states that may follow, `POLL_EVENTS` the
    watched events.
    """

    OPEN = "open"  # requests are read and executed
    PEER_ENDED = "peer ended"  # the client has sent its last byte; its requests are still executed
    FLUSHING = "flushing"  # the same, nothing more is executed; closed once all replies have left
    DRAINING = "draining"  # we disconnect: nothing more is executed; our side is shut once all replies have left
    LINGERING = "lingering"  # our side is shut; further bytes are read and dropped, so that no reset overtakes the
    # last reply
    CLOSED = "closed"


OPEN = ConnectionState.OPEN  # a global is found ten times as fast as a member of an Enum
PEER_ENDED = ConnectionState.PEER_ENDED
FLUSHING = ConnectionState.FLUSHING
DRAINING = ConnectionState.DRAINING
LINGERING = ConnectionState.LINGERING
CLOSED = ConnectionState.CLOSED

CONNECTION_TRANSITIONS = {
    OPEN: frozenset((PEER_ENDED, DRAINING, CLOSED)),
    PEER_ENDED: frozenset((FLUSHING, CLOSED)),
    FLUSHING: frozenset((CLOSED,)),
    DRAINING: frozenset((LINGERING, CLOSED)),
    LINGERING: frozenset((CLOSED,)),
    CLOSED: frozenset[ConnectionState](),
}
POLL_EVENTS = {
    OPEN: READABLE_OR_ENDED,
    PEER_ENDED: 0,  # its end of file would wake us in every turn
    FLUSHING: 0,
    DRAINING: 0,
    LINGERING: READABLE_OR_ENDED,
}


class Connection:
    """A client's connection.

    `held` has replies that wait for the disk, oldest first, of `held_bytes` together; `unsent` is data that the socket
    has not taken yet, or if it is long, the first piece of it. `changed` collects connections whose pending bytes must
    be counted again.
    """

    __slots__ = (
        "_changed",
        "_channel",
        "_parser",
        "_rest",
        "_rest_bytes",
        "active_ms",
        "alarm",
        "events",
        "fd",
        "has_read",
        "held",
        "held_bytes",
        "read_bytes",
        "sends_much",
        "session",
        "sock",
        "state",
        "unread_bytes",
        "unsent",
    )

    def __init__(self, sock: Sock, session: Session, parser: RequestParser, changed: dict[Connection, None]) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.session = session
        self.events = READABLE_OR_ENDED  # watched by the poller
        self.state = OPEN
        self.held: deque[tuple[int, bytes]] = deque()
        self.held_bytes = 0
        # A view of the rest: a long reply is not copied for each piece that leaves.
        self.unsent: bytes | memoryview = b""
        self._rest: deque[bytes] = deque()  # the pieces behind `unsent`, which is empty only if there are none
        self._rest_bytes = 0
        self._parser = parser
        self._channel = channel_of(sock)
        self.unread_bytes = 0
        self.active_ms = 0  # the time of the last read
        self.has_read = False  # the client has read some reply since its time-out was last set
        self._changed = changed
        self.alarm: TimerOwner | None = None  # the idle or the linger time-out
        self.read_bytes = READ_BYTES_MIN
        # The client has once filled a read, or sent much before its first read, or requests for more than one turn.
        self.sends_much = False

    def enter(self, state: ConnectionState) -> None:
        """Change the state, as CONNECTION_TRANSITIONS allows it."""
        assert state in CONNECTION_TRANSITIONS[self.state], f"{self.state} cannot become {state}"
        self.state = state

    def serve(self, now_ms: int) -> int:
        """Read once and execute what has arrived. Return the number of bytes, 0 at the end of the stream, -1 if nothing
        had arrived.
        """
        try:
            data = self._channel.recv(self.read_bytes)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        size = len(data)
        self.active_ms = now_ms
        if size >= self.read_bytes:
            self.read_bytes = min(4 * size, READ_BYTES_MAX)
            self.sends_much = True
        if self.state is OPEN:
            session = self.session
            requests = self._parser.feed(data)
            if requests:
                session.execute(requests, now_ms)
                if session.backlog:
                    self.unread_bytes += size
                    self.sends_much = True  # its requests exceed a turn's time
                if self._parser.pending_bytes:
                    self._changed[self] = None  # the next request has begun in the same read
            else:
                self._changed[self] = None
                # An unfinished body behind a wait is no backlog yet.
                if session.backlog or session.state is not READY:
                    self.unread_bytes += size
        return size

    def answer_now(self, durable: int) -> int:
        """Handle the common cases in one step: the socket takes all replies, or all of them wait for the disk, or there
        are none.

        Return the number of bytes sent, WAITS_FOR_SYNC, or NOT_ANSWERED: then `collect` and `send` do the rest. Raises
        OSError if the client is gone.
        """
        session = self.session
        if self.unsent or session.backlog or self.state is not OPEN:
            return _NOT_ANSWERED
        out = session.out
        if session.state is not READY:
            has_just_parked = session.state is PARKED and not (out or self.held or self.unread_bytes)
            return 0 if has_just_parked and self.events == READABLE_OR_ENDED else _NOT_ANSWERED
        if not out:
            return _NOT_ANSWERED if self.held else 0
        if session.batch > durable:
            if session.out_bytes > _LONG_BYTES or self.held_bytes > _UNSENT_BYTES_MAX:
                return _NOT_ANSWERED
            data = out[0] if len(out) == 1 else b"".join(out)
            self.held.append((session.batch, data))
            self.held_bytes += len(data)
            if self.held_bytes > _LONG_BYTES:
                self._changed[self] = None
            out.clear()
            session.out_bytes = 0
            return _WAITS_FOR_SYNC
        if self.held or session.out_bytes > _SEND_BYTES_MAX:
            return _NOT_ANSWERED
        try:
            sent = send_pieces(self._channel, out, _SEND_BYTES_MAX)
        except BlockingIOError:
            return _NOT_ANSWERED
        if sent < 0:
            return _NOT_ANSWERED
        session.out_bytes = 0
        if not out:
            return sent
        self._count_sent(sent)
        self.unsent = memoryview(out.pop())
        return _NOT_ANSWERED

    def send_held(self, durable: int) -> bool:
        """Send all held replies after a sync, if the socket takes them: the common case. Return False otherwise; then
        nothing was done. Raises OSError if the client is gone.
        """
        held = self.held
        if self.unsent or held[-1][0] > durable or self.state is not OPEN or self.held_bytes > _SEND_BYTES_MAX:
            return False
        if self.session.backlog:
            return False  # the backlog may have waited for this sync
        data = held[0][1] if len(held) == 1 else b"".join([data for _, data in held])
        try:
            sent = self._channel.send(data)
        except BlockingIOError:
            return False
        held.clear()
        self.held_bytes = 0
        broker = self.session.broker
        broker.counters.bytes_written += sent
        if broker.unsent.by_session:
            broker.unsent.left(self.session, sent)
        if sent < len(data):
            self.unsent = memoryview(data)[sent:]
        return True

    def collect(self, durable: int) -> bool:
        """Take the session's replies. Return True if some of them must wait for the disk."""
        session = self.session
        out = session.out
        if out:
            pieces = gathered(out)
            session.clear_out()
            if self.held or session.batch > durable:
                self.held.extend([(session.batch, piece) for piece in pieces])
                self.held_bytes += sum([len(piece) for piece in pieces])
                return True
            self._append_unsent(pieces)
        return bool(self.held)

    def release(self, durable: int) -> bool:
        """Move replies that are durable now from `held` to `unsent`. Return True if some are still held."""
        held = self.held
        ready = []
        while held and held[0][0] <= durable:
            ready.append(held.popleft()[1])
        if ready:
            self.held_bytes -= sum([len(data) for data in ready])
            self._append_unsent(gathered(ready))
        return bool(held)

    def _append_unsent(self, pieces: list[bytes]) -> None:
        if not self._rest and len(pieces) == 1 and len(self.unsent) + len(pieces[0]) <= SEND_BYTES_MAX:
            self.unsent = b"".join((self.unsent, pieces[0])) if self.unsent else pieces[0]
            return
        self._rest.extend(pieces)
        self._rest_bytes += sum([len(piece) for piece in pieces])
        if not self.unsent:
            self._next_piece()

    def _next_piece(self) -> None:
        self.unsent = self._rest.popleft()
        self._rest_bytes -= len(self.unsent)

    def send(self) -> int:
        """Send as much as the socket takes, up to the limit. Return the number of bytes. Raises OSError if the client
        is gone.
        """
        total = 0
        while self.unsent and total < SEND_BYTES_MAX:
            size = len(self.unsent)
            long = size > SEND_BYTES_MAX
            try:
                sent = self._channel.send(memoryview(self.unsent)[:SEND_BYTES_MAX] if long else self.unsent)
            except BlockingIOError:
                break
            self.has_read = True
            self._count_sent(sent)
            total += sent
            if sent < size:
                self.unsent = memoryview(self.unsent)[sent:]
                break
            self.unsent = b""
            if self._rest:
                self._next_piece()
        return total

    def _count_sent(self, sent: int) -> None:
        broker = self.session.broker
        broker.counters.bytes_written += sent
        broker.unsent.left(self.session, sent)

    def limit(self, limits: Limits) -> None:
        """Change the limits for the client's further bytes."""
        self._parser.limit(limits)

    @property
    def begun_bytes(self) -> int:
        """The bytes of an unfinished request."""
        return self._parser.pending_bytes

    @property
    def owed_bytes(self) -> int:
        """The bytes stored for this client. A view of the end of a reply keeps the whole reply in memory."""
        unsent = self.unsent
        whole = unsent.obj if isinstance(unsent, memoryview) else unsent
        assert isinstance(whole, bytes)
        asked = max(self.unread_bytes, self.begun_bytes)  # a request begun behind a wait counts as unread too
        return self.held_bytes + len(whole) + self._rest_bytes + asked

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the socket has not taken yet."""
        return len(self.unsent) + self._rest_bytes

    @property
    def is_new(self) -> bool:
        """True if nothing has been read from it yet."""
        return not self.active_ms

    @property
    def may_begin(self) -> bool:
        """True if the client must continue a request that it has begun."""
        return self.begun_bytes > 0 and self.session.state is READY and not self.session.backlog

    @property
    def may_continue(self) -> bool:
        """True if the session may continue with its backlog: replies that the client does not read must not pile up."""
        return self.session.wants_turn and self._has_send_space

    @property
    def is_over(self) -> bool:
        """True if nothing more is to be executed: we disconnect, or the client has, and no work for it is left. A
        client that has closed its side while it waits for an item counts as gone: both look the same.
        """
        if self.state is OPEN:
            return self.session.state is SessionState.CLOSING
        if self.state is not PEER_ENDED:
            return False
        return not self.session.wants_turn and self.session.state is not SessionState.SUSPENDED

    @property
    def is_idle(self) -> bool:
        """True if the client must send next: it waits neither for an item nor for the disk."""
        return self.session.state is READY and not self.session.backlog and self.owes_nothing

    @property
    def wanted_events(self) -> int:
        """The events that the poller must watch. A client that has sent or is owed too much is not read from."""
        events = POLL_EVENTS[self.state]
        if events and not (self.unread_bytes < UNREAD_BYTES_MAX and self._has_send_space):
            events = ENDED
        return events | select.EPOLLOUT if self.unsent else events

    @property
    def _has_send_space(self) -> bool:
        """True if further replies may be made before the present ones have left."""
        return len(self.unsent) + self._rest_bytes + self.held_bytes < UNSENT_BYTES_MAX

    @property
    def is_long(self) -> bool:
        """True if the kernel takes long to copy the data to be sent."""
        return len(self.unsent) + self._rest_bytes + self.session.out_bytes > LONG_BYTES

    @property
    def owes_answers(self) -> bool:
        """True if some reply has not left."""
        return bool(self.unsent or self.held or self.session.out)

    @property
    def owes_nothing(self) -> bool:
        return not self.unsent and not self.held


Drop = Callable[[Connection, int], None]
"""A function that closes a connection at once, at a time in ms."""


def gathered(pieces: list[bytes]) -> list[bytes]:
    """Return the same bytes in few pieces: long pieces stay, short ones between two long ones are joined."""
    if len(pieces) == 1:
        return [pieces[0]]
    if sum(map(len, pieces)) <= SEND_BYTES_MAX:
        return [b"".join(pieces)]
    joined, short = [], list[bytes]()
    for piece in pieces:
        if len(piece) <= LONG_BYTES:
            short.append(piece)
            continue
        if short:
            joined.append(b"".join(short))
            short = []
        joined.append(piece)
    if short:
        joined.append(b"".join(short))
    return joined
