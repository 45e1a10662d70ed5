"""How a segment moves the counter of transaction ids, when nothing is known of what stands before it.

Knows which records touch the counter. Refuses to know anything else: it is the cheap first pass over segments for which
CounterUnknown was raised.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.journal.kestrel import records
from staniel.journal.kestrel.encoder import ADDX, REMOVE, REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID, SAVE_XID
from staniel.journal.kestrel.replay import More
from staniel.queues.xids import XID_MAX, XID_MIN

XIDS = XID_MAX - XID_MIN  # all but 0


class Numbering(Struct):
    """What a segment does to the counter of transaction ids: `given` numbers after `base`, None: after the entry's."""

    base: int | None = None
    given: int = 0

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records; where the next one starts, maybe behind `data`. Raises Bad. See Summariser.consume."""
        at, end, limit = 0, len(data), len(data) + rest_bytes
        try:
            while at < end:
                op = data[at]
                if op == ADDX and end - at >= 21:
                    stop = at + 5 + int.from_bytes(data[at + 1 : at + 5], "little", signed=True)
                    if stop < at + 21 or stop > limit:
                        records.read(data, at, end, rest_bytes)
                    at = stop
                elif op == REMOVE:
                    at += 1
                elif op == REMOVE_TENTATIVE:
                    self.given += 1
                    at += 1
                else:
                    record = records.read(data, at, end, rest_bytes)
                    if op in (SAVE_XID, REMOVE_TENTATIVE_XID) or record.listed is not None:
                        self.base, self.given = record.xid, 0
                    at = record.stop
        except More:
            pass
        return at

    def after(self, entered: int | None) -> int | None:
        """The counter at the end, if it was `entered` at the beginning."""
        counter = entered if self.base is None else self.base
        if counter is None:
            return None
        if not self.given:
            return counter
        place = (counter - XID_MIN - (counter >= 0) + self.given) % XIDS
        xid = XID_MIN + place
        return xid + 1 if xid >= 0 else xid
