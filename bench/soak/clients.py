"""Clients that work until their server dies: many in one thread, each reporting every reply to its ledger."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from random import Random

from staniel.bench.soak.ledger import Ledger, item_for

PIPELINE_MAX = 16
ITEM_SIZE_MAX = 600
FAMILY_ITEMS_MAX = 300  # items in a family, above which its producers rest
RESET = struct.pack("ii", 1, 0)
Address = tuple[str, int]
Heard = Callable[[bytes, bytes | None], None]
"""A callback with the line of a reply, and the item if it carries one."""


class ServerBroken(Exception):
    """The error when a server that should be running disconnects, or sends a forbidden reply."""


class Crew:
    """The clients of one life of the server. `done` counts operations with a reply.

    `refusal`: a beginning of the reply to a put that is allowed instead of STORED; b"" if no put may be refused.
    """

    def __init__(self, address: Address, refusal: bytes = b"") -> None:
        self.address = address
        self.refusal = refusal
        self.done = 0
        self.stored = 0
        self.refused = 0
        self.over = False  # the server is dead: read, and send nothing more
        self.members: list[Member] = []
        self._poller = select.epoll()
        self._by_fd: dict[int, Member] = {}

    def work(self, seconds: float, operations: int, seconds_max: float) -> bool:
        """Serve the clients for `seconds`, and until `operations` operations have a reply. Return False if that takes
        too long. Raises ServerBroken.
        """
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds or self.done < operations:
            for fd, _ in self._poller.poll(0.005):
                member = self._by_fd[fd]
                if not member.receive():
                    raise ServerBroken(f"{member}: the server hung up")
            if passed_s > seconds_max:
                return False
        return True

    def hear_out(self) -> None:
        """Read the dead server's last bytes, then report to the ledgers what remains unknown."""
        self.over = True
        for member in self.members:
            while member.receive():
                pass
            member.mourn()
            member.sock.close()
        self._poller.close()

    def join(self, member: Member) -> None:
        self.members.append(member)
        self.connected(member)

    def connected(self, member: Member) -> None:
        self._by_fd[member.sock.fileno()] = member
        self._poller.register(member.sock.fileno(), select.EPOLLIN)

    def leaving(self, member: Member) -> None:
        self._poller.unregister(member.sock.fileno())
        del self._by_fd[member.sock.fileno()]


class Member:
    """A connection that sends requests and handles the replies in order."""

    def __init__(self, crew: Crew, queue: str, ledger: Ledger, random: Random) -> None:
        self.crew = crew
        self.queue = queue
        self.ledger = ledger
        self.random = random
        self.sock = _connected(crew.address)
        self._expected: deque[Heard] = deque()
        self._unread = b""
        crew.join(self)
        self.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.queue}"

    def start(self) -> None:
        """Send the first request."""
        raise NotImplementedError

    def mourn(self) -> None:
        """Report requests that the dead server will never reply to."""

    def send(self, data: bytes, *heard: Heard) -> None:
        self._expected.extend(heard)
        try:
            self.sock.sendall(data)
        except OSError:
            pass  # what is left in the socket is still read

    def ask(self, key: str, heard: Heard) -> None:
        self.send(b"get %b\r\n" % key.encode(), heard)

    def receive(self) -> bool:
        """Receive bytes. Return False at the end of the stream. Raises ServerBroken."""
        try:
            data = self.sock.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._unread += data
        while self._reply():
            pass
        return bool(data)

    def _reply(self) -> bool:
        """Handle one reply. Return False if it is incomplete."""
        unread = self._unread
        line, end, _ = unread.partition(b"\r\n")
        item = None
        if not end:
            return False
        size = len(line) + 2
        if line.startswith(b"VALUE "):
            start, count = size, int(line.rpartition(b" ")[2])
            size = start + count + 7
            item = unread[start : start + count]
            if len(unread) < size:
                return False
            if unread[start + count : size] != b"\r\nEND\r\n":
                raise ServerBroken(f"{self}: {unread[:size]!r}")
        elif line.startswith(b"STAT "):
            size = unread.find(b"\r\nEND\r\n") + 7
            if size == 6:
                return False
            item = unread[:size]
        self._unread = unread[size:]
        self.crew.done += 1
        self._expected.popleft()(line, item)
        return True

    def must(self, line: bytes, expected: bytes) -> None:
        if line != expected:
            raise ServerBroken(f"{self}: {line!r} instead of {expected!r}")


