"""Fields of lines in the memcached dialect: expiries, the size of an item, and how a bad one is refused."""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.limits import Limits
from staniel.protocol.memcache.replies import replies_for
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import Invalid
from staniel.protocol.words import INT32_MIN, integer

RELATIVE_EXPIRY_S_MAX = 30 * 24 * 3600
"""The limit between relative and absolute expiry: up to memcached's 30 days a word is seconds from now, above it
seconds since the epoch.
"""

DATE_S_MIN = 978_307_200
"""The first second of 2001. A smaller date is really a ttl of more than 30 days given in seconds."""

EXPIRY_S_MAX = 2**40
"""The limit of expiry words, some 34,000 years: more than any clock in seconds says, and in milliseconds still a 64-bit
number.
"""

NOT_SECONDS = "the expiry is not a number of seconds"

_replies = replies_for(Dialect.MEMCACHED)


class Expiry(Struct, frozen=True):
    """The two fields of an expiry, as in `requests.Set`."""

    ttl_ms: int | None
    expires_ms: int


NEVER = Expiry(None, 0)


def refuse(why: str, noreply: bool = False) -> Invalid:
    """Return a refusal that leaves the connection open. With noreply it is empty: the client does not read a reply."""
    return Invalid(b"" if noreply else _replies.client_error(why), why=why)


def hang_up(why: str) -> Invalid:
    """Return a refusal that closes the connection. It is sent even with noreply."""
    return Invalid(_replies.client_error(why), hang_up=True, why=why)


def seconds(word: bytes) -> int | None:
    """Return the number of seconds in an expiry word, None if it is none."""
    return integer(word, INT32_MIN, EXPIRY_S_MAX)


def expiry(word: bytes) -> Expiry | str:
    """Return what an expiry word means, or why it is refused.

    memcached accepts a date of the past, and the item expires at once. A date before 2001 is a ttl in seconds that is
    too long for one.
    """
    expiry_s = seconds(word)
    if expiry_s is None:
        return NOT_SECONDS
    if expiry_s != 0 and expiry_s <= RELATIVE_EXPIRY_S_MAX:
        return Expiry(expiry_s * 1000, 0)
    if 0 < expiry_s < DATE_S_MIN:
        return (
            f"the expiry {expiry_s} would be a date before 2001: above {RELATIVE_EXPIRY_S_MAX} (30 days) it is in "
            "seconds since 1970. For a longer life give the date on which it ends"
        )
    return Expiry(None, expiry_s * 1000)


def block_too_large(length: int, limits: Limits) -> str:
    return f"object too large: {length} bytes, max_item_size is {limits.item_bytes_max}"
