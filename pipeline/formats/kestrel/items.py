"""The fate of every item of a Kestrel queue: the view `items`. Reading a queue takes one byte of memory for
each item.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from staniel.journal.errors import CorruptRecord, IncompleteRecord
from staniel.journal.kestrel.effect import ID_FLOOR_MIN, Origin
from staniel.journal.kestrel.records import (
    ADDX,
    ADDX_HEAD_BYTES,
    CONFIRM_REMOVE,
    REMOVE,
    SIZE_END,
    STATE_DUMP,
    WITH_XID_BYTES,
    XID_BODY,
    Record,
    decode,
)
from staniel.pipeline.formats.base import JournalSegment, Part, Reading, handle_damage
from staniel.pipeline.formats.columns import ITEM
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, EffectScan, Held, symbol_of
from staniel.pipeline.formats.kestrel.ops import OPS, STAND_IN, OpsReader
from staniel.pipeline.formats.kestrel.state import ITEM_OPS, item_ids
from staniel.pipeline.lake.arrow import batch, schema
from staniel.pipeline.lake.folders import Folder, feed

ITEMS = schema(
    queue=pa.string(),
    file=pa.string(),
    offset=pa.int64(),
    **ITEM,
    state=pa.string(),
    deliveries=pa.int32(),
    endedBy=pa.string(),
)
QUEUED, OPEN, RETURNED, REMOVED, CONFIRMED = range(5)
STATES = pa.array(["queued", "open", "returned", "done", "done"])
ENDED_BY = pa.array([None, None, None, "remove", "confirm"], pa.string())
FATE_BITS, DELIVERIES_MAX = 3, 31  # higher counts of deliveries do not fit beside the fate and are in `many`


class Tally(EffectScan):
    """A scan that follows every item of a queue over all of its segments. It is slower than a summary: each end
    is noted.
    """

    def __init__(self, now_ms: int) -> None:
        super().__init__(EMPTY, 0, now_ms)
        self.fates = bytearray()
        self.many: dict[int, int] = {}

    def consume(self, data: bytes, rest_bytes: int) -> int:
        at, end, limit = 0, len(data), len(data) + rest_bytes
        unpack, fates = XID_BODY.unpack_from, self.fates
        try:
            while at < end:
                op = data[at]
                if op == ADDX and end - at >= ADDX_HEAD_BYTES:
                    stop = at + SIZE_END + unpack(data, at + 1)[0]
                    if stop < at + ADDX_HEAD_BYTES or stop > limit:
                        decode(data, at, end, rest_bytes, heads_only=True)  # raises
                    self._added += 1
                    fates.append(QUEUED)
                    at = stop
                elif op == REMOVE:
                    self._remove()
                    at += 1
                elif op == CONFIRM_REMOVE and end - at >= WITH_XID_BYTES:
                    self._end(unpack(data, at + 1)[0])
                    at += WITH_XID_BYTES
                else:
                    at = self._other(data, at, end, rest_bytes)
        except IncompleteRecord:
            pass
        return at

    def note_remaining(self) -> None:
        """Note the items that are still in the queue."""
        for symbol in self._front:
            self._note_fate(symbol, RETURNED)
        for symbol in self._opens.values():
            self._note_fate(symbol, OPEN)

    def _remove(self) -> None:
        if self._front:
            self._note_fate(self._front.pop(), REMOVED)
        elif self._taken < self._added:
            self.fates[self._taken] = REMOVED
            self._taken += 1

    def _end(self, xid: int) -> None:
        symbol = self._opens.pop(xid, None)
        if symbol is not None:
            self._note_fate(symbol, CONFIRMED)

    def _add(self, record: Record, at: int) -> None:
        if record.op == STATE_DUMP:
            self._end(record.xid)
        self.fates.append(QUEUED)
        super()._add(record, at)

    def _note_fate(self, held: Held, fate: int) -> None:
        symbol = symbol_of(held)
        if symbol.origin is Origin.LINE:
            self.fates[symbol.number] = fate | min(symbol.deliveries, DELIVERIES_MAX) << FATE_BITS
            if symbol.deliveries >= DELIVERIES_MAX:
                self.many[symbol.number] = symbol.deliveries


def read_items(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each item, in the order of adding. Items that only lists of opcode 8 name, and placeholder
    records of packs, are left out.
    """
    tally = Tally(reading.now_ms)
    for segment in part.segments:
        file = folder.open(segment.file)
        try:
            feed(file, segment.begin, segment.end, tally.consume)
        except CorruptRecord as error:
            handle_damage(folder, segment, error, reading)
        finally:
            file.close()
    tally.note_remaining()
    number, id_floor = 0, ID_FLOOR_MIN
    for segment in part.segments:
        for ops in _items(folder, segment, reading.include_value):
            ids, id_floor = item_ids(ops, number, id_floor)
            yield _rows(ops, ids, number, tally)
            number += ops.num_rows


def _items(folder: Folder, segment: JournalSegment, include_value: bool) -> Iterator[pa.RecordBatch]:
    file = folder.open(segment.file)
    try:
        for ops in OpsReader(segment, include_value).batches(file):
            items = ops.filter(pc.is_in(ops["op"], ITEM_OPS))
            if items.num_rows:
                yield items
    except CorruptRecord:
        return
    finally:
        file.close()


def _rows(items: pa.RecordBatch, ids: pa.Array, first: int, tally: Tally) -> pa.RecordBatch:
    rows = items.num_rows
    packed = np.frombuffer(tally.fates, np.uint8, rows, first)
    fates = pa.array(packed & ((1 << FATE_BITS) - 1))
    deliveries = (packed >> FATE_BITS).astype(np.int32)
    for row in np.flatnonzero(deliveries == DELIVERIES_MAX):
        deliveries[row] = tally.many[first + int(row)]
    columns = {name: items[name] for name in items.schema.names if name in ITEMS.names}
    columns |= {"id": ids, "state": STATES.take(fates), "endedBy": ENDED_BY.take(fates)}
    made = batch(ITEMS, columns | {"deliveries": pa.array(deliveries)}, rows)
    return made.filter(pc.not_equal(items["op"], OPS[STAND_IN]))
