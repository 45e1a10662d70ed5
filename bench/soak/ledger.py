"""What clients know of the items in one family of queues, and what must hence be true, now and after a crash.

A family is the queue that items are put into and those that they may move on to by themselves: one copy of each item is
somewhere in it. The ledger is told what was said and heard, in that order. An item is b"PRODUCER-NUMBER SIZE " and SIZE
letters that follow from its number; the numbers of a producer grow.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Fate(Enum):
    SENT = "sent"  # its put was not acknowledged: it may be there
    STORED = "stored"  # acknowledged: it must be there
    DOUBTFUL = "doubtful"  # its close was sent and not acknowledged: it may be there
    GONE = "gone"  # taken or closed, and acknowledged: it must never come back


class Entry(Struct):
    """One item. `holder` is who has it open, or None. Once handed out it may come back in front of older ones."""

    fate: Fate
    handed_out: bool = False
    holder: object = None


class Ledger:
    """One family, over all crashes. `wrong` collects what a sound server cannot have done."""

    def __init__(self, *queues: str) -> None:
        self.queues = queues
        self.entries: dict[bytes, Entry] = {}
        self.wrong: list[str] = []
        self.holds = 0  # items that are not known to be gone
        self.unanswered_gets = 0  # each may have taken one item that no client saw
        self.is_all_seen = True  # else an item may be on its way from queue to queue, where no reader sees it

    # what clients say and hear

    def sent(self, key: bytes) -> None:
        self.entries[key] = Entry(Fate.SENT)
        self.holds += 1

    def stored(self, key: bytes) -> None:
        """Its put was acknowledged. Another client may have taken it before that was heard."""
        if self.entries[key].fate is Fate.SENT:
            self.entries[key].fate = Fate.STORED

    def refused(self, key: bytes) -> None:
        """Its put was answered with an error: it must never be seen."""
        del self.entries[key]
        self.holds -= 1

    def delivered(self, item: bytes, newest: dict[bytes, int], holder: object = None) -> bytes:
        """A client heard an item, as the answer to an open if it is its `holder`; the item's key.

        `newest` is the client's own: the last number of each producer that it was the first to hear.
        """
        key = key_of(item)
        entry = self.entries.get(key)
        if entry is None or item != item_for(key, size_of(item)):
            self.wrong.append(f"{self.queues[0]}: {text(key)} was never put, or long ago, or not like this")
            return key
        if entry.fate in (Fate.GONE, Fate.DOUBTFUL):
            self.wrong.append(f"{self.queues[0]}: {text(key)} came again after its close ({entry.fate.value})")
        if entry.holder is not None:
            self.wrong.append(f"{self.queues[0]}: {text(key)} was handed to two at a time")
        if not entry.handed_out:
            self._keep_order(key, newest)
        entry.handed_out = True
        entry.holder = holder
        entry.fate = Fate.STORED
        if holder is None:
            self.closed(key)
        return key

    def heard_late(self, item: bytes) -> None:
        """A client heard an item that it does not hold any more: who has it, and whether it is gone, is not said."""
        key = key_of(item)
        entry = self.entries.get(key)
        if entry is not None:
            entry.handed_out = True
        if item != item_for(key, size_of(item)):
            self.wrong.append(f"{self.queues[0]}: {text(key)} was never put like this")

    def released(self, key: bytes) -> None:
        """Its abort was sent, or its holder has hung up."""
        self.entries[key].holder = None

    def closing(self, key: bytes) -> None:
        """Its close was sent."""
        self.entries[key].holder = None
        self.entries[key].fate = Fate.DOUBTFUL

    def closed(self, key: bytes) -> None:
        """It was taken, or its close was acknowledged."""
        self.entries[key].fate = Fate.GONE
        self.holds -= 1

    # after a restart

    def check(self, found: dict[str, list[bytes]]) -> list[str]:
        """What is wrong with a family that holds `found`, by queue, after a restart."""
        items = [item for queue in self.queues for item in found[queue]]
        keys = [key_of(item) for item in items]
        there = set(keys)
        name = self.queues[0]
        wrong = [f"{name}: {text(key)} was never put, or long ago" for key in keys if key not in self.entries]
        wrong += [f"{name}: {text(key_of(item))} is damaged" for item in items if not is_sound(item)]
        if len(there) < len(keys):
            wrong += [f"{name}: {text(key)} is there twice" for key in there if keys.count(key) > 1]
        wrong += [f"{name}: {text(key)} came back" for key in keys if self._fate(key) is Fate.GONE]
        lost = [text(key) for key, entry in self.entries.items() if entry.fate is Fate.STORED and key not in there]
        if len(lost) > self.unanswered_gets:
            wrong.append(f"{name}: lost {lost}, and only {self.unanswered_gets} gets were unanswered")
        return wrong + self._out_of_order(found[name])

    def settle(self, found: dict[str, list[bytes]]) -> None:
        """After a restart nothing is in doubt any more: what is there is stored, what is not must stay away. Unless not
        all is seen: then all but what is known to be gone may be there.
        """
        there = {key_of(item) for queue in self.queues for item in found[queue]}
        kept: dict[bytes, Entry] = {}
        for key, entry in self.entries.items():
            if key in there or not (self.is_all_seen or entry.fate is Fate.GONE):
                entry.fate = Fate.STORED if key in there else Fate.SENT
                entry.holder = None
                kept[key] = entry
        self.entries = kept
        self.holds = len(self.entries)
        self.unanswered_gets = 0

    # inside

    def _fate(self, key: bytes) -> Fate | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.fate

    def _keep_order(self, key: bytes, newest: dict[bytes, int]) -> None:
        producer, number = split(key)
        if number < newest.get(producer, -1):
            self.wrong.append(f"{self.queues[0]}: {text(key)} came behind {newest[producer]}")
        newest[producer] = number

    def _out_of_order(self, found: list[bytes]) -> list[str]:
        newest: dict[bytes, int] = {}
        wrong = []
        for key in map(key_of, found):
            entry = self.entries.get(key)
            if entry is None or entry.handed_out:
                continue
            producer, number = split(key)
            if number < newest.get(producer, -1):
                wrong.append(f"{self.queues[0]}: {text(key)} stands behind {newest[producer]}")
            newest[producer] = number
        return wrong


def item_for(key: bytes, size: int) -> bytes:
    """The one item that this key may have with so many letters."""
    return b"%b %d %b" % (key, size, bytes([97 + split(key)[1] % 26]) * size)


def is_sound(item: bytes) -> bool:
    try:
        return item == item_for(key_of(item), size_of(item))
    except ValueError:
        return False


def key_of(item: bytes) -> bytes:
    return item.partition(b" ")[0]


def size_of(item: bytes) -> int:
    """What the item says of itself; -1 if that is no number."""
    size = item.split(b" ", 2)[1:2]
    return int(size[0]) if size and size[0].isdigit() else -1


def split(key: bytes) -> tuple[bytes, int]:
    producer, _, number = key.partition(b"-")
    return producer, int(number) if number.isdigit() else -1


def text(key: bytes) -> str:
    return key[:40].decode("latin-1")
