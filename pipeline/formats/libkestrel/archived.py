"""The view `state` of a queue from the rows of its items in an archive, and from its readers' progress at that time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from staniel.pipeline.formats.archived import (
    ArchiveReading,
    check_damage,
    check_rows,
    find_record,
    open_parquet,
)
from staniel.pipeline.formats.columns import STATE
from staniel.pipeline.formats.libkestrel.adapter import OPS, ReaderProgress, waiting_row
from staniel.pipeline.lake.archived import ArchivedFile, ArchivedQueue, IncompleteArchive
from staniel.pipeline.lake.arrow import batches
from staniel.pipeline.lake.lake import LakeFolder

HEADS = [name for name in OPS.names if name not in ("queue", "value")]


def read_archived(place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> Iterator[pa.RecordBatch]:
    """Yield the items that each reader had not read when the queue was last archived, in the order of delivery. Raises
    IncompleteArchive, CorruptJournal; ValueError for an ending that is no position.
    """
    if queue.readers is None:
        raise IncompleteArchive(
            f"queue {queue.queue}: the version that made this archive did not note how far its readers had come;"
            " archive it once more"
        )
    marks = [ReaderProgress(name, "", mark.head, frozenset(mark.done)) for name, mark in sorted(queue.readers.items())]
    readers = marks or [ReaderProgress("", "")]
    positions = dict.fromkeys((reader.name for reader in readers), 0)

    def rows() -> Iterator[dict[str, Any]]:
        for row in _items(place, queue, reading, readers):
            for reader in readers:
                if not reader.has(row["id"]):
                    yield waiting_row(row, reader.name, positions[reader.name]) | {"queue": queue.queue}
                    positions[reader.name] += 1

    return batches(STATE, rows())


def _items(
    place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading, readers: list[ReaderProgress]
) -> Iterator[dict[str, Any]]:
    """Yield the items that some reader has not read, by id, up to the requested end. Ids may begin again after
    a restart.
    """
    files = files_in_order(place, queue)
    end = None if reading.ending is None else find_record(place, queue.queue, files, reading.ending)
    restarts = [batch for batch in queue.restarts if end is None or batch <= end.file.batch]
    for file in files:
        if file.batch < max(restarts, default=0):
            continue
        with open_parquet(place, file) as parquet:
            for number in range(parquet.num_row_groups):
                stop = end.row if end is not None and (file, number) == end[:2] else None
                group, is_last = group_rows(parquet, number, stop, reading)
                waiting = [not all(reader.has(item_id) for reader in readers) for item_id in group["id"].to_pylist()]
                if any(waiting):
                    yield from _dicts(_with_values(parquet, number, group, reading).filter(pa.array(waiting)))
                if is_last or stop is not None:
                    return


def group_rows(
    parquet: pq.ParquetFile, number: int, stop: int | None, reading: ArchiveReading
) -> tuple[pa.Table, bool]:
    """Return the rows of a group without their values, up to `stop`, and True if the first row left out is too late."""
    rows = parquet.read_row_group(number, HEADS).slice(0, stop)
    check_damage(rows, reading.on_corrupt)
    if reading.until_ms is None:
        return rows, False
    late = pc.greater(rows["addTime"].cast(pa.int64()), reading.until_ms * 1000)
    at = int(pc.index(late, True).as_py())
    return (rows, False) if at < 0 else (rows.slice(0, at), True)


def _with_values(parquet: pq.ParquetFile, number: int, heads: pa.Table, reading: ArchiveReading) -> pa.Table:
    if not reading.include_value:
        return heads
    return heads.append_column("value", parquet.read_row_group(number, ["value"])["value"].slice(0, heads.num_rows))


def all_dicts(
    parquet: pq.ParquetFile, number: int, heads: pa.Table, reading: ArchiveReading
) -> Iterator[dict[str, Any]]:
    """Return the items of a group, as `_dicts` does."""
    return _dicts(_with_values(parquet, number, heads, reading))


def _dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows in the form of read_state: times in ms. A row of damage is no item."""
    for name in ("addTime", "expireTime"):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, name, pc.divide(rows[name].cast(pa.int64()), 1000))
    return (row for row in rows.to_pylist() if row["id"] is not None)


def files_in_order(place: LakeFolder, queue: ArchivedQueue) -> list[ArchivedFile]:
    """Return the files by batch and first id. Raises IncompleteArchive if rows are missing."""
    files, count = [], 0
    for file in queue.files:
        with open_parquet(place, file) as parquet:
            ids = parquet.metadata.row_group(0).column(parquet.schema_arrow.names.index("id")).statistics
            files.append((file.batch, ids.min if ids is not None and ids.has_min_max else 0, file))
            count += parquet.metadata.num_rows
    check_rows(queue, count)
    return [file for _, _, file in sorted(files)]
