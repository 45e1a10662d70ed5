"""The adapter of the libkestrel format. See base.FormatAdapter.

The view `ops` has a row for each item; `readers` a row for each reader file; `items` and `state` a row for each item
and reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from staniel.journal.errors import CorruptRecord, IncompleteRecord
from staniel.journal.libkestrel.files import StreamFileKind, group_by_queue, parse
from staniel.journal.libkestrel.records import (
    MAGIC_BYTES,
    PUT_COMMAND,
    READ_DONE_COMMAND,
    READ_HEAD_COMMAND,
    READER_MAGIC,
    SEGMENT_MAGIC,
    decode_item,
    decode_put_id,
    decode_read_done,
    decode_read_head,
    read_record,
)
from staniel.pipeline.formats.base import BatchEnd, JournalSegment, Part, Reading, View, handle_damage
from staniel.pipeline.formats.columns import HISTORY, STATE
from staniel.pipeline.lake.arrow import TIME, batches, schema
from staniel.pipeline.lake.folders import GONE, PIECE_BYTES, FileVanished, Folder
from staniel.pipeline.lake.lake import ReadMark

TELLING_BYTES = 25  # of the head of a PUT, its id and its time among them

ITEM = {
    "queue": pa.string(),
    "file": pa.string(),
    "offset": pa.int64(),
    "id": pa.int64(),
    "value": pa.binary(),
    "size": pa.int64(),
    "addTime": TIME,
    "expireTime": TIME,
    "errorCount": pa.int32(),
}
OPS = schema(op=pa.string(), asOf=TIME, **ITEM, _corrupt=pa.string())
ITEMS = schema(reader=pa.string(), state=pa.string(), **ITEM)
IDS = pa.list_(pa.field("element", pa.int64()))
READERS = schema(queue=pa.string(), reader=pa.string(), file=pa.string(), head=pa.int64(), done=IDS)
COMMANDS = {PUT_COMMAND: "put", READ_HEAD_COMMAND: "read_head", READ_DONE_COMMAND: "read_done"}


class ReaderProgress(Struct):
    """The progress of one reader: every id up to `head` is confirmed, and those in `done`."""

    name: str
    file: str
    head: int = 0
    done: frozenset[int] = frozenset()

    def has(self, item_id: int) -> bool:
        return item_id <= self.head or item_id in self.done


class LibkestrelAdapter:
    """The adapter of the libkestrel format, see base.FormatAdapter. A queue's segments are its files; the readers'
    progress is looked up.
    """

    name = "libkestrel"
    by_queue = True
    op_names: tuple[str, ...] = (COMMANDS[PUT_COMMAND],)
    has_ids = True

    def __init__(self, history: View | None = None) -> None:
        """Take the reader of the view `history`, which imports this module."""
        self._history = history

    def schemas(self) -> dict[str, pa.Schema]:
        return {"ops": OPS, "items": ITEMS, "state": STATE, "history": HISTORY, "readers": READERS}

    def whole_queue(self, view: str) -> bool:
        return view != "ops"

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[JournalSegment]]:
        sizes = dict(listing)
        queues: dict[str, list[JournalSegment]] = {}
        for queue, files in group_by_queue([(name, True) for name, _ in listing]).items():
            names = sorted(files.segments, key=lambda name: (files.segments[name], name))
            if names:
                queues[queue] = [
                    JournalSegment(queue, name, MAGIC_BYTES, max(sizes[name], MAGIC_BYTES), name == names[-1], at)
                    for at, name in enumerate(names)
                ]
        return queues

    def until(self, folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
        kept = []
        for segment in segments:
            rows = item_rows(folder, segment, Reading(include_value=False))
            end = next((row["offset"] for row in rows if (row["addTime"] or 0) > until_ms), segment.end)
            kept.append(msgspec.structs.replace(segment, end=end))
            if end < segment.end:
                break
        return kept

    def cuts(self, folder: Folder, segment: JournalSegment, parts: int) -> list[tuple[int, int]]:
        """Return no cuts: segments are small."""
        return []

    def boundary(self, folder: Folder, segment: JournalSegment, max_bytes: int, max_records: int) -> BatchEnd:
        reach = BatchEnd(segment.begin, as_of=segment.as_of)
        try:
            for row in _records(folder, segment, False):
                records = reach.records
                if records >= max_records or (records and row["stop"] - segment.begin > max_bytes):
                    break
                as_of = max(reach.as_of, row.get("addTime") or 0)
                reach = BatchEnd(row["stop"], None, records + 1, as_of, row.get("id", reach.last_id))
        except CorruptRecord as error:
            return reach._replace(damage=error)
        return reach

    def as_of(self, folder: Folder, segment: JournalSegment) -> int:
        before = msgspec.structs.replace(segment, begin=min(MAGIC_BYTES, segment.begin), end=segment.begin, live=False)
        try:
            return max((row.get("addTime") or 0 for row in _records(folder, before, False)), default=0)
        except CorruptRecord:
            return 0

    def tells(self, head: bytes) -> bool:
        """Return True if the head has the first item's id and time."""
        return len(head) > MAGIC_BYTES + TELLING_BYTES and head[MAGIC_BYTES] != 0

    def list_fates(self, folder: Folder) -> dict[str, list[JournalSegment]]:
        fates: dict[str, list[JournalSegment]] = {}
        for name, size, id in folder.scan():
            parsed = parse(name)
            if parsed.kind is StreamFileKind.READER:
                segment = JournalSegment(parsed.queue, name, MAGIC_BYTES, max(size, MAGIC_BYTES), True, id=id)
                fates.setdefault(parsed.queue, []).append(segment)
        return fates

    def is_broken(self, segments: list[JournalSegment]) -> bool:
        """Return False: files are removed from the oldest on."""
        return False

    def missing(self, folder: Folder, segments: list[JournalSegment], last_id: int) -> int | None:
        """Return the hole between ids. Ids have no holes, and begin at 1 again after a queue was deleted."""
        try:
            for segment in segments:
                for row in _records(folder, segment, False):
                    gone = row.get("id", 0) - last_id - 1
                    return gone if last_id and gone >= 0 else None
        except CorruptRecord:
            pass
        return None

    def read_marks(self, folder: Folder, queues: Collection[str], reading: Reading) -> dict[str, dict[str, ReadMark]]:
        fates = self.list_fates(folder)
        marks: dict[str, dict[str, ReadMark]] = {}
        for queue in queues:
            readers = readers_of(folder, Part(queue, [], fates.get(queue, [])), reading)
            marks[queue] = {reader.name: ReadMark(reader.head, sorted(reader.done)) for reader in readers}
        return marks

    def view(self, name: str) -> View:
        views: dict[str, View] = {"ops": read_ops, "items": read_items, "state": read_state, "readers": read_readers}
        if self._history is not None:
            views["history"] = self._history
        return views[name]


