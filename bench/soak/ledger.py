"""The clients' knowledge of the items in one family of queues, and what must therefore be true, now and after a crash.

A family is the queue that items are put into and the queues that they may move on to by themselves: one copy of each
item is in one of them. The ledger gets requests and replies in their order. An item is b"PRODUCER-NUMBER SIZE " and
SIZE letters that follow from its number; the numbers of a producer grow.
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
    """The entry of an item. `holder`: the client that has it open, or None. A delivered item may return before older
    ones.
    """

    fate: Fate
    handed_out: bool = False
    holder: object = None


class Ledger:
    """The ledger of one family, over all crashes. `wrong` collects what a correct server cannot have done."""

    def __init__(self, *queues: str) -> None:
        self.queues = queues
        self.entries: dict[bytes, Entry] = {}
        self.wrong: list[str] = []
        self.holds = 0  # items that are not known to be gone
        self.unanswered_gets = 0  # each may have taken one item that no client saw
        self.is_all_seen = True  # otherwise an item may be on its way from queue to queue, where no reader sees it

    # what clients say and hear

    def sent(self, key: bytes) -> None:
        self.entries[key] = Entry(Fate.SENT)
        self.holds += 1

    def stored(self, key: bytes) -> None:
        """Note that a put was acknowledged. Another client may have taken the item before that reply was read."""
        if self.entries[key].fate is Fate.SENT:
            self.entries[key].fate = Fate.STORED

    def refused(self, key: bytes) -> None:
        """Note that a put got an error: its item must never be seen."""
        del self.entries[key]
        self.holds -= 1

    def delivered(self, item: bytes, newest: dict[bytes, int], holder: object = None) -> bytes:
        """Note an item that a client received, as the reply to an open if it is the `holder`. Return the item's key.

        `newest` is the client's own: of each producer, the last number that this client was the first to receive.
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
        """Note an item that a client received but does not have open any more. Its holder, and whether it is removed,
        are unknown.
        """
        key = key_of(item)
        entry = self.entries.get(key)
        if entry is not None:
            entry.handed_out = True
        if item != item_for(key, size_of(item)):
            self.wrong.append(f"{self.queues[0]}: {text(key)} was never put like this")

    def released(self, key: bytes) -> None:
        """Note that an abort was sent, or that the holder disconnected."""
        self.entries[key].holder = None

    def closing(self, key: bytes) -> None:
        """Note that a close was sent."""
        self.entries[key].holder = None
        self.entries[key].fate = Fate.DOUBTFUL

    def closed(self, key: bytes) -> None:
        """Note that an item was taken, or that its close was acknowledged."""
        self.entries[key].fate = Fate.GONE
        self.holds -= 1

    # after a restart

    def check(self, found: dict[str, list[bytes]]) -> list[str]:
        """Return what is wrong with a family that holds `found`, by queue, after a restart."""
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

    def accept_recovered(self, found: dict[str, list[bytes]]) -> None:
        """Take the state after a restart as certain: present items are stored, missing ones must not return. If not all
        items are visible, all except known removed ones may exist.
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
    """Return the one valid item of this key with `size` letters."""
    return b"%b %d %b" % (key, size, bytes([97 + split(key)[1] % 26]) * size)


def is_sound(item: bytes) -> bool:
    try:
        return item == item_for(key_of(item), size_of(item))
    except ValueError:
        return False


def key_of(item: bytes) -> bytes:
    return item.partition(b" ")[0]


def size_of(item: bytes) -> int:
    """Return the size in the item's text; -1 if that is not a number."""
    size = item.split(b" ", 2)[1:2]
    return int(size[0]) if size and size[0].isdigit() else -1


def split(key: bytes) -> tuple[bytes, int]:
    producer, _, number = key.partition(b"-")
    return producer, int(number) if number.isdigit() else -1


def text(key: bytes) -> str:
    return key[:40].decode("latin-1")
