"""The history of single items in Kestrel's format: the records of a queue's files in order, and the effect of each on
which item. Records do not name items, so an item is identified by the place of the record that added it, `FILE:BYTE`.

replay.py makes a queue from the same records, for service; tests compare the two. Sidecars are not used: a missing
sealed file is reported, and later files then seem to be about other items.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from staniel.journal.errors import CorruptRecord, Flaw, IncompleteRecord, TruncatedRecord
from staniel.journal.kestrel.dump import NAMES
from staniel.journal.kestrel.files import Files
from staniel.journal.kestrel.install import is_empty_pack
from staniel.journal.kestrel.records import (
    ADD,
    ADD_XID,
    CONFIRM_REMOVE,
    FLAGS_MASK,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
    Record,
    decode,
)
from staniel.journal.trace import TIMES_FROM_MS, Event, FrozenFs, Happened, Payload, Progress
from staniel.queues.xids import next_xid

PIECE_BYTES = 1 << 20
AddEvent = Callable[..., None]


class TracedItem(Struct, eq=False, gc=False):
    """An item and its record. `xid`: the number under which it will be opened, because an ADD_XID has added it.
    `is_stand_in`: a pack wrote it in place of an item that a later record removes.
    """

    id: str
    payload: Payload
    record_bytes: int
    added_ms: int
    expires_ms: int
    flags: int
    xid: int | None
    is_stand_in: bool


class Step(Struct, frozen=True, gc=False):
    """A record and its effect; `items` are those of the `events`. `added_ms`: the time in it, 0 if it has none."""

    file: str
    at: int
    size: int
    record: str
    added_ms: int
    events: list[Event]
    items: list[TracedItem]


class KestrelTrace:
    """The state of one queue after the records read so far. `line`: the head first; `open`: by transaction id."""

    def __init__(self, fs: FrozenFs, folder: str, files: Files, progress: Progress = lambda size: None) -> None:
        self.line: deque[TracedItem] = deque()
        self.open: dict[int, TracedItem] = {}
        self.flaws: list[tuple[str, Flaw]] = []
        self.records: Counter[str] = Counter()
        self.clock_ms = 0  # the latest time in a record so far: later records cannot be older
        self._counter = 0
        self._saves: list[tuple[int, int]] = []  # SAVE_XID records in a row: (the counter before each, its own)
        self._fs, self._folder, self._files, self._progress = fs, folder, files, progress
        self._file = ""
        self._sealed_ms: int | None = None

    def names(self) -> list[str]:
        """Return the files in the order in which they are replayed, without those that a finished pack covers."""
        packs = {
            name: number
            for name, number in self._files.packs.items()
            if not is_empty_pack(self._fs, f"{self._folder}/{name}")
        }
        newest = max(packs, key=lambda name: (packs[name], name), default="")
        covered = packs.get(newest, -1)
        archives = [name for name in self._files.archives_in_order() if self._files.archives[name] > covered]
        return [*([newest] if newest else []), *archives, *([self._files.queue] if self._files.current else [])]

    def sealed_ms(self, name: str) -> int | None:
        """Return when a file was sealed, according to its name; None if the name has no time, or the file is not
        sealed.
        """
        number = (self._files.archives | self._files.packs).get(name, 0)
        return number if number >= TIMES_FROM_MS else None

    def begins_with_state(self, name: str) -> bool:
        """Tell whether a file is a pack or was rewritten, and so begins with the queue's state."""
        return self._fs.read(f"{self._folder}/{name}", 0, 1) == bytes((SAVE_XID,))

    def steps(self) -> Iterator[Step]:
        """Yield one record after another. If the rest of a file cannot be read, the next file follows."""
        for name in self.names():
            self._file, self._sealed_ms = name, self.sealed_ms(name)
            self._saves.clear()
            try:
                yield from self._steps_of(name)
            except CorruptRecord as error:
                torn = isinstance(error, TruncatedRecord) and name == self._files.queue
                size = self._fs.size(f"{self._folder}/{name}") - error.at
                self.flaws.append((name, Flaw(error.at, size, error.why, torn)))

    def undo(self, step: Step) -> None:
        """Undo the last step, because it came after the requested time."""
        for event, item in zip(reversed(step.events), reversed(step.items), strict=True):
            match event.happened:
                case Happened.ADDED:
                    self.line.pop()
                case Happened.REMOVED:
                    self.line.appendleft(item)
                case Happened.OPENED if event.xid is not None and step.record != "DUMP":
                    self.line.appendleft(self.open.pop(event.xid))
                case Happened.OPENED if event.xid is not None:
                    del self.open[event.xid]
                case Happened.ABORTED | Happened.CLOSED if event.xid is not None:
                    if event.happened is Happened.ABORTED:
                        self.line.popleft()
                    self.open[event.xid] = item

    def _steps_of(self, name: str) -> Iterator[Step]:
        path = f"{self._folder}/{name}"
        size = self._fs.size(path)
        offset, want = 0, PIECE_BYTES
        while offset < size:
            piece = self._fs.read(path, offset, want)
            if not piece:
                raise TruncatedRecord(at=offset)
            at, rest_bytes = 0, size - offset - len(piece)
            try:
                while at < len(piece):
                    record = decode(piece, at, len(piece), rest_bytes)
                    yield self._follow_record(record, offset + at, record.stop - at, offset)
                    at = record.stop
            except IncompleteRecord:
                if not rest_bytes:
                    raise TruncatedRecord(at=offset + at) from None
            except CorruptRecord as error:
                error.at = offset + at
                raise
            self._progress(at)
            offset += at
            want = PIECE_BYTES if at else 2 * want

    def _follow_record(self, record: Record, at: int, size: int, offset: int) -> Step:
        op, events, items = record.op, list[Event](), list[TracedItem]()
        name = "DUMP" if record.listed is not None else "CON" if op == STATE_DUMP else NAMES.get(op, "ADD")
        self.records[name] += 1
        self.clock_ms = max(self.clock_ms, record.added_ms)

        def add_event(happened: Happened, item: TracedItem, xid: int | None = None) -> None:
            has_time = happened is Happened.ADDED and record.added_ms > 0
            from_ms = record.added_ms if has_time else self.clock_ms
            until_ms = from_ms if has_time else self._until()
            items.append(item)
            events.append(Event(happened, item.id, self._file, at, size, name, from_ms, until_ms, xid))

        if record.listed is not None:
            self._counter = record.xid
            for read in record.listed:
                if read.xid not in self.open:
                    self.open[read.xid] = item = self._item(read, at, size, offset, 0)
                    add_event(Happened.OPENED, item, read.xid)
        elif record.size >= 0:
            if op == STATE_DUMP and (closed := self.open.pop(record.xid, None)):
                add_event(Happened.CLOSED, closed, record.xid)
            self.line.append(self._item(record, at, size, offset, 0 if op == STATE_DUMP else self._flags()))
            add_event(Happened.ADDED, self.line[-1])
        elif op == REMOVE and self.line:
            add_event(Happened.REMOVED, self.line.popleft())
        elif op in (REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID):
            self._reserve(record, add_event)
        elif op == UNREMOVE and record.xid in self.open:
            self._give_back(record.xid, add_event)
        elif op == CONFIRM_REMOVE and (confirmed := self.open.pop(record.xid, None)):
            add_event(Happened.CLOSED, confirmed, record.xid)
        if op == SAVE_XID:
            self._saves.append((self._counter, record.xid))
            self._counter = record.xid
        else:
            self._saves.clear()
        return Step(self._file, at, size, name, record.added_ms, events, items)

    def _until(self) -> int | None:
        sealed_ms = self._sealed_ms
        return sealed_ms if sealed_ms is not None and sealed_ms >= self.clock_ms else None

    def _item(self, record: Record, at: int, size: int, offset: int, flags: int) -> TracedItem:
        payload = Payload(self._file, offset + record.payload_at, record.size)
        is_stand_in = not (record.added_ms or record.size or record.expires_ms) and record.op != ADD
        xid = record.xid if record.op == ADD_XID else None
        item_id = f"{self._file}:{at}"
        return TracedItem(item_id, payload, size, record.added_ms, record.expires_ms, flags, xid, is_stand_in)

    def _reserve(self, record: Record, add_event: AddEvent) -> None:
        head = self.line[0] if self.line else None
        if record.op == REMOVE_TENTATIVE_XID:
            self._counter = xid = record.xid
        elif head is None:
            return
        elif head.xid is not None:
            xid = head.xid
        else:
            self._counter = xid = next_xid(self._counter, self.open.keys())
        if head is None:
            return
        if xid in self.open:  # the record of its return was lost
            self._give_back(xid, add_event)
        item = self.line.popleft()
        item.xid = None
        self.open[xid] = item
        add_event(Happened.OPENED, item, xid)

    def _give_back(self, xid: int, add_event: AddEvent) -> None:
        item = self.open.pop(xid)
        self.line.appendleft(item)
        add_event(Happened.ABORTED, item, xid)

    def _flags(self) -> int:
        """Return the memcache flags as replay.py does."""
        saves = self._saves
        is_pair = len(saves) >= 2 and saves[-1][1] == saves[-2][0]
        return saves[-2][1] & FLAGS_MASK if is_pair else 0
