"""Kestrel records as rows: the view `ops`.

Knows how one record becomes a row, in batches that are built a column at a time: a loop finds where records start, and
numpy gathers the fields. Refuses to know the state of a queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from journal import records
from journal.kestrel import ADD, ADD_XID, ADDX, SAVE_XID, STATE_DUMP
from journal.records import Record
from journal.replay import BLOCK_MIN, FLAGS_MASK, XID_BODY, Bad, More
from pipeline.columns import BATCH_ROWS, TIME, TIME_MS_MAX, batch, constant, schema, slices, times
from pipeline.files import GONE, PIECE_BYTES, Folder, Opened, Vanished
from pipeline.segments import Part, Reading, Segment, settle

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
LISTED, CONTINUE = 16, 17
OPS = {
    ADD: "add",
    1: "remove",
    ADDX: "add",
    3: "reserve",
    SAVE_XID: "save_xid",
    5: "abort",
    6: "confirm",
    ADD_XID: "add_xid",
    STATE_DUMP: "state_dump",
    9: "reserve",
    LISTED: "listed",
    CONTINUE: "continue",
}
NAMES = pa.array([OPS.get(number, "") for number in range(CONTINUE + 1)])
FIXED_BYTES = [{1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}.get(op, 0) for op in range(256)]
HAS_ITEM = np.isin(np.arange(256), [ADD, ADDX, ADD_XID, LISTED, CONTINUE])
HAS_XID = np.isin(np.arange(256), [4, 5, 6, 9])
Numbers = np.ndarray[Any, np.dtype[Any]]


class Found:
    """Where the records of one piece start, and those that are not of the common shapes, by row."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.others: dict[int, tuple[int, Record]] = {}
        self.stop = 0


