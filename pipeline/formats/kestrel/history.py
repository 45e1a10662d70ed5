"""The view `history` of a Kestrel queue: a row for each thing that happened to an item, in the order of records.

An archive's records come first, if the query names one, then those of the journal behind them. The scan is that of the
other views (effect_scan.py); it holds 17 bytes of memory for each item of the queue.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel.effect import ID_FLOOR_MIN, Origin, Symbol
from staniel.journal.kestrel.notes import fact_in
from staniel.journal.kestrel.records import HEAD_BYTES
from staniel.pipeline.formats.archived import ArchiveReading
from staniel.pipeline.formats.base import JournalSegment, Part, Reading, handle_damage
from staniel.pipeline.formats.columns import HISTORY
from staniel.pipeline.formats.kestrel.archived import ArchiveReader, RowScan
from staniel.pipeline.formats.kestrel.effect_scan import Held, symbol_of
from staniel.pipeline.formats.kestrel.ops import OPS, STAND_IN, OpsReader
from staniel.pipeline.formats.kestrel.state import ITEM_OPS, item_ids
from staniel.pipeline.lake.archived import ArchivedQueue
from staniel.pipeline.lake.arrow import batch, constant, times
from staniel.pipeline.lake.folders import Folder
from staniel.pipeline.lake.lake import LakeFolder, lake_folder_of
from staniel.queues.delays import REST_XID_MIN, delay_of
from staniel.queues.item import Item, item_with
from staniel.queues.past import Past, past_of

ITEM_KINDS = frozenset(ITEM_OPS.to_pylist())
SAVES_BEFORE_NOTED = 5  # the SAVE_XID records of the shortest note, see journal/kestrel/notes.py
SAVES_MAX = 300
Payload = Callable[[int], bytes]
"""Returns the payload of an item by its row."""


class ItemEvent(NamedTuple):
    """An event of an item by a row of `ops`: its number in the order of adding, and how often it was delivered then."""

    row: int
    event: str
    number: int
    xid: int | None = None
    deliveries: int = 0


class HistoryScan(RowScan):
    """A scan that notes what happens to each item. Items that only lists of opcode 8 name are left out."""

    def __init__(self, queue: str, reading: Reading) -> None:
        super().__init__()
        self._queue = queue
        self._reading = reading
        self._ids, self._added_ms, self._has_expiry = array("q"), array("q"), bytearray()
        self._id_floor_now = ID_FLOOR_MIN
        self._events: list[ItemEvent] = []
        self._saves: list[int] = []
        self._noted: dict[int, list[int]] = {}
        self._row = 0

    def history(self, ops: pa.RecordBatch, payload: Payload) -> pa.RecordBatch:
        """Return the events of the next rows of `ops`. `payload` is asked for items with a note."""
        self._number_items(ops)
        self._events, self._noted = [], {}
        for self._row, (kind, xid) in enumerate(zip(ops["op"].to_pylist(), ops["xid"].to_pylist(), strict=True)):
            self._read_row(kind, xid)
        events = self._events
        facts = {row: fact for row, saves in self._noted.items() if (fact := self._fact(ops, row, saves, payload))}
        if facts:
            events = [told for event in events for told in _with_death(event, facts)]
        return self._rows(ops, events, facts)

    def _number_items(self, ops: pa.RecordBatch) -> None:
        items = ops.filter(pc.is_in(ops["op"], ITEM_OPS))
        ids, self._id_floor_now = item_ids(items, len(self._ids), self._id_floor_now)
        self._ids.frombytes(np.asarray(ids.fill_null(0), np.int64).tobytes())
        self._added_ms.frombytes((np.asarray(items["addTime"].view(pa.int64()).fill_null(0)) // 1000).tobytes())
        self._has_expiry += np.asarray(pc.is_valid(items["expireTime"]).cast(pa.uint8())).tobytes()

    def _read_row(self, kind: str | None, xid: int | None) -> None:
        if kind == "save_xid" and xid is not None:
            self._saves = [*self._saves[-SAVES_MAX:], xid]
        elif kind in ITEM_KINDS and len(self._saves) >= SAVES_BEFORE_NOTED:
            self._noted[self._row] = self._saves
        number = self._added
        if kind in ("confirm", "continue") and xid is not None:
            self._note_end("confirmed", self._opens.get(xid), xid)
        elif kind == "remove":
            self._note_end("removed", self._head(), None)
        elif kind == "abort" and xid is not None:
            self._note_end("returned", self._opens.get(xid), xid)
        if kind in ITEM_KINDS and kind != OPS[STAND_IN]:
            self._events.append(ItemEvent(self._row, "put", number))
        if kind != "save_xid":
            self._saves = []
        self.read([kind], [xid])

    def _head(self) -> Held | None:
        if self._front:
            return self._front[-1]
        return self._taken if self._taken < self._added else None

    def _open(self, xid: int) -> None:
        self._note_end("returned", self._opens.get(xid), xid)  # the record of its return was lost
        super()._open(xid)
        symbol = symbol_of(self._opens[xid])
        if self._is_rest(xid, symbol):
            self._opens[xid] = replace(symbol, deliveries=symbol.deliveries - 1)  # no client has seen it
        self._note_end("opened", self._opens[xid], xid)

    def _is_rest(self, xid: int | None, symbol: Symbol) -> bool:
        """Return True if an item waits for the end of its delay under this number. Such an item has an expiry."""
        is_of_line = symbol.origin is Origin.LINE
        return xid is not None and REST_XID_MIN <= xid < 0 and is_of_line and bool(self._has_expiry[symbol.number])

    def _note_end(self, event: str, held: Held | None, xid: int | None) -> None:
        if held is None or (symbol := symbol_of(held)).origin is not Origin.LINE:
            return
        deliveries = 0 if isinstance(held, int) else symbol.deliveries
        if self._is_rest(xid, symbol):
            event = {"opened": "delayed", "returned": "due"}.get(event, event)
        self._events.append(ItemEvent(self._row, event, symbol.number, xid, deliveries))

    def _fact(self, ops: pa.RecordBatch, row: int, saves: list[int], payload: Payload) -> Item | None:
        """Return an item without its payload but with the fact of the note in front of it; None if it has none."""
        added = ops["addTime"][row].cast(pa.int64()).as_py() or 0
        fact = fact_in(saves, added // 1000, payload(row))
        return item_with(fact, b"", added // 1000, 0, 0) if fact else None

    def _rows(self, ops: pa.RecordBatch, events: list[ItemEvent], facts: dict[int, Item]) -> pa.RecordBatch:
        wanted = self._reading.ids
        if wanted is not None:
            events = [event for event in events if str(self._ids[event.number]) in wanted]
        count = len(events)
        taken = ops.take(pa.array([event.row for event in events], pa.int64()))
        is_put = pa.array([event.event == "put" for event in events], pa.bool_())
        columns = {name: taken[name] for name in ("file", "offset", "asOf")}
        columns |= {name: pc.if_else(is_put, taken[name], None) for name in ("size", "expireTime")}
        if self._reading.include_value and "value" in taken.schema.names:
            columns["value"] = pc.if_else(is_put, taken["value"], None)
        ids = [self._ids[event.number] for event in events]
        columns |= {"id": pa.array([item_id or None for item_id in ids], pa.int64())}
        columns["addTime"] = times(pa.array([self._added_ms[event.number] for event in events], pa.int64()))
        columns["event"] = pa.array([event.event for event in events], pa.string())
        columns["xid"] = pa.array([event.xid for event in events], pa.int32())
        deaths = [past_of(facts[event.row]) if event.event == "died" else None for event in events]
        known = [0 if death is None else death.left_ms for death in deaths]
        columns["time"] = pc.if_else(is_put, columns["addTime"], times(pa.array(known, pa.int64())))
        columns["deliveries"] = pa.array(
            [
                event.deliveries if death is None else death.deliveries
                for event, death in zip(events, deaths, strict=True)
            ],
            pa.int32(),
        )
        columns["dueTime"] = times(pa.array([_due_ms(event, facts) for event in events], pa.int64()))
        columns |= _columns_of_deaths(deaths)
        columns["queue"] = constant(self._queue, count, pa.string())
        return batch(HISTORY, columns, count)


def _with_death(event: ItemEvent, facts: dict[int, Item]) -> list[ItemEvent]:
    """Return an event of an item, with the item's death in another queue before it if it came as a dead letter."""
    if event.event == "put" and event.row in facts and past_of(facts[event.row]) is not None:
        return [event._replace(event="died"), event]
    return [event]


