"""The part of the clients that needs no socket: the requests that a call sends, and the meaning of the replies."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from staniel.client.errors import Full, Refused
from staniel.client.headers import ItemWithHeaders
from staniel.protocol.client.replies import Answer, Error, Item, Reply
from staniel.protocol.client.requests import TTL_MS_END, encode, read, read_first
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.keys import DELAY_MS_MAX
from staniel.protocol.memcache.requests import (
    CLIENT_NAME_BYTES_MAX,
    ClientName,
    ConfirmItem,
    DelayedSet,
    GetFirst,
    KeyedSet,
    Request,
)
from staniel.protocol.words import INT32_MAX

SETTLE_SECONDS = 5.0  # for the end of a reservation; then the connection closes instead
PIPELINE_ITEMS = 500  # requests sent before a reply is read: their replies fit every socket's buffer
PIPELINE_BYTES = 1 << 20
WAIT_S_MAX = INT32_MAX // 1000

STORED, STORED_LINE = Answer.STORED, b"STORED\r\n"  # found in fewer steps
DELETED, DELETED_LINE = Answer.DELETED, b"DELETED\r\n"
END_LINE = b"END\r\n"

Queues = str | Sequence[str]
"""The name of a queue, or of several, the most important first."""


class PutOutcome(Enum):
    """The outcome of a put: its item is stored now, or an item was put with the same key before."""

    STORED = "stored"
    ALREADY_STORED = "already stored"


class Batch(NamedTuple):
    """The result of `next_items`: the open items, and those that could not be confirmed because they were not open."""

    items: list[Item]
    not_open: list[Item]


class ServerItem(Item, frozen=True):
    """An item of a MultiClient, with the `server` that it came from. The item is ended there, as the client of that
    server knows it.
    """

    server: tuple[str, int] = ("", 0)
    known_as: Item = Item(b"")

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the item, none if the client was not asked for any."""
        return self.known_as.headers if isinstance(self.known_as, ItemWithHeaders) else {}


class ServerBatch(NamedTuple):
    """The result of MultiClient's `next_items`, like a Batch."""

    items: list[ServerItem]
    not_open: list[ServerItem]


def milliseconds(seconds: float) -> int:
    """Return the milliseconds to wait. Raises ValueError for a wait that the protocol cannot express, such as an
    endless one.
    """
    if not 0 <= seconds <= WAIT_S_MAX:
        raise ValueError(f"a wait is a number of seconds from 0 to {WAIT_S_MAX}, not {seconds}")
    return math.ceil(seconds * 1000)


def fetch_request(queues: Queues, wait_s: float, *, open: bool = False, peek: bool = False) -> Get | GetFirst:
    """Return the request for an item of a queue, or of the first of several that has one. Raises ValueError."""
    if isinstance(queues, str):
        return read(queues, milliseconds(wait_s), open=open, peek=peek, with_id=True)
    if len(queues) == 1:
        return read(queues[0], milliseconds(wait_s), open=open, peek=peek, with_id=True)
    return read_first(tuple(queues), milliseconds(wait_s), open=open, peek=peek)


@lru_cache(maxsize=1024)
def put_head(queue: str, flags: int) -> tuple[Set, bytes]:
    """Return a plain put, without its data, and its bytes up to the length of the data. Raises ValueError."""
    request = Set(queue, b"", flags)
    return request, encode(request).removesuffix(b"0\r\n\r\n")


@lru_cache(maxsize=1024)
def open_request(queues: str | tuple[str, ...], wait_s: float) -> tuple[Get | GetFirst, bytes]:
    """Return the request to open an item, and its bytes. Raises ValueError."""
    request = fetch_request(queues, wait_s, open=True)
    return request, encode(request)


@lru_cache(maxsize=1024)
def peek_request(queues: str | tuple[str, ...], wait_s: float) -> tuple[Get | GetFirst, bytes]:
    """Return the request to peek at an item, and its bytes. Raises ValueError."""
    request = fetch_request(queues, wait_s, peek=True)
    return request, encode(request)


@lru_cache(maxsize=1024)
def confirm_head(queue: str) -> tuple[ConfirmItem, bytes]:
    """Return a request to confirm an item, without its id, and its bytes up to the id. Raises ValueError."""
    request = ConfirmItem(queue, 0)
    return request, encode(request).removesuffix(b"0\r\n")


def read_item(heard: bytes, request: Request) -> Item | None:
    """Return the item if the reply is one to a Get, whole, with its key and an id, else None.

    A process that waits for each reply finds no code in the processor's caches, where the search for a pattern, the
    shortest text for this, costs more than splits.
    """
    head, _, block = heard.partition(b"\r\n")
    words = head.split(b" ")
    if len(words) != 5:
        return None
    value, key, flags, length, number = words
    if value != b"VALUE" or type(request) is not Get or request.key != key or not (flags + length + number).isdigit():
        return None
    if len(flags) > 10 or len(length) > 10 or len(number) > 20:
        return None
    try:
        size = int(length)
        if block[size:] != b"\r\nEND\r\n":
            return None
        return Item(block[:size], int(flags), int(number), key)
    except ValueError:  # one of the words is empty
        return None


