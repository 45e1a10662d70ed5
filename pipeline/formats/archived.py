"""The parts that all readers of archived queues share: how far to read, damage, and positions of records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from staniel.pipeline.formats.base import CorruptJournal, OnCorrupt
from staniel.pipeline.lake.archived import ArchivedFile, ArchivedQueue, IncompleteArchive, open_archived
from staniel.pipeline.lake.lake import LakeFolder

SHOWN_BATCHES = 10


class ArchiveReading(Struct, frozen=True):
    """The options of reading a queue. `until_ms` asks for the state before the first item added later; `ending` for the
    state before the record at this position, see `find_record`; None: everything that was archived.
    """

    include_value: bool = True
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    until_ms: int | None = None
    ending: dict[str, Any] | None = None
    ids: frozenset[str] | None = None


class RowPlace(NamedTuple):
    """The position of a row in an archive."""

    file: ArchivedFile
    group: int
    row: int


def open_parquet(place: LakeFolder, file: ArchivedFile) -> pq.ParquetFile:
    """Open an archived file. Raises IncompleteArchive."""
    return pq.ParquetFile(open_archived(place, file))


def check_rows(queue: ArchivedQueue, count: int) -> None:
    """Check the number of a queue's rows. Raises IncompleteArchive if the files lack some."""
    if queue.rows not in (None, count):
        raise IncompleteArchive(
            f"queue {queue.queue}: {count:,} of {queue.rows:,} records are in the archive: what it held"
            " cannot be told without the others; were folders of days removed?"
        )


def check_damage(rows: pa.RecordBatch, on_corrupt: OnCorrupt) -> None:
    """Check rows for damage. Raises CorruptJournal if there is any, unless `on_corrupt` allows it."""
    if on_corrupt is OnCorrupt.FAIL and (bad := rows.filter(pc.is_valid(rows["_corrupt"]))).num_rows:
        row = bad.slice(0, 1).to_pylist()[0]
        raise CorruptJournal(
            f"{row['file']}: byte {row['offset']}: {row['_corrupt']}, when it was archived; read on with option"
            " onCorrupt=permissive"
        )


def find_record(place: LakeFolder, queue: str, files: list[ArchivedFile], ending: dict[str, Any]) -> RowPlace:
    """Return the row of the record that begins at byte `at` of the journal file `file`, as named in the archive.

    A file's name is reused after it is rotated, so the batch may be needed too. Raises ValueError.
    """
    places: list[RowPlace] = []
    for file in files:
        if ending.get("batch") in (None, file.batch):
            with open_parquet(place, file) as parquet:
                places += _records_at(parquet, file, ending["file"], ending["at"])
    if len(places) == 1:
        return places[0]
    where = f"option endingOffsets: byte {ending['at']} of {ending['file']} of queue {queue}"
    if not places:
        raise ValueError(f"{where}: no record of the archive begins there; its columns file and offset name places")
    batches = ", ".join(str(place.file.batch) for place in places[:SHOWN_BATCHES])
    raise ValueError(f'{where}: the batches {batches} have such a record: say which one with "batch"')


def bounds_of(parquet: pq.ParquetFile, number: int) -> tuple[str, int, int]:
    """Return the journal file of a row group's records, and where the first and last of them begin."""
    group, names = parquet.metadata.row_group(number), parquet.schema_arrow.names
    file, offset = (group.column(names.index(name)).statistics for name in ("file", "offset"))
    return file.min, offset.min, offset.max


def _records_at(parquet: pq.ParquetFile, file: ArchivedFile, name: str, at: int) -> Iterator[RowPlace]:
    for number in range(parquet.num_row_groups):
        known, low, high = bounds_of(parquet, number)
        if known == name and low <= at <= high:
            offsets = parquet.read_row_group(number, ["offset"])["offset"]
            if (row := int(pc.index(offsets, at).as_py())) >= 0:
                yield RowPlace(file, number, row)
