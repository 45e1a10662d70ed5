"""The replies of the memcache protocol, as the client reads them: a Struct for each kind, in both dialects."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.requests import Request
from staniel.protocol.words import INT32_MAX

_COUNT = re.compile(rb"[0-9]{1,19}")


class Answer(Enum):
    """The replies of one word. EXISTS: an item was put with this key before. END ends a get without an item, a monitor,
    a flush and a confirm.
    """

    STORED = "STORED"
    NOT_STORED = "NOT_STORED"
    EXISTS = "EXISTS"
    DELETED = "DELETED"
    NOT_FOUND = "NOT_FOUND"
    TOUCHED = "TOUCHED"
    OK = "OK"
    END = "END"


class Item(Struct, frozen=True, gc=False):
    """An item. `id` is None unless the get was a `gets` and the server has ids; `key` is the key in the reply."""

    data: bytes
    flags: int = 0
    id: int | None = None
    key: bytes = b""

    @property
    def queue(self) -> str:
        """The name of the queue that has given the item."""
        return self.key.partition(b"/")[0].decode("latin-1")


class Items(Struct, frozen=True):
    """The reply to a get of several keys: the items found, in the order of the keys."""

    items: tuple[Item, ...]


class Number(Struct, frozen=True, gc=False):
    """A number of items, such as those that an expiry flush removed."""

    count: int


class Past(Struct, frozen=True, gc=False):
    """The way of a dead letter: the queue that it left, `left_at_ms` when, and how often that queue delivered it.
    `client`: the address of the last client that had it, "" if unknown. `times`: how often it has left a queue so.
    """

    origin: str
    reason: str
    deliveries: int
    put_at_ms: int
    left_at_ms: int
    client: str
    times: int


class History(Struct, frozen=True, gc=False):
    """The history of an open item. `deliveries` counts this one; `past` is that of a dead letter, None without one."""

    deliveries: int
    past: Past | None = None


class Text(Struct, frozen=True, gc=False):
    """A version or a status, without its leading word."""

    text: str


class StatsReply(Struct, frozen=True):
    """The STAT lines, in the order the server sent them."""

    values: dict[str, str]


class Dump(Struct, frozen=True):
    """The lines of a dump without its END."""

    lines: tuple[str, ...]


class Fault(Enum):
    """The kinds of error: an unknown command, an error of the client, an error of the server."""

    COMMAND = "ERROR"
    CLIENT = "CLIENT_ERROR"
    SERVER = "SERVER_ERROR"


class Error(Struct, frozen=True):
    """A refusal in place of the reply. The server may close the connection after it.

    `items` has what a get of several keys had delivered before the refusal.
    """

    fault: Fault
    why: str
    items: tuple[Item, ...] = ()


class ProtocolViolation(Struct, frozen=True, gc=False):
    """Bytes that cannot be the expected reply. Nothing that follows them is read."""

    line: bytes
    why: str


Reply = Answer | Item | Items | Number | History | Text | StatsReply | Dump | Error | ProtocolViolation


class ValueHead(Struct, frozen=True, gc=False):
    """A VALUE line, whose block of `length` bytes follows."""

    key: bytes
    flags: int
    length: int
    id: int | None


VALUE_LINE = re.compile(rb"VALUE ([^ \r\n]+) ([0-9]{1,10}) ([0-9]{1,10})(?: ([0-9]{1,20}))?\r\n")
"""A VALUE line at the start of what has come."""

_HEAD = re.compile(rb"VALUE ([^ ]+) ([0-9]{1,10}) ([0-9]{1,10})(?: ([0-9]{1,20}))?\r")


def parse_head(line: bytes) -> ValueHead | None:
    """Parse a VALUE line, with its CR. Return None if it is none."""
    match = _HEAD.fullmatch(line)
    if match is None:
        return None
    key, flags, length, item_id = match.groups()
    head = ValueHead(key, int(flags), int(length), None if item_id is None else int(item_id))
    return head if head.length <= INT32_MAX else None


def parse_error(line: bytes) -> Error | None:
    """Parse one of the three error lines, without its line end. Return None for any other line."""
    word, _, why = line.partition(b" ")
    fault = _FAULTS.get(word)
    return None if fault is None else Error(fault, why.decode("latin-1"))


_HISTORY = re.compile(rb"HD d([0-9]{1,10}) p(-|[A-Za-z0-9+/=]{1,2000})")
_PAST = msgspec.json.Decoder(Past)
_FAULTS = {fault.value.encode(): fault for fault in Fault}


class ReplyShape(NamedTuple):
    """The reply to a request. `finals`: the lines, with their CR, that end it. `parse`: the parser of a line with a
    value in it, which returns None if the line, without its CR, is no reply to the request.
    """

    finals: dict[bytes, Answer]
    parse: Callable[[Any, bytes], Reply | None] = lambda request, line: None


def _parse_number(request: Request, line: bytes) -> Number | None:
    return Number(int(line)) if _COUNT.fullmatch(line) else None


def _parse_version(request: Request, line: bytes) -> Text | None:
    return Text(line.removeprefix(b"VERSION ").decode("latin-1")) if line.startswith(b"VERSION ") else None


def _parse_status(request: memcache.Status, line: bytes) -> Text | None:
    return Text(line.decode("latin-1")) if request.name is None and line.isalpha() else None


def _parse_reloaded(request: Request, line: bytes) -> Answer | None:
    return Answer.OK if line.startswith(b"Reloaded config. ") else None


def _parse_history(request: Request, line: bytes) -> History | None:
    match = _HISTORY.fullmatch(line)
    if match is None:
        return None
    deliveries, past = match.groups()
    try:
        return History(int(deliveries), None if past == b"-" else _PAST.decode(binascii.a2b_base64(past)))
    except ValueError:  # also msgspec's errors
        return None


_NOT_FOUND = {b"NOT_FOUND\r": Answer.NOT_FOUND}
_STORED = {b"STORED\r": Answer.STORED, b"NOT_STORED\r": Answer.NOT_STORED}
STORED = ReplyShape(_STORED)
STORED_ONCE = ReplyShape(_STORED | {b"EXISTS\r": Answer.EXISTS})
END = ReplyShape({b"END\r": Answer.END})
OK = ReplyShape({b"OK\r": Answer.OK})
FLUSHED_ALL = ReplyShape({b"OK\r": Answer.OK, b"Flushed all queues.\r": Answer.OK})
DELETED = ReplyShape({b"DELETED\r": Answer.DELETED} | _NOT_FOUND)
TOUCHED = ReplyShape({b"TOUCHED\r": Answer.TOUCHED} | _NOT_FOUND)
NUMBER = ReplyShape({}, _parse_number)
VERSION = ReplyShape({}, _parse_version)
STATUS = ReplyShape(END.finals, _parse_status)
RELOADED = ReplyShape({b"Reloaded config.\r": Answer.OK}, _parse_reloaded)
HISTORY = ReplyShape({b"EN\r": Answer.NOT_FOUND}, _parse_history)
"""The shapes of replies, of which REQUESTS in requests.py names one for each request."""
