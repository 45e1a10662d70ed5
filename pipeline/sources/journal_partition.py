"""A task's share of journal files, and the reading of its rows: the same for batches and streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from staniel.pipeline.formats.adapters import FORMATS
from staniel.pipeline.formats.base import Part, Reading, check_values
from staniel.pipeline.lake.arrow import BATCH_ROWS
from staniel.pipeline.lake.folders import Folder, folder
from staniel.pipeline.sources.offsets import pinned_to

SMALL_ROWS = BATCH_ROWS // 10
TOGETHER_BYTES = 4 << 20


def fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return the `chosen` columns of a batch."""
    if batch.schema.equals(columns):
        return batch
    by_name = {name.lower(): batch[name] for name in batch.schema.names}
    return pa.RecordBatch.from_arrays([by_name[name.lower()] for name in columns.names], schema=columns)


class JournalPartition(InputPartition):
    """A task's share, with everything that the task needs."""

    def __init__(self, path: str, form: str, view: str, parts: list[Part], reading: Reading) -> None:
        super().__init__(parts[0].queue)
        self.path = path
        self.form = form
        self.view = view
        self.parts = parts
        self.reading = reading

    def folder(self) -> Folder:
        """Return the folder, pinned to the files that the query was planned with."""
        segments = [segment for part in self.parts for segment in (*part.segments, *(part.fates or ()))]
        return pinned_to(folder(self.path), FORMATS[self.form](), segments)


def put_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows with small batches joined: Spark takes as long for a batch of ten rows as for one of
    a thousand.
    """
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        is_small = batch.num_rows < SMALL_ROWS
        bytes = batch.nbytes if is_small else 0
        if held and (not is_small or rows + batch.num_rows > BATCH_ROWS or size + bytes > TOGETHER_BYTES):
            yield pa.concat_batches(held)
            held, rows, size = [], 0, 0
        if is_small:
            held.append(batch)
            rows, size = rows + batch.num_rows, size + bytes
        else:
            yield batch
    if held:
        yield pa.concat_batches(held)


def read_part(place: Folder, partition: JournalPartition, part: Part, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one part of a partition, with the chosen `columns`."""
    view = FORMATS[partition.form]().view(partition.view)
    for batch in view(place, part, partition.reading):
        check_values(batch, partition.reading.value_bytes_max)
        yield fitted(batch, columns)
