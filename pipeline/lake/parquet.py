"""The Parquet files of one task: one for each queue and day of its rows. lake.py decides which files count."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, field

from staniel.pipeline.lake.lake import LakeFolder, staged_name, table_folder

GROUP_ROWS = 131_072
GROUP_BYTES = 32 << 20
HELD_BYTES = 96 << 20  # all tables together; a task has a gigabyte at most, and Arrow needs twice the size
OPEN_MAX = 64
NO_DAY = -(1 << 31)
COMPRESSION, LEVEL = "zstd", 1  # the level that takes the least processor time
Key = tuple[str | None, int]


class ParquetTable(Struct):
    """A file being written, and rows that are not in it yet."""

    writer: Any
    sink: Any  # pyarrow does not close a file that it did not open
    held: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def flush(self) -> None:
        if self.held:
            self.writer.write_table(pa.Table.from_batches(self.held), row_group_size=GROUP_ROWS)
        self.held, self.rows, self.bytes = [], 0, 0


class ParquetTables:
    """The files of one task.

    `clock` is the column whose day counts. A row without a time goes to the day of the row before, the first rows to
    that of the next one; if no row has a time, they go to `day`.
    """

    def __init__(self, place: LakeFolder, columns: pa.Schema, clock: str, batch: int, day: int) -> None:
        self._place = place
        self._clock = clock
        self._batch = batch
        self._names = [name for name in columns.names if name != "queue"]
        self._schema = pa.schema([columns.field(name) for name in self._names])
        self._open: dict[Key, ParquetTable] = {}
        self._held_bytes = 0
        self.rows = 0
        self.files: list[str] = []
        self.days: dict[str, int] = {}
        self.counts: dict[str, int] = {}  # rows by queue
        self._day = day
        self._knows_day = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows in order."""
        self.rows += batch.num_rows
        coded = batch["queue"].dictionary_encode()
        queues, codes = coded.dictionary.to_pylist(), np.asarray(coded.indices.fill_null(-1)).astype(np.int64)
        days = self._days(batch[self._clock])
        keys = (codes << 32) + (days.astype(np.int64) - NO_DAY)
        columns = batch.select(self._names)
        distinct, firsts = np.unique(keys, return_index=True)
        for key, first in zip(distinct, firsts, strict=True):
            code, day = int(codes[first]), int(days[first])
            queue = queues[code] if code >= 0 else None
            some = columns if len(distinct) == 1 else columns.filter(pa.array(keys == key))
            self._put((queue, day), some)
            if queue is not None:
                self.days[queue] = max(day, self.days.get(queue, NO_DAY))
                self.counts[queue] = self.counts.get(queue, 0) + some.num_rows

    def close(self) -> None:
        """Finish every file, durably."""
        while self._open:
            self._close(next(iter(self._open)))

    def abandon(self) -> None:
        """Close the files after an error; they are not used."""
        for table in self._open.values():
            table.writer.close()
            table.sink.close()

    def _put(self, key: Key, rows: pa.RecordBatch) -> None:
        table = self._open.pop(key, None) or self._create(key)
        self._open[key] = table  # the last one was used last
        table.held.append(rows)
        table.rows += rows.num_rows
        size = rows.nbytes
        table.bytes += size
        self._held_bytes += size
        if table.rows >= GROUP_ROWS or table.bytes >= GROUP_BYTES:
            self._held_bytes -= table.bytes
            table.flush()
        elif self._held_bytes >= HELD_BYTES:
            for open_table in self._open.values():
                open_table.flush()
            self._held_bytes = 0
        if len(self._open) > OPEN_MAX:
            self._close(next(iter(self._open)))

    def _create(self, key: Key) -> ParquetTable:
        queue, day = key
        name = f"{table_folder(queue, str(np.datetime64(day, 'D')))}/{self._batch:08d}-{secrets.token_hex(6)}.parquet"
        self.files.append(name)
        short = [field.name for field in self._schema if field.type == pa.string()]
        sink = self._place.create(staged_name(name))
        writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=COMPRESSION,
            compression_level=LEVEL,
            use_dictionary=short,
            write_statistics=[name for name in self._names if name != "value"],
            store_schema=False,
        )
        return ParquetTable(writer, sink)

    def _close(self, key: Key) -> None:
        table = self._open.pop(key)
        self._held_bytes -= table.bytes
        table.flush()
        table.writer.close()
        table.sink.close()

    def _days(self, times: pa.Array) -> Any:
        """Return the day of every row, in days since 1970."""
        days = np.asarray(times.cast(pa.date32()).cast(pa.int32()).fill_null(NO_DAY))
        known = days != NO_DAY
        if not known.all():
            if not self._knows_day and known.any():
                self._day = int(days[int(np.argmax(known))])
            last = np.maximum.accumulate(np.where(known, np.arange(len(days)), -1))
            days = np.where(last >= 0, days[last], self._day)
        if known.any():
            self._day, self._knows_day = int(days[-1]), True
        return days
