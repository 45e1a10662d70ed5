"""The reference model: a queue as a plain list and a dictionary. It applies the recorded changes of the real queue.

It also predicts the statistics. It has no limits, expiry and waits: the checker decides whether a change had a cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

from staniel.queues.changes import Change
from staniel.queues.config import SYNC_ALWAYS, QueueConfig
from staniel.queues.item import past_bytes
from staniel.queues.past import past_of
from staniel.queues.queue import Queue
from staniel.queues.stream.queue import StreamQueue


class Fate(Enum):
    """The end of an open read."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    ABORTED = "aborted"
    GONE = "gone"  # its queue was deleted


SWEPT = b"the place of an item that expired"
"""The payload that stands for a remnant. It differs from b"", which a wrongly delivered stand-in of a pack
would have.
"""


class Record(Struct, eq=False):
    """An item in a queue. `moved_to`: the item has a copy in another queue, and will leave this one."""

    data: bytes
    added_ms: int
    expires_ms: int
    moved_to: Move | None = None
    past: bytes = b""  # encoded
    first_put_ms: int = 0
    date_ms: int = 0  # expires when the wall clock shows this; `expires_ms` is the same moment in passed time
    is_doubtful: bool = False  # the wall clock had shown its date, and was set back: the item may have expired or not
    deliveries: int = 0  # opens that have survived every accident, and those of this life

    def is_over(self, now_ms: int) -> bool:
        """Tell whether the item's own lifetime has ended: it may have been swept, so that only its place is left."""
        return self.is_doubtful or 0 < self.expires_ms < now_ms

    def has_expired(self, max_age_ms: int, now_ms: int) -> bool:
        if self.is_doubtful or (self.expires_ms and self.expires_ms < now_ms):
            return True
        return max_age_ms > 0 and self.added_ms + max_age_ms < now_ms


class Move(Struct, eq=False):
    """The copy of an item that changes queues. Change number `at` of queue `target` added it."""

    target: str
    at: int


class Reading(Struct, eq=False):
    """An open read. `holder`: the client that got the item. `asked_back`: its holder has aborted it. `may_be_anothers`:
    the item was delivered twice before a client heard of it, so no reply shows which client has this read.
    """

    record: Record
    xid: int
    opened_ms: int
    holder: object = None
    fate: Fate = Fate.OPEN
    asked_back: bool = False
    may_be_anothers: bool = False


class Verb(Enum):
    """The changes of `queues/changes.py`, the end of a queue, and an item of its journal that is not meant for it."""

    ADD = "added"
    PASS = "passed over"
    REMOVE = "removed"
    OPEN = "opened"
    CONFIRM = "confirmed"
    ABORT = "aborted"
    END = "deleted"


class Fact(Struct, frozen=True):
    verb: Verb
    xid: int = 0
    record: Record | None = None


class ImpossibleChange(Exception):
    """The error for a change that cannot follow from those before it."""


class State:
    """The state of a queue. `ready`: the line, the head first. `open`: open reads, by xid."""

    def __init__(self, ready: list[Record], open_reads: dict[int, Record]) -> None:
        self.ready = ready
        self.open = open_reads

    def apply(self, fact: Fact) -> Record | None:
        """Apply a change. Return the record that it is about. Raises ImpossibleChange."""
        verb, xid = fact.verb, fact.xid
        if verb is Verb.ADD:
            assert fact.record is not None
            self.ready.append(fact.record)
            return fact.record
        if verb is Verb.END:
            self.ready, self.open = [], {}
            return None
        if verb is Verb.PASS:
            return fact.record
        if verb is Verb.REMOVE or verb is Verb.OPEN:
            if not self.ready:
                raise ImpossibleChange(f"{verb.value} the head of an empty line")
            record = self.ready.pop(0)
            if verb is Verb.OPEN:
                if xid in self.open:
                    raise ImpossibleChange(f"opened {xid}, which is open")
                self.open[xid] = record
            return record
        if xid not in self.open:
            raise ImpossibleChange(f"{verb.value} {xid}, which is not open")
        record = self.open.pop(xid)
        if verb is Verb.ABORT:
            self.ready.insert(0, record)
        return record

    def recovered(self) -> list[Record]:
        """Return the line after a restart: the clients with open reads are gone."""
        return [self.open[xid] for xid in sorted(self.open)] + self.ready


class Written(Struct, frozen=True):
    """A commit: the file had `facts` of the queue's changes then; `sync_ms` is the sync policy of that moment."""

    at_ms: int
    facts: int
    sync_ms: int


