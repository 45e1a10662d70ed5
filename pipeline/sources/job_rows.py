"""The rows of a table as jobs to add: which columns they have, and which values are none of a job's. The columns are
called as those of a command log's view `jobs`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
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
    TimestampType,
)

from staniel.pipeline.sources.job_connection import as_job_id, encoded_name, id_of_key
from staniel.pipeline.sources.live_options import SinkOptions
from staniel.protocol.client.workq.requests import encode
from staniel.protocol.workq.fields import is_job_id, read_id
from staniel.protocol.workq.job_requests import AddJob
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.requests import ScheduleJob

NUMBER = (IntegerType, LongType, ShortType, ByteType)
COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "queue": (StringType,),
    "id": (StringType,),
    "runAt": (TimestampType,),
    "priority": NUMBER,
    "ttrMs": NUMBER,
    "ttlMs": NUMBER,
    "maxAttempts": NUMBER,
    "maxFails": NUMBER,
}
GUESSES = {"delay": "runAt", "ttr": "ttrMs", "ttl": "ttlMs"}
"""Names that a job's columns might have elsewhere: a row's value must not be ignored unnoticed."""


class JobRow(Struct, frozen=True, gc=False):
    """A job to add. `id`: that of its row, b"" without one. `sent_id`: that under which it is added; the same whenever
    it is sent again.
    """

    queue: str
    value: bytes
    run_at_ns: int
    priority: int
    ttr_ms: int
    ttl_ms: int
    max_attempts: int
    max_fails: int
    id: bytes
    sent_id: bytes

    def content(self) -> bytes:
        """Return the bytes that tell this row from others. Each part has its length."""
        queue = self.queue.encode("utf-8", "surrogatepass")
        terms = (self.run_at_ns, self.priority, self.ttr_ms, self.ttl_ms, self.max_attempts, self.max_fails)
        return b"%d %d %d %d %d %d %d %d %d " % (len(queue), len(self.value), len(self.id), *terms) + (
            queue + self.id + self.value
        )

    def forgotten_from_ms(self, since_ms: int) -> int:
        """Return when a server forgets a job that was added at `since_ms`: its time to live counts from its time."""
        return max(since_ms, self.run_at_ns // 1_000_000) + self.ttl_ms

    def with_digest(self, digest: bytes) -> JobRow:
        """Return the row with an id made from 16 bytes, unless it has one."""
        return self if self.id else structs.replace(self, sent_id=as_job_id(digest))

    def request(self) -> AddJob | ScheduleJob:
        """Return the request that adds it. Raises ValueError, in `encode`, for what the protocol cannot express."""
        name = encoded_name(self.queue)
        terms = JobTerms(name, self.ttr_ms, self.ttl_ms, self.priority, self.max_attempts, self.max_fails)
        if self.run_at_ns:
            return ScheduleJob(self.sent_id, terms, self.run_at_ns, self.value)
        return AddJob(self.sent_id, terms, self.value)


def rows_of_jobs(batch: pa.RecordBatch, options: SinkOptions, first: int, key_column: str) -> Iterator[JobRow]:
    """Yield the rows of a batch, whose columns have the names of this file. `first` is the number of its first row in
    its task. Raises ValueError.
    """
    names, rows = batch.schema.names, batch.num_rows

    def column(name: str, default: Any) -> list[Any]:
        if name not in names:
            return [default] * rows
        return [default if value is None else value for value in batch[name].to_pylist()]

    moments: list[int | None] = [None] * rows
    if "runAt" in names:
        moments = batch["runAt"].view(pa.int64()).to_pylist()
    numbers = (
        column("priority", options.priority),
        column("ttrMs", options.ttr_ms),
        column("ttlMs", options.ttl_ms),
        column("maxAttempts", options.max_attempts),
        column("maxFails", options.max_fails),
    )
    ids = batch[key_column].to_pylist() if key_column else column("id", "")
    columns = zip(column("value", None), column("queue", options.queue), ids, moments, *numbers, strict=True)
    for at, (value, queue, text, micros, priority, ttr_ms, ttl_ms, attempts, fails) in enumerate(columns, first):
        if value is None or not queue:
            raise ValueError(f"column {'value' if value is None else 'queue'} is null in row {at} of a task: no job")
        id = _id_of_key(text, key_column, at) if key_column else _id(text, at)
        data = value.encode() if isinstance(value, str) else value
        run_at_ns, sent_id = max(micros or 0, 0) * 1000, id or uuid.uuid4().bytes
        row = JobRow(queue, data, run_at_ns, priority, ttr_ms, ttl_ms, attempts, fails, id, sent_id)
        try:
            encode(row.request())
        except ValueError as error:
            raise ValueError(f"row {at} of a task is no job: {error}") from None
        yield row


def _id(text: str, at: int) -> bytes:
    """Return an id of the column `id`, b"" if there is none. Raises ValueError."""
    if not text:
        return b""
    raw = read_id(text.lower().encode("latin-1", "replace"))
    if raw is None or not is_job_id(raw):
        raise ValueError(
            f"column id is {text!r:.80} in row {at} of a task: a job's id is the text of a UUID of version 4; keyColumn"
            " names a column whose text is made into one"
        )
    return raw


def _id_of_key(key: str | int | None, column: str, at: int) -> bytes:
    """Return the id for a value of the key column. Raises ValueError."""
    if key is None or key == "":
        raise ValueError(f"column {column} is {key!r} in row {at} of a task: a key is a text or a number")
    return id_of_key(str(key))
