"""How much a peer may send before we have understood it. Every limit has a unit in its name and a reason beside it."""

from __future__ import annotations

from msgspec import Struct

WORK_A_FEED = 64
"""What a parser does in one go, in lines that were not seen before (8 us each), or 64 bytes of one: half a millisecond.
What it has not understood by then it keeps, and a request to go on (`More`) stands behind the others.
"""

REQUESTS_A_FEED = 1024
"""So many are handed out in one go, if none of them is work: half a millisecond too."""


class Limits(Struct, frozen=True):
    """Bounds of one parser.

    `line_bytes_max`: room for a multi-key get of every client we tried, and small enough for 10,000 connections that
    never end their line. `item_bytes_max`: the largest `max_item_size` of any queue; a longer block is skipped, not
    kept.
    """

    line_bytes_max: int = 16_384
    item_bytes_max: int = 16 << 20
