"""Parsers under made-up bytes: the same requests however the bytes arrive, and no more kept than the limits allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.protocol.client.conversation import Conversation, read
from staniel.protocol.http.parser import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpParser
from staniel.protocol.limits import Limits
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.parser import MemcacheParser
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import More
from staniel.protocol.text.parser import TextParser
from staniel.protocol.thrift.parser import ThriftParser
from staniel.protocol.workq.parser import WorkqParser

SMALL = Limits(line_bytes_max=256, item_bytes_max=128)
PUT_BYTES_MAX = 512
FRAME_BYTES_MAX = 4096


def _parsed_alike(make: Callable[[], Any], data: bytes, kept_bytes_max: int) -> None:
    """The first byte says how the rest is cut."""
    if not data:
        return
    size, data = 1 + data[0] % 16, data[1:]
    whole, pieces = make(), make()
    wanted = _fed(whole, data)
    found = []
    for at in range(0, len(data), size):
        found += _fed(pieces, data[at : at + size])
        assert pieces.pending_bytes <= kept_bytes_max, "keeps more than its limits"
    assert repr(found) == repr(wanted), "other requests when the bytes arrive in pieces"
    assert pieces.pending_bytes == whole.pending_bytes


def _fed(parser: Any, data: bytes) -> list[Any]:
    """All requests, also those of later slices."""
    requests = parser.feed(data)
    while requests and isinstance(requests[-1], More):
        requests = [*requests[:-1], *requests[-1].resume()]
    return list(requests)


def memcache_parser(data: bytes) -> None:
    for dialect in Dialect:
        _parsed_alike(lambda dialect=dialect: MemcacheParser(dialect, SMALL), data, 256 + 128)


def http_parser(data: bytes) -> None:
    """A head may end anywhere in what is kept; a piece of a body more than its limit is not."""
    _parsed_alike(lambda: HttpParser(SMALL), data, HEAD_BYTES_MAX + BODY_BYTES_MAX)


def text_parser(data: bytes) -> None:
    _parsed_alike(lambda: TextParser(SMALL, PUT_BYTES_MAX), data, PUT_BYTES_MAX + 256)


def thrift_parser(data: bytes) -> None:
    _parsed_alike(lambda: ThriftParser(SMALL, FRAME_BYTES_MAX), data, 4 + FRAME_BYTES_MAX)


def workq_parser(data: bytes) -> None:
    _parsed_alike(lambda: WorkqParser(SMALL), data, len(data))


ASKED = (
    (memcache.Set("q", b"item"), read("q"), memcache.Delete("q")),
    (read("q", open=True), memcache.GetMany((read("a"), read("b"))), memcache.Version()),
    (memcache.Stats(), memcache.DumpConfig(), read("q")),
    (memcache.Monitor(b"q", "q", 2000, 3), memcache.DumpStats(), memcache.Status()),
)
"""What a client may have asked before the bytes that pretend to answer."""


def replies(data: bytes) -> None:
    """The client's half. The first byte says what was asked, and how the rest is cut."""
    if not data:
        return
    asked, size, data = ASKED[data[0] % len(ASKED)], 1 + data[0] // len(ASKED) % 16, data[1:]
    whole, pieces = Conversation(), Conversation()
    whole.send(*asked)
    pieces.send(*asked)
    wanted = whole.receive(data)
    found = []
    for at in range(0, len(data), size):
        found += pieces.receive(data[at : at + size])
        assert pieces.pending_bytes <= len(data), "keeps more than it was sent"
    assert repr(found) == repr(wanted), "other replies when the bytes arrive in pieces"
    assert pieces.state is whole.state and pieces.unanswered == whole.unanswered
