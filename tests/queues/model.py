"""A queue as a list, and a journal that remembers: what the real ones are measured against. Simple, slow, obvious."""

from __future__ import annotations

from dataclasses import dataclass, field

from staniel.queues.calendar import EVEN
from staniel.queues.changes import Aborted, Added, Change, Cleared, Confirmed, Opened, Removed
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.item import Delivery, Item
from staniel.queues.line import Line, PlainLine
from staniel.queues.queue import Queue


class Recorder(Journal):
    """A Journal that keeps every change."""

    batch = 0

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def record(self, change: Change) -> None:
        self.changes.append(change)


class Hand:
    """A Waiter that keeps what it is given."""

    def __init__(self, opens: bool = False, peeks: bool = False) -> None:
        self.opens = opens
        self.peeks = peeks
        self.got: list[Delivery] = []
        self.dismissed = 0

    def deliver(self, taken: Delivery) -> None:
        self.got.append(taken)

    def moved(self, queue: Queue) -> None:
        self.queue = queue

    def dismiss(self) -> None:
        self.dismissed += 1


@dataclass(eq=False)
class Thing:
    """One item of the model; `id` once it has been seen."""

    data: bytes
    added_ms: int
    expires_ms: int
    flags: int
    id: int = 0
    deliveries: int = 0
    is_swept: bool = False  # it had expired behind a live head, and only its place is left

    @property
    def shown(self) -> bytes:
        return b"" if self.is_swept else self.data


@dataclass
class Model:
    """The rules of the queue, said once more."""

    config: QueueConfig
    line: list[Thing] = field(default_factory=list)
    open: dict[int, Thing] = field(default_factory=dict)
    last_xid: int = 0
    expired: int = 0
    discarded: int = 0

    @property
    def bytes(self) -> int:
        return sum(len(thing.shown) for thing in self.line)

    @property
    def present(self) -> int:
        return sum(not thing.is_swept for thing in self.line)

    def full(self) -> bool:
        return self.present >= self.config.max_items or self.bytes >= self.config.max_bytes

    def add(self, thing: Thing, now_ms: int) -> bool:
        config = self.config
        if len(thing.data) > config.max_item_bytes:
            return False
        if self.full():
            self.sweep_behind(now_ms)
        while self.full():
            if not config.discard_old_when_full or not self.line:
                return False
            self.discarded += not self.line.pop(0).is_swept
        if config.max_age_ms:
            thing.expires_ms = min(thing.expires_ms or 2**62, EVEN.end_of_life(now_ms, config.max_age_ms))
        self.sweep(now_ms, config.max_expire_sweep)
        self.line.append(thing)
        return True

    def dead(self, thing: Thing, now_ms: int) -> bool:
        max_age_ms = self.config.max_age_ms
        if thing.is_swept:
            return True
        moments = [thing.expires_ms] if thing.expires_ms else []
        moments += [thing.added_ms + max_age_ms] if max_age_ms else []
        return bool(moments) and min(moments) < now_ms

    def sweep(self, now_ms: int, sweep_max: int) -> int:
        gone: list[Thing] = []
        while len(gone) < sweep_max and self.line and self.dead(self.line[0], now_ms):
            gone.append(self.line.pop(0))
        count = sum(not thing.is_swept for thing in gone)
        self.expired += count
        return count

    def sweep_behind(self, now_ms: int) -> None:
        """At most max_expire_sweep; those that were handed back come first, the last of them as the last."""
        back = [thing for thing in reversed(self.line) if thing.id]
        found = [thing for thing in [*back, *(each for each in self.line if not each.id)] if not thing.is_swept]
        for thing in [each for each in found if 0 < each.expires_ms < now_ms][: self.config.max_expire_sweep]:
            thing.is_swept = True
            self.expired += 1

    def head(self, now_ms: int) -> Thing | None:
        self.sweep(now_ms, len(self.line))
        return self.line[0] if self.line else None

    def next_xid(self) -> int:
        xid = self.last_xid
        while True:
            xid = -(2**31) if xid == 2**31 - 1 else xid + 1
            if xid and xid not in self.open:
                self.last_xid = xid
                return xid

    def put_back(self, xid: int) -> None:
        self.line.insert(0, self.open.pop(xid))

    def restart(self) -> None:
        for xid in sorted(self.open, reverse=True):
            self.put_back(xid)
        for thing in self.line:
            thing.is_swept = False


@dataclass
class Replayed:
    """A tiny replay of changes, which also insists that each one names the item it is about."""

    line: Line = field(default_factory=PlainLine)
    open: dict[int, Delivery] = field(default_factory=dict)
    last_xid: int = 0

    def apply(self, change: Change) -> None:
        if isinstance(change, Added):
            item = change.item
            self.line.append(Item(item.data, item.added_ms, item.expires_ms, item.flags))
        elif isinstance(change, Removed):
            assert self.line.drop() == change.id
        elif isinstance(change, Cleared):
            for _ in range(change.count):
                self.line.drop()
        elif isinstance(change, Opened):
            taken = self.line.pop()
            assert taken.id == change.id and change.xid not in self.open
            taken.xid = change.xid
            self.open[change.xid] = taken
            self.last_xid = change.xid
        else:
            assert isinstance(change, Confirmed | Aborted)
            taken = self.open.pop(change.xid)
            assert taken.id == change.id
            if isinstance(change, Aborted):
                self.line.give_back(taken)
