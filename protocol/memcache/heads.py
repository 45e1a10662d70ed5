"""The request lines that a data block follows: what the line said, until the block is there.

Knows that a block has a length and a fate. Refuses to know framing, words and dialects.
"""

from __future__ import annotations

from typing import final

from msgspec import Struct

from staniel.protocol.memcache.requests import Invalid, Meta, Request


@final
class SetHead(Struct, frozen=True, gc=False):
    """A `set` without its data; the fields mean what they mean in `requests.Set`. `length` in bytes.

    `meta` only for the meta command `ms`: what its answer must say.
    """

    length: int
    queue: str
    flags: int
    ttl_ms: int | None
    expires_ms: int
    noreply: bool
    meta: Meta | None = None


@final
class Refused(Struct, frozen=True, gc=False):
    """A block of `length` bytes that has to be read past but is not wanted; then comes `answer`."""

    length: int
    answer: Invalid


Parsed = Request | SetHead | Refused
