"""Fields of lines in the memcached dialect: expiries, the size of an item, and how a bad one is refused."""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import Invalid
from staniel.protocol.words import INT32_MIN, integer

RELATIVE_EXPIRY_S_MAX = 30 * 24 * 3600
"""Expiry words up to memcached's 30 days are seconds from now, larger ones seconds since the epoch."""

EXPIRY_S_MAX = 2**40
"""Some 34,000 years: more than any clock in seconds says, and in milliseconds still a 64-bit number."""

_replies = replies_for(Dialect.MEMCACHED)


class Expiry(Struct, frozen=True):
    """Fields as in `requests.Set`."""

    ttl_ms: int | None
    expires_ms: int


def refuse(why: str, noreply: bool = False) -> Invalid:
    """A refusal that leaves the connection open: with noreply the client does not read an answer."""
    return Invalid(b"" if noreply else _replies.client_error(why), why=why)


def hang_up(why: str) -> Invalid:
    """A refusal that closes the connection: sent even if the client gave noreply."""
    return Invalid(_replies.client_error(why), hang_up=True, why=why)


def expiry(word: bytes) -> Expiry | None:
    """What an expiry word means; None if it is no number of seconds."""
    expiry_s = integer(word, INT32_MIN, EXPIRY_S_MAX)
    if expiry_s is None:
        return None
    if expiry_s != 0 and expiry_s <= RELATIVE_EXPIRY_S_MAX:
        return Expiry(expiry_s * 1000, 0)
    return Expiry(None, expiry_s * 1000)


def block_too_large(length: int, limits: Limits) -> str:
    return f"object too large: {length} bytes, max_item_size is {limits.item_bytes_max}"
