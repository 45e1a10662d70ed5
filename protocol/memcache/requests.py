"""The requests of the memcache protocol, in both dialects: a frozen Struct for each command. Also lines before their
block.

A request holds what the client wrote. An expiry stays relative or absolute, as given; the broker resolves it.
"""

from __future__ import annotations

from enum import Enum
from typing import final

from msgspec import Struct

from staniel.protocol.memcache.item_requests import Get as Get
from staniel.protocol.memcache.item_requests import Set as Set
from staniel.protocol.memcache.item_requests import SetHead as SetHead
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.requests import Invalid, More


class Dialect(Enum):
    """The dialect of a port: MEMCACHED suits today's clients, KESTREL replies byte for byte as Kestrel 2.4 did."""

    MEMCACHED = "memcached"
    KESTREL = "kestrel"


class RareRequest(Struct, frozen=True, gc=False):
    """The base class of every request but Set and Get, which are compiled (item_requests.py)."""


class GetMany(RareRequest, frozen=True, gc=False):
    """Get several keys of one line: one item from each queue that has one, then a single END. It never waits."""

    gets: tuple[Get, ...]


class GetKeys(RareRequest, frozen=True, gc=False):
    """A GetMany of too many keys to parse at once: the keys as they stand in the line."""

    keys: tuple[bytes, ...]
    with_id: bool = False


class GetSome(RareRequest, frozen=True, gc=False):
    """Get up to `count` items of one queue, each read as `get` says, then a single END. Only the first is
    waited for.
    """

    get: Get
    count: int


class GetFirst(RareRequest, frozen=True, gc=False):
    """Get one item of the first queue that has one, in the order of `gets`. They wait alike, and the key of each is its
    queue's name.
    """

    gets: tuple[Get, ...]


class Touch(RareRequest, frozen=True, gc=False):
    """Restart the time-out of every open read of this connection on a queue."""

    queue: str
    noreply: bool = False


class ConfirmItem(RareRequest, frozen=True, gc=False):
    """Close the open read of this connection whose item has this id."""

    queue: str
    id: int
    noreply: bool = False


class AbortItem(RareRequest, frozen=True, gc=False):
    """Hand back the item with this id, which this connection has open."""

    queue: str
    id: int
    noreply: bool = False


class ExtendItem(RareRequest, frozen=True, gc=False):
    """Restart the time-out of the open read of this connection whose item has this id."""

    queue: str
    id: int
    noreply: bool = False


class Monitor(RareRequest, frozen=True, gc=False):
    """Open reads as items come, for `wait_ms`, at most `max_items` (None: the connection's limit of open reads)."""

    key: bytes
    queue: str
    wait_ms: int
    max_items: int | None = None


class Confirm(RareRequest, frozen=True, gc=False):
    """Close the `count` oldest open reads of this connection on a queue."""

    queue: str
    count: int


class Delete(RareRequest, frozen=True, gc=False):
    queue: str
    noreply: bool = False


class Flush(RareRequest, frozen=True, gc=False):
    queue: str


class FlushAll(RareRequest, frozen=True, gc=False):
    noreply: bool = False


class FlushExpired(RareRequest, frozen=True, gc=False):
    queue: str


class FlushAllExpired(RareRequest, frozen=True, gc=False):
    pass


class Move(RareRequest, frozen=True, gc=False):
    """Send items from the head of one queue to the end of another; `count` None: as many as there are now."""

    source: str
    target: str
    count: int | None = None


class Pause(RareRequest, frozen=True, gc=False):
    """Pause, or with `paused` False resume, the gets and/or the puts of a queue; the others stay as they are."""

    queue: str
    gets: bool
    puts: bool
    paused: bool


class Stats(RareRequest, frozen=True, gc=False):
    """Statistics. `topic` is memcached's sub-command (`items`, `slabs`, …), empty for the plain `stats`."""

    topic: str = ""


class DumpStats(RareRequest, frozen=True, gc=False):
    """Statistics by queue; no names: all queues."""

    queues: tuple[str, ...] = ()


class DumpConfig(RareRequest, frozen=True, gc=False):
    queues: tuple[str, ...] = ()


class Status(RareRequest, frozen=True, gc=False):
    """Ask for the status (`name` None) or set it. `name` is as written; the broker knows the valid ones."""

    name: str | None = None


class Reload(RareRequest, frozen=True, gc=False):
    pass


class KeyedSet(RareRequest, frozen=True, gc=False):
    """A put that is refused if an item was put to the queue with this idempotency key already."""

    set: Set
    key: str

    @property
    def queue(self) -> str:
        return self.set.queue

    @property
    def noreply(self) -> bool:
        return self.set.noreply


class DelayedSet(RareRequest, frozen=True, gc=False):
    """A put of an item that no client gets before `delay_ms` have passed, with an idempotency key, "" without one."""

    set: Set
    delay_ms: int
    key: str = ""

    @property
    def queue(self) -> str:
        return self.set.queue

    @property
    def noreply(self) -> bool:
        return self.set.noreply


class MetaSet(RareRequest, frozen=True, gc=False):
    set: Set
    meta: Meta


class MetaGet(RareRequest, frozen=True, gc=False):
    """A meta get. `get` is as in memcache; `value`: the reply shows the item, else only the requested figures."""

    get: Get
    meta: Meta
    value: bool


class MetaGetFirst(RareRequest, frozen=True, gc=False):
    """A meta get of the first of several queues that has an item."""

    gets: tuple[Get, ...]
    meta: Meta
    value: bool


class MetaOpenItem(RareRequest, frozen=True, gc=False):
    """A look at the item with this id, which the connection has open: the requested figures."""

    queue: str
    id: int
    meta: Meta


class MetaDelete(RareRequest, frozen=True, gc=False):
    queue: str
    meta: Meta


class MetaNoop(RareRequest, frozen=True, gc=False):
    """A no-op with a reply: a client that sends quiet commands learns from it that they are done."""


class MetaDebug(RareRequest, frozen=True, gc=False):
    pass


class Version(RareRequest, frozen=True, gc=False):
    pass


CLIENT_NAME_BYTES_MAX = 64


class ClientName(RareRequest, frozen=True, gc=False):
    """The name of the program at the other end, for those who look at the clients."""

    name: str


class Verbosity(RareRequest, frozen=True, gc=False):
    noreply: bool = False


class Quit(RareRequest, frozen=True, gc=False):
    pass


class Shutdown(RareRequest, frozen=True, gc=False):
    pass


Request = Set | Get | RareRequest | Invalid | More
"""Every request, and what parsers make of other bytes. tests/client/test_requests_known.py holds the table of handlers
and rights (broker/commands/memcache.py), and that of what the client library writes, against these classes.
"""


@final
class RefusedBlock(Struct, frozen=True, gc=False):
    """A block of `length` bytes that is read and dropped; then `answer` follows."""

    length: int
    answer: Invalid


Parsed = Request | SetHead | RefusedBlock
