"""Clients that work until their server dies under them, each in a thread, each with a record of what it said and heard.

Knows how to put and take. Refuses to judge: `ledger.py` does, with the records, once the threads have ended.
"""

from __future__ import annotations

import threading
from random import Random

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from tests.crash.ledger import Ledger
from tests.server.wire import Wire

PIPELINE = 16
PADDING_BYTES_MAX = 600
Address = tuple[str, int]


class DyingWire(Wire):
    """The end of the stream is an error, also in the middle of a reply."""

    def _receive(self) -> bytes:
        data = super()._receive()
        if not data:
            raise ConnectionResetError("the server is gone")
        return data


class Worker(threading.Thread):
    """`done` counts answered operations. `report` tells the ledger what this client knows."""

    def __init__(self, queue: str, address: Address, random: Random, killed: threading.Event) -> None:
        super().__init__(daemon=True)
        self.queue = queue
        self.address = address
        self.random = random
        self.killed = killed
        self.done = 0
        self.failure = ""

    def run(self) -> None:
        try:
            self.work()
        except (OSError, MemcacheServerError) as error:
            if not self.killed.is_set():
                self.failure = f"{self!r}: {error!r} before the kill"
        except Exception as error:
            self.failure = f"{self!r}: {error!r}"

    def work(self) -> None:
        raise NotImplementedError

    def report(self, ledger: Ledger) -> None:
        raise NotImplementedError


class Producer(Worker):
    """Puts numbered items through pymemcache, one at a time."""

    def __init__(self, queue: str, address: Address, random: Random, killed: threading.Event, name: str) -> None:
        super().__init__(queue, address, random, killed)
        self.producer = name
        self.sent: list[bytes] = []
        self.acknowledged = 0

    def next_item(self) -> bytes:
        padding = b"." * self.random.randrange(PADDING_BYTES_MAX)
        item = b"%b-%d %b" % (self.producer.encode(), len(self.sent), padding)
        self.sent.append(item)
        return item

    def work(self) -> None:
        client = Client(self.address, timeout=10, default_noreply=False)
        while True:
            assert client.set(self.queue, self.next_item())
            self.acknowledged += 1
            self.done += 1

    def report(self, ledger: Ledger) -> None:
        for item in self.sent:
            ledger.sent(item)
        for item in self.sent[: self.acknowledged]:
            ledger.stored(item)


class PipeliningProducer(Producer):
    """Puts many items with one send, and counts the answers as they come."""

    def work(self) -> None:
        with DyingWire(self.address) as wire:
            while True:
                items = [self.next_item() for _ in range(self.random.randint(1, PIPELINE))]
                wire.say(b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (self.queue.encode(), len(i), i) for i in items))
                for _ in items:
                    assert wire.line() == b"STORED"
                    self.acknowledged += 1
                    self.done += 1


class Taker(Worker):
    """Plain gets through pymemcache: an item that was answered is gone for good."""

    def __init__(self, queue: str, address: Address, random: Random, killed: threading.Event) -> None:
        super().__init__(queue, address, random, killed)
        self.taken: list[bytes] = []
        self.waits = False

    def work(self) -> None:
        client = Client(self.address, timeout=10)
        while True:
            self.waits = True
            item = client.get(f"{self.queue}/t=20")
            self.waits = False
            if item is not None:
                self.taken.append(item)
            self.done += 1

    def report(self, ledger: Ledger) -> None:
        for item in self.taken:
            ledger.gone(item)
        ledger.unanswered_gets += self.waits


class ReliableTaker(Worker):
    """Opens, and then closes, aborts, or closes and opens the next."""

    def __init__(self, queue: str, address: Address, random: Random, killed: threading.Event) -> None:
        super().__init__(queue, address, random, killed)
        self.opened: list[bytes] = []
        self.closed: list[bytes] = []
        self.closing: bytes | None = None

    def work(self) -> None:
        with DyingWire(self.address) as wire:
            held = None
            while True:
                held = self.step(wire, held)
                self.done += 1

    def step(self, wire: Wire, held: bytes | None) -> bytes | None:
        """One request; what is open after it."""
        if held is None:
            return self.open(wire, "open/t=20")
        choice = self.random.randrange(5)
        if choice == 0:
            assert wire.get(f"{self.queue}/abort") is None
            return None
        self.closing = held
        then = self.open(wire, "close/open") if choice == 1 else wire.get(f"{self.queue}/close")
        self.closing = None
        self.closed.append(held)
        return then

    def open(self, wire: Wire, options: str) -> bytes | None:
        item = wire.get(f"{self.queue}/{options}")
        if item is not None:
            self.opened.append(item)
        return item

    def report(self, ledger: Ledger) -> None:
        for item in self.opened:
            ledger.opened(item)
        for item in self.closed:
            ledger.gone(item)
        if self.closing is not None:
            ledger.closing(self.closing)
