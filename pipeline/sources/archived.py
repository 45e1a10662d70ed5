"""The views `state` and `history` of an archive: `staniel-journal` over a folder that `staniel pipeline archive` has
written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql.datasource import DataSourceReader, InputPartition

from staniel.pipeline.formats.archived import ArchiveReading
from staniel.pipeline.formats.base import OnCorrupt, check_values
from staniel.pipeline.formats.columns import OF_ALL_FORMATS
from staniel.pipeline.formats.kestrel import archived as kestrel
from staniel.pipeline.formats.kestrel.history import read_archived_history as read_kestrel_history
from staniel.pipeline.formats.libkestrel import archived as libkestrel
from staniel.pipeline.formats.libkestrel.history import read_archived_history as read_libkestrel_history
from staniel.pipeline.lake.archived import ArchivedQueue, open_archived, queues_of_archive
from staniel.pipeline.lake.folders import without_secrets
from staniel.pipeline.lake.lake import lake_folder_of
from staniel.pipeline.sources.journal_options import Begin, JournalOptions
from staniel.pipeline.sources.journal_partition import fitted
from staniel.pipeline.sources.planning import OPEN_BYTES, bundled, no_queue
from staniel.pipeline.worker_gc import freeze_imports, then_freeze_imports

COLUMN_OF_FORMATS = {"xid": "kestrel", "errorCount": "libkestrel", "maxFails": "workq"}
READERS: dict[tuple[str, str], Callable[..., Iterator[pa.RecordBatch]]] = {
    ("state", "kestrel"): kestrel.read_archived,
    ("state", "libkestrel"): libkestrel.read_archived,
    ("history", "kestrel"): read_kestrel_history,
    ("history", "libkestrel"): read_libkestrel_history,
}
BY_TIME = {"startingOffsetsByTimestamp", "endingOffsetsByTimestamp"}
NO_STATE = {"workq": "an archive of a workq log has no view of its jobs"}


class ArchivePartition(InputPartition):
    """The queues of one task."""

    def __init__(self, path: str, form: str, queues: list[tuple[ArchivedQueue, ArchiveReading]]) -> None:
        super().__init__(queues[0][0].queue)
        self.path = path
        self.form = form
        self.queues = queues


class ArchiveStateReader(DataSourceReader):
    """A reader of an archive as it is when the query is planned. Raises ValueError for options that an archive does not
    support.
    """

    def __init__(self, options: JournalOptions, columns: pa.Schema) -> None:
        check_options(options)
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        queues = queues_of_archive(options.path)
        form = _format_of(options, queues)
        if unmet := options.queues.unmet(queues):
            raise ValueError(no_queue(unmet[0], without_secrets(options.path), queues))
        ending = options.ending if isinstance(options.ending, dict) else {}
        if unknown := [queue for queue in ending if queue not in queues]:
            raise ValueError(f"option endingOffsets: {no_queue(unknown[0], without_secrets(options.path), queues)}")
        include_value = options.reading.include_value and "value" in {name.lower() for name in self.columns.names}
        freeze_imports()
        reading = options.reading
        plain = ArchiveReading(include_value, reading.on_corrupt, options.ending_ms, ids=reading.ids)
        chosen = [queue for name, queue in queues.items() if name in options.queues and queue.files]
        works = [(queue, replace(plain, ending=ending.get(queue.queue))) for queue in chosen]
        return [ArchivePartition(options.path, form, some) for some in bundled(works, lambda work: _bytes(work[0]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, ArchivePartition):
            return iter(())  # without queues, Spark makes a partition of its own
        return then_freeze_imports(self._rows(partition))

    def _rows(self, partition: ArchivePartition) -> Iterator[pa.RecordBatch]:
        place = lake_folder_of(partition.path)
        for queue, reading in partition.queues:
            for batch in READERS[self.options.view, partition.form](place, queue, reading):
                check_values(batch, self.options.reading.value_bytes_max)
                yield fitted(batch, self.columns)


def check_options(options: JournalOptions) -> None:
    """Check the options of a query on an archive. Raises ValueError."""
    if options.view not in OF_ALL_FORMATS:
        raise ValueError(
            f"{without_secrets(options.path)} is an archive: it answers view=state and view=history; its records are"
            " read with spark.read.parquet"
        )
    options.check_batch()
    options.refuse(
        {"startingOffsets", "startingTimestamp", "useSummaries", "minPartitions", "archivePath"} | BY_TIME,
        "spools, not archives",
    )
    if options.reading.on_corrupt is OnCorrupt.QUARANTINE:
        raise ValueError("an archive has no bytes to put in quarantine: give onCorrupt=permissive or fail")
    if options.starting is not Begin.EARLIEST:
        raise ValueError("the state of an archive begins with its first record")


def columns_of(options: JournalOptions) -> pa.Schema:
    """Return the columns of the view. Raises ValueError."""
    check_options(options)
    _format_of(options, queues_of_archive(options.path))
    return OF_ALL_FORMATS[options.view]


def _format_of(options: JournalOptions, queues: dict[str, ArchivedQueue]) -> str:
    """Return the format of the records; Kestrel's if there are none. Raises ValueError if it is not the requested
    format, or has no state.
    """
    file = next((file for queue in queues.values() for file in queue.files), None)
    if file is None:
        return "kestrel" if options.format == "auto" else options.format
    with pq.ParquetFile(open_archived(lake_folder_of(options.path), file)) as parquet:
        names = parquet.schema_arrow.names
    form = next((form for column, form in COLUMN_OF_FORMATS.items() if column in names), "none")
    if options.format not in ("auto", form):
        raise ValueError(f"{without_secrets(options.path)} is an archive of {form}'s format, not of {options.format}'s")
    if ("state", form) not in READERS:
        raise ValueError(NO_STATE.get(form, "these are not the files of an archive"))
    return form


def _bytes(queue: ArchivedQueue) -> int:
    return OPEN_BYTES * len(queue.files)
