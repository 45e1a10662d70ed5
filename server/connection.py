"""One client's socket: what it has sent, what it is owed, and what may leave.

Knows bytes and the two ends of a connection. Refuses to know requests (the session's) and when to poll (the hub's).
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from staniel.broker.session import READY, RequestParser, Session, SessionState
from staniel.broker.timers import TimerOwner
from staniel.protocol.limits import Limits
from staniel.server.interfaces import Sock

UNSENT_BYTES_MAX = 1 << 20  # owed more than this, a client gets nothing new until it has read some
READ_BYTES_MIN = 8 << 10  # the buffer of one read; it grows for clients that fill it
READ_BYTES_MAX = 512 << 10
# Given to a socket in one tick: the kernel copies it while everybody else waits. Less than UNSENT_BYTES_MAX, because
# `send_held` is for clients that are listened to.
SEND_BYTES_MAX = 256 << 10
LONG_BYTES = 64 << 10  # a reply that may have to let others go first
UNREAD_BYTES_MAX = 256 << 10  # sent more than this behind a wait, a client is not listened to until its turn comes


class ConnectionState(Enum):
    OPEN = "open"
    PEER_ENDED = "peer ended"  # the client has sent its last byte; what it has asked for is still done
    DRAINING = "draining"  # nothing more is executed; what is owed still leaves
    LINGERING = "lingering"  # our side is shut; what the client still sends is read and dropped, so that no reset
    # overtakes our last reply
    CLOSED = "closed"


OPEN = ConnectionState.OPEN  # a global is found ten times as fast as a member of an Enum


class Connection:
    """`held` are replies that wait for the disk, oldest first, of `held_bytes` together; `unsent` is what the socket
    has not taken yet, and if that is long, the first piece of it.
    """

    __slots__ = (
        "_changed",
        "_feed",
        "_parser",
        "_recv",
        "_rest",
        "_rest_bytes",
        "_send",
        "active_ms",
        "alarm",
        "fd",
        "has_read",
        "held",
        "held_bytes",
        "interest",
        "peer_ended",
        "read_bytes",
        "sends_much",
        "session",
        "sock",
        "state",
        "unread_bytes",
        "unsent",
    )

    def __init__(
        self, sock: Sock, session: Session, parser: RequestParser, interest: int, changed: dict[Connection, None]
    ) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.session = session
        self.interest = interest  # what the poller is told to watch
        self.state = OPEN
        self.held: deque[tuple[int, bytes]] = deque()
        self.held_bytes = 0
        self.unsent: bytes | memoryview = (
            b""  # a view of the rest: a long reply is not copied for each piece that leaves
        )
        self._rest: deque[bytes] = deque()  # the pieces behind `unsent`, which is empty only if there are none
        self._rest_bytes = 0
        self._parser = parser
        self._recv, self._send, self._feed = sock.recv, sock.send, parser.feed
        self.unread_bytes = 0
        self.active_ms = 0  # when something was last read
        self.has_read = False  # whether the client has read something of what was owed since somebody last looked
        self._changed = changed  # whose debts are to be counted
        self.alarm: TimerOwner | None = None  # for silence, or for lingering too long
        self.peer_ended = False  # the client has closed its side
        self.read_bytes = READ_BYTES_MIN
        self.sends_much = False  # it has once sent all that one read takes, or much before its first read

    def serve(self, now_ms: int) -> int:
        """Read once and run what has arrived; how many bytes that were, 0 when the client has sent its last, -1 if
        there was nothing to read after all.
        """
        try:
            data = self._recv(self.read_bytes)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        size = len(data)
        self.active_ms = now_ms
        if size == self.read_bytes:
            self.read_bytes = min(4 * size, READ_BYTES_MAX)
            self.sends_much = True
        if self.state is OPEN:
            session = self.session
            requests = self._feed(data)
            if requests:
                session.execute(requests, now_ms)
                if session.backlog:
                    self.unread_bytes += size
                if self._parser.pending_bytes:
                    self._changed[self] = None  # the next request has begun in the same read
            else:
                self._changed[self] = None
                # A body behind a wait is no backlog before it is whole.
                if session.backlog or session.state is not READY:
                    self.unread_bytes += size
        return size

    def collect(self, durable: int) -> bool:
        """Fetch the session's replies; whether some of them must wait for the disk."""
        session = self.session
        out = session.out
        if out:
            pieces = gathered(out)
            session.fetched()
            if self.held or session.batch > durable:
                self.held.extend([(session.batch, piece) for piece in pieces])
                self.held_bytes += sum([len(piece) for piece in pieces])
                return True
            self._owe(pieces)
        return bool(self.held)

    def _owe(self, pieces: list[bytes]) -> None:
        """The socket is to get these, too."""
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

    def hold_now(self, durable: int) -> bool:
        """The common case of a durable reply in one step: it waits for the disk. False: nothing was done."""
        session = self.session
        if session.batch <= durable or self.state is not OPEN or session.out_bytes > LONG_BYTES:
            return False
        if self.unsent or session.backlog or session.state is not READY or not session.out:
            return False
        if self.held_bytes > UNSENT_BYTES_MAX:
            return False  # it is not to be listened to
        out = session.out
        data = out[0] if len(out) == 1 else b"".join(out)
        self.held.append((session.batch, data))
        self.held_bytes += len(data)
        if self.held_bytes > LONG_BYTES:
            self._changed[self] = None
        out.clear()
        session.out_bytes = 0
        return True

    def send_held(self, durable: int) -> bool:
        """Give the socket all that was held, if all of it may leave and nothing else is to be thought of.

        False: nothing was done. Raises OSError when the client is gone.
        """
        held = self.held
        if self.unsent or held[-1][0] > durable or self.state is not OPEN or self.held_bytes > SEND_BYTES_MAX:
            return False
        if self.session.backlog:
            return False  # it may have waited for this
        data = held[0][1] if len(held) == 1 else b"".join([data for _, data in held])
        try:
            sent = self._send(data)
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

    def release(self, durable: int) -> bool:
        """Let go what the disk has caught up with; whether something is still held."""
        held = self.held
        ready = []
        while held and held[0][0] <= durable:
            ready.append(held.popleft()[1])
        if ready:
            self.held_bytes -= sum([len(data) for data in ready])
            self._owe(gathered(ready))
        return bool(held)

    def send(self) -> int:
        """Give the socket what it takes, within bounds; how many bytes that were. Raises OSError when the client is
        gone.
        """
        total = 0
        while self.unsent and total < SEND_BYTES_MAX:
            size = len(self.unsent)
            long = size > SEND_BYTES_MAX
            try:
                sent = self._send(memoryview(self.unsent)[:SEND_BYTES_MAX] if long else self.unsent)
            except BlockingIOError:
                break
            self.has_read = True
            broker = self.session.broker
            broker.counters.bytes_written += sent
            broker.unsent.left(self.session, sent)
            total += sent
            if sent < size:
                self.unsent = memoryview(self.unsent)[sent:]
                break
            self.unsent = b""
            if self._rest:
                self._next_piece()
        return total

    def send_the_rest(self) -> None:
        """Give the socket all that it takes: nobody else has to be served any more."""
        left = -1
        try:
            while self.unsent_bytes != left:
                left = self.unsent_bytes
                self.send()
        except OSError:
            pass  # the client is gone

    def send_now(self, durable: int) -> int:
        """The common case in one step: the replies may leave, the socket takes them, and nothing else is to be thought
        of. How many bytes that were; -1 if it is not so, and then nothing was lost.

        Raises OSError when the client is gone.
        """
        session = self.session
        if self.unsent or self.held or session.batch > durable or session.backlog:
            return -1
        if session.state is not READY or self.state is not OPEN:
            return -1
        out = session.out
        if not out:
            return 0
        if len(out) == 1:
            data = out[0]
        elif session.out_bytes > SEND_BYTES_MAX:
            return -1
        else:
            data = b"".join(out)
        size = len(data)
        if size > SEND_BYTES_MAX:
            return -1
        try:
            sent = self._send(data)
        except BlockingIOError:
            return -1
        out.clear()
        session.out_bytes = 0
        if sent == size:
            return sent
        session.broker.counters.bytes_written += sent
        session.broker.unsent.left(session, sent)
        self.unsent = memoryview(data)[sent:]
        return -1

    def limit(self, limits: Limits) -> None:
        """Other limits, for what the client says from now on."""
        self._parser.limit(limits)

    @property
    def begun_bytes(self) -> int:
        """Of a request that has not ended."""
        return self._parser.pending_bytes

    @property
    def owed_bytes(self) -> int:
        """All that is kept for this client. A view of the end of a reply keeps the whole of it in memory."""
        unsent = self.unsent
        whole = unsent.obj if isinstance(unsent, memoryview) else unsent
        assert isinstance(whole, bytes)
        asked = max(self.unread_bytes, self.begun_bytes)  # what has begun behind a wait is among the unread
        return self.held_bytes + len(whole) + self._rest_bytes + asked

    @property
    def unsent_bytes(self) -> int:
        """What the socket has not taken yet."""
        return len(self.unsent) + self._rest_bytes

    @property
    def is_new(self) -> bool:
        """Whether nothing has been read from it yet."""
        return not self.active_ms

    @property
    def may_begin(self) -> bool:
        """Whether it is for the client to go on with its request."""
        return self.begun_bytes > 0 and self.session.state is READY and not self.session.backlog

    @property
    def wants_turn(self) -> bool:
        """Whether the session may go on with its backlog: it must not pile up replies that nobody reads."""
        return self.session.wants_turn and self._may_owe_more

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be executed: we hang up, or the client has, and nothing of it is left to do.

        A client that has closed its side while it waits for an item is taken for gone: it could not be told apart.
        """
        if self.state is OPEN:
            return self.session.state is SessionState.CLOSING
        if self.state is not ConnectionState.PEER_ENDED:
            return False
        return not self.session.wants_turn and self.session.state is not SessionState.HELD

    @property
    def is_silent(self) -> bool:
        """Whether it is the client's turn to say something: it neither waits for an item nor for the disk."""
        return self.session.state is READY and not self.session.backlog and self.owes_nothing

    @property
    def may_listen(self) -> bool:
        """Whether more may be read from the socket."""
        return self.unread_bytes < UNREAD_BYTES_MAX and self._may_owe_more

    @property
    def _may_owe_more(self) -> bool:
        """Whether there may be further replies, before those that are there have left."""
        return len(self.unsent) + self._rest_bytes + self.held_bytes < UNSENT_BYTES_MAX

    @property
    def is_long(self) -> bool:
        """Whether it is much that is owed: it takes the kernel its time to copy it."""
        return len(self.unsent) + self._rest_bytes + self.session.out_bytes > LONG_BYTES

    @property
    def owes_answers(self) -> bool:
        """Whether something has been answered that has not left."""
        return bool(self.unsent or self.held or self.session.out)

    @property
    def owes_nothing(self) -> bool:
        return not self.unsent and not self.held


def gathered(pieces: list[bytes]) -> list[bytes]:
    """The same bytes in few pieces: what is long stays as it is, what is short between two long ones is joined."""
    if len(pieces) == 1:
        return [pieces[0]]
    if sum(map(len, pieces)) <= SEND_BYTES_MAX:
        return [b"".join(pieces)]
    found, short = [], list[bytes]()
    for piece in pieces:
        if len(piece) <= LONG_BYTES:
            short.append(piece)
            continue
        if short:
            found.append(b"".join(short))
            short = []
        found.append(piece)
    if short:
        found.append(b"".join(short))
    return found
