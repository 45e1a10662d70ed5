"""Replies of a leader, held until the member says that the records they rest on are answered.

A client's socket stands behind a gate. To the hub it takes all that it is given, up to a limit. What it was given
waits for a place: the last record that is written by then, if it was written after the client's bytes were read, else
an empty record that is written for it (a round). So no reply leaves that a deposed leader made, not even one that rests
on no record. A deposed leader drops what is held.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable

from staniel.server.cluster.reactor import Reactor
from staniel.server.interfaces import Acceptor, Sock, close_quietly

CLOSING_MAX = 1000  # clients that have gone, of which each keeps a descriptor until its replies are answered
HELD_BYTES_MAX = 4 << 20  # of one client; then its replies wait in the hub


class Gate:
    """The gate of all clients. `last` returns the number of the last record, `ask_round` that of a record that is not
    written yet, `take_changes` makes records of what has changed. `answered`: replies up to there may leave.
    """

    def __init__(
        self,
        reactor: Reactor,
        last: Callable[[], int],
        ask_round: Callable[[], int],
        take_changes: Callable[[], None],
    ) -> None:
        self.reactor = reactor
        self.last = last
        self._ask_round = ask_round
        self._take_changes = take_changes
        self.answered = 0
        self.is_shut = False
        """True while no requests are read: the lead is handed over."""
        self._waiting: deque[tuple[int, GatedSock]] = deque()
        self._closing: dict[GatedSock, None] = {}
        self.on_open: Callable[[GatedSock], None] = lambda sock: None
        """Called for a socket that takes bytes again."""
        self._refusing: dict[GatedSock, None] = {}

    @property
    def held_count(self) -> int:
        """The number of replies that wait."""
        return len(self._waiting)

    def place_for(self, asked: int) -> int:
        """Return the number of the record that a reply waits for. `asked`: that of the last one when its request
        came.
        """
        self._take_changes()
        last = self.last()
        return last if last > asked else self._ask_round()

    def wait(self, number: int, sock: GatedSock) -> None:
        """Have a socket released once records up to `number` are answered."""
        self._waiting.append((number, sock))

    def note_refusing(self, sock: GatedSock) -> None:
        """Note that a socket takes no more bytes until replies have left."""
        self._refusing[sock] = None

    def note_open(self, sock: GatedSock) -> None:
        """Note that such a socket takes bytes again."""
        self._refusing.pop(sock, None)
        self.on_open(sock)

    def take_refusing(self) -> list[GatedSock]:
        """Return the sockets that have refused bytes since the last call. The system's sockets would take some: a
        poller that waits for them would wake at once.
        """
        refusing, self._refusing = self._refusing, {}
        return list(refusing)

    def close_later(self, sock: GatedSock) -> None:
        """Note that the hub has closed a socket whose replies wait. Of too many the oldest one is closed at once: its
        client never learns what became of its requests, as after any lost connection.
        """
        self._closing[sock] = None
        if len(self._closing) > CLOSING_MAX:
            next(iter(self._closing)).break_off()

    def forget(self, sock: GatedSock) -> None:
        """Note that a socket is closed."""
        self._closing.pop(sock, None)
        self._refusing.pop(sock, None)

    def release(self, upto: int) -> None:
        """Send the replies that rest on records up to `upto`."""
        self.answered = max(self.answered, upto)
        waiting = self._waiting
        while waiting and waiting[0][0] <= upto:
            waiting.popleft()[1].release(upto)

    def drop_all(self) -> None:
        """Forget all held replies, and close their clients' sockets."""
        for _, sock in self._waiting:
            sock.break_off()
        self._waiting.clear()


