"""The put that one read consists of, when its line is known. Compiled, known_put.pyx takes its place."""

from __future__ import annotations

from staniel.protocol.memcache.item_requests import Set, SetHead, new_set
from staniel.protocol.memcache.requests import Parsed

CRLF = b"\r\n"


def known_put(known: dict[bytes, Parsed], data: bytes, at: int) -> Set | None:
    """The put that `data` is, and nothing else, if its line has `at` bytes and is `known`; else None."""
    head = known.get(data[:at])
    if type(head) is SetHead:
        stop = at + head.length
        if len(data) == stop + 2 and data.endswith(CRLF) and head.meta is None:
            return new_set(head.queue, data[at:stop], head.flags, head.ttl_ms, head.expires_ms, head.noreply)
    return None
