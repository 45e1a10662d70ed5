"""The settings of a worker, and when it tries an item again."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable
from enum import Enum

from msgspec import Struct

from staniel.client.blocking.client import Client
from staniel.client.blocking.multi import MultiClient
from staniel.client.messages import fetch_request
from staniel.client.servers import Address
from staniel.protocol.client.conversation import encode, read
from staniel.protocol.memcache.requests import CLIENT_NAME_BYTES_MAX

OPEN_ITEMS_MAX = 90  # of a lane; a server allows 100 open reads of a queue and connection, unless it is told otherwise


class Mode(Enum):
    """The place where the function runs: in the threads of the worker, in a process for each lane, on an event loop."""

    THREADS = "threads"
    PROCESSES = "processes"
    ASYNC = "async"


class Order(Enum):
    """The order in which several queues are read: each read begins with the next one, so that none waits for another to
    be empty; or always as they are named, the most important first.
    """

    TURNS = "turns"
    PRIORITY = "priority"


class Server(Struct, frozen=True):
    """The server to take items from. The fields are the arguments of `staniel.client.Client`; `members` are the
    addresses of the other members of its cluster, each a host and a port.
    """

    host: str = "127.0.0.1"
    port: int = 22133
    tls: ssl.SSLContext | None = None
    user: str = ""
    secret: str = ""
    answer_timeout_s: float = 30
    members: tuple[Address, ...] = ()

    @property
    def address(self) -> Address:
        """The host and the port."""
        return self.host, self.port

    def client(self, name: str, address: Address | None = None) -> Client:
        """Make a client, which is not connected yet, of this server or of another member. Operators see the name, with
        `_` for what cannot be sent.
        """
        return Client(
            *(address or self.address), tls=self.tls, user=self.user, secret=self.secret, name=_wire_name(name),
            answer_timeout_s=self.answer_timeout_s,
        )  # fmt: skip

    def cluster_client(self, name: str) -> MultiClient:
        """Make a client of the cluster, which follows its leader."""
        addresses = list(dict.fromkeys([self.address, *self.members]))
        return MultiClient(
            addresses, cluster=True, tls=self.tls, user=self.user, secret=self.secret,
            name=_wire_name(name), answer_timeout_s=self.answer_timeout_s,
        )  # fmt: skip


def _wire_name(name: str) -> str:
    return "".join(char if "!" <= char <= "~" else "_" for char in name)[:CLIENT_NAME_BYTES_MAX]


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a worker. `queue` is the name of a queue, or of several, which are read in the `order`, with one
    request that waits at all of them. Failures, dead letters and ends of an item are its own queue's. `attempts` is how
    often the function is called with an item before the item is a dead letter. `limit_s` is the time for one call, 0:
    no limit. `rate_per_s` 0: as fast as possible. `prefetch` is the most items that a lane takes at a time, where the
    function is quick. `grace_s` is how long a stop waits for functions.
    """

    queue: str | tuple[str, ...]
    order: Order = Order.TURNS
    name: str = ""
    concurrency: int = 8
    mode: Mode = Mode.THREADS
    attempts: int = 5
    backoff_s: float = 1
    backoff_max_s: float = 300
    limit_s: float = 0
    rate_per_s: float = 0
    dead_letters: str = ""
    prefetch: int = 32
    grace_s: float = 30
    extend_s: float = 5
    wait_s: float = 1
    memory_max_bytes: int = 0

    def __post_init__(self) -> None:
        """Check the settings. Raises ValueError."""
        least = {
            "concurrency": (self.concurrency, 1),
            "attempts": (self.attempts, 1),
            "backoff_s": (self.backoff_s, 0),
            "backoff_max_s": (self.backoff_max_s, 0),
            "limit_s": (self.limit_s, 0),
            "rate_per_s": (self.rate_per_s, 0),
            "grace_s": (self.grace_s, 0),
            "memory_max_bytes": (self.memory_max_bytes, 0),
        }
        for name, (value, low) in least.items():
            if not low <= value < math.inf:
                raise ValueError(f"{name} is a number from {low} up, not {value}")
        if not self.queues:
            raise ValueError("expected a queue")
        for queues in self.reads:
            encode(fetch_request(queues, 0, open=True))  # a name that cannot be sent is a ValueError now, not in a lane
        for name in self.queues:
            encode(read(self.dead_queue(name), open=True))
        if not 1 <= self.prefetch <= OPEN_ITEMS_MAX // 2:
            raise ValueError(f"prefetch is a number from 1 to {OPEN_ITEMS_MAX // 2}, not {self.prefetch}")
        if self.extend_s <= 0 or self.wait_s <= 0:
            raise ValueError("extend_s and wait_s are numbers of seconds above 0")
        if self.memory_max_bytes and self.mode is not Mode.PROCESSES:
            raise ValueError("memory_max_bytes needs the mode PROCESSES: threads share their memory")

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues."""
        return (self.queue,) if isinstance(self.queue, str) else tuple(self.queue)

    @property
    def reads(self) -> list[tuple[str, ...]]:
        """The queues in the order of one read after the other; then the first read comes again."""
        queues = self.queues
        if self.order is Order.PRIORITY:
            return [queues]
        return [queues[first:] + queues[:first] for first in range(len(queues))]

    def dead_queue(self, queue: str) -> str:
        """Return the queue of dead letters of a queue."""
        return self.dead_letters or f"{queue}-dead"


def rest_s(settings: Settings, attempts: int, chance: Callable[[], float]) -> float:
    """Return how long an item rests that has failed so many times: twice as long each time, less a random part of up to
    half, so that items which failed together are not tried together. `chance` returns a number from 0 to 1.
    """
    longest = min(settings.backoff_max_s, settings.backoff_s * 2.0 ** min(attempts - 1, 60))
    return longest * (1 - chance() / 2)
