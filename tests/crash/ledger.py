"""What is known about every item of one queue, from the clients' side, and what must hence be true after a crash.

Knows no server, no clock and no threads: it is told what was said and heard. An item is b"PRODUCER-NUMBER" followed by
padding; numbers of one producer grow.
"""

from __future__ import annotations

from enum import Enum


class Fate(Enum):
    SENT = "sent"  # its put was not acknowledged: it may be there
    STORED = "stored"  # acknowledged: it must be there
    CLOSING = "closing"  # its close was sent and not acknowledged: it may be there
    GONE = "gone"  # taken or closed, and acknowledged: it must never come back


class Ledger:
    """One queue, over all crashes."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.fates: dict[bytes, Fate] = {}
        self.handed_out: set[bytes] = set()  # once opened, an item may come back in front of older ones
        self.unanswered_gets = 0  # each may have taken one item that nobody saw

    def sent(self, item: bytes) -> None:
        self.fates[item] = Fate.SENT

    def stored(self, item: bytes) -> None:
        """Its put was acknowledged. Another client may have taken it before we heard of that."""
        if self.fates[item] is Fate.SENT:
            self.fates[item] = Fate.STORED

    def gone(self, item: bytes) -> None:
        self.fates[item] = Fate.GONE

    def opened(self, item: bytes) -> None:
        self.handed_out.add(item)

    def closing(self, item: bytes) -> None:
        self.fates[item] = Fate.CLOSING

    def check(self, found: list[bytes]) -> list[str]:
        """What is wrong with a queue that holds `found` after a restart."""
        there = set(found)
        wrong = [f"invented: {name(item)}" for item in found if item not in self.fates]
        if len(there) < len(found):
            wrong += [f"twice: {name(item)}" for item in there if found.count(item) > 1]
        wrong += [f"came back: {name(item)}" for item in found if self.fates.get(item) is Fate.GONE]
        missing = [item for item, fate in self.fates.items() if fate is Fate.STORED and item not in there]
        if len(missing) > self.unanswered_gets:
            wrong.append(f"lost: {[*map(name, missing)]}, and only {self.unanswered_gets} gets were unanswered")
        return wrong + self._out_of_order(found)

    def _out_of_order(self, found: list[bytes]) -> list[str]:
        newest: dict[bytes, int] = {}
        wrong = []
        for item in found:
            if item in self.handed_out or item not in self.fates:
                continue
            producer, number = split(item)
            if number < newest.get(producer, -1):
                wrong.append(f"out of order: {name(item)} behind {newest[producer]}")
            newest[producer] = number
        return wrong

    def settle(self, found: list[bytes]) -> None:
        """After a restart nothing is in doubt any more: what is there is stored, what is not must stay away."""
        there = set(found)
        for item in self.fates:
            self.fates[item] = Fate.STORED if item in there else Fate.GONE
        self.unanswered_gets = 0


def split(item: bytes) -> tuple[bytes, int]:
    producer, _, rest = item.partition(b"-")
    return producer, int(rest.split(b" ")[0])


def name(item: bytes) -> str:
    return item.split(b" ")[0].decode("latin-1")
