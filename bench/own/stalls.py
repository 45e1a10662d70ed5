"""The delay for all clients from one request, or one tick of the clock, that affects all of a queue; without
sockets.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial

from staniel.broker import protocols
from staniel.broker.broker import Broker
from staniel.broker.config.load import defaults
from staniel.broker.session import Session
from staniel.journal.disk.os_fs import OsFs
from staniel.protocol.limits import Limits
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item

DATA = b"x" * 100
LIFETIME_MS = 10_000


class Inside:
    """A broker in this process: the duration of one tick is the delay of all other clients."""

    def __init__(self, folder: str) -> None:
        config = defaults(folder).overridden(sync="1s")
        self.protocol = protocols.memcache(Dialect.MEMCACHED)
        self.limits = Limits(config.server.max_line_bytes, config.item_bytes_max)
        self.broker = Broker(config, OsFs())
        self.now_ms = 1_000_000_000_000
        self.broker.recover(self.now_ms)

    def fill(self, count: int) -> None:
        """Fill queue q with items that live for LIFETIME_MS."""
        queue = self.broker.queues.make("q", self.now_ms)
        for _ in range(count):
            queue.add(Item(DATA, self.now_ms, self.now_ms + LIFETIME_MS), self.now_ms)
        self.broker.commit(self.now_ms)

    def ask(self, request: bytes) -> None:
        Session(self.broker, self.protocol).execute(self.protocol.parser(self.limits).feed(request), self.now_ms)
        self.broker.commit(self.now_ms)

    def tick(self) -> None:
        self.broker.tick(self.now_ms)
        self.broker.commit(self.now_ms)


def all_of(count: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield (name, what to measure), each with a fresh queue of `count` items; measure before taking the next."""
    with tempfile.TemporaryDirectory(prefix="bench-stalls-") as folder:
        inside = Inside(folder)
        inside.fill(count)
        yield "flush", partial(inside.ask, b"flush q\r\n")
        inside.fill(count)
        yield "delete", partial(inside.ask, b"delete q\r\n")
        inside.fill(count)
        inside.now_ms += 2 * LIFETIME_MS
        yield "expire in a tick", inside.tick
        inside.fill(count)
        inside.now_ms += 2 * LIFETIME_MS
        yield "get behind expired ones", partial(inside.ask, b"get q\r\n")
