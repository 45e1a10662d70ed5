"""How much of what a peer sends is stored and parsed at once. Each limit has its unit in its name, and its reason."""

from __future__ import annotations

from msgspec import Struct

WORK_PER_FEED = 64
"""What a parser does in one feed, in lines that are not known yet (8 us each), or 64 bytes of one: half a millisecond.
The rest it stores, and hands out a `More` behind the other requests.
"""

REQUESTS_PER_FEED = 1024
"""So many requests of known lines are handed out in one feed: half a millisecond too."""


LONG_ITEM_BYTES = 256 << 10  # a longer item is not copied into replies: any number of clients may ask to see it again


class Limits(Struct, frozen=True):
    """Bounds of one parser.

    `line_bytes_max`: room for a multi-key get of every client we tried, and small enough for 10,000 connections that
    never end their line. `item_bytes_max`: the largest `max_item_size` of any queue; a longer block is skipped, not
    kept. `may_log_in`: the client has yet to say who it is; a `set` carries a name and a password.
    """

    line_bytes_max: int = 16_384
    item_bytes_max: int = 16 << 20
    may_log_in: bool = False