def read_ops(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each PUT."""

    def dated() -> Iterator[dict[str, Any]]:
        for segment in part.segments:
            latest = segment.as_of
            for row in item_rows(folder, segment, reading, tell=True):
                latest = max(latest, row.get("addTime") or 0)
                yield row | {"asOf": latest}

    return batches(OPS, (row for row in dated() if reading.ops is None or row.get("op") in (*reading.ops, None)))


def read_items(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield every item, for every reader: `done` or `queued`."""
    readers = readers_of(folder, part, reading) or [ReaderProgress("", "")]
    rows = (
        row | {"reader": reader.name, "state": "done" if reader.has(row["id"]) else "queued"}
        for segment in part.segments
        for row in item_rows(folder, segment, reading)
        for reader in readers
    )
    return batches(ITEMS, rows)


def read_state(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the items that each reader has not read yet, in the order of delivery."""
    readers = readers_of(folder, part, reading) or [ReaderProgress("", "")]
    positions = dict.fromkeys((reader.name for reader in readers), 0)

    def rows() -> Iterator[dict[str, Any]]:
        for segment in part.segments:
            for row in item_rows(folder, segment, reading):
                for reader in readers:
                    if not reader.has(row["id"]):
                        yield waiting_row(row, reader.name, positions[reader.name])
                        positions[reader.name] += 1

    return batches(STATE, rows())


def waiting_row(row: dict[str, Any], reader: str, position: int) -> dict[str, Any]:
    """Return a row of the view `state` for an item that a reader has not read."""
    errors = row["errorCount"]
    return row | {
        "reader": reader,
        "position": position,
        "state": "returned" if errors else "queued",
        "deliveries": errors,
    }


def read_readers(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each reader file."""
    readers = readers_of(folder, part, reading)
    rows = (
        {"queue": part.queue, "reader": mark.name, "file": mark.file, "head": mark.head, "done": sorted(mark.done)}
        for mark in readers
    )
    return batches(READERS, rows)


def readers_of(folder: Folder, part: Part, reading: Reading) -> list[ReaderProgress]:
    """Return the readers of a queue. The last record of a kind counts; a damaged file counts up to its damage."""
    readers = []
    known = LibkestrelAdapter().list_fates(folder).get(part.queue, []) if part.fates is None else part.fates
    for segment in known:
        reader = ReaderProgress(parse(segment.file).reader, segment.file)
        try:
            for row in _records(folder, segment, True):
                if row["op"] == "read_head":
                    reader.head = row["head"]
                elif row["op"] == "read_done":
                    reader.done = frozenset(row["done"])
        except CorruptRecord as error:
            handle_damage(folder, segment, error, reading)
        readers.append(reader)
    return readers


def item_rows(
    folder: Folder, segment: JournalSegment, reading: Reading, tell: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the items of a segment; with `tell`, its damage as a row behind them."""
    try:
        for row in _records(folder, segment, False):
            yield row if reading.include_value else row | {"value": None}
    except CorruptRecord as error:
        damage = handle_damage(folder, segment, error, reading)
        if damage is not None and tell:
            yield {"queue": segment.queue, "file": segment.file, "offset": error.at, "_corrupt": error.why}


def _records(folder: Folder, segment: JournalSegment, of_reader: bool) -> Iterator[dict[str, Any]]:
    """Yield the records, each with `stop`, where the next one starts. Raises CorruptRecord, FileVanished."""
    file = folder.open(segment.file)
    at, want = segment.begin, PIECE_BYTES
    try:
        if segment.end > MAGIC_BYTES and file.read(0, MAGIC_BYTES) != (READER_MAGIC if of_reader else SEGMENT_MAGIC):
            raise CorruptRecord("not a libkestrel file", 0)
        while at < segment.end:
            data = file.read(at, min(want, segment.end - at))
            if len(data) < min(want, segment.end - at):
                raise FileVanished(f"only {at + len(data)} of {segment.end} bytes are left: {GONE}")
            piece_reader = PieceReader()
            piece_reader.read(segment, data, segment.end - at - len(data), at, of_reader)
            yield from piece_reader.rows
            if piece_reader.error is not None:
                raise piece_reader.error
            if piece_reader.ended:
                return
            at += piece_reader.used
            want = PIECE_BYTES if piece_reader.used else 2 * want
    finally:
        file.close()


class PieceReader:
    """The records of one piece of a file. `ended`: a zero command byte has ended the data."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.used = 0
        self.ended = False
        self.error: CorruptRecord | None = None

    def read(self, segment: JournalSegment, data: bytes, rest_bytes: int, base: int, of_reader: bool) -> None:
        try:
            while self.used < len(data):
                record = read_record(data, self.used, len(data), rest_bytes)
                if record is None:
                    self.ended = True
                    return
                self.rows.append(_row(segment, data, record, base, of_reader))
                self.used = record.stop
        except IncompleteRecord:
            pass
        except CorruptRecord as error:
            error.at += base
            self.error = error


def _row(segment: JournalSegment, data: bytes, record: Any, base: int, of_reader: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"queue": segment.queue, "file": segment.file, "offset": base + record.at}
    row |= {"stop": base + record.stop, "op": COMMANDS.get(record.command, str(record.command))}
    if of_reader and record.command == READ_HEAD_COMMAND:
        row["head"] = decode_read_head(data, record)
    elif of_reader and record.command == READ_DONE_COMMAND:
        row["done"] = decode_read_done(data, record)
    elif not of_reader and record.command == PUT_COMMAND:
        decode_put_id(data, record)
        item = decode_item(data, record)
        row |= {"id": item.id, "value": item.data, "size": len(item.data), "errorCount": item.errors}
        row |= {"addTime": item.added_ms, "expireTime": item.expires_ms}
    return row
