"""The view `state` of a queue from the rows of its records in an archive, with the meaning of records in
effect_scan.py.

Heads are read in order; values only of row groups with a remaining item.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from staniel.journal.kestrel.effect import ID_FLOOR_MIN, apply
from staniel.journal.kestrel.records import ADD_XID, STATE_DUMP, Record
from staniel.pipeline.formats.archived import (
    ArchiveReading,
    bounds_of,
    check_damage,
    check_rows,
    find_record,
    open_parquet,
)
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, EffectScan
from staniel.pipeline.formats.kestrel.ops import LISTED, OPS, SCHEMA, STAND_IN
from staniel.pipeline.formats.kestrel.state import ITEM_OPS, item_ids, rows_of
from staniel.pipeline.lake.archived import ArchivedFile, ArchivedQueue, IncompleteArchive
from staniel.pipeline.lake.lake import LakeFolder

HEADS = [name for name in SCHEMA.names if name not in ("queue", "value")]


class RowGroup(NamedTuple):
    """The counted rows of a row group of one Parquet file: the first `rows` of its group `number`.

    `first` is the number of the first item there, `items` the number of items, `id_floor` that of the items before.
    """

    file: ArchivedFile
    number: int
    rows: int
    first: int
    items: int
    id_floor: int
    lists: bool


class RowScan(EffectScan):
    """A scan of a queue by the rows of its records."""

    def __init__(self) -> None:
        super().__init__(EMPTY)
        self._dump_xid = 0

    def read(self, kinds: list[str | None], xids: list[int | None]) -> None:
        opens = self._opens
        for kind, xid in zip(kinds, xids, strict=True):
            if xid is None:
                self._without_xid(kind)
            elif kind == "confirm":
                if opens.pop(xid, None) is None:
                    self._close(xid)
            elif kind == "reserve":
                self._reserve_as(xid)
            elif kind == "abort":
                self._abort(xid)
            elif kind == "save_xid":
                self._set_counter(xid)
            elif kind == "state_dump":
                self._dump_xid = xid
                self._list(Record(STATE_DUMP, 0, xid), [])
            elif kind == "listed":
                self._list(Record(STATE_DUMP, 0, self._dump_xid), [Record(ADD_XID, 0, xid)])
            else:
                self._add(Record(STATE_DUMP if kind == "continue" else ADD_XID, 0, xid, size=0), 0)

    def _without_xid(self, kind: str | None) -> None:
        if kind == "remove":
            self._remove()
        elif kind == "reserve":
            self._reserve()
        elif kind is not None:  # that is damage
            self._added += 1


class ArchivedLife:
    """The records of a queue from its first one, or from a restart of its journal."""

    def __init__(self) -> None:
        self.scan = RowScan()
        self.groups: list[RowGroup] = []
        self._items = 0
        self._id_floor = ID_FLOOR_MIN

    def read(self, file: ArchivedFile, number: int, rows: pa.RecordBatch) -> None:
        """Read the next rows. Raises IncompleteArchive."""
        if not self.groups and rows.num_rows and rows["offset"][0].as_py():
            name, at = rows["file"][0].as_py(), rows["offset"][0].as_py()
            raise IncompleteArchive(
                f"the first record of {file.name} is at byte {at} of {name}: what stood before it is not in the archive"
            )
        kinds = rows["op"]
        items = rows.filter(pc.is_in(kinds, ITEM_OPS))
        lists = bool(pc.any(pc.equal(kinds, OPS[LISTED])).as_py())
        self.groups.append(RowGroup(file, number, rows.num_rows, self._items, items.num_rows, self._id_floor, lists))
        self._id_floor = item_ids(items, self._items, self._id_floor)[1]
        self._items += items.num_rows
        self.scan.read(kinds.to_pylist(), rows["xid"].to_pylist())


def read_archived(place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> Iterator[pa.RecordBatch]:
    """Yield the queue's contents in delivery order, then the open reads. Raises IncompleteArchive, CorruptJournal;
    ValueError for an ending that is no position.
    """
    reader = ArchiveReader(place, queue, reading)
    life = reader.replay()
    yield from rows_of(ArchiveFinder(reader, life.groups), queue.queue, apply(life.scan.final_effect()))


class ArchiveReader:
    """A reader of one queue."""

    def __init__(self, place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> None:
        self.place = place
        self.queue = queue
        self.reading = reading

    def replay(self) -> ArchivedLife:
        """Replay the queue since its journal last lost records, up to the requested end."""
        life, before = ArchivedLife(), 0
        for file, number, counted, is_last in self.groups():
            if self.restarts_between(before, file.batch):
                life = ArchivedLife()
            before = file.batch
            life.read(file, number, counted)
            if is_last:
                return life
        return ArchivedLife() if any(batch > before for batch in self.queue.restarts) else life

    def groups(self) -> Iterator[tuple[ArchivedFile, int, pa.RecordBatch, bool]]:
        """Yield (file, number of the row group, its rows up to the requested end, True if they end there)."""
        files, ending = self._in_order(), self.reading.ending
        end = None if ending is None else find_record(self.place, self.queue.queue, files, ending)
        for file in files:
            with self.open(file) as parquet:
                for number in range(parquet.num_row_groups):
                    rows = self.rows(parquet, number, HEADS)
                    stop = end.row if end is not None and (file, number) == end[:2] else self._first_late(rows)
                    counted = rows.slice(0, stop)
                    check_damage(counted, self.reading.on_corrupt)
                    yield file, number, counted, stop < rows.num_rows
                    if stop < rows.num_rows:
                        return

    def restarts_between(self, before: int, batch: int) -> bool:
        """Return True if the journal lost records between these batches, so that its items begin anew."""
        return any(before < restart <= batch for restart in self.queue.restarts)

    def rows(self, parquet: pq.ParquetFile, number: int, names: list[str]) -> pa.RecordBatch:
        """Return a row group. Archives of earlier versions have the placeholder records of packs as empty items without
        a time.
        """
        columns = pa.schema([SCHEMA.field(name) for name in names])
        table = parquet.read_row_group(number, names).select(names).cast(columns).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=columns)
        if self.queue.rows is None and {"op", "size", "addTime", "expireTime"} <= set(names):
            timeless = pc.and_(pc.is_null(rows["addTime"]), pc.is_null(rows["expireTime"]))
            is_put = pc.is_in(rows["op"], pa.array(["add", "add_xid"]))
            is_none = pc.and_(pc.and_(timeless, is_put), pc.equal(rows["size"], 0).fill_null(False))
            rows = rows.set_column(
                names.index("op"), SCHEMA.field("op"), pc.if_else(is_none, OPS[STAND_IN], rows["op"])
            )
        return rows

    def open(self, file: ArchivedFile) -> pq.ParquetFile:
        return open_parquet(self.place, file)

    def _in_order(self) -> list[ArchivedFile]:
        """Return the files in the order of records. Raises IncompleteArchive if rows are missing."""
        files, count = [], 0
        for file in self.queue.files:
            with self.open(file) as parquet:
                name, at, _ = bounds_of(parquet, 0)
                count += parquet.metadata.num_rows
            files.append(((file.batch, *_place_of(self.queue.queue, name), at), file))
        check_rows(self.queue, count)
        return [file for _, file in sorted(files)]

    def _first_late(self, rows: pa.RecordBatch) -> int:
        """Return the first row after the requested end, or the number of rows: an item that was added too late, the
        SAVE_XID records that hold its flags, and the record that lists it.
        """
        count = int(rows.num_rows)
        if self.reading.until_ms is None:
            return count
        late = pc.greater(rows["addTime"].view(pa.int64()), self.reading.until_ms * 1000)
        row, kinds = int(pc.index(late, True).as_py()), rows["op"]
        if row < 0:
            return count
        while row and kinds[row].as_py() == OPS[LISTED]:
            row -= 1
        while row and kinds[row - 1].as_py() == "save_xid":
            row -= 1
        return row


class ArchiveFinder:
    """A finder of items in an archive, see state.ItemFinder."""

    def __init__(self, reader: ArchiveReader, groups: list[RowGroup]) -> None:
        self.reader = reader
        self.groups = groups
        self._names = ["value"] * reader.reading.include_value + HEADS

    def range(self, start: int, stop: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        for group in self.groups:
            low, high = max(start, group.first), min(stop, group.first + group.items)
            if low < high:
                yield self._items(group).slice(low - group.first, high - low), low

    def single(self, numbers: list[int]) -> dict[int, dict[str, Any]]:
        by_group: dict[int, list[int]] = {}
        for number in sorted(numbers):
            at = bisect_right(self.groups, number, key=lambda group: group.first) - 1
            by_group.setdefault(at, []).append(number)
        rows: dict[int, dict[str, Any]] = {}
        for at, inside in by_group.items():
            group = self.groups[at]
            taken = self._items(group).take(pa.array([number - group.first for number in inside], pa.int64()))
            rows.update(zip(inside, taken.to_pylist(), strict=True))
        return rows

    def listed(self) -> dict[int, dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for group in self.groups:
            if group.lists:
                group_rows = self._rows(group)
                rows += group_rows.filter(pc.equal(group_rows["op"], OPS[LISTED])).to_pylist()
        return dict(enumerate(rows))

    def _items(self, group: RowGroup) -> pa.RecordBatch:
        rows = self._rows(group)
        items = rows.filter(pc.is_in(rows["op"], ITEM_OPS))
        return items.append_column("id", item_ids(items, group.first, group.id_floor)[0])

    def _rows(self, group: RowGroup) -> pa.RecordBatch:
        with self.reader.open(group.file) as parquet:
            return self.reader.rows(parquet, group.number, self._names).slice(0, group.rows)


def _place_of(queue: str, name: str) -> tuple[int, int, bool]:
    """Return a file's position among those of its queue: the current one is last, a pack precedes what it does
    not cover.
    """
    if name == queue:
        return 1, 0, False
    number, _, kind = name.removeprefix(f"{queue}.").partition(".")
    return 0, int(number), kind != "pack"
