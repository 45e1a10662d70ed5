"""The replies of the memcache protocol, as the client reads them: a Struct for each kind, in both dialects."""

from __future__ import annotations

import binascii
import re
from enum import Enum

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


class Items(Struct, frozen=True):
    """The reply to a get of several keys: the items found, in the order of the keys."""

    items: tuple[Item, ...]


class Number(Struct, frozen=True, gc=False):
    """The number of items that an expiry flush removed."""

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


def parse_line(request: Request, line: bytes) -> Reply | None:
    """Parse a one-line reply with a value in it. Return None if `line` is no reply to the request."""
    if isinstance(request, memcache.Version) and line.startswith(b"VERSION "):
        return Text(line.removeprefix(b"VERSION ").decode("latin-1"))
    if isinstance(request, memcache.Status) and request.name is None and line.isalpha():
        return Text(line.decode("latin-1"))
    if isinstance(request, memcache.Reload) and line.startswith(b"Reloaded config. "):
        return Answer.OK
    if isinstance(request, memcache.MetaOpenItem):
        return _parse_history(line)
    if isinstance(request, memcache.FlushExpired | memcache.FlushAllExpired) and _COUNT.fullmatch(line):
        return Number(int(line))
    return None


def _parse_history(line: bytes) -> History | None:
    match = _HISTORY.fullmatch(line)
    if match is None:
        return None
    deliveries, past = match.groups()
    try:
        return History(int(deliveries), None if past == b"-" else _PAST.decode(binascii.a2b_base64(past)))
    except ValueError:  # also msgspec's errors
        return None
