"""What a queue held at the end of a journal file, in numbers: enough to replace everything up to there by a summary,
and to say what the next file does.

Knows seqs (see Line), transaction ids, ids of items and totals. Refuses to know items and files. Source: the
checkpoints of the packing strategy in the Kestrel journal format.
"""

from __future__ import annotations

from msgspec import Struct

Known = tuple[int, int]
"""Of an item that has left the line before: (its id, how often it has been delivered)."""


class Checkpoint(Struct, frozen=True, gc=False):
    """`open`: (xid, seq) of every item under a transaction. `heads`: the seqs of what stands before the fresh items,
    the head first. The fresh ones are those with seqs from `left` up to, not including, `end`.

    `known`: of each of `open`, then of each of `heads`. `last_id`, `added_bytes`, `added_expiring`: as in Line.
    `is_plain`: whether that is all there is to say; items with a transaction id of their own make it False.
    """

    left: int
    end: int
    open: tuple[tuple[int, int], ...] = ()
    heads: tuple[int, ...] = ()
    last_id: int = 0
    added_bytes: int = 0
    added_expiring: int = 0
    known: tuple[Known, ...] = ()
    is_plain: bool = True

    @property
    def length(self) -> int:
        """How many items stood in the line."""
        return len(self.heads) + self.end - self.left
