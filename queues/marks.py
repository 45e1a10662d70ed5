"""What a queue held at the end of a journal file, in numbers: enough to replace everything up to there by a summary.

Knows turns (see Line) and transaction ids. Refuses to know items and files. Source: the checkpoints of the packing
strategy in the Kestrel journal format.
"""

from __future__ import annotations

from msgspec import Struct


class Mark(Struct, frozen=True, gc=False):
    """`open`: (xid, turn) of every item under a transaction. `heads`: the turns of what stands before the fresh items,
    the head first. The fresh ones are those with turns from `left` up to, not including, `end`.
    """

    left: int
    end: int
    open: tuple[tuple[int, int], ...] = ()
    heads: tuple[int, ...] = ()
