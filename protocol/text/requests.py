"""The requests of Kestrel's text protocol: a frozen Struct for each command.

Commands with the same meaning in the memcache protocol use that protocol's Struct.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.memcache.requests import Delete, Flush, Quit, Shutdown, Status, Version
from staniel.protocol.requests import Invalid, More


class TextPut(Struct, frozen=True, gc=False):
    """Append `items` to a queue, in order; there may be none.

    `ttl_ms` is relative to now (0 or less: expired at once), None if the client gave none.
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
    """Confirm as TextGet does, then open items as they come, for `wait_ms` or up to the limit of open reads."""

    queue: str
    wait_ms: int


class TextConfirm(Struct, frozen=True, gc=False):
    """Confirm the `count` oldest open reads of this connection on a queue. `count` is any 32-bit number, also
    negative.
    """

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
