"""The rows of a table as items to put: which columns they have, and which values are none of an item's. Those of jobs
are in job_rows.py.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct, structs
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from staniel.pipeline.lake.names import real_name
from staniel.pipeline.sources import job_rows
from staniel.pipeline.sources.job_rows import JobRow
from staniel.pipeline.sources.live_options import SinkOptions
from staniel.protocol.memcache import requests as memcache

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "queue": (StringType,),
    "expireTime": (TimestampType,),
    "flags": (IntegerType, LongType, ShortType, ByteType),
}
KEY_HEAD = "spark."
KEY_KINDS = (StringType, LongType, IntegerType, ShortType, ByteType)
KEY = re.compile(rb"[^ \r\n]{1,250}")
FLAGS_MAX = (1 << 32) - 1


class ItemRow(Struct, frozen=True, gc=False):
    """An item to put. `key` is its idempotency key in ISO-8859-1, as on the wire, "" without one."""

    queue: str
    value: bytes
    expires_ms: int
    flags: int
    key: str = ""

    def content(self) -> bytes:
        """Return the bytes that tell this row from others. Each part has its length."""
        queue = self.queue.encode("utf-8", "surrogatepass")
        return b"%d %d %d %d " % (len(queue), len(self.value), self.flags, self.expires_ms) + queue + self.value

    def with_digest(self, digest: bytes) -> ItemRow:
        """Return the row with a key made from 16 bytes."""
        return structs.replace(self, key=KEY_HEAD + urlsafe_b64encode(digest).decode().rstrip("="))

    def request(self) -> memcache.Set | memcache.KeyedSet:
        """Return the request that puts it."""
        put = memcache.Set(real_name(self.queue), self.value, self.flags, expires_ms=self.expires_ms)
        return memcache.KeyedSet(put, self.key) if self.key else put


Row = ItemRow | JobRow


def columns_of(options: SinkOptions) -> Mapping[str, tuple[type[DataType], ...]]:
    """Return the columns that the sink reads, with their types."""
    return job_rows.COLUMNS if options.has_jobs else COLUMNS


def column_name(name: str, options: SinkOptions) -> str:
    """Return the name of a column in our spelling: Spark ignores case."""
    return next((column for column in columns_of(options) if column.lower() == name.lower()), name)


def key_column(names: Sequence[str], options: SinkOptions) -> str:
    """Return the column of `names` that the option keyColumn names, whatever its case; "" if there is none."""
    wanted = options.key_column.lower()
    return next((column_name(name, options) for name in names if name.lower() == wanted), "")


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a table without the columns of items, or jobs. Raises ValueError."""
    names = {column_name(field.name, options): field.dataType for field in schema.fields}
    if len(names) < len(schema.fields):
        raise ValueError(f"two columns differ in nothing but upper and lower case: {', '.join(schema.names)}")
    if "value" not in names:
        raise ValueError(f"the sink needs a column value (binary or string); there are {', '.join(names)}")
    time = "runAt" if options.has_jobs else "expireTime"
    if isinstance(names.get(time), TimestampNTZType):
        raise ValueError(
            f"column {time} is timestamp_ntz, which says no moment: cast({time} as timestamp_ltz) takes it for a"
            " time in the session's zone"
        )
    for guess in job_rows.GUESSES if options.has_jobs else ():
        if guess in (name.lower() for name in names):
            raise ValueError(
                f"jobs have no column {guess}: did you mean {job_rows.GUESSES[guess]}? See docs/pipeline.md"
            )
    for name, kinds in columns_of(options).items():
        if name in names and not isinstance(names[name], kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise ValueError(f"column {name} is {names[name].simpleString()}; the sink needs {wanted}")
    if options.key_column:
        kind = names.get(key_column(schema.names, options))
        if not isinstance(kind, KEY_KINDS):
            what = "which is not there" if kind is None else f"which is {kind.simpleString()}"
            raise ValueError(f"option keyColumn names {options.key_column}, {what}: a key is a string or an integer")
    if "queue" not in names and not options.queue:
        raise ValueError("the sink needs the option queue, or a column queue that says where each item goes")


def all_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Iterator[Row]:
    """Yield the rows of all batches. Raises ValueError for a row that is no item, or no job."""
    first = 0
    for batch in batches:
        batch = batch.rename_columns([column_name(name, options) for name in batch.schema.names])
        if options.has_jobs:
            key = key_column(batch.schema.names, options) if options.key_column else ""
            yield from job_rows.rows_of_jobs(batch, options, first, key)
        else:
            yield from rows_of(batch, options, first)
        first += batch.num_rows


def rows_of(batch: pa.RecordBatch, options: SinkOptions, first: int) -> Iterator[ItemRow]:
    """Yield the rows of a batch. `first` is the number of its first row in its task."""
    names, rows = batch.schema.names, batch.num_rows
    values = batch["value"].to_pylist()
    queues = batch["queue"].to_pylist() if "queue" in names else [options.queue] * rows
    flags = batch["flags"].to_pylist() if "flags" in names else [0] * rows
    keys = batch[key_column(names, options)].to_pylist() if options.key_column else [""] * rows
    expires: list[Any] = [None] * rows
    if "expireTime" in names:
        expires = batch["expireTime"].view(pa.int64()).to_pylist()
    columns = zip(values, queues, flags, expires, keys, strict=True)
    for at, (value, queue, flag, micros, key) in enumerate(columns, first):
        if value is None or not (queue or options.queue):
            raise ValueError(f"column {'value' if value is None else 'queue'} is null in row {at} of a task: no item")
        if flag is not None and not 0 <= flag <= FLAGS_MAX:
            raise ValueError(f"column flags is {flag} in row {at} of a task: flags are numbers from 0 to {FLAGS_MAX}")
        if micros is not None and micros < 1000:
            raise ValueError(
                f"column expireTime is {micros} microseconds from 1970 on in row {at} of a task: a queue has no times"
                " before 1970; null is an item that does not expire"
            )
        data = value.encode() if isinstance(value, str) else value
        word = _key_word(key, options.key_column, at) if options.key_column else ""
        yield ItemRow(queue or options.queue, data, (micros or 0) // 1000, flag or 0, word)


def _key_word(key: str | int | None, column: str, at: int) -> str:
    """Return a value of the key column as it is sent: its bytes in UTF-8. Raises ValueError."""
    word = b"" if key is None else str(key).encode("utf-8", "surrogatepass")
    if KEY.fullmatch(word) is None:
        raise ValueError(
            f"column {column} is {key!r:.80} in row {at} of a task: a key has 1 to 250 bytes, no blanks and line ends"
        )
    return word.decode("latin-1")
