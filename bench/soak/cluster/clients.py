"""The clients of a run, and what they know of each item: stored, refused, delivered, confirmed, or unknown.

The rules by which items are judged are those of a queue of unique items: an acknowledged put is delivered until a
confirmation of it succeeds, and never after; nothing is delivered that was refused or never put.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from random import Random

QUEUES = ("jobs", "stream")
REPLY_S_MAX = 8.0  # then a client gives up a connection to a machine that hangs or is cut off
CONNECT_S_MAX = 1.0
BACKLOG_MAX = 400  # items that wait: more puts than that pause
Address = tuple[str, int]


class Ledger:
    """A record of what the clients were told of each item. Safe for threads; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.gaps: list[tuple[float, float]] = []
        """Times without an acknowledged put: when they began, and how long they were; those above half a second."""
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._stored: set[str] = set()
        self._refused: set[str] = set()
        self._confirmed_s: dict[str, float] = {}
        self._maybe_confirmed: set[str] = set()
        self._last_put_s = time.monotonic()

    def asked(self, item: str) -> None:
        """Note that a put is about to be sent."""
        with self._lock:
            self._asked.add(item)

    def stored(self, item: str) -> None:
        """Note that a put was acknowledged."""
        now_s = time.monotonic()
        with self._lock:
            self._stored.add(item)
            if now_s - self._last_put_s > 0.5:
                self.gaps.append((self._last_put_s, now_s - self._last_put_s))
            self._last_put_s = now_s

    def refused(self, item: str) -> None:
        """Note that a put was refused: the item must never be delivered."""
        with self._lock:
            self._refused.add(item)

    def delivered(self, item: str, asked_s: float) -> None:
        """Note that an item came; the request was sent at `asked_s`."""
        with self._lock:
            self.counts["deliveries"] += 1
            if item not in self._asked:
                self.wrong.append(f"{item} was never put")
            if item in self._refused:
                self.wrong.append(f"the put of {item} was refused")
            if item in self._confirmed_s and self._confirmed_s[item] < asked_s:
                self.wrong.append(f"{item} came again after it was confirmed")

    def confirmed(self, item: str) -> None:
        """Note that a confirmation was acknowledged."""
        with self._lock:
            if item in self._confirmed_s:
                self.wrong.append(f"{item} was confirmed twice")
            self._confirmed_s[item] = time.monotonic()

    def maybe_confirmed(self, item: str) -> None:
        """Note that a confirmation had no reply."""
        with self._lock:
            self._maybe_confirmed.add(item)

    @property
    def waiting(self) -> int:
        """The number of acknowledged items without a confirmation."""
        return len(self._stored) - len(self._confirmed_s)

    def judge_all(self) -> None:
        """Judge at the end, when everything was taken."""
        for item in sorted(self._stored - self._confirmed_s.keys() - self._maybe_confirmed):
            self.wrong.append(f"{item} was stored and is lost")
        self.counts["stored"], self.counts["confirmed"] = len(self._stored), len(self._confirmed_s)
        self.counts["refused"] = len(self._refused)
        self.counts["puts without a reply"] = len(self._asked - self._stored - self._refused)
        self.counts["confirmations without a reply"] = len(self._maybe_confirmed - self._confirmed_s.keys())


class Wire:
    """A connection, line by line. Raises OSError from everything, also at the end of the stream."""

    def __init__(self, address: Address) -> None:
        self._sock = socket.create_connection(address, CONNECT_S_MAX)
        self._sock.settimeout(REPLY_S_MAX)
        self._file = self._sock.makefile("rb")

    def ask(self, request: str) -> str:
        """Send a request, and return the first line of its reply."""
        self._sock.sendall(request.encode())
        return self._line()

    def _line(self) -> str:
        line = self._file.readline().decode()
        if not line.endswith("\r\n"):
            raise ConnectionError("the connection has ended")
        return line[:-2]

    def item(self, request: str) -> str | None:
        """Send a get, and return its item, None if there is none. Raises ConnectionError for a refusal, too."""
        line = self.ask(request)
        if line == "END":
            return None
        if not line.startswith("VALUE "):
            raise ConnectionError(line)
        item = self._line()
        if self._line() != "END":
            raise ConnectionError("the reply has no end")
        return item

    def close(self) -> None:
        self._file.close()
        self._sock.close()


class Client(threading.Thread):
    """A client that goes from member to member until one serves it, and works there until its connection ends."""

    def __init__(self, name: str, addresses: list[Address], ledger: Ledger, seed: str, pace_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger, self.random = ledger, Random(f"{seed} {name}")
        self._addresses, self._pace_s = addresses, pace_s
        self.is_over = threading.Event()

    def run(self) -> None:
        at = self.random.randrange(len(self._addresses))
        while not self.is_over.is_set():
            at += 1
            try:
                wire = Wire(self._addresses[at % len(self._addresses)])
            except OSError:
                self.is_over.wait(0.02)
                continue
            try:
                while not self.is_over.is_set() and self.work(wire):
                    self.is_over.wait(self._pace_s)
            except OSError:
                self.is_over.wait(0.02)
            finally:
                wire.close()

    def work(self, wire: Wire) -> bool:
        """Make a request or two. Return False if this member does not serve. Raises OSError."""
        raise NotImplementedError


class Putter(Client):
    """A client that puts numbered items."""

    number = 0

    def work(self, wire: Wire) -> bool:
        if self.ledger.waiting > BACKLOG_MAX:
            return True
        self.number += 1
        item = f"{self.name}-{self.number}-" + "x" * self.random.choice((0, 100, 1000, 4000))
        self.ledger.asked(item)
        queue = QUEUES[self.number % len(QUEUES)]
        reply = wire.ask(f"set {queue} 0 0 {len(item)}\r\n{item}\r\n")
        if reply == "STORED":
            self.ledger.stored(item)
            return True
        self.ledger.refused(item)
        return False


class Taker(Client):
    """A client that opens items and confirms them; some it returns, with some it vanishes."""

    def work(self, wire: Wire) -> bool:
        queue = self.random.choice(QUEUES)
        asked_s = time.monotonic()
        item = wire.item(f"get {queue}/t=200/open\r\n")
        if item is None:
            return True
        self.ledger.delivered(item, asked_s)
        fate = self.random.random()
        if fate < 0.05:
            return False
        if fate < 0.15:
            return wire.ask(f"get {queue}/abort\r\n") == "END"
        self.confirm(wire, queue, item)
        return True

    def confirm(self, wire: Wire, queue: str, item: str) -> None:
        """Confirm an item. Raises OSError."""
        try:
            reply = wire.ask(f"get {queue}/close\r\n")
        except OSError:
            self.ledger.maybe_confirmed(item)
            raise
        if reply != "END":
            # A member that was deposed refuses; whether the confirmation was recorded before, it does not say.
            self.ledger.maybe_confirmed(item)
            raise ConnectionError(reply)
        self.ledger.confirmed(item)


class Drainer(Taker):
    """A client that takes all that is left, and ends when each queue is empty."""

    def work(self, wire: Wire) -> bool:
        for queue in QUEUES:
            asked_s = time.monotonic()
            while (item := wire.item(f"get {queue}/open\r\n")) is not None:
                self.ledger.delivered(item, asked_s)
                self.confirm(wire, queue, item)
                asked_s = time.monotonic()
        self.is_over.set()
        return False