class Producer(Member):
    """A client that puts numbered items, some with one send. A put to a fan-out queue is in the ledger of each
    child too.
    """

    def __init__(
        self, crew: Crew, queue: str, ledgers: list[Ledger], random: Random, name: str, pipeline: int = PIPELINE_MAX
    ) -> None:
        self.ledgers = ledgers
        self.producer = name.encode()
        self.pipeline = pipeline
        self.number = 0
        super().__init__(crew, queue, ledgers[0], random)

    def start(self) -> None:
        if self.crew.over:
            return
        if any(ledger.holds >= FAMILY_ITEMS_MAX for ledger in self.ledgers):
            self.ask("nothing/t=20", self._rested)
            return
        keys = [b"%b-%d" % (self.producer, self.number + at) for at in range(self.random.randint(1, self.pipeline))]
        self.number += len(keys)
        self.waiting = len(keys)
        said = []
        for key in keys:
            item = item_for(key, self.random.randrange(ITEM_SIZE_MAX))
            said.append(b"set %b 0 0 %d\r\n%b\r\n" % (self.queue.encode(), len(item), item))
            for ledger in self.ledgers:
                ledger.sent(key)
        self.send(b"".join(said), *(self._stored(key) for key in keys))

    def _rested(self, line: bytes, item: bytes | None) -> None:
        self.start()

    def _stored(self, key: bytes) -> Heard:
        def heard(line: bytes, item: bytes | None) -> None:
            crew = self.crew
            refused = bool(crew.refusal) and line.startswith(crew.refusal)
            if not refused:
                self.must(line, b"STORED")
            crew.refused += refused
            crew.stored += not refused
            for ledger in self.ledgers:
                ledger.refused(key) if refused else ledger.stored(key)
            self.waiting -= 1
            if not self.waiting:
                self.start() if not refused else self.ask("nothing/t=20", self._rested)

        return heard


class Reader(Member):
    """A client that receives items."""

    newest: dict[bytes, int]

    def order(self) -> dict[bytes, int]:
        """Return the newest numbers received so far. Queues that items move on to promise no order."""
        return self.newest if self.queue == self.ledger.queues[0] else {}


class Taker(Reader):
    """A client with plain gets: a delivered item is removed for good."""

    def start(self) -> None:
        self.newest = {}
        self.waits = False
        self.request_item()

    def request_item(self) -> None:
        if not self.crew.over:
            self.waits = True
            self.ask(f"{self.queue}/t=20", self._taken)

    def _taken(self, line: bytes, item: bytes | None) -> None:
        self.waits = False
        if item is None:
            self.must(line, b"END")
        else:
            self.ledger.delivered(item, self.order())
        self.request_item()

    def mourn(self) -> None:
        self.ledger.unanswered_gets += self.waits


class ReliableTaker(Reader):
    """A client that opens items, and then closes, aborts, or closes and opens the next."""

    def start(self) -> None:
        self.newest = {}
        self.open("t=20/open")

    def open(self, options: str) -> None:
        self.ask(f"{self.queue}/{options}", self._opened)

    def _opened(self, line: bytes, item: bytes | None) -> None:
        if item is None:
            self.must(line, b"END")
            self.open("t=20/open")
        else:
            self.handle_held(self.ledger.delivered(item, self.order(), self))

    def handle_held(self, held: bytes) -> None:
        """Continue with an open item."""
        if self.crew.over:
            return
        choice = self.random.randrange(5)
        if choice == 0:
            self.ledger.released(held)
            self.ask(f"{self.queue}/abort", self._opened)
            return
        self.ledger.closing(held)
        options = "close/open" if choice == 1 else "close"

        def heard(line: bytes, item: bytes | None) -> None:
            self.ledger.closed(held)
            self._opened(line, item)

        self.ask(f"{self.queue}/{options}", heard)


class Vanisher(ReliableTaker):
    """A reliable taker that sometimes disconnects, politely or not, with an item open."""

    def handle_held(self, held: bytes) -> None:
        if self.crew.over or self.random.randrange(8):
            super().handle_held(held)
            return
        self.ledger.released(held)
        self.crew.leaving(self)
        if self.random.randrange(2):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()
        self.sock = _connected(self.crew.address)
        self.crew.connected(self)
        self.start()


class Watcher(Member):
    """A client that sums up the journals' work in this life of the server, as far as it was visible before the end."""

    def __init__(self, crew: Crew, ledger: Ledger, random: Random, names: tuple[str, ...]) -> None:
        self.seen = dict.fromkeys(names, 0)
        super().__init__(crew, "stats", ledger, random)

    def start(self) -> None:
        self.send(b"stats\r\nget nothing/t=30\r\n", self._counted, self._rested)

    def _counted(self, line: bytes, item: bytes | None) -> None:
        self.seen = dict.fromkeys(self.seen, 0)
        for stat_line in (item or b"").decode("latin-1").split("\r\n"):
            for name in self.seen:
                stat, _, value = stat_line.rpartition(" ")
                if stat.endswith(name):
                    self.seen[name] += int(value)

    def _rested(self, line: bytes, item: bytes | None) -> None:
        self.start()


def _connected(address: Address) -> socket.socket:
    sock = socket.create_connection(address, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
