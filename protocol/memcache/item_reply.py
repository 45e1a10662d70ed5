"""The answer to a get of one key, as bytes. Compiled, item_reply.pyx takes its place."""

from __future__ import annotations

from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memo import remember

HEAD_BYTES_MAX = 512
"""With as many heads as a memo holds 5 MB at worst."""

_heads: dict[tuple[bytes, int, int], bytes] = {}  # by key, flags and length


def item_reply(get: Get, data: bytes, flags: int, item_id: int) -> bytes:
    """`VALUE key flags length`, for `gets` the item's id, then the item and END, each with its line end."""
    if get.with_id:
        return b"VALUE %b %d %d %d\r\n%b\r\nEND\r\n" % (get.key, flags, len(data), item_id, data)
    key = get.key, flags, len(data)
    head = _heads.get(key)
    if head is None:
        head = b"VALUE %b %d %d\r\n" % key
        if len(head) <= HEAD_BYTES_MAX:
            remember(_heads, key, head)
    return b"".join((head, data, b"\r\nEND\r\n"))
