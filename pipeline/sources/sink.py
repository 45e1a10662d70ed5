"""Writing to live queues: windows of pipelined sets, waiting while a queue is full, and a guard against repeated
writes.

Writes are at least once. With a guard, only items in flight are put again when Spark repeats a batch.
"""

from __future__ import annotations

import json
import secrets
import time
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
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

from staniel.pipeline.lake.folders import FileVanished, folder
from staniel.pipeline.lake.names import real_name
from staniel.pipeline.sources.connection import BlockingConnection, ServerLost, ServerRefused
from staniel.pipeline.sources.live_options import BatchSinkOptions, OnFull, SinkOptions
from staniel.protocol.client.replies import Answer, Error
from staniel.protocol.memcache import requests as memcache

COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "queue": (StringType,),
    "expireTime": (TimestampType,),
    "flags": (IntegerType, LongType, ShortType, ByteType),
}
FLAGS_MAX = (1 << 32) - 1
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0


class QueueFull(Exception):
    """The queue is full, and the option `onFull` says to fail, or it stayed full for too long."""


class TaskReplaced(Exception):
    """The task has a newer attempt: this one puts nothing more."""


class TaskCommit(WriterCommitMessage):
    """The result of one task. `guard` is the key of its guard, "" without one."""

    def __init__(self, stored: int, dropped: int, skipped: int, guard: str = "") -> None:
        self.stored = stored
        self.dropped = dropped
        self.skipped = skipped
        self.guard = guard


class ItemRow(Struct, frozen=True, gc=False):
    """An item to put."""

    queue: str
    value: bytes
    expires_ms: int
    flags: int


def column_name(name: str) -> str:
    """Return the name of a column in this file's spelling: Spark ignores case."""
    return next((column for column in COLUMNS if column.lower() == name.lower()), name)


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a table without the columns of items. Raises ValueError."""
    names = {column_name(field.name): field.dataType for field in schema.fields}
    if len(names) < len(schema.fields):
        raise ValueError(f"two columns differ in nothing but upper and lower case: {', '.join(schema.names)}")
    if "value" not in names:
        raise ValueError(f"the sink needs a column value (binary or string); there are {', '.join(names)}")
    if isinstance(names.get("expireTime"), TimestampNTZType):
        raise ValueError(
            "column expireTime is timestamp_ntz, which says no moment: cast(expireTime as timestamp_ltz) takes it for a"
            " time in the session's zone"
        )
    for name, kinds in COLUMNS.items():
        if name in names and not isinstance(names[name], kinds):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise ValueError(f"column {name} is {names[name].simpleString()}; the sink needs {wanted}")
    if "queue" not in names and not options.queue:
        raise ValueError("the sink needs the option queue, or a column queue that says where each item goes")


class BatchSink(DataSourceArrowWriter):
    """The sink of `df.write.format("staniel").mode("append")`. Spark may run a task again: see docs/pipeline.md, at
    least once.
    """

    def __init__(self, options: BatchSinkOptions, schema: StructType) -> None:
        """Check the table. Raises ValueError if a later batch has been written: this one's progress is then
        forgotten.
        """
        check_columns(schema, options)
        self.options = options
        if options.batch is not None:
            check_not_past(options, options.batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = "" if self.options.batch is None else str(self.options.batch)
        return put_all(iterator, self.options, RepeatGuard.of(self.options, batch))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self.options.batch is not None:
            forget(self.options, messages, self.options.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: items that were put stay, and the guard knows how many."""


