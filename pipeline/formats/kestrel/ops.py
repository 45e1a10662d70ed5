"""Kestrel records as rows: the view `ops`.

Batches are built a column at a time: a loop finds where records start, and numpy gathers the fields. The journal's own
decoder handles uncommon records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from staniel.journal.errors import CorruptRecord, IncompleteRecord, TruncatedRecord
from staniel.journal.kestrel.records import (
    ADD,
    ADD_XID,
    ADDX,
    ADDX_HEAD_BYTES,
    CONFIRM_REMOVE,
    FIXED_BYTES,
    FLAGS_MASK,
    HEAD_BYTES,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    SIZE_END,
    STATE_DUMP,
    UNREMOVE,
    WITH_XID_BYTES,
    XID_BODY,
    Record,
    decode,
)
from staniel.pipeline.formats.base import BatchEnd, ItemTooLarge, JournalSegment, Part, Reading, handle_damage
from staniel.pipeline.lake.arrow import BATCH_ROWS, TIME, TIME_MS_MAX, batch, constant, moments, numbers, schema, slices
from staniel.pipeline.lake.folders import GONE, PIECE_BYTES, FileVanished, Folder, OpenFile

SCHEMA = schema(
    queue=pa.string(),
    file=pa.string(),
    offset=pa.int64(),
    op=pa.string(),
    xid=pa.int32(),
    value=pa.binary(),
    size=pa.int64(),
    addTime=TIME,
    expireTime=TIME,
    asOf=TIME,
    flags=pa.int64(),
    _corrupt=pa.string(),
)
LISTED, CONTINUE, STAND_IN = 16, 17, 18
ADD_TIME = struct.Struct("<q")
TEXT = pa.string()
SMALL_ROWS = BATCH_ROWS // 10
BATCH_BYTES = 16 << 20  # of payload, or one record: Java holds several such batches, as Arrow and as rows
OPS = {
    ADD: "add",
    REMOVE: "remove",
    ADDX: "add",
    REMOVE_TENTATIVE: "reserve",
    SAVE_XID: "save_xid",
    UNREMOVE: "abort",
    CONFIRM_REMOVE: "confirm",
    ADD_XID: "add_xid",
    STATE_DUMP: "state_dump",
    REMOVE_TENTATIVE_XID: "reserve",
    LISTED: "listed",
    CONTINUE: "continue",
    STAND_IN: "stand_in",
}
NAMES = pa.array([OPS.get(number, "") for number in range(STAND_IN + 1)])
FIXED = [FIXED_BYTES.get(op, 0) for op in range(256)]  # a list is faster than a dict
HAS_ITEM = np.isin(np.arange(256), [ADD, ADDX, ADD_XID, LISTED, CONTINUE, STAND_IN])
HAS_XID = np.isin(np.arange(256), [op for op, size in FIXED_BYTES.items() if size == WITH_XID_BYTES])
Numbers = np.ndarray[Any, np.dtype[Any]]


class Found:
    """The records of one piece: where each starts, and by row those of uncommon shapes."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.others: dict[int, tuple[int, Record]] = {}
        self.stop = 0


