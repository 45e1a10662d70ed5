"""The Spark data source `staniel-journal`: journal files as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from staniel.pipeline.formats.adapters import FORMATS
from staniel.pipeline.formats.base import FormatAdapter
from staniel.pipeline.formats.columns import OF_ALL_FORMATS
from staniel.pipeline.lake.archived import is_archive
from staniel.pipeline.lake.arrow import ddl
from staniel.pipeline.lake.folders import FileVanished, FolderMissing, folder
from staniel.pipeline.lake.stores import NONE
from staniel.pipeline.sources.catalog import given_or_kept, options_of_table, with_options
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.journal_partition import (
    JournalPartition,
    SharedPartition,
    fitted,
    put_together,
    read_part,
)
from staniel.pipeline.sources.offsets import pin, pinned_to
from staniel.pipeline.sources.planning import bundles, formats_of_view, plan_formats
from staniel.pipeline.sources.spool_plans import (
    SPOOLS,
    SpoolPlan,
    look_at_spool,
    look_at_spools,
    plan_spools,
    rows_of_spools,
    shared_tasks,
    unreachable,
)
from staniel.pipeline.worker_gc import freeze_imports, then_freeze_imports

TRIES = 5


class JournalSource(DataSource):
    """`spark.read.format("staniel-journal").load("spool")`. The options are in docs/pipeline.md. `stores` are settings
    of object stores: `pipeline.register` makes a source with those of its session.
    """

    stores: Mapping[str, str] = NONE

    @classmethod
    def name(cls) -> str:
        return "staniel-journal"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> str | StructType:
        options = options_of_table(self.options)
        columns = columns_of(JournalOptions(self.options if options is None else options, self.stores))
        freeze_imports()
        return ddl(columns) if options is None else with_options(columns, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = JournalOptions(given_or_kept(self.options, schema), self.stores)
        if is_one_archive(options):
            from staniel.pipeline.sources.archived import ArchiveStateReader

            return ArchiveStateReader(options, chosen(columns_of(options), schema))
        if options.is_several:
            return SpoolsReader(options, chosen(columns_of(options), schema))
        return JournalReader(options, chosen(columns_of(options), schema))

    def streamReader(self, schema: StructType) -> Any:
        from staniel.pipeline.sources.journal_stream import JournalStream

        options = JournalOptions(given_or_kept(self.options, schema), self.stores)
        if is_one_archive(options):
            raise ValueError("an archive is not streamed: stream the spool, or the archive's Parquet files")
        columns = chosen(columns_of(options), schema)
        if not options.is_several:
            return JournalStream(options, columns)
        from staniel.pipeline.sources.spool_streams import SpoolStreams

        form = format_of_spools(options) if options.format == "auto" else options.format
        return SpoolStreams(options, columns, form)


def columns_of(options: JournalOptions) -> pa.Schema:
    """Return the columns of the view. `auto` reads the folder, because formats differ."""
    if is_one_archive(options):
        from staniel.pipeline.sources import archived

        return archived.columns_of(options)
    if options.view == "spools":
        return SPOOLS
    columns = columns_of_view(options)
    return pa.schema([pa.field("host", pa.string()), *columns]) if options.has_host else columns


def columns_of_view(options: JournalOptions) -> pa.Schema:
    """Return the columns without that of the host. Raises ValueError if the format has no such view."""
    if options.is_several and options.view in OF_ALL_FORMATS:
        return OF_ALL_FORMATS[options.view]
    name = options.format
    if name == "auto" and options.is_several:
        name = format_of_spools(options)
    elif name == "auto":
        name = formats_of_view(folder(options.path), options)[0][0].name
    adapter: FormatAdapter = FORMATS[name]()
    views = adapter.schemas()
    if options.view not in views:
        raise ValueError(f"{adapter.name} journals have no view {options.view}; there are {', '.join(views)}")
    return views[options.view]


def is_one_archive(options: JournalOptions) -> bool:
    """Return True if the path is that of an archive."""
    return not options.is_several and is_archive(options.path)


def format_of_spools(options: JournalOptions) -> str:
    """Return the format of the first spool that has queues; the plan compares the others with it. Raises
    SpoolUnreachable for one before it that cannot be read, unless it is to be ignored.
    """
    spools, failed = options.spools(), list[SpoolPlan]()
    listing = copy(options)
    listing.view = "spools"  # without parts, for which times would be looked up in the files
    for spool in spools:
        plan = look_at_spool(spool, listing)
        if plan.queues:
            return plan.form
        if plan.error:
            failed.append(plan)
        if failed and (not options.ignores_unreachable or len(failed) == len(spools)):
            raise unreachable(failed, len(spools))
    return "kestrel"


def chosen(columns: pa.Schema, wanted: StructType) -> pa.Schema:
    """Return the columns that the user named with .schema(...), or all, in the user's own case. Raises ValueError for
    other names or types.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    asked, types = to_arrow_schema(wanted, timezone="UTC"), {field.name.lower(): field.type for field in columns}
    for field in asked:
        kind = types.get(field.name.lower())
        if kind is None:
            raise ValueError(f"there is no column {field.name}; there are {', '.join(columns.names)}")
        if kind != field.type:
            raise ValueError(f"column {field.name} is {kind}, not {field.type}")
    return asked


