"""A task's share of journal files, and the reading of its rows: the same for batches and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from staniel.pipeline.formats.adapters import FORMATS
from staniel.pipeline.formats.base import CorruptJournal, Part, Reading, check_values
from staniel.pipeline.lake.arrow import BATCH_ROWS, constant
from staniel.pipeline.lake.folders import FileVanished, Folder
from staniel.pipeline.sources.holding import open_spool
from staniel.pipeline.sources.offsets import pinned_to
from staniel.pipeline.sources.spools import SpoolRef, SpoolUnreachable

SMALL_ROWS = BATCH_ROWS // 10
TOGETHER_BYTES = 4 << 20
UNREADABLE = (FileVanished, CorruptJournal, OSError)
LOG = logging.getLogger("staniel.pipeline")


def fitted(batch: pa.RecordBatch, columns: pa.Schema, host: str = "") -> pa.RecordBatch:
    """Return the `chosen` columns of a batch; `host` is the value of the column with that name, if it is chosen."""
    if batch.schema.equals(columns):
        return batch
    by_name = {name.lower(): batch[name] for name in batch.schema.names}
    if host:
        by_name["host"] = constant(host, batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([by_name[name.lower()] for name in columns.names], schema=columns)


class JournalPartition(InputPartition):
    """A task's share of one spool, with everything that the task needs. `host` is the spool's name among several;
    `hold` the retention hold of the reader, "" without one.
    """

    def __init__(
        self, path: str, form: str, view: str, parts: list[Part], reading: Reading, host: str = "", hold: str = ""
    ) -> None:
        super().__init__(parts[0].queue)
        self.host = host
        self.hold = hold
        self.path = path
        self.form = form
        self.view = view
        self.parts = parts
        self.reading = reading

    def folder(self) -> Folder:
        """Return the folder, pinned to the files that the query was planned with."""
        segments = [segment for part in self.parts for segment in (*part.segments, *(part.fates or ()))]
        return pinned_to(open_spool(self.path, self.hold), FORMATS[self.form](), segments)


class SharedPartition(InputPartition):
    """A task's shares of several spools. With `skips`, what cannot be read of one is left out and logged."""

    def __init__(self, shares: list[JournalPartition], skips: bool) -> None:
        super().__init__(shares[0].host)
        self.shares = shares
        self.skips = skips

    def rows(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises SpoolUnreachable, which names the spool."""
        for share in self.shares:
            spool, place = SpoolRef(share.host, share.path), share.folder()
            for part in share.parts:
                try:
                    yield from read_part(place, share, part, columns)
                except UNREADABLE as error:
                    why = f"{spool.describe()}: queue {part.queue}: {error}"
                    if not self.skips:
                        raise SpoolUnreachable(why) from None
                    LOG.warning("%s; the rest of this queue is left out", why)


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
        yield fitted(batch, columns, partition.host)