class QueueModel:
    """The history of one name since the last start."""

    def __init__(self, name: str, base: list[Record]) -> None:
        self.name = name
        self.base = base
        self.facts: list[Fact] = []
        self.base_deliveries = {id(record): record.deliveries for record in base}
        self.base_xids: list[int] = []  # xids of the first items of `base`, whose reads recovery has not ended yet
        self.now = self.first_state()
        self.queue: Queue | None = None
        self.readings: dict[int, Reading] = {}
        self.is_journaled = True
        self.is_reader = False  # it shares a journal, see promises.py
        self.is_being_removed = False  # its files are being removed, and no change says so yet
        self.was_lax = False  # changes were recorded under another policy than "always"
        self.journaled_facts = 0  # how many changes the last commit has written
        self.expired: set[int] = set()  # numbers of changes that were caused by time alone
        self.written: list[Written] = []
        self.promised_after_kill = 0
        self.promised_after_power_loss = 0
        self.begun_after_facts = 0  # how many changes of all queues came before its first one in this life
        self.counts: Counter[Verb] = Counter()  # of changes since a queue of this name is served
        self.is_always = False
        self.always_since = 0  # later changes were recorded under sync_journal = "always"
        self._noted: QueueConfig | None = None
        self.timeouts_ms: set[int] = set()
        self.had_delay = False
        self.moved_to: set[str] = set()  # queues to which operators asked to move its items
        self.targets: set[str] = set()  # queues to which it sends items, or has sent some

    def records(self) -> list[Record]:
        """Return all items that the queue has had since the last start, some of them gone."""
        return [*self.base, *(fact.record for fact in self.facts if fact.record is not None)]

    def first_state(self) -> State:
        """Return the state at the beginning of this life."""
        count = len(self.base_xids)
        return State(self.base[count:], dict(zip(self.base_xids, self.base, strict=False)))

    def add_queue(self, queue: Queue) -> None:
        """Note that a queue of this name is served; a new one counts from zero."""
        self.queue = queue
        if queue.open_reads and not self.facts:
            self._begin_with_open_reads(queue)
        self.is_journaled = queue.config.keep_journal
        self.is_reader = isinstance(queue, StreamQueue)
        self.note_settings()
        self.counts.clear()

    def _begin_with_open_reads(self, queue: Queue) -> None:
        """Begin with the open reads of an earlier life. Recovery ends them in the next turns, without a request."""
        self.base_xids = sorted(queue.open_reads)
        self.now = self.first_state()
        self.readings = {xid: Reading(record, xid, 0, asked_back=True) for xid, record in self.now.open.items()}

    def note_settings(self) -> None:
        """Note the settings under which the next changes happen. A reload changes them."""
        if self.queue is None or self.queue.config is self._noted:
            return
        config = self._noted = self.queue.config
        if config.open_timeout_ms:
            self.timeouts_ms.add(config.open_timeout_ms)
        self.had_delay |= bool(config.retry_delays_ms)
        self.targets |= {config.expire_to_queue, config.dead_letter_queue} - {""}
        is_always = config.sync_ms == SYNC_ALWAYS
        self.was_lax |= not is_always
        if is_always and not self.is_always:
            self.always_since = len(self.facts)
        self.is_always = is_always

    def end(self) -> None:
        self.note_settings()  # a reload may have come in the same tick
        self.facts.append(Fact(Verb.END))
        self.now.apply(self.facts[-1])
        for reading in self.readings.values():
            reading.fate = Fate.GONE
        self.readings.clear()
        self.queue = None

    def apply(self, fact: Fact) -> Record | None:
        """Note a change. Raises ImpossibleChange."""
        self.note_settings()  # a reload may have come in the same tick
        record = self.now.apply(fact)
        self.facts.append(fact)
        self.counts[fact.verb] += 1
        return record

    def count_deliveries(self, facts: int) -> None:
        """Set the deliveries of each record to its opens in the first `facts` changes, because an accident has lost the
        others.
        """
        for record in self.base:
            record.deliveries = self.base_deliveries.get(id(record), 0)
        state = self.first_state()
        for fact in self.facts:
            if fact.record is not None:
                fact.record.deliveries = 0
        for fact in self.facts[:facts]:
            opened = state.apply(fact)
            if opened is not None:
                opened.deliveries += fact.verb is Verb.OPEN

    def states(self, since: int = 0) -> Iterator[tuple[int, State]]:
        """Yield (number of changes, state) from `since` on. A state is valid until the next one is requested."""
        state = self.first_state()
        if not since:
            yield 0, state
        for count, fact in enumerate(self.facts, 1):
            state.apply(fact)
            if count >= since:
                yield count, state

    def waiting(self) -> list[Record]:
        """Return the line without the items that are on their way to another queue."""
        return [record for record in self.now.ready if record.moved_to is None]


def facts_of(change: Change) -> Iterator[Fact]:
    """Yield a change of a queue as the model's changes. A change of several items becomes one for each. Classes are
    compared by name.
    """
    kind = type(change).__name__
    if kind == "Added":
        item = change.item  # type: ignore[union-attr]
        past = past_of(item)
        put_ms = item.added_ms if past is None else past.put_ms
        yield Fact(Verb.ADD, 0, Record(item.data, item.added_ms, item.expires_ms, None, past_bytes(item), put_ms))
    elif kind == "Cleared":
        for _ in range(change.count):  # type: ignore[union-attr]
            yield Fact(Verb.REMOVE)
    elif kind == "Removed":
        yield Fact(Verb.REMOVE)
    else:
        yield Fact(Verb(kind.lower()), change.xid)  # type: ignore[union-attr]