class JournalReader(DataSourceReader):
    """A batch reader of the files as they are when the query is planned.

    Spark reuses the reader and the partitions of a DataFrame's last plan for all of its queries (SPARK-51575). So
    nothing may depend on one query: there is no `pushFilters`, see docs/decisions/0024.
    """

    def __init__(self, options: JournalOptions, columns: pa.Schema) -> None:
        options.check_batch()
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Plan again if a file is renamed meanwhile. Raises FileVanished if that keeps happening."""
        for _ in range(TRIES - 1):
            try:
                return self._partitions()
            except FileVanished:
                continue
        return self._partitions()

    def _partitions(self) -> Sequence[InputPartition]:
        options = self.options
        place = folder(options.path)
        plans = plan_formats(place, options)
        freeze_imports()
        reading = options.reading
        if "value" not in {name.lower() for name in self.columns.names}:
            reading = reading.without_values()
        tasks = []
        for form, parts in plans:
            pinned = pinned_to(place, form, [segment for part in parts for segment in part.segments])
            for some in bundles(parts, options.min_partitions):
                held = [pin(pinned, part) for part in some]
                tasks.append(JournalPartition(options.path, form.name, options.view, held, reading))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, JournalPartition):
            return iter(())  # without parts, Spark makes a partition of its own
        return then_freeze_imports(self._rows(partition))

    def _rows(self, partition: JournalPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises FileVanished, with the remedy."""
        try:
            yield from put_together(
                batch
                for part in partition.parts
                for batch in read_part(partition.folder(), partition, part, self.columns)
            )
        except FolderMissing:
            raise
        except FileVanished as gone:
            raise FileVanished(f"{gone}; a table has the files that its first query found: load it again") from None


class SpoolsPartition(InputPartition):
    """The rows of the view `spools`, which the plan has already."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__("spools")
        self.rows = rows


class SpoolsReader(DataSourceReader):
    """A batch reader of several spools as they are when the query is planned; see JournalReader."""

    def __init__(self, options: JournalOptions, columns: pa.Schema) -> None:
        options.check_batch()
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the query. Raises SpoolUnreachable, ValueError."""
        if self.options.view == "spools":
            return [SpoolsPartition(rows_of_spools(look_at_spools(self.options)))]
        plans = plan_spools(self.options)
        freeze_imports()
        reads_values = "value" in {name.lower() for name in self.columns.names}
        return list(shared_tasks(plans, self.options, reads_values))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SpoolsPartition):
            return iter([fitted(partition.rows, self.columns)])
        if not isinstance(partition, SharedPartition):
            return iter(())  # without parts, Spark makes a partition of its own
        return then_freeze_imports(put_together(partition.rows(self.columns)))
