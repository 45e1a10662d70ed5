"""The requests of Kestrel's text protocol: one frozen Struct a command.

A command that means the same in the memcache protocol is that protocol's Struct.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.memcache.requests import Delete, Flush, Quit, Shutdown, Status, Version
from staniel.protocol.requests import Invalid, More


class TextPut(Struct, frozen=True, gc=False):
    """Append `items` to a queue, in order; none at all is legal.

    `ttl_ms` is a life relative to now (0 or less: expired at once), None if the client gave none.
    """

    queue: str
    items: tuple[bytes, ...]
    ttl_ms: int | None = None


class TextGet(Struct, frozen=True, gc=False):
    """Confirm every open read of this connection on the queue, then open one item. `wait_ms` <= 0 does not wait."""

    queue: str
    wait_ms: int = 0


class TextPeek(Struct, frozen=True, gc=False):
    """Confirm as TextGet does, then show the head without taking it."""

    queue: str
    wait_ms: int = 0


class TextMonitor(Struct, frozen=True, gc=False):
    """Confirm as TextGet does, then open items as they come, for `wait_ms` or until no more may be open."""

    queue: str
    wait_ms: int


class TextConfirm(Struct, frozen=True, gc=False):
    """Confirm the `count` oldest open reads of this connection on a queue. Any 32-bit count, negative ones too."""

    queue: str
    count: int


TextRequest = (
    TextPut
    | TextGet
    | TextPeek
    | TextMonitor
    | TextConfirm
    | Flush
    | Delete
    | Status
    | Version
    | Quit
    | Shutdown
    | Invalid
    | More
)
