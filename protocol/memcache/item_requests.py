"""The most frequent requests: put one item, read one item."""

from __future__ import annotations

from typing import final

from msgspec import Struct, structs

from staniel.protocol.memcache.meta_fields import Meta, PutDelay, PutKey


class Set(Struct, frozen=True, gc=False):
    """Append `data` to a queue.

    `ttl_ms` is relative to now (0 or less: expired at once). If it is None, `expires_ms` counts: absolute epoch
    milliseconds, 0 = never.
    """

    queue: str
    data: bytes
    flags: int = 0
    ttl_ms: int | None = None
    expires_ms: int = 0
    noreply: bool = False


class Get(Struct, frozen=True, gc=False):
    """Read from a queue. `key` is the key as the client wrote it (`jobs/t=500/open`), `queue` the part before the first
    `/`.

    At most one of `peek`, `abort` and (`open` and/or `close`) is set; the parser refuses other combinations. `wait_ms`
    <= 0 does not wait. `with_id` is memcache's `gets`.
    """

    key: bytes
    queue: str
    wait_ms: int = 0
    open: bool = False
    close: bool = False
    abort: bool = False
    peek: bool = False
    with_id: bool = False


@final
class SetHead(Struct, frozen=True, gc=False):
    """A `set` without its data, with the fields of `Set`. `length` is in bytes.

    `meta` is set for the meta command `ms`: what its reply must contain; and for a put with a key or a delay.
    """

    length: int
    queue: str
    flags: int
    ttl_ms: int | None
    expires_ms: int
    noreply: bool
    meta: Meta | PutKey | PutDelay | None = None


def without_ends(request: Get) -> Get:
    """Return the same read without the close or abort of an open read."""
    return structs.replace(request, abort=False, close=False)


new_set = Set  # called with all fields; compiled, it is cheaper than the class (item_requests.pyx)
