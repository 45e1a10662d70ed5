"""Requests as a client writes them, in a form that both dialects parse the same way.

No clock is read: an expiry that the protocol can only express as a date must be given as a date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from staniel.protocol.client import replies
from staniel.protocol.client.replies import ReplyShape
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.fields import DATE_S_MIN
from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memcache.keys import (
    ALSO,
    DELAY_MS_MAX,
    ID_MAX,
    PUT_DELAY,
    PUT_KEY,
    PUT_KEY_BYTES_MAX,
    QUEUES_MAX,
    fetches,
)
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.requests import GetFirst, Request
from staniel.protocol.words import INT32_MAX, INT32_MIN, UINT32_MAX

TTL_MS_END = 1_000_000_000
"""A ttl of this or more is refused. Kestrel reads expiry words from 1,000,000 s up as dates, memcached from 30 days up.
"""

EXPIRES_MS_MIN = DATE_S_MIN * 1000
"""Earlier dates are refused, except 0 (never): servers take them for a relative time, or refuse them."""

_WORD = re.compile(rb"[^ \r\n]+")


def read(
    queue: str,
    wait_ms: int = 0,
    *,
    open: bool = False,
    close: bool = False,
    abort: bool = False,
    peek: bool = False,
    with_id: bool = False,
) -> Get:
    """Return the Get that the server will parse, with its `key` spelled out. Raises ValueError for impossible names."""
    return _read(queue, wait_ms, open, close, abort, peek, with_id)


@lru_cache(maxsize=1024)
def _read(queue: str, wait_ms: int, open: bool, close: bool, abort: bool, peek: bool, with_id: bool) -> Get:
    if peek + abort + (open or close) > 1:
        raise ValueError("peek, abort and open or close exclude each other")
    _number(wait_ms, 0, INT32_MAX)
    if not fetches(open=open, close=close, abort=abort):
        wait_ms = 0
    options = [b"/t=%d" % wait_ms] if wait_ms else []
    options += [
        word for is_set, word in ((close, b"/close"), (open, b"/open"), (abort, b"/abort"), (peek, b"/peek")) if is_set
    ]
    key = _queue(queue) + b"".join(options)
    return Get(key, queue, wait_ms, open, close, abort, peek, with_id)


@lru_cache(maxsize=1024)
def read_first(queues: tuple[str, ...], wait_ms: int = 0, *, open: bool = False, peek: bool = False) -> GetFirst:
    """Return the request for an item, with its id, of the first of several queues that has one. Raises ValueError for
    impossible names, one that is given twice, and too many.
    """
    if not 1 < len(queues) <= QUEUES_MAX or len(set(queues)) < len(queues):
        raise ValueError(f"expected 2 to {QUEUES_MAX} queues, each once, not {', '.join(queues)}")
    if "" in queues or any("," in name for name in queues[1:]):
        raise ValueError("a queue whose name has a comma can only be the first of several")
    if open and peek:
        raise ValueError("peek and open exclude each other")
    _number(wait_ms, 0, INT32_MAX)
    return GetFirst(tuple([Get(_queue(name), name, wait_ms, open, peek=peek, with_id=True) for name in queues]))


def encode(request: Request) -> bytes:
    """Return the bytes of one request, data block included.

    Times that the protocol has in seconds are rounded up. Raises ValueError for what the protocol cannot express: names
    with spaces or line ends, numbers out of range, an `Invalid`.
    """
    writer = WRITERS.get(type(request))
    if writer is None:
        raise ValueError(f"{type(request).__name__} is not a request")
    return writer(request)


@lru_cache(maxsize=4096)
def _word(name: str) -> bytes:
    """Encode a name as one word of a line. Raises ValueError for bytes that would end the word early."""
    try:
        word = name.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"names are ISO-8859-1 on the wire: {name!r}") from None
    return _checked(word)


@lru_cache(maxsize=4096)
def _queue(name: str) -> bytes:
    """Encode a queue's name. Raises ValueError for a slash, which the server would read as the start of an option."""
    if "/" in name:
        raise ValueError(f"a queue name cannot hold a slash: {name!r}")
    return _word(name)