class StreamSink(DataSourceStreamArrowWriter):
    """The sink of `df.writeStream.format("staniel")`."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        batch = query = None
        if context is not None:
            batch = context.getLocalProperty("streaming.sql.batchId")
            query = context.getLocalProperty("sql.streaming.queryId")  # stays the same with the checkpoint
        return put_all(iterator, self.options, RepeatGuard.of(self.options, batch or "", query or ""))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget the guards of batches before the last; they are not needed any more."""
        forget(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: items that were put stay, and the guard knows how many."""


class RepeatGuard:
    """The number of rows of a task's share that the servers have stored, and the digest of these rows, in a small file.

    Spark repeats a streaming batch with the same rows in the same tasks. If the digest of the first rows is the same,
    they are skipped; if not, all are put. The key in the file's name includes the query and the servers, because
    neither another query nor other servers have these items. Two attempts of a task may run at the same time, for
    example if Spark has given up an executor that still runs: the file names the later one, and the earlier one ends
    before its next window.
    """

    def __init__(self, url: str, name: str) -> None:
        self.folder = folder(url)
        self.name = name
        self.writer = secrets.token_hex(8)
        self.rows = 0
        self.digest = ""
        self._has_written = False

    @classmethod
    def of(cls, options: SinkOptions, batch: str, query: str = "") -> RepeatGuard | None:
        """Return the guard of this task; None if there is none, or nothing identifies a repeated batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if not options.guard_path or not batch or context is None:
            return None
        name = f"{guard_key(options, query)}.{int(batch):012d}.{context.partitionId():06d}.json"
        return cls(options.guard_path, name)

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]

    def stored(self) -> tuple[int, str]:
        """Return the (rows, digest) that an earlier attempt has stored, and stop that attempt from putting more."""
        known = self._known()
        rows, digest = int(known.get("rows", 0)), str(known.get("digest", ""))
        self._write(rows, digest)
        return rows, digest

    def check(self) -> None:
        """Check that no newer attempt has begun. Raises TaskReplaced. A missing file was forgotten: the other attempt
        has ended, and the next batch too.
        """
        if self._known().get("writer", "" if self._has_written else self.writer) != self.writer:
            raise TaskReplaced("another try of this task puts these rows now")

    def note_stored(self, rows: list[ItemRow]) -> None:
        """Note stored rows. Raises TaskReplaced."""
        self.check()
        for row in rows:
            self.digest = digest_of(row, self.digest)
        self.rows += len(rows)
        self._write(self.rows, self.digest)

    def _write(self, rows: int, digest: str) -> None:
        self.folder.write(self.name, json.dumps({"rows": rows, "digest": digest, "writer": self.writer}).encode())
        self._has_written = True

    def _known(self) -> dict[str, Any]:
        try:
            file = self.folder.open(self.name)
        except FileVanished:
            return {}
        try:
            known: dict[str, Any] = json.loads(file.read(0, 1000))
            return known
        except ValueError:
            return {}
        finally:
            file.close()


def guard_key(options: SinkOptions, query: str) -> str:
    """Return the key of a guard's file beside batch and task. The order of the servers counts: it decides which server
    gets a queue.
    """
    said = json.dumps([options.app_id, query, options.servers])
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest_of(row: ItemRow, before: str) -> str:
    """Return the digest of a row and all before it. Each part has its length, so that different rows never give the
    same bytes.
    """
    queue = row.queue.encode("utf-8", "surrogatepass")
    head = b"%b %d %d %d %d " % (before.encode(), len(queue), len(row.value), row.flags, row.expires_ms)
    return blake2b(head + queue + row.value, digest_size=16).hexdigest()


def forget(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: int) -> None:
    """Remove the guards of batches before `batch`, by the messages of its tasks."""
    if options.guard_path:
        keys = {message.guard for message in messages if isinstance(message, TaskCommit) and message.guard}
        forget_before(options.guard_path, keys, batch)


def check_not_past(options: SinkOptions, batch: int) -> None:
    """Refuse a batch if the guard knows a later one, because the guards of earlier batches are removed. Raises
    ValueError.
    """
    key = guard_key(options, "")
    known = [int(parts[1]) for name, _ in folder(options.guard_path).list() if (parts := name.split("."))[0] == key]
    if known and max(known) > batch:
        raise ValueError(
            f"batch {batch} of appId {options.app_id} comes after batch {max(known)}, and what it has put is not known"
            " any more: numbers of batches grow; name another write with another appId"
        )


def forget_before(guard_path: str, keys: set[str], batch: int) -> None:
    """Remove the guards of these keys for batches before `batch`, and half-written files of killed tasks."""
    place = folder(guard_path)
    for name, _ in place.list():
        parts = name.split(".")
        if len(parts) >= 4 and parts[0] in keys and parts[1].isdigit() and int(parts[1]) < batch:
            place.remove(name)


def put_all(batches: Iterator[pa.RecordBatch], options: SinkOptions, guard: RepeatGuard | None) -> TaskCommit:
    """Put every row of a task. Raises QueueFull, ServerLost, ServerRefused, TaskReplaced: then the task has failed, and
    Spark decides.
    """
    putter = WindowWriter(options, guard)
    try:
        rows = all_rows(batches, options)
        for window in _windows(putter.after_stored(rows), options.window_items):
            putter.put(window)
    finally:
        putter.close()
    return TaskCommit(putter.stored, putter.dropped, putter.skipped, "" if guard is None else guard.key)