class OpsReader:
    """A reader of one segment in batches. Its memory is a piece of the file and its columns."""

    def __init__(self, segment: JournalSegment, include_value: bool) -> None:
        self.segment = segment
        self.include_value = include_value
        self.at = segment.begin
        self.scanned = segment.begin  # behind the last yielded row
        self._names: list[pa.Array] = []  # the columns of the queue and the file, once a batch had many rows
        self._latest_ms = segment.as_of
        self.has_stand_ins = False  # True once one was yielded
        self._saved: list[int] = []  # the xids of the SAVE_XID records that end the batch before, two at most

    def batches(self, file: OpenFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the segment in batches.

        Raises CorruptRecord, with `at` an offset of the file behind the last whole record; FileVanished if the file got
        shorter; ItemTooLarge.
        """
        try:
            yield from self._batches(file)
        except MemoryError:
            raise ItemTooLarge(
                f"queue {self.segment.queue}: a task has no memory for what stands behind byte {self.at} of"
                f" {self.segment.file}: give its Python more (spark.executor.pyspark.memory), or includeValue=false"
            ) from None

    def _batches(self, file: OpenFile) -> Iterator[pa.RecordBatch]:
        end, want = self.segment.end, PIECE_BYTES
        while self.at < end:
            piece = file.read(self.at, min(want, end - self.at))
            if len(piece) < min(want, end - self.at):
                raise FileVanished(f"only {self.at + len(piece)} of {end} bytes are left: {GONE}")
            at = 0
            while at < len(piece):
                records = Found()
                error = self._scan(piece, at, end - self.at - len(piece), records)
                self.scanned = self.at + records.stop
                if records.starts:
                    yield self._batch(piece, records)
                if error is not None:
                    error.at = self.at + records.stop
                    raise error
                if records.stop == at:
                    break
                at = records.stop
            self.at += at
            want = PIECE_BYTES if at else 2 * want

    def end(self, file: OpenFile) -> BatchEnd | None:
        """Return the end of the last whole record that may be separated from the next one, without making columns,
        which take longer than the records of a small file. Return None if its records are not all in one piece.
        """
        data = file.read(self.at, self.segment.bytes)
        if len(data) < self.segment.bytes:
            raise FileVanished(f"only {self.at + len(data)} of {self.segment.end} bytes are left: {GONE}")
        records = Found()
        error = self._scan(data, 0, 0, records)
        if len(records.starts) >= BATCH_ROWS:
            return None
        if error is not None:
            error.at = self.at + records.stop
        elif records.stop < len(data):
            error = TruncatedRecord(at=self.at + records.stop)
        rows = len(records.starts)
        while rows and data[records.starts[rows - 1]] == SAVE_XID:
            rows -= 1
        stop = records.starts[rows] if rows < len(records.starts) else records.stop
        for row, start in enumerate(records.starts[:rows]):
            if row in records.others:
                added_ms = records.others[row][1].added_ms
            else:
                added_ms = ADD_TIME.unpack_from(data, start + SIZE_END)[0] if data[start] == ADDX else 0
            if self._latest_ms < added_ms < TIME_MS_MAX:
                self._latest_ms = added_ms
        return BatchEnd(self.at + stop if rows else self.segment.begin, error, rows, self._latest_ms)

    def _scan(self, data: bytes, at: int, rest_bytes: int, records: Found) -> CorruptRecord | None:
        """Find the records of at most one batch. Return the damage that ends it."""
        end, limit = len(data), len(data) + rest_bytes
        end_read = end if self.include_value else limit  # without payloads the last one may reach behind the piece
        full = at + BATCH_BYTES
        try:
            while len(records.starts) < BATCH_ROWS and at < min(end, full):
                at = self._common(data, at, min(end_read, full), records.starts)
                if at >= end or len(records.starts) >= BATCH_ROWS:
                    break
                record_at, at = at, self._other(data, at, rest_bytes, records)
                if at > end_read:
                    at = record_at  # the payload of an ADDX goes on behind the piece
                    records.starts.pop()
                    records.others.pop(len(records.starts))
                    break
        except IncompleteRecord:
            pass
        except CorruptRecord as error:
            records.stop = at
            return error
        records.stop = at
        return None

    def _common(self, data: bytes, at: int, end_read: int, starts: list[int]) -> int:
        """Find records of the common kinds. Return where one starts that is uncommon, or too near to the end. The loop
        makes no call and no second check of the bounds: half of a query's time in Python is spent here.
        """
        safe, put, fixed, unpack = len(data) - ADDX_HEAD_BYTES, starts.append, FIXED, XID_BODY.unpack_from
        for _ in repeat(None, BATCH_ROWS - len(starts)):
            if at > safe:
                break
            op = data[at]
            if op == ADDX:
                stop = at + SIZE_END + unpack(data, at + 1)[0]
                if stop > end_read or stop < at + ADDX_HEAD_BYTES:
                    break
                put(at)
                at = stop
            else:
                size = fixed[op]
                if not size:
                    break
                put(at)
                at += size
        return at

    def _other(self, data: bytes, at: int, rest_bytes: int, records: Found) -> int:
        record = decode(data, at, len(data), rest_bytes, heads_only=True)
        op = CONTINUE if record.op == STATE_DUMP and record.listed is None else record.op
        records.others[len(records.starts)] = (op, record)
        records.starts.append(at)
        for listed in record.listed or ():
            records.others[len(records.starts)] = (LISTED, listed)
            records.starts.append(listed.payload_at - HEAD_BYTES[ADD_XID])
        return record.stop

    def _batch(self, data: bytes, records: Found) -> pa.RecordBatch:
        rows = len(records.starts)
        starts = np.array(records.starts, np.int64)
        ops = np.frombuffer(data, np.uint8)[starts]
        adds = np.flatnonzero(ops == ADDX)
        stops = np.append(starts[1:], records.stop)
        bounds = np.empty((rows, 2), np.int32)
        bounds[:, 0] = bounds[:, 1] = starts
        bounds[adds, 0] += ADDX_HEAD_BYTES
        bounds[adds, 1] = stops[adds]
        added_ms, expires_ms = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        added_ms[adds], expires_ms[adds] = (
            _gather(data, "<i8", starts[adds] + SIZE_END),
            _gather(data, "<i8", starts[adds] + SIZE_END + 8),
        )
        timeless = adds[(added_ms[adds] == 0) & (expires_ms[adds] == 0)]
        self._mark_stand_ins(ops, timeless[bounds[timeless, 0] == bounds[timeless, 1]])
        with_xid = HAS_XID[ops]
        xids = np.zeros(rows, np.int32)
        xids[with_xid] = _gather(data, "<i4", starts[with_xid] + 1)
        for row, (op, record) in records.others.items():
            size = max(record.size, 0)
            ops[row], bounds[row] = (
                op,
                (record.payload_at, record.payload_at + size) if record.size >= 0 else starts[row],
            )
            added_ms[row], expires_ms[row] = record.added_ms, record.expires_ms
            xids[row], with_xid[row] = record.xid, op > REMOVE_TENTATIVE
            if op in (ADDX, ADD_XID) and not (record.size or record.added_ms or record.expires_ms):
                self._mark_stand_ins(ops, [row])
        return self._columns(data, ops, starts, bounds, (added_ms, expires_ms), np.where(with_xid, xids, 0), with_xid)

    def _mark_stand_ins(self, ops: Numbers, rows: Any) -> None:
        """Mark empty items put at the time 0: they are placeholder records, which a pack leaves for consumed items."""
        if len(rows):
            self.has_stand_ins = True
            ops[rows] = STAND_IN

    def _columns(
        self,
        data: bytes,
        ops: Numbers,
        starts: Numbers,
        bounds: Numbers,
        stamps: tuple[Numbers, Numbers],
        xids: Numbers,
        numbered: Numbers,
    ) -> pa.RecordBatch:
        rows, (added_ms, expires_ms) = len(ops), stamps
        items = HAS_ITEM[ops]
        queue, file = self._name_columns(rows)
        columns = {
            "queue": queue,
            "file": file,
            "offset": numbers(pa.int64(), starts + self.at),
            "op": NAMES.take(pa.array(ops)),
            "size": numbers(pa.int64(), (bounds[:, 1] - bounds[:, 0]).astype(np.int64), items),
            "addTime": moments(added_ms, items),
            "expireTime": moments(expires_ms, items),
            "asOf": moments(self._as_of(added_ms)),
            "flags": numbers(pa.int64(), self._flags(ops, xids, items), items),
            "xid": numbers(pa.int32(), xids, numbered),
        }
        if self.include_value:
            columns["value"] = slices(data, bounds, items)
        return batch(SCHEMA, columns, rows)

    def _name_columns(self, rows: int) -> list[pa.Array]:
        """Return the columns of the names. They are made once for a large file; a small one has few rows, and many
        small files are read.
        """
        names = self.segment.queue, self.segment.file
        if not SMALL_ROWS < rows <= BATCH_ROWS:
            return [constant(name, rows, TEXT) for name in names]
        self._names = self._names or [constant(name, BATCH_ROWS, TEXT) for name in names]
        return [column.slice(0, rows) for column in self._names]

    def _as_of(self, added_ms: Numbers) -> Numbers:
        """Return the latest add time so far: records of other kinds have no time, and were written after it."""
        latest: Numbers = np.maximum.accumulate(np.where(added_ms < TIME_MS_MAX, added_ms, 0))
        latest = np.maximum(latest, self._latest_ms)
        self._latest_ms = int(latest[-1])
        return latest

    def _flags(self, ops: Numbers, xids: Numbers, has_item: Numbers) -> Numbers:
        """Return the flags as journal/kestrel/replay.py finds them: two SAVE_XID directly before an item, the second
        undoing the first.

        The counter before the first SAVE_XID is unknown if only a part is read, so the undoing is assumed.
        """
        flags = np.zeros(len(ops), np.int64)
        saves = ops == SAVE_XID
        before = self._saved
        if saves.any() or before:
            pad = len(before)
            all_saves = np.concatenate([np.ones(pad, bool), saves])
            all_xids = np.concatenate([np.array(before, np.int64), xids])
            rows = np.flatnonzero(has_item & (np.arange(len(ops)) + pad >= 2))
            rows = rows[all_saves[rows + pad - 1] & all_saves[rows + pad - 2]]
            flags[rows] = all_xids[rows + pad - 2] & FLAGS_MASK
            tail = [int(xid) for xid, save in zip(all_xids[-2:], all_saves[-2:], strict=True) if save]
            self._saved = tail if all_saves[-1] else []
        return flags


def _gather(data: bytes, kind: str, places: Numbers) -> Numbers:
    """Return the numbers that start at these bytes, also unaligned ones."""
    size = np.dtype(kind).itemsize
    if len(data) < size:
        return np.zeros(0, kind)
    everywhere: Numbers = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
    return everywhere[places]


def read(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in order."""
    for segment in part.segments:
        file = folder.open(segment.file)
        try:
            yield from _segment(folder, segment, file, reading)
        finally:
            file.close()


def _segment(folder: Folder, segment: JournalSegment, file: OpenFile, reading: Reading) -> Iterator[pa.RecordBatch]:
    reader = OpsReader(segment, reading.include_value)
    try:
        for ops in reader.batches(file):
            yield _wanted(without_stand_ins(ops) if reader.has_stand_ins else ops, reading)
    except CorruptRecord as error:
        if handle_damage(folder, segment, error, reading) is not None:
            row = {"queue": segment.queue, "file": segment.file, "offset": error.at, "_corrupt": error.why}
            yield batch(SCHEMA, {name: pa.array([value], SCHEMA.field(name).type) for name, value in row.items()}, 1)


def without_stand_ins(ops: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the item columns of placeholder records empty, so that sums and averages do not
    count them.
    """
    is_item = pc.not_equal(ops["op"], OPS[STAND_IN])
    arrays = [
        pc.if_else(is_item, ops[name], None) if name in ("value", "size", "flags") else ops[name]
        for name in ops.schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ops.schema)


def _wanted(ops: pa.RecordBatch, reading: Reading) -> pa.RecordBatch:
    if reading.ops is None:
        return ops
    return ops.filter(pc.is_in(ops["op"], pa.array(sorted(reading.ops), pa.string())))
