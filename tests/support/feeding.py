"""How the tests hand bytes to a parser: whole, and one by one, which must never make a difference."""

from __future__ import annotations

from typing import Any

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.parser import MemcacheParser, MemcacheState
from staniel.protocol.memcache.requests import Dialect, Request
from staniel.protocol.requests import More

SMALL = Limits(line_bytes_max=64, item_bytes_max=16)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of the given sizes, the rest as one more."""
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


def all_of(parser: Any, data: bytes) -> list[Any]:
    """The requests in `data`, in as many slices as the parser makes of it."""
    return whole(parser.feed(data))


def whole(found: list[Any]) -> list[Any]:
    """All slices, of which `found` is the first."""
    while found and isinstance(found[-1], More):
        found[-1:] = found[-1].resume()
    return found


def read(dialect: Dialect, data: bytes, limits: Limits | None = None) -> tuple[list[Request], MemcacheState]:
    """The requests in `data` and the state they leave, fed whole and byte by byte."""
    whole = MemcacheParser(dialect, limits or Limits())
    requests = whole.feed(data)
    dripped = MemcacheParser(dialect, limits or Limits())
    one_by_one = [request for byte in data for request in dripped.feed(bytes([byte]))]
    assert one_by_one == requests
    assert dripped.state is whole.state
    assert dripped.pending_bytes == whole.pending_bytes
    return requests, whole.state