class OpsReader:
    """Reads one segment into batches. Memory: a piece of the file and its columns."""

    def __init__(self, segment: Segment, include_value: bool) -> None:
        self.segment = segment
        self.include_value = include_value
        self.at = segment.begin
        self.scanned = segment.begin  # behind the last row that was given out
        self._latest_ms = 0
        self._saved: list[int] = []  # the xids of the SAVE_XID records that end the batch before, two at most

    def batches(self, file: Opened) -> Iterator[pa.RecordBatch]:
        """Raises Bad, with an offset of the file, behind the last whole record; Vanished if the file got shorter."""
        end, want = self.segment.end, PIECE_BYTES
        while self.at < end:
            piece = file.read(self.at, min(want, end - self.at))
            if len(piece) < min(want, end - self.at):
                raise Vanished(f"only {self.at + len(piece)} of {end} bytes are left: {GONE}")
            at = 0
            while at < len(piece):
                found = Found()
                bad = self._scan(piece, at, end - self.at - len(piece), found)
                self.scanned = self.at + found.stop
                if found.starts:
                    yield self._batch(piece, found)
                if bad is not None:
                    raise Bad(bad.why, self.at + found.stop)
                if found.stop == at:
                    break
                at = found.stop
            self.at += at
            want = PIECE_BYTES if at else 2 * want

    def _scan(self, data: bytes, at: int, rest_bytes: int, found: Found) -> Bad | None:
        """Find the records of at most one batch; the damage that ends it."""
        end, limit = len(data), len(data) + rest_bytes
        end_read = end if self.include_value else limit  # without payloads the last one may reach behind the piece
        starts, fixed, unpack = found.starts, FIXED_BYTES, XID_BODY.unpack_from
        put = starts.append
        full = end if not self.include_value else min(end, at + (64 << 20))
        try:
            while at < full and len(starts) < BATCH_ROWS:
                op = data[at]
                if op == ADDX and end - at >= 21:
                    stop = at + 5 + unpack(data, at + 1)[0]
                    if stop > end_read or stop < at + 5 + BLOCK_MIN:
                        records.read(data, at, end, rest_bytes)
                        break
                    put(at)
                    at = stop
                else:
                    size = fixed[op]
                    if not size or at + size > end:
                        at = self._other(data, at, rest_bytes, found)
                    else:
                        put(at)
                        at += size
        except More:
            pass
        except Bad as bad:
            found.stop = at
            return bad
        found.stop = at
        return None

    def _other(self, data: bytes, at: int, rest_bytes: int, found: Found) -> int:
        record = records.read(data, at, len(data), rest_bytes)
        op = CONTINUE if record.op == STATE_DUMP and record.listed is None else record.op
        found.others[len(found.starts)] = (op, record)
        found.starts.append(at)
        for each in record.listed or ():
            found.others[len(found.starts)] = (LISTED, each)
            found.starts.append(each.payload - 25)
        return record.stop

    def _batch(self, data: bytes, found: Found) -> pa.RecordBatch:
        rows = len(found.starts)
        raw = np.frombuffer(data, np.uint8)
        starts = np.array(found.starts, np.int64)
        ops = raw[starts]
        adds = ops == ADDX
        bounds = np.empty((rows, 2), np.int64)
        bounds[:, 0] = np.where(adds, starts + 21, starts)
        bounds[:-1, 1] = np.where(adds[:-1], starts[1:], starts[:-1])
        bounds[-1, 1] = found.stop if adds[-1] else starts[-1]
        stamps = np.zeros((rows, 2), np.int64)
        stamps[adds] = _gather(raw, starts[adds] + 5, 16).view("<i8")
        xids = np.zeros(rows, np.int64)
        with_xid = HAS_XID[ops]
        xids[with_xid] = _gather(raw, starts[with_xid] + 1, 4).view("<i4")[:, 0]
        for row, (op, record) in found.others.items():
            size = max(record.size, 0)
            ops = ops if ops.flags.writeable else ops.copy()
            ops[row], bounds[row] = op, (record.payload, record.payload + size) if record.size >= 0 else starts[row]
            stamps[row], xids[row], with_xid[row] = (record.added_ms, record.expires_ms), record.xid, op != ADD
        return self._columns(data, ops, starts, bounds, stamps, np.where(with_xid, xids, 0), with_xid)

    def _columns(
        self,
        data: bytes,
        ops: Numbers,
        starts: Numbers,
        bounds: Numbers,
        stamps: Numbers,
        xids: Numbers,
        numbered: Numbers,
    ) -> pa.RecordBatch:
        rows, segment = len(ops), self.segment
        has_item = HAS_ITEM[ops]
        items = pa.array(has_item)
        found = {
            "queue": constant(segment.queue, rows, pa.string()),
            "file": constant(segment.file, rows, pa.string()),
            "offset": pa.array(starts + self.at),
            "op": NAMES.take(pa.array(ops)),
            "size": pa.array(bounds[:, 1] - bounds[:, 0], mask=~has_item),
            "addTime": times(pa.array(stamps[:, 0]), items),
            "expireTime": times(pa.array(stamps[:, 1]), items),
            "asOf": times(pa.array(self._as_of(stamps[:, 0]))),
            "flags": pa.array(self._flags(ops, xids, has_item), mask=~has_item),
        }
        if numbered.any():
            found["xid"] = pa.array(xids.astype(np.int32), mask=~numbered.astype(bool))
        if self.include_value:
            found["value"] = slices(data, bounds.astype(np.int32), items)
        return batch(SCHEMA, found, rows)

    def _as_of(self, added_ms: Numbers) -> Numbers:
        """The latest add time so far: records of other kinds have no time, and did not happen before it."""
        latest: Numbers = np.maximum.accumulate(np.where(added_ms < TIME_MS_MAX, added_ms, 0))
        latest = np.maximum(latest, self._latest_ms)
        self._latest_ms = int(latest[-1])
        return latest

    def _flags(self, ops: Numbers, xids: Numbers, has_item: Numbers) -> Numbers:
        """As journal/replay.py finds them: two SAVE_XID directly before an item, the second undoing the first.

        The counter before the first is not known where only a part is read; that it is undone is taken on trust.
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


def _gather(raw: Numbers, starts: Numbers, count: int) -> Numbers:
    """`count` bytes from each start, as a table."""
    table: Numbers = raw[starts[:, None] + np.arange(count)]
    return table


def read(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in order."""
    for segment in part.segments:
        file = folder.open(segment.file)
        try:
            yield from _segment(folder, segment, file, reading)
        finally:
            file.close()


def _segment(folder: Folder, segment: Segment, file: Opened, reading: Reading) -> Iterator[pa.RecordBatch]:
    reader = OpsReader(segment, reading.include_value)
    try:
        for found in reader.batches(file):
            yield _wanted(found, reading)
    except Bad as bad:
        if settle(folder, segment, bad.at, bad.why, reading) is not None:
            row = {"queue": segment.queue, "file": segment.file, "offset": bad.at, "_corrupt": bad.why}
            yield batch(SCHEMA, {name: pa.array([value], SCHEMA.field(name).type) for name, value in row.items()}, 1)


def _wanted(found: pa.RecordBatch, reading: Reading) -> pa.RecordBatch:
    if reading.ops is None:
        return found
    return found.filter(pc.is_in(found["op"], pa.array(sorted(reading.ops), pa.string())))