def _checked(word: bytes) -> bytes:
    if _WORD.fullmatch(word) is None:
        raise ValueError(f"not one word: {word!r}")
    return word


def _number(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"{number} is not within {low}..{high}")
    return number


def _seconds(ms: int) -> int:
    return -(-ms // 1000)


def _expiry_s(ttl_ms: int | None, expires_ms: int) -> int:
    """Return the expiry word. 0 means never, so an expired ttl is written as -1."""
    if ttl_ms is None:
        return _seconds(_number(expires_ms, EXPIRES_MS_MIN, 2**50)) if expires_ms else 0
    return _seconds(_number(ttl_ms, INT32_MIN, TTL_MS_END - 1000)) if ttl_ms > 0 else -1


@lru_cache(maxsize=4096)
def _set_head(queue: str, flags: int, expiry_s: int) -> bytes:
    return b"set %b %d %d " % (_queue(queue), _number(flags, 0, UINT32_MAX), expiry_s)


def _set(request: memcache.Set) -> bytes:
    data = request.data
    never = request.ttl_ms is None and not request.expires_ms
    expiry_s = 0 if never else _expiry_s(request.ttl_ms, request.expires_ms)
    form = b"%b%d noreply\r\n%b\r\n" if request.noreply else b"%b%d\r\n%b\r\n"
    return form % (_set_head(request.queue, request.flags, expiry_s), len(data), data)


def _keyed_set(request: memcache.KeyedSet) -> bytes:
    return _with_options(request.set, PUT_KEY + _put_key(request.key))


def _delayed_set(request: memcache.DelayedSet) -> bytes:
    delay = b"%b%d" % (PUT_DELAY, _number(request.delay_ms, 0, DELAY_MS_MAX))
    return _with_options(request.set, delay + PUT_KEY + _put_key(request.key) if request.key else delay)


def _with_options(put: memcache.Set, options: bytes) -> bytes:
    line = _set(put)
    at = 4 + len(_queue(put.queue))  # behind "set " and the name
    return b"%b%b%b" % (line[:at], options, line[at:])


def _put_key(key: str) -> bytes:
    if not 1 <= len(key) <= PUT_KEY_BYTES_MAX:
        raise ValueError(f"an idempotency key has 1 to {PUT_KEY_BYTES_MAX} letters: {key!r}")
    try:
        return _checked(key.encode("latin-1"))
    except UnicodeEncodeError:
        raise ValueError(f"keys are ISO-8859-1 on the wire: {key!r}") from None


def _get(request: Get) -> bytes:
    return _get_line(request.key, request.with_id)


@lru_cache(maxsize=1024)
def _get_line(key: bytes, with_id: bool) -> bytes:
    return (b"gets %b\r\n" if with_id else b"get %b\r\n") % _checked(key)


def _get_many(request: memcache.GetMany) -> bytes:
    if len({get.with_id for get in request.gets}) != 1:
        raise ValueError("a get of several keys needs keys, all with ids or all without")
    command = b"gets " if request.gets[0].with_id else b"get "
    return command + b" ".join(_checked(get.key) for get in request.gets) + b"\r\n"


def _get_first(request: GetFirst) -> bytes:
    first, *others = request.gets
    options = b"/t=%d" % first.wait_ms if first.wait_ms > 0 else b""
    options += (b"/open" if first.open else b"") + (b"/peek" if first.peek else b"")
    key = first.key + options + ALSO + b",".join(get.key for get in others)
    return _get_line(key, first.with_id)


def _monitor(request: memcache.Monitor) -> bytes:
    seconds = _number(_seconds(request.wait_ms), 0, INT32_MAX)
    if request.max_items is None:
        return b"monitor %b %d\r\n" % (_queue(request.queue), seconds)
    return b"monitor %b %d %d\r\n" % (_queue(request.queue), seconds, _number(request.max_items, 0, INT32_MAX))


def _confirm(request: memcache.Confirm) -> bytes:
    return b"confirm %b %d\r\n" % (_queue(request.queue), _number(request.count, INT32_MIN, INT32_MAX))


def _open_item(request: memcache.ConfirmItem | memcache.AbortItem | memcache.ExtendItem) -> tuple[bytes, int]:
    if request.noreply:
        raise ValueError("how a read ended is worth a reply: noreply is not written")
    return _queue(request.queue), _number(request.id, 0, ID_MAX)


def history_request(queue: str, item_id: int) -> memcache.MetaOpenItem:
    """Return the request for the deliveries and the past of an open item. Raises ValueError for impossible names."""
    key = b"%b/id=%d" % (_queue(queue), _number(item_id, 0, ID_MAX))
    return memcache.MetaOpenItem(queue, item_id, Meta(key, shown=(b"d", b"p")))


def _open_item_figures(request: memcache.MetaOpenItem) -> bytes:
    return b" ".join((b"mg", _checked(request.meta.key), *request.meta.shown)) + b"\r\n"


def _delete(request: memcache.Delete) -> bytes:
    return (b"delete %b noreply\r\n" if request.noreply else b"delete %b\r\n") % _queue(request.queue)


def _names(command: bytes, names: tuple[str, ...]) -> bytes:
    return b" ".join((command, *map(_word, names))) + b"\r\n"


REQUESTS: dict[type[Request], tuple[Callable[[Any], bytes], ReplyShape | None]] = {
    memcache.Set: (_set, replies.STORED),
    memcache.KeyedSet: (_keyed_set, replies.STORED_ONCE),
    memcache.DelayedSet: (_delayed_set, replies.STORED_ONCE),
    memcache.Get: (_get, replies.END),
    memcache.GetMany: (_get_many, replies.END),
    memcache.GetFirst: (_get_first, replies.END),
    memcache.Monitor: (_monitor, replies.END),
    memcache.Confirm: (_confirm, replies.END),
    memcache.ConfirmItem: (lambda request: b"delete %b/id=%d\r\n" % _open_item(request), replies.DELETED),
    memcache.AbortItem: (lambda request: b"touch %b/id=%d/abort 0\r\n" % _open_item(request), replies.TOUCHED),
    memcache.ExtendItem: (lambda request: b"touch %b/id=%d 0\r\n" % _open_item(request), replies.TOUCHED),
    memcache.MetaOpenItem: (_open_item_figures, replies.HISTORY),
    memcache.Delete: (_delete, replies.DELETED),
    memcache.Flush: (lambda request: b"flush %b\r\n" % _queue(request.queue), replies.END),
    memcache.FlushAll: (
        lambda request: b"flush_all noreply\r\n" if request.noreply else b"flush_all\r\n",
        replies.FLUSHED_ALL,
    ),
    memcache.FlushExpired: (lambda request: b"flush_expired %b\r\n" % _queue(request.queue), replies.NUMBER),
    memcache.FlushAllExpired: (lambda request: b"flush_all_expired\r\n", replies.NUMBER),
    memcache.Stats: (lambda request: _names(b"stats", (request.topic,) if request.topic else ()), replies.END),
    memcache.DumpStats: (lambda request: _names(b"dump_stats", request.queues), replies.END),
    memcache.DumpConfig: (lambda request: _names(b"dump_config", request.queues), replies.END),
    memcache.Status: (
        lambda request: _names(b"status", () if request.name is None else (request.name,)),
        replies.STATUS,
    ),
    memcache.Reload: (lambda request: b"reload\r\n", replies.RELOADED),
    memcache.Version: (lambda request: b"version\r\n", replies.VERSION),
    memcache.Verbosity: (
        lambda request: b"verbosity 1 noreply\r\n" if request.noreply else b"verbosity 1\r\n",
        replies.OK,
    ),
    memcache.ClientName: (lambda request: b"client_name %b\r\n" % _word(request.name), replies.OK),
    memcache.Quit: (lambda request: b"quit\r\n", None),
    memcache.Shutdown: (lambda request: b"shutdown\r\n", None),
}
"""The writer of each request, and the shape of its reply. None: the server replies by closing the connection."""
WRITERS = {kind: write for kind, (write, _) in REQUESTS.items()}
FINALS = {kind: reply.finals for kind, (_, reply) in REQUESTS.items() if reply is not None}
PARSERS = {kind: reply.parse for kind, (_, reply) in REQUESTS.items() if reply is not None}