def _due_ms(event: ItemEvent, facts: dict[int, Item]) -> int:
    delay = delay_of(facts[event.row]) if event.event == "put" and event.row in facts else None
    return 0 if delay is None else delay.due_ms


def _columns_of_deaths(deaths: list[Past | None]) -> dict[str, pa.Array]:
    return {
        "by": pa.array([None if death is None else death.client or None for death in deaths], pa.string()),
        "origin": pa.array(
            [None if death is None else death.origin.decode(errors="backslashreplace") for death in deaths], pa.string()
        ),
        "times": pa.array([None if death is None else death.times for death in deaths], pa.int64()),
    }


def read_history(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the events of a queue in order: of its archive, then of its journal. Raises IncompleteArchive."""
    scan = HistoryScan(part.queue, reading)
    if part.archive is not None:
        archiving = ArchiveReading(reading.include_value, reading.on_corrupt)
        place = lake_folder_of(part.archive.url)
        for rows, reached in _archived(place, part.archive.queue, archiving, reading):
            yield rows
            if part.archive.goes_on:
                scan = reached
    for segment in part.segments:
        yield from _of_segment(folder, segment, reading, scan)


def read_archived_history(place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> Iterator[pa.RecordBatch]:
    """Yield the events of an archived queue."""
    for rows, _ in _archived(place, queue, reading, Reading(reading.include_value, ids=reading.ids)):
        yield rows


def _of_segment(
    folder: Folder, segment: JournalSegment, reading: Reading, scan: HistoryScan
) -> Iterator[pa.RecordBatch]:
    file = folder.open(segment.file)

    def payload_in(ops: pa.RecordBatch) -> Payload:
        def payload(row: int) -> bytes:
            at, size = ops["offset"][row].as_py(), ops["size"][row].as_py()
            return bytes(file.read(at + HEAD_BYTES[file.read(at, 1)[0]], size))

        return payload

    try:
        for ops in OpsReader(segment, reading.include_value).batches(file):
            yield scan.history(ops, payload_in(ops))
    except CorruptRecord as error:
        handle_damage(folder, segment, error, reading)
    finally:
        file.close()


def _archived(
    place: LakeFolder, queue: ArchivedQueue, archiving: ArchiveReading, reading: Reading
) -> Iterator[tuple[pa.RecordBatch, HistoryScan]]:
    reader, before = ArchiveReader(place, queue, archiving), 0
    scan = HistoryScan(queue.queue, reading)
    for file, number, heads, _ in reader.groups():
        if reader.restarts_between(before, file.batch):
            scan = HistoryScan(queue.queue, reading)
        before = file.batch
        values: list[Any] = []

        def payload(row: int, file: Any = file, number: int = number, values: list[Any] = values) -> bytes:
            if not values:
                with reader.open(file) as parquet:
                    values.append(reader.rows(parquet, number, ["value"])["value"])
            return values[0][row].as_py() or b""

        ops = heads
        if archiving.include_value:
            with reader.open(file) as parquet:
                ops = heads.append_column(
                    "value", reader.rows(parquet, number, ["value"])["value"].slice(0, heads.num_rows)
                )
        yield scan.history(ops, payload), scan