class GatedSock:
    """A client's socket behind the gate. `_held`: (number, bytes) of replies that wait; `_unsent`: those that the
    system's socket has not taken yet.
    """

    __slots__ = (
        "_asked",
        "_fd",
        "_gate",
        "_held",
        "_held_bytes",
        "_is_closing",
        "_is_refusing",
        "_is_watched",
        "_shuts",
        "_unsent",
        "below",
    )

    def __init__(self, gate: Gate, below: Sock) -> None:
        self.below = below
        self._fd = below.fileno()
        self._gate = gate
        self._asked = 0
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0
        self._unsent = b""
        self._is_watched = self._is_closing = self._is_refusing = self._shuts = False

    def fileno(self) -> int:
        return self._fd

    def recv(self, count: int, /) -> bytes:
        if self._gate.is_shut:
            raise BlockingIOError
        data = self.below.recv(count)
        self._asked = self._gate.last()
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        gate = self._gate
        if self._is_full:
            self._is_refusing = True
            gate.note_refusing(self)
            raise BlockingIOError
        number = gate.place_for(self._asked)
        if number <= gate.answered and not self._held and not self._unsent:
            return self.below.send(data)
        self._held.append((number, bytes(data)))
        self._held_bytes += len(data)
        gate.wait(number, self)
        return len(data)

    @property
    def _is_full(self) -> bool:
        return self._held_bytes + len(self._unsent) > HELD_BYTES_MAX

    def release(self, upto: int) -> None:
        """Send what rests on records up to `upto`."""
        ready = [self._unsent]
        while self._held and self._held[0][0] <= upto:
            ready.append(self._held.popleft()[1])
        data = b"".join(ready)
        self._held_bytes -= len(data) - len(self._unsent)
        self._unsent = data
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self.below.send(self._unsent)
            except BlockingIOError:
                break
            except OSError:
                self._held.clear()
                self._held_bytes, self._unsent = 0, b""
                break
            self._unsent = self._unsent[sent:]
        self._watch(is_wanted=bool(self._unsent))
        if self._is_refusing and not self._is_full:
            self._is_refusing = False
            self._gate.note_open(self)
        if not self._unsent and not self._held:
            self._end()

    def _watch(self, *, is_wanted: bool) -> None:
        if is_wanted == self._is_watched:
            return
        self._is_watched = is_wanted
        dispatcher = self._gate.reactor.dispatcher
        if is_wanted:
            dispatcher.watch(self._fd, select.EPOLLOUT, lambda now_ms: self._flush())
        else:
            dispatcher.unwatch(self._fd)

    def shutdown(self, how: int, /) -> None:
        if self._held or self._unsent:
            self._shuts = True
        else:
            self.below.shutdown(how)

    def close(self) -> None:
        """Close the socket, once all replies have left."""
        self._is_closing = True
        if self._held or self._unsent:
            self._gate.close_later(self)
        else:
            self._end()

    def break_off(self) -> None:
        """Close the socket now: what is held never leaves."""
        self._held.clear()
        self._held_bytes, self._unsent, self._is_closing = 0, b"", True
        self._watch(is_wanted=False)
        self._end()

    def _end(self) -> None:
        if self._is_closing:
            self._gate.forget(self)
            close_quietly(self.below)
        elif self._shuts:
            self._shuts = False
            try:
                self.below.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the client is gone


class GatedAcceptor:
    """A listening socket whose clients stand behind the gate."""

    def __init__(self, acceptor: Acceptor, gate: Gate, wrap: Callable[[Gate, Sock], Sock] = GatedSock) -> None:
        self._acceptor = acceptor
        self._gate = gate
        self._wrap = wrap

    @property
    def name(self) -> str:
        return self._acceptor.name

    def fileno(self) -> int:
        return self._acceptor.fileno()

    def accept(self) -> tuple[Sock, str]:
        """Return a client's socket and its address. Raises BlockingIOError, ClientRefused, OSError."""
        sock, name = self._acceptor.accept()
        return self._wrap(self._gate, sock), name

    def close(self) -> None:
        """Leave the socket open: the listener of the refusals accepts next, until the process ends."""
