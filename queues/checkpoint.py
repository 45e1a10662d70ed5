"""The contents of a queue at the end of a journal file, as numbers: enough to replace everything up to that point by a
pack, and to derive the effect of the next file. Source: the checkpoints of the packing strategy in the Kestrel journal
format.
"""

from __future__ import annotations

from msgspec import Struct

Known = tuple[int, int]
"""An item that has left the line: (its id, the number of its deliveries)."""


class Checkpoint(Struct, frozen=True, gc=False):
    """The contents of a queue, as columns of numbers. `xids`: of every item under a transaction, `open_seqs`: the seq
    of each. `heads`: the seqs of the items before the fresh ones, the head first. The fresh items have the seqs from
    `left` to `end` - 1.

    `ids`, `deliveries`: of each item under a transaction, then of each of `heads`. `last_id`, `added_bytes`,
    `added_expiring`: as in Line. `is_plain`: these fields describe the contents completely; items with a transaction id
    of their own make it False.

    A rotation makes a checkpoint in the loop, even with 100,000 open reads, so it has columns and not a tuple for each
    item.
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
