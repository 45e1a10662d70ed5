"""The history of single items in libkestrel's format. Each item has an id, and the segments say when it was put. A
reader's file has the id up to which its queue has confirmed all items, and the confirmed ids above it, in the order of
writing, without times. Opens and aborts are not recorded, and a replaced reader's file begins with its position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from staniel.journal.dump import Row, rows
from staniel.journal.errors import CorruptRecord, Flaw, TruncatedRecord
from staniel.journal.interval_set import IntervalSet
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.files import StreamFiles, queue_of_reader
from staniel.journal.libkestrel.records import MAGIC_BYTES, READER_MAGIC, SEGMENT_MAGIC
from staniel.journal.trace import Event, FrozenFs, Happened, Payload, Progress


class Put(Struct, frozen=True, gc=False):
    """An item and its record: `size` bytes from byte `at` of `file` on."""

    id: int
    file: str
    at: int
    size: int
    payload: Payload
    added_ms: int
    expires_ms: int


class Confirmation(Struct, frozen=True, gc=False):
    """A record of a reader's file. Every id up to `head` is confirmed (-1: the record has no head), and so are
    `ids`.
    """

    file: str
    at: int
    size: int
    record: str
    head: int
    ids: tuple[int, ...]

    def covers(self, item_id: int) -> bool:
        return item_id <= self.head or item_id in self.ids


class ReaderPosition:
    """The ids that a reader has confirmed."""

    def __init__(self) -> None:
        self._head = 0
        self._ids = IntervalSet()

    def add(self, confirmed: Confirmation) -> None:
        if confirmed.head >= 0:
            self._head = confirmed.head
        for item_id in confirmed.ids:
            self._ids.add(item_id)

    def __contains__(self, item_id: int) -> bool:
        return item_id <= self._head or item_id in self._ids


class StreamTrace:
    """The files of one queue with its fan-out children."""

    def __init__(self, fs: FrozenFs, folder: str, files: StreamFiles, progress: Progress = lambda size: None) -> None:
        self.flaws: list[tuple[str, Flaw]] = []
        self.records: Counter[str] = Counter()
        self._fs, self._folder, self._files, self._progress = fs, folder, files, progress

    def readers(self) -> dict[str, str]:
        """Return the files of readers, by the names of their queues. The default reader is included only if it is the
        only one.
        """
        readers, queue = self._files.readers, self._files.queue
        names = {
            queue_of_reader(queue, reader): name for reader, name in readers.items() if reader or len(readers) == 1
        }
        return dict(sorted(names.items()))

    def puts(self) -> Iterator[Put]:
        """Yield every item in the segments once, in the order in which recovery reads them."""
        seen = IntervalSet()
        for name in self._segments():
            for row in self._rows(name, SEGMENT_MAGIC, name == self._newest):
                if row.data is None or row.number is None or row.number in seen:
                    continue
                seen.add(row.number)
                payload = Payload(name, row.at + row.size - len(row.data), len(row.data))
                yield Put(row.number, name, row.at, row.size, payload, row.added_ms or 0, row.expires_ms or 0)

    def confirmations(self, name: str) -> Iterator[Confirmation]:
        """Yield the records of a reader's file, in order."""
        for row in self._rows(name, READER_MAGIC, True):
            ids = row.more.get("ids", [])
            assert isinstance(ids, list)
            head = row.number if row.op == "HEAD" and row.number is not None else -1
            yield Confirmation(name, row.at, row.size, row.op, head, tuple(ids))

    def done(self, name: str | None) -> ReaderPosition:
        """Return the position of the reader of this file. With `name` None there is no file, and nothing is
        confirmed.
        """
        position = ReaderPosition()
        for confirmed in self.confirmations(name) if name is not None else ():
            position.add(confirmed)
        return position

    def done_before(self, name: str | None, later: IntervalSet) -> ReaderPosition:
        """Return the position of a reader before its file names one of the `later` ids, or soon after that. A head sums
        up earlier records, and so do the records at the beginning of a file, so records count until the next head.
        """
        position = ReaderPosition()
        head = head_then = -1
        has_met = False
        for done in self.confirmations(name) if name is not None else ():
            if done.head >= 0:
                head = done.head
            if has_met and head != head_then:
                break
            position.add(done)
            if not has_met and later and (later.starts[0] <= head or any(item_id in later for item_id in done.ids)):
                has_met, head_then = True, head
        return position

    def history(self, queues: set[str], item_id: int) -> list[Event]:
        """Return the history of an item in `queues`."""
        put = next((put for put in self.puts() if put.id == item_id), None)
        events = list[Event]()
        if put is not None:
            where = (put.file, put.at, put.size, "PUT")
            events.append(Event(Happened.ADDED, str(item_id), *where, put.added_ms, put.added_ms))
        for queue, name in self.readers().items():
            if queue in queues:
                events += self._closed(queue, name, item_id, 0 if put is None else put.added_ms)
        return events if put is not None or len(events) else []

    def _closed(self, queue: str, name: str, item_id: int, added_ms: int) -> list[Event]:
        """Return the event that confirms the item; [] if the reader of this file has not confirmed it."""
        first = next((done for done in self.confirmations(name) if done.covers(item_id)), None)
        if first is None or item_id not in self.done(name):  # a later head may be lower
            return []
        where = (first.file, first.at, first.size, first.record)
        return [Event(Happened.CLOSED, str(item_id), *where, added_ms, None, None, queue)]

    @property
    def _newest(self) -> str:
        numbers = self._files.segments
        return max(numbers, key=lambda name: numbers[name], default="")

    def _segments(self) -> list[str]:
        """Return the segments in the order of their first ids, which is the order of their items. Files that do not
        begin like a segment are left out.
        """
        firsts = dict[str, int]()
        for name in sorted(self._files.segments, key=lambda name: self._files.segments[name]):
            path = f"{self._folder}/{name}"
            begin = self._fs.read(path, 0, MAGIC_BYTES)
            if begin != SEGMENT_MAGIC:
                if begin:
                    torn = name == self._newest and SEGMENT_MAGIC.startswith(begin)
                    self.flaws.append((name, Flaw(0, self._fs.size(path), "it does not begin like a segment", torn)))
                continue
            try:
                first = next((row for row in rows(self._fs, path, LibkestrelDumper(SEGMENT_MAGIC)) if row.number), None)
            except CorruptRecord:
                first = None  # a later read of the file reports the damage
            firsts[name] = first.number or 0 if first is not None else 0
        return sorted(firsts, key=lambda name: (firsts[name], self._files.segments[name]))

    def _rows(self, name: str, magic: bytes, is_written: bool) -> Iterator[Row]:
        """Yield the records of a file up to the first unreadable one."""
        path = f"{self._folder}/{name}"
        size = self._fs.size(path)
        if magic == READER_MAGIC and self._fs.read(path, 0, MAGIC_BYTES) != magic:
            if size:
                self.flaws.append((name, Flaw(0, size, "it does not begin like a reader's file")))
            return
        try:
            for row in rows(self._fs, path, LibkestrelDumper(magic)):
                self.records[row.op] += 1
                self._progress(row.size)
                yield row
        except CorruptRecord as error:
            torn = is_written and isinstance(error, TruncatedRecord)
            self.flaws.append((name, Flaw(error.at, size - error.at, error.why, torn)))
