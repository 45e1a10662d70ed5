"""The reply to a get of one key, in pieces. The compiled build uses item_reply.pyx instead."""

from __future__ import annotations

from staniel.protocol.limits import LONG_ITEM_BYTES
from staniel.protocol.memcache.item_requests import Get
from staniel.protocol.memo import remember

HEAD_BYTES_MAX = 512
"""The longest cached head. With as many heads as a memo holds, 5 MB at worst."""

ITEM_END = b"\r\nEND\r\n"

_heads: dict[tuple[bytes, int, int], bytes] = {}  # by key, flags and length


def append_item(out: list[bytes], get: Get, data: bytes, flags: int, item_id: int) -> None:
    """Append the reply to `out`: `VALUE key flags length`, for `gets` the item's id, then the item and END, each with
    its line end. A long item is a piece of its own, so that it is not copied.
    """
    if get.with_id:
        head = b"VALUE %b %d %d %d\r\n" % (get.key, flags, len(data), item_id)
    else:
        key = get.key, flags, len(data)
        known = _heads.get(key)
        head = b"VALUE %b %d %d\r\n" % key if known is None else known
        if known is None and len(head) <= HEAD_BYTES_MAX:
            remember(_heads, key, head)
    if len(data) > LONG_ITEM_BYTES:
        out += (head, data, ITEM_END)
    else:
        out.append(b"".join((head, data, ITEM_END)))
