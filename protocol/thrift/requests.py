"""The requests of the thrift service: a frozen Struct for each method. Needs no thrift library."""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from msgspec import Struct

from staniel.protocol.requests import Invalid, More


class ThriftStatus(Enum):
    """A server's status in the words and numbers of the thrift service; no others exist."""

    NOT_CONFIGURED = 0
    QUIESCENT = 1
    READ_ONLY = 2
    UP = 3


class ThriftCall(Struct, frozen=True, gc=False):
    """The fields of every call. `seqid` and `upgraded` (finagle's header precedes the reply) are for the reply.
    `client_id` is the name in finagle's header, empty without one.
    """

    method: ClassVar[str]

    seqid: int
    client_id: str
    upgraded: bool


class ThriftPut(ThriftCall, frozen=True, gc=False):
    """Append `items` until one is refused. `ttl_ms` is relative to now (below 0: expired at once), None: never."""

    method: ClassVar[str] = "put"

    queue: str
    items: tuple[bytes, ...]
    ttl_ms: int | None


class ThriftGet(ThriftCall, frozen=True, gc=False):
    """Collect up to `max_items`, for up to `wait_ms`. `auto_abort_ms` 0 removes them; else they are open, and return
    after that time.
    """

    method: ClassVar[str] = "get"

    queue: str
    max_items: int
    wait_ms: int
    auto_abort_ms: int


class ThriftConfirm(ThriftCall, frozen=True, gc=False):
    """Confirm the open reads `ids` (distinct, in the client's order), of this connection or another."""

    method: ClassVar[str] = "confirm"

    queue: str
    ids: tuple[int, ...]


class ThriftAbort(ThriftCall, frozen=True, gc=False):
    """Abort the open reads `ids` (distinct, in the client's order), of this connection or another."""

    method: ClassVar[str] = "abort"

    queue: str
    ids: tuple[int, ...]


class ThriftPeek(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "peek"

    queue: str


class ThriftFlush(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "flush_queue"

    queue: str


class ThriftFlushAll(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "flush_all_queues"


class ThriftDelete(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "delete_queue"

    queue: str


class ThriftCurrentStatus(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "current_status"


class ThriftSetStatus(ThriftCall, frozen=True, gc=False):
    """Set the status. `status` is never NOT_CONFIGURED, which cannot be set."""

    method: ClassVar[str] = "set_status"

    status: ThriftStatus


class ThriftVersion(ThriftCall, frozen=True, gc=False):
    method: ClassVar[str] = "get_version"


class ThriftUpgrade(Struct, frozen=True, gc=False):
    """A question of finagle: does the server understand headers? The parser expects them from here on."""


ThriftRequest = (
    ThriftPut
    | ThriftGet
    | ThriftConfirm
    | ThriftAbort
    | ThriftPeek
    | ThriftFlush
    | ThriftFlushAll
    | ThriftDelete
    | ThriftCurrentStatus
    | ThriftSetStatus
    | ThriftVersion
    | ThriftUpgrade
    | Invalid
    | More
)