def all_rows(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Iterator[ItemRow]:
    """Yield the rows of all batches. Raises ValueError for a row that is no item."""
    first = 0
    for batch in batches:
        yield from rows_of(batch, options, first)
        first += batch.num_rows


def rows_of(batch: pa.RecordBatch, options: SinkOptions, first: int) -> Iterator[ItemRow]:
    """Yield the rows of a batch. `first` is the number of its first row in its task."""
    batch = batch.rename_columns([column_name(name) for name in batch.schema.names])
    names, rows = batch.schema.names, batch.num_rows
    values = batch["value"].to_pylist()
    queues = batch["queue"].to_pylist() if "queue" in names else [options.queue] * rows
    flags = batch["flags"].to_pylist() if "flags" in names else [0] * rows
    expires: list[Any] = [None] * rows
    if "expireTime" in names:
        expires = batch["expireTime"].view(pa.int64()).to_pylist()
    for at, (value, queue, flag, micros) in enumerate(zip(values, queues, flags, expires, strict=True), first):
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
        yield ItemRow(queue or options.queue, data, (micros or 0) // 1000, flag or 0)


def _windows(rows: Iterator[ItemRow], size: int) -> Iterator[list[ItemRow]]:
    window: list[ItemRow] = []
    held = 0
    for row in rows:
        window.append(row)
        held += len(row.value)
        if len(window) >= size or held >= 8 << 20:
            yield window
            window, held = [], 0
    if window:
        yield window


class WindowWriter:
    """A writer of windows of rows. With several servers, the checksum of a queue's name picks the one for it."""

    def __init__(self, options: SinkOptions, guard: RepeatGuard | None) -> None:
        self.options = options
        self.guard = guard
        self.stored = self.dropped = self.skipped = 0
        self._connections: dict[str, BlockingConnection] = {}
        self._began = time.monotonic()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def after_stored(self, rows: Iterator[ItemRow]) -> Iterator[ItemRow]:
        """Return the rows that an earlier attempt has not stored."""
        if self.guard is None:
            return rows
        count, wanted = self.guard.stored()
        if not count:
            return rows
        first = [row for _, row in zip(range(count), rows, strict=False)]
        digest = ""
        for row in first:
            digest = digest_of(row, digest)
        if len(first) < count or digest != wanted:
            return _chain(first, rows)
        self.skipped = count
        self.guard.rows, self.guard.digest = count, digest
        return rows

    def put(self, rows: list[ItemRow]) -> None:
        """Put one window. On return its rows are stored, or dropped if the option says so."""
        until = time.monotonic() + self.options.full_timeout_s
        pause_s, left = PAUSE_S, rows
        while left := self._try_if_ours(left):
            queue = left[0].queue
            if self.options.on_full is OnFull.DROP:
                self.dropped += len(left)
                break
            if self.options.on_full is OnFull.FAIL or time.monotonic() > until:
                raise QueueFull(f"queue {queue} is full; {self.stored} items were put before; see option onFull")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        if self.guard is not None:
            self.guard.note_stored(rows)
        self._pace()

    def _try_if_ours(self, rows: list[ItemRow]) -> list[ItemRow]:
        if self.guard is not None:
            self.guard.check()
        return self._try(rows)

    def _try(self, rows: list[ItemRow]) -> list[ItemRow]:
        """Put each row once. Return those whose queue is full."""
        by_server: dict[str, list[ItemRow]] = {}
        for row in rows:
            by_server.setdefault(self._server(row.queue), []).append(row)
        for server, share in by_server.items():
            self._connection(server).send([_set(row) for row in share])
        full = []
        for server, share in by_server.items():
            for row, reply in zip(share, self._connection(server).receive(), strict=True):
                if reply is Answer.STORED:
                    self.stored += 1
                elif reply is Answer.NOT_STORED:
                    full.append(row)
                elif isinstance(reply, Error):
                    raise ServerRefused(f"{server}: queue {row.queue}: {reply.fault.value} {reply.why}")
        return full

    def _server(self, queue: str) -> str:
        servers = self.options.servers
        return servers[zlib.crc32(queue.encode()) % len(servers)]

    def _connection(self, server: str) -> BlockingConnection:
        if server not in self._connections:
            self._connections[server] = self._connect(server)
        return self._connections[server]

    def _connect(self, server: str) -> BlockingConnection:
        until = time.monotonic() + self.options.timeout_s
        while True:
            try:
                return self.options.connect(server)
            except ServerLost:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def _pace(self) -> None:
        rate = self.options.items_a_second
        if rate:
            ahead_s = self.stored / rate - (time.monotonic() - self._began)
            if ahead_s > 0:
                time.sleep(ahead_s)


def _chain(first: list[ItemRow], rows: Iterator[ItemRow]) -> Iterator[ItemRow]:
    yield from first
    yield from rows


def _set(row: ItemRow) -> memcache.Set:
    return memcache.Set(real_name(row.queue), row.value, row.flags, expires_ms=row.expires_ms)
