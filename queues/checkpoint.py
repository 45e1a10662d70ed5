"""The contents of a queue at the end of a journal file, in numbers: enough to replace everything up to there by a pack,
and to say what the next file does. Source: the checkpoints of the packing strategy in the Kestrel journal format.
"""

from __future__ import annotations

from msgspec import Struct

Known = tuple[int, int]
"""An item that has left the line before: (its id, the number of its deliveries)."""


class Checkpoint(Struct, frozen=True, gc=False):
    """`xids`: of every item under a transaction, `open_seqs`: the seq of each. `heads`: the seqs of what stands before
    the fresh items, the head first. The fresh ones are those with seqs from `left` up to, not including, `end`.

    `ids`, `deliveries`: of each item under a transaction, then of each of `heads`. `last_id`, `added_bytes`,
    `added_expiring`: as in Line. `is_plain`: whether that is all there is to say; items with a transaction id of their
    own make it False.

    A rotation makes one on the loop, with 100,000 open reads too: so these are columns of numbers, not a tuple an item.
    """

    left: int
    end: int
    xids: tuple[int, ...] = ()
    open_seqs: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    last_id: int = 0
    added_bytes: int = 0
    added_expiring: int = 0
    ids: tuple[int, ...] = ()
    deliveries: tuple[int, ...] = ()
    is_plain: bool = True

    @property
    def length(self) -> int:
        """The number of items in the line."""
        return len(self.heads) + self.end - self.left

    @property
    def open(self) -> dict[int, int]:
        """A new dictionary: the seq of every item under a transaction, by xid."""
        return dict(zip(self.xids, self.open_seqs, strict=True))
