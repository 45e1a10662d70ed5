"""The view `history` of a queue in libkestrel's format: when each item was put, and which readers have confirmed it.
The files do not tell when an item was opened, returned or confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from staniel.pipeline.formats.archived import ArchiveReading, find_record, open_parquet
from staniel.pipeline.formats.base import Part, Reading
from staniel.pipeline.formats.columns import HISTORY
from staniel.pipeline.formats.libkestrel.adapter import ReaderProgress, item_rows, readers_of
from staniel.pipeline.formats.libkestrel.archived import all_dicts, files_in_order, group_rows
from staniel.pipeline.lake.archived import ArchivedQueue
from staniel.pipeline.lake.arrow import batches
from staniel.pipeline.lake.folders import Folder
from staniel.pipeline.lake.lake import LakeFolder, lake_folder_of


def read_history(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the events of a queue's items, by id: of its archive, then of its segments. Raises IncompleteArchive."""
    readers = readers_of(folder, part, reading)

    def rows() -> Iterator[dict[str, Any]]:
        if part.archive is not None:
            place, archiving = (
                lake_folder_of(part.archive.url),
                ArchiveReading(reading.include_value, reading.on_corrupt),
            )
            known = readers or _archived_readers(part.archive.queue)
            yield from _events(part.queue, _archived_items(place, part.archive.queue, archiving), known, reading.ids)
        for segment in part.segments:
            yield from _events(part.queue, item_rows(folder, segment, reading), readers, reading.ids)

    return batches(HISTORY, rows())


def read_archived_history(place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> Iterator[pa.RecordBatch]:
    """Yield the events of an archived queue, with the readers' progress when it was last archived."""
    items = _archived_items(place, queue, reading)
    return batches(HISTORY, _events(queue.queue, items, _archived_readers(queue), reading.ids))


def _archived_readers(queue: ArchivedQueue) -> list[ReaderProgress]:
    marks = sorted((queue.readers or {}).items())
    return [ReaderProgress(name, "", mark.head, frozenset(mark.done)) for name, mark in marks]


def _events(
    queue: str, items: Iterable[dict[str, Any]], readers: list[ReaderProgress], ids: frozenset[str] | None
) -> Iterator[dict[str, Any]]:
    for item in items:
        if ids is not None and str(item["id"]) not in ids:
            continue
        added_ms = item["addTime"]
        put = {"event": "put", "time": added_ms, "asOf": added_ms, "deliveries": item["errorCount"]}
        yield item | put | {"queue": queue}
        for reader in readers:
            if reader.has(item["id"]):
                known = {name: item[name] for name in ("id", "addTime", "file", "offset")}
                yield known | {"queue": queue, "event": "confirmed", "reader": reader.name}


def _archived_items(place: LakeFolder, queue: ArchivedQueue, reading: ArchiveReading) -> Iterator[dict[str, Any]]:
    files = files_in_order(place, queue)
    end = None if reading.ending is None else find_record(place, queue.queue, files, reading.ending)
    for file in files:
        with open_parquet(place, file) as parquet:
            for number in range(parquet.num_row_groups):
                stop = end.row if end is not None and (file, number) == end[:2] else None
                group, is_last = group_rows(parquet, number, stop, reading)
                yield from all_dicts(parquet, number, group, reading)
                if is_last or stop is not None:
                    return
