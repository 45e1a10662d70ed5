"""Writing to live queues: windows of pipelined sets, waiting while a queue is full, and protection against storing the
rows of a repeated task twice.

Without keys and guard writes are at least once. A guard (repeat_guard.py) skips rows that it knows to be stored, but
rows in flight are put again. With keys (row_keys.py) the server refuses those that it has: each row is stored once.
Rows become items, or jobs, whose ids are keys.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from staniel.pipeline.sources.connection import ServerConnection, ServerLost, ServerRefused
from staniel.pipeline.sources.item_rows import Row, all_rows, check_columns
from staniel.pipeline.sources.job_rows import JobRow
from staniel.pipeline.sources.live_options import BatchSinkOptions, OnForgotten, OnFull, SinkOptions
from staniel.pipeline.sources.repeat_guard import (
    RepeatGuard,
    TaskCommit,
    check_not_past,
    digest_of,
    forget,
)
from staniel.pipeline.sources.row_keys import KeysForgotten, RowKeys, check_keeps_keys, has_forgotten_early
from staniel.protocol.client.replies import Answer, Error
from staniel.protocol.client.workq.replies import JobAnswer

LOGGER = logging.getLogger("staniel.pipeline")
Replied = TypeVar("Replied")
Connection = ServerConnection[Any, Any]
STORED = (Answer.STORED, JobAnswer.OK)
REPEATED = (Answer.EXISTS, JobAnswer.DUPLICATE_JOB)
PAUSE_S, PAUSE_MAX_S = 0.02, 1.0
MANY = 1 << 62


class QueueFull(Exception):
    """The queue is full, and the option `onFull` says to fail, or it stayed full for too long."""


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
        guard = RepeatGuard.of(self.options, batch)
        return put_all(iterator, self.options, guard, RowKeys.of(self.options, batch))

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
        guard = RepeatGuard.of(self.options, batch or "", query or "")
        return put_all(iterator, self.options, guard, RowKeys.of(self.options, batch or "", query or ""))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Forget the guards of batches before the last; they are not needed any more."""
        forget(self.options, messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: items that were put stay, and the guard knows how many."""


def put_all(
    batches: Iterator[pa.RecordBatch], options: SinkOptions, guard: RepeatGuard | None, keys: RowKeys | None = None
) -> TaskCommit:
    """Put every row of a task. Raises QueueFull, ServerLost, ServerRefused, TaskReplaced, KeysForgotten: then the task
    has failed, and Spark decides.
    """
    putter = WindowWriter(options, guard)
    try:
        rows = all_rows(batches, options)
        if keys is not None:
            rows = map(keys.with_key, rows)
        for window in _windows(putter.after_stored(rows), options.window_items):
            putter.put(window)
    finally:
        putter.close()
    key = "" if guard is None else guard.key
    return TaskCommit(putter.stored, putter.dropped, putter.skipped, key, putter.repeated)


def _windows(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    window: list[Row] = []
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
    """A writer of windows of rows. With several servers, the checksum of a queue's name picks the one for it.

    `repeated` counts rows that a server refused because it had stored them before.
    """

    def __init__(self, options: SinkOptions, guard: RepeatGuard | None) -> None:
        self.options = options
        self.guard = guard
        self.stored = self.dropped = self.skipped = self.repeated = 0
        self._connections: dict[str, Connection] = {}
        self._checked: set[str] = set()  # queues that are known to keep keys
        self._began = time.monotonic()
        self._can_repeat = options.has_keys or options.has_jobs  # the server refuses a row that it has

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def after_stored(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Return the rows that an earlier attempt has not noted as stored. Raises KeysForgotten."""
        if self.guard is None:
            return rows
        known = self.guard.stored()
        first = [row for _, row in zip(range(known.rows), rows, strict=False)]
        digest = ""
        for row in first:
            digest = digest_of(row, digest)
        if len(first) < known.rows or digest != known.digest:
            return self._with_keys_known(_chain(first, rows), known.began_ms)
        self.skipped = known.rows
        self.guard.rows, self.guard.digest = known.rows, digest
        return self._with_keys_known(rows, known.noted_ms)

    def _with_keys_known(self, rows: Iterator[Row], since_ms: int) -> Iterator[Row]:
        """Check that the servers still know the keys of what an earlier attempt may have put since `since_ms` (0: there
        was none). Raises KeysForgotten.
        """
        options = self.options
        if not since_ms or not options.has_keys or self.guard is None:
            return rows
        if options.has_jobs:
            return self._with_ids_known(rows, since_ms, self.guard.now_ms())
        head = next(rows, None)
        if head is None:
            return iter(())
        age_ms = max(0, self.guard.now_ms() - since_ms)
        if age_ms > options.key_life_ms * 9 // 10:  # clocks may differ
            self._doubt(
                f"an earlier try is from {age_ms // 1000} s ago, and keyLife is {options.key_life_ms // 1000} s"
            )
        elif forgetful := [server for server in options.servers if self._insist(server, has_forgotten_early)]:
            self._doubt(f"{', '.join(forgetful)} had more keys than its setting max_put_keys, and has forgotten some")
        return _chain([head], rows)

    def _with_ids_known(self, rows: Iterator[Row], since_ms: int, now_ms: int) -> Iterator[Row]:
        """Yield the rows, each checked: a server forgets a job when its time to live ends. Raises KeysForgotten."""
        in_flight = self.options.window_items if self.skipped else MANY
        for number, row in enumerate(rows):
            if number < in_flight and isinstance(row, JobRow):
                ends_ms = row.forgotten_from_ms(since_ms)
                if now_ms > ends_ms - (ends_ms - since_ms) // 10:  # clocks may differ
                    self._doubt(f"an earlier try is from {(now_ms - since_ms) // 1000} s ago, and ttlMs {row.ttl_ms}")
                    in_flight = 0
            yield row

    def _doubt(self, why: str) -> None:
        """Warn that rows may be stored twice. Raises KeysForgotten unless the option says to go on."""
        if self.options.on_forgotten is OnForgotten.WARN:
            LOGGER.warning("rows may be stored twice: %s", why)
            return
        longer = "give jobs a longer ttlMs" if self.options.has_jobs else "raise put_key_life or max_put_keys"
        raise KeysForgotten(
            f"the servers may not know any more which of the rows from row {self.skipped} of this task on they"
            f" have: {why}. Look into the queue, and run once with onForgottenKeys=warn, which may store up to"
            f" {self.options.window_items} of these rows twice, or all of them if their order has changed; {longer}"
            " for the next time"
        )

    def put(self, rows: list[Row]) -> None:
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

    def _try_if_ours(self, rows: list[Row]) -> list[Row]:
        if self.guard is not None:
            self.guard.check()
        return self._try(rows)

    def _try(self, rows: list[Row]) -> list[Row]:
        """Put each row once. Return those whose queue is full."""
        by_server: dict[str, list[Row]] = {}
        for row in rows:
            by_server.setdefault(self._server(row.queue), []).append(row)
        if self.options.has_keys and not self.options.has_jobs:  # ids of jobs are always kept
            self._check_new_queues(by_server)
        for server, share in by_server.items():
            self._send(server, share)
        full = []
        for server, share in by_server.items():
            for row, reply in zip(share, self._receive(server, share), strict=True):
                if reply in STORED:
                    self.stored += 1
                elif reply in REPEATED:
                    self.repeated += 1
                elif reply is Answer.NOT_STORED:
                    full.append(row)
                elif isinstance(reply, Error):
                    raise ServerRefused(f"{server}: queue {row.queue}: {reply.fault.value} {reply.why}")
        return full

    def _check_new_queues(self, by_server: dict[str, list[Row]]) -> None:
        """Check queues that this task has not put to yet. Raises ServerRefused."""
        for server, share in by_server.items():
            if new := sorted({row.queue for row in share} - self._checked):
                self._insist(server, partial(check_keeps_keys, queues=new))
                self._checked.update(new)

    def _send(self, server: str, share: list[Row]) -> None:
        connection = self._connection(server)
        try:
            connection.send([row.request() for row in share])
        except ServerLost:
            if not self._can_repeat:
                raise
            del self._connections[server]  # `_receive` sends again

    def _receive(self, server: str, share: list[Row]) -> list[Any]:
        """Return the replies. With keys, rows of a lost server are put again: it refuses those that it has stored."""
        sent_to = self._connections.get(server)

        def exchange(connection: Connection) -> list[Any]:
            if connection is not sent_to:
                connection.send([row.request() for row in share])
            return connection.receive()

        return self._insist(server, exchange)

    def _insist(self, server: str, ask: Callable[[Connection], Replied]) -> Replied:
        """Ask a server, again for `serverTimeoutMs` if it is lost and knows repeated rows. Raises ServerLost."""
        until = time.monotonic() + self.options.timeout_s
        while True:
            try:
                return ask(self._connection(server))
            except ServerLost:
                self._connections.pop(server, None)
                if not self._can_repeat or time.monotonic() > until:
                    raise

    def _server(self, queue: str) -> str:
        servers = self.options.servers
        return servers[zlib.crc32(queue.encode()) % len(servers)]

    def _connection(self, server: str) -> Connection:
        if server not in self._connections:
            self._connections[server] = self._connect(server)
        return self._connections[server]

    def _connect(self, server: str) -> Connection:
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


def _chain(first: list[Row], rows: Iterator[Row]) -> Iterator[Row]:
    yield from first
    yield from rows
