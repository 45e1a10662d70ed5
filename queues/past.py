"""The past of a dead letter: an item that has left its queue without being consumed.

It is made when the item leaves, and stored with the unchanged payload. Queues and journals carry it as bytes
(`ItemWithPast.past`) and do not decode it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
from msgspec import Struct

from staniel.queues.item import Item, ItemWithPast

CLIENT_LENGTH_MAX = 100  # of an address: more would not help, and the past stays small compared to its item
PAST_BYTES_MAX = 400  # the longest name, an address, and the numbers


class Why(IntEnum):
    """Reasons why an item left its queue. The numbers are on disks: never change the meaning of one."""

    DEAD = 2  # delivered max_deliveries times
    # 3 stands in the same place of an item's delay (delays.py)


class Past(Struct, frozen=True, array_like=True):
    """The history of an item before it came to its present queue.

    `origin`: the queue that it left, at `left_ms`. `put_ms`: when a client put it. `deliveries`: how often `origin`
    delivered it. `client`: the address of the last client that got it; "" if that is unknown because the server was
    restarted meanwhile. `times`: how often it has left a queue like this.
    """

    why: Why
    origin: bytes  # a name need not be UTF-8
    put_ms: int
    left_ms: int
    deliveries: int
    client: str = ""
    times: int = 1

    @property
    def origin_name(self) -> str:
        return self.origin.decode("utf-8", "surrogateescape")


_DECODER = msgspec.msgpack.Decoder(Past)


def past_of(item: Item) -> Past | None:
    """Return the past of an item; None if it has none, or a later version has written it."""
    if type(item) is not ItemWithPast:
        return None
    try:
        return _DECODER.decode(item.past)
    except (msgspec.DecodeError, ValueError):
        return None


def next_past(item: Item, why: Why, origin: str, deliveries: int, client: str, now_ms: int) -> bytes:
    """Return the past, as bytes, of an item that leaves `origin` now. It continues the counts of an earlier past."""
    before = past_of(item)
    past = Past(
        why=why,
        origin=origin.encode("utf-8", "surrogateescape"),
        put_ms=before.put_ms if before is not None else item.added_ms,
        left_ms=now_ms,
        deliveries=deliveries,
        client=client[:CLIENT_LENGTH_MAX],
        times=before.times + 1 if before is not None else 1,
    )
    encoded = msgspec.msgpack.encode(past)
    return encoded if len(encoded) <= PAST_BYTES_MAX else b""
