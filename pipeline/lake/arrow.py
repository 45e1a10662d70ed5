"""Arrow schemas of the views, and batches built from numbers and slices without a Python object for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 10_000
TIME = pa.timestamp("us", tz="UTC")
TIME_MS_MAX = 253_402_300_800_000  # the year 10000; larger numbers are no meaningful time
DDL = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    TIME: "timestamp_ltz",  # `timestamp` may mean one without a zone
    pa.list_(pa.field("element", pa.int64())): "array<bigint>",
}


def schema(**fields: pa.DataType) -> pa.Schema:
    """Return a schema of names and types in order; every field may be null, as Spark expects."""
    return pa.schema([pa.field(name, kind) for name, kind in fields.items()])


def ddl(columns: pa.Schema) -> str:
    """Return the schema in the syntax of Spark's CREATE TABLE."""
    return ", ".join(f"`{field.name}` {DDL[field.type]}" for field in columns)


def constant(value: str | int | None, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)


def times(ms: pa.Array, present: pa.Array | None = None) -> pa.Array:
    """Convert epoch ms to timestamps; null if not `present`, and for 0 and numbers that are no time."""
    fits = pc.and_(pc.greater(ms, 0), pc.less(ms, TIME_MS_MAX))
    fits = fits if present is None else pc.and_(fits, present)
    return pc.multiply(pc.if_else(fits, ms, None), 1000).view(TIME)


def numbers(kind: pa.DataType, values: Any, valid: Any = None) -> pa.Array:
    """Return a numpy array as a column, without a copy; null where `valid` is False."""
    if valid is None or valid.all():
        bits = None
    elif not valid.any():
        return pa.nulls(len(values), kind)
    else:
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


def moments(ms: Any, valid: Any = True) -> pa.Array:
    """Convert a numpy array of epoch ms to timestamps, like `times`."""
    fits = (ms > 0) & (ms < TIME_MS_MAX) & valid
    return numbers(TIME, ms * 1000, fits)


def slices(data: bytes, bounds: Any, present: Any) -> pa.Array:
    """Return binary values out of one piece of bytes, null where not `present`. `bounds` is a numpy table of int32:
    start and stop of each, rising.
    """
    rows = len(bounds)
    everything = pa.Array.from_buffers(
        pa.binary(), 2 * rows - 1, [None, pa.py_buffer(np.ascontiguousarray(bounds)), pa.py_buffer(data)]
    )
    return everything.take(numbers(pa.int32(), np.arange(0, 2 * rows, 2, dtype=np.int32), present))


def batch(columns: pa.Schema, given: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    """Return a batch of `columns`: those of `given`, nulls for the rest."""
    arrays = [given[field.name] if field.name in given else pa.nulls(rows, field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


class Rows:
    """A buffer of single rows, for views with few of them."""

    def __init__(self, columns: pa.Schema) -> None:
        self.columns = columns
        self.rows: list[dict[str, Any]] = []
        self.bytes = 0

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.bytes += len(row.get("value") or b"")

    @property
    def full(self) -> bool:
        return len(self.rows) >= BATCH_ROWS or self.bytes >= 16 << 20

    def pop_batch(self) -> pa.RecordBatch:
        """Return the buffered rows as a batch, and empty the buffer."""
        rows, self.rows, self.bytes = self.rows, [], 0
        arrays = [column(field, [row.get(field.name) for row in rows]) for field in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns)


def batches(columns: pa.Schema, rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches that are not too large."""
    held = Rows(columns)
    for row in rows:
        held.add(row)
        if held.full:
            yield held.pop_batch()
    if held.rows:
        yield held.pop_batch()


def column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return a column of Python values; times are given in epoch ms."""
    if field.type == TIME:
        return times(pa.array(values, pa.int64()))
    return pa.array(values, field.type)
