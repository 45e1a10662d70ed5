"""Limits of the bytes that are stored and parsed at once. Each has its unit in its name, and its reason."""

from __future__ import annotations

from msgspec import Struct

WORK_PER_FEED = 64
"""The work of one feed, in unknown lines (8 us each), or 64 bytes of one: half a millisecond. The parser stores the
rest, and returns a `More` behind the other requests.
"""

REQUESTS_PER_FEED = 1024
"""The number of requests of known lines returned by one feed: half a millisecond too."""


LONG_ITEM_BYTES = 256 << 10  # a longer item is not copied into replies: any number of clients may ask to see it again


class Limits(Struct, frozen=True):
    """The limits of one parser.

    `line_bytes_max` has room for a multi-key get of every client we tried, and is small enough for 10,000 connections
    that never end their line. `item_bytes_max` is the largest `max_item_size` of any queue; a longer block is skipped.
    `may_log_in`: the client is unauthenticated, and a `set` carries a name and a password.
    """

    line_bytes_max: int = 16_384
    item_bytes_max: int = 16 << 20
    may_log_in: bool = False