def name_request(name: str) -> ClientName:
    """Return the request that gives the connection a name. Raises ValueError."""
    if not (name.isascii() and name.isprintable() and " " not in name and len(name) <= CLIENT_NAME_BYTES_MAX):
        raise ValueError(f"a client's name is one word of at most {CLIENT_NAME_BYTES_MAX} ASCII characters: {name!r}")
    return ClientName(name)


def put_request(queue: str, data: bytes, ttl_s: float | None, flags: int) -> Set:
    """Return the request of a put. A ttl too long for the protocol is sent as a date, by this machine's clock."""
    if ttl_s is None:
        return Set(queue, data, flags)
    if not math.isfinite(ttl_s):
        raise ValueError(f"a life is a number of seconds, or None for one without end: ttl_s is {ttl_s}")
    if ttl_s <= 0:
        raise ValueError(f"an item that has expired already is not put: ttl_s is {ttl_s}")
    ttl_ms = math.ceil(ttl_s) * 1000
    if ttl_ms < TTL_MS_END:
        return Set(queue, data, flags, ttl_ms=ttl_ms)
    return Set(queue, data, flags, expires_ms=int(time.time() * 1000) + ttl_ms)


def bytes_of(data: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes of an item. The length of a memoryview or an array may count wider elements; the server would
    read the bytes beyond it as requests. Raises TypeError for a text or a number.
    """
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def with_options(request: Set, key: str, delay_s: float) -> Set | KeyedSet | DelayedSet:
    """Return the put with an idempotency key and a delay, if there are any. Raises ValueError."""
    if delay_s:
        return DelayedSet(request, delay_ms_of(delay_s), key)
    return KeyedSet(request, key) if key else request


def delay_ms_of(delay_s: float) -> int:
    """Return a delay in milliseconds, rounded up. Raises ValueError."""
    if not 0 <= delay_s <= DELAY_MS_MAX / 1000:
        raise ValueError(f"a delay is a number of seconds from 0 to {DELAY_MS_MAX // 1000}: delay_s is {delay_s}")
    return math.ceil(delay_s * 1000)


def put_outcome(reply: Reply, queue: str) -> PutOutcome:
    """Return what the reply to a put says. Raises Full, Refused."""
    if reply is Answer.EXISTS:
        return PutOutcome.ALREADY_STORED
    if (refusal := refusal_of(reply, queue)) is not None:
        raise refusal
    return PutOutcome.STORED


def put_requests(
    queue: str, items: Sequence[bytes], ttl_s: float | None, flags: int, delay_s: float = 0
) -> list[Set] | list[DelayedSet]:
    """Return the requests of puts that differ in their data alone. Raises ValueError."""
    first = put_request(queue, b"", ttl_s, flags)
    ttl_ms, expires_ms = first.ttl_ms, first.expires_ms
    puts = [Set(queue, bytes_of(data), flags, ttl_ms=ttl_ms, expires_ms=expires_ms) for data in items]
    delay_ms = delay_ms_of(delay_s)
    return [DelayedSet(put, delay_ms) for put in puts] if delay_ms else puts


def chunks_of(requests: Sequence[Set] | Sequence[DelayedSet]) -> list[list[Set | DelayedSet]]:
    """Split requests, in order, into chunks of at most PIPELINE_ITEMS and PIPELINE_BYTES; a larger item is a chunk
    alone.
    """
    chunks: list[list[Set | DelayedSet]] = []
    room_bytes = 0
    for request in requests:
        size = len(request.set.data if isinstance(request, DelayedSet) else request.data)
        if not chunks or size > room_bytes or len(chunks[-1]) == PIPELINE_ITEMS:
            chunks.append([])
            room_bytes = PIPELINE_BYTES
        chunks[-1].append(request)
        room_bytes -= size
    return chunks


def refusal_of(reply: Reply, queue: str) -> Full | Refused | None:
    """Return why a put stored nothing, None if it stored its item."""
    if reply is Answer.STORED:
        return None
    if isinstance(reply, Error):
        return refused(reply)
    expect(reply, Answer.NOT_STORED)
    return Full(f"{queue} is full")


def refusals_of(replies: Sequence[Reply], queue: str, first: int) -> dict[int, Full | Refused]:
    """Return the puts that stored nothing, by their index; the first reply is that to put number `first`."""
    found = {number: refusal_of(reply, queue) for number, reply in enumerate(replies, first)}
    return {number: refusal for number, refusal in found.items() if refusal is not None}


def refused(error: Error) -> Refused:
    return Refused(f"{error.fault.value} {error.why}".strip())


def expect(reply: Reply, *answers: Answer) -> Reply:
    """Assert that the reply is one of `answers`, and return it. The conversation only yields replies that fit their
    requests.
    """
    assert reply in answers, reply
    return reply
