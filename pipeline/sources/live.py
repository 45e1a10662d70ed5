"""The Spark data source and sink `staniel`: live queues of one or many servers.

Spark calls `commit` late or never, so nothing is confirmed there: see drain.py.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from staniel.pipeline.lake.arrow import ddl
from staniel.pipeline.sources.catalog import options_of_table
from staniel.pipeline.sources.drain import BatchDrain, BatchLimits, Drain, UnknownQueue
from staniel.pipeline.sources.drain_spool import SCHEMA, DrainSpool, SpoolLost
from staniel.pipeline.sources.job_drain import SCHEMA as JOB_SCHEMA
from staniel.pipeline.sources.job_drain import JobDrain
from staniel.pipeline.sources.live_options import (
    BatchSinkOptions,
    DrainOptions,
    LiveOptions,
    ServerProtocol,
    SinkOptions,
)
from staniel.pipeline.worker_gc import then_freeze_imports

EVERYTHING = 1 << 62


class LiveSource(DataSource):
    """`spark.readStream.format("staniel")` and `df.write.format("staniel")`. The options are in docs/pipeline.md."""

    @classmethod
    def name(cls) -> str:
        return "staniel"

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def schema(self) -> str:
        """Return the columns. Raises ValueError for a table of a catalog: Spark would give its options to no write."""
        if options_of_table(self.options) is not None:
            raise ValueError("a live queue is no table of a catalog: use df.write.format('staniel'), or writeStream")
        return ddl(self._columns())

    def _columns(self) -> pa.Schema:
        return JOB_SCHEMA if LiveOptions.protocol_of(self.options) is ServerProtocol.WORKQ else SCHEMA

    def reader(self, schema: StructType) -> Any:
        raise ValueError(
            "a live queue can only be streamed, because reading takes items out: readStream with"
            " trigger(availableNow=True) drains once; format('staniel-journal') reads without taking"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from staniel.pipeline.sources.journal import chosen

        return LiveStream(DrainOptions(self.options), chosen(self._columns(), schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from staniel.pipeline.sources.sink import BatchSink

        if overwrite:
            raise ValueError("a queue cannot be overwritten: use mode('append')")
        return BatchSink(BatchSinkOptions(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from staniel.pipeline.sources.sink import StreamSink

        return StreamSink(SinkOptions(self.options), schema)


class SpoolPartition(InputPartition):
    """The spool files that one task reads."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


Offset = dict[str, Any]


class BatchAhead:
    """A batch that a thread drains into the spool while Spark stores the one before. Nothing else uses the drain until
    `join`.
    """

    def __init__(self, batch: int, fill: Callable[[BatchLimits], int], limits: BatchLimits) -> None:
        self.batch = batch
        self._fill = fill
        self._limits = limits
        self._taken = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)  # the end of the process does not wait for it
        self._thread.start()

    def _run(self) -> None:
        try:
            self._taken = self._fill(self._limits)
        except BaseException as error:  # raised by `join`
            self._error = error

    def join(self) -> int:
        """Wait for the batch, and return the number of its items. Raises what draining raises."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._taken

    def stop(self) -> None:
        """End the batch after the round that is under way: at most a server's timeout."""
        self._limits.is_ended = True
        self._thread.join()


class LiveStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of spooled batches. An offset is a batch number and the name of the query, by which the spool recognizes
    it. The stream lives in one process on the driver; `read` runs in tasks, on a copy.
    """

    def __init__(self, options: DrainOptions, columns: pa.Schema, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.columns = columns
        self._clock = clock
        self._begun_s: float | None = None  # when the last batch began
        self.left = EVERYTHING  # the items that AvailableNow has still to read
        self._drain: BatchDrain | None = None
        self._ahead: BatchAhead | None = None
        self._held: DrainSpool | None = None

    def initialOffset(self) -> Offset:
        """Return the offset before the batches that an earlier query has left in the spool: they were confirmed, so
        they are nowhere else.
        """
        query = secrets.token_hex(8)
        batches = self._own(query, new=True).batches()
        return {"batch": min(batches) - 1 if batches else 0, "query": query}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.items_a_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the next batch: one that Spark does not know of yet, or a newly drained one. AvailableNow drains the
        batch behind it meanwhile.
        """
        before = start["batch"]
        spool = self._own(start.get("query", ""))
        drained = self._join_ahead()
        waiting = {batch: names for batch, names in spool.batches().items() if batch > before}
        if waiting:
            if min(waiting) != drained:
                self._draining(spool).confirm_spooled(waiting[min(waiting)])
            self._drain_ahead(spool, waiting)
            return {**start, "batch": min(waiting)}
        everything = isinstance(limit, ReadAllAvailable)
        if not everything and self._holds(spool):
            time.sleep(self.options.poll_ms / 1000)  # Spark asks again at once
            return start
        limits = BatchLimits(self.left, EVERYTHING) if everything else self._limits()
        taken = self._draining(spool).fill(before + 1, limits, self.options.poll_ms)
        self._note_taken(taken)
        self._begun_s = self._clock() if taken else self._begun_s
        if not taken:
            return start
        self._drain_ahead(spool, [before + 1])
        return {**start, "batch": before + 1}

    def _limits(self) -> BatchLimits:
        return BatchLimits(min(self.left, self.options.items_a_trigger), self.options.bytes_a_trigger)

    def _note_taken(self, items: int) -> None:
        if self.left != EVERYTHING:
            self.left = self.left - items if items else 0

    def _join_ahead(self) -> int | None:
        """Return the number of the batch that was drained ahead, None if there is none. Raises what draining raises."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        self._note_taken(ahead.join())
        return ahead.batch

    def _drain_ahead(self, spool: DrainSpool, waiting: Collection[int]) -> None:
        """Begin the batch behind the one that Spark is about to store, unless it waits already. With other triggers the
        next batch may be hours away, and its items stay in the queue until then.
        """
        if self.left in (0, EVERYTHING) or len(waiting) > 1:
            return
        drain, batch = self._draining(spool), min(waiting) + 1
        self._ahead = BatchAhead(batch, lambda limits: drain.fill(batch, limits, 0), self._limits())

    def _holds(self, spool: DrainSpool) -> bool:
        """Return True if fewer items wait than a batch should have, and the last batch is not long ago. Nothing is
        reserved then.
        """
        least, longest_s = self.options.items_before_trigger, self.options.delay_ms / 1000
        if not least or self.left != EVERYTHING or self._begun_s is None or self._clock() - self._begun_s >= longest_s:
            return False
        try:
            return self._draining(spool).waiting() < least
        except UnknownQueue:
            return True  # it was deleted, and may come back

    def prepareForTriggerAvailableNow(self) -> None:
        self.left = self._draining(self._spool()).waiting()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the files of the batch `end`, and of any before it: numbers may be missing if two queries have used one
        spool.
        """
        batches = self._spool().batches()
        if end["batch"] != start["batch"] and end["batch"] not in batches:
            raise SpoolLost(f"batch {end['batch']} is not in {self.options.spool_path}: was the spool cleared?")
        names = [name for batch in sorted(batches) if start["batch"] < batch <= end["batch"] for name in batches[batch]]
        shares = min(self.options.partitions, len(names))
        return [SpoolPartition(names[share::shares]) for share in range(shares)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from staniel.pipeline.sources.journal_partition import fitted

        assert isinstance(partition, SpoolPartition)
        return then_freeze_imports(fitted(batch, self.columns) for batch in self._spool().read(partition.names))

    def commit(self, end: Offset) -> None:
        """Remove batches that Spark has stored durably. Spark calls this late, which only takes disk space."""
        self._own(end.get("query", "")).forget(end["batch"])

    def stop(self) -> None:
        """Close the connections. Spark does not reliably call this; otherwise they close with the process. Their items
        return to the queues.
        """
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
        if self._drain is not None:
            self._drain.close()
        if self._held is not None:
            self._held.__exit__()
            self._held = None

    def _own(self, query: str, *, new: bool = False) -> DrainSpool:
        """Return the spool, which this process owns until it ends. Raises SpoolTaken."""
        if self._held is None:
            spool = self._spool()
            spool.__enter__()
            try:
                spool.claim(query, new=new)
            except BaseException:
                spool.__exit__()
                raise
            self._held = spool
        return self._held

    def _spool(self) -> DrainSpool:
        return DrainSpool(self.options.spool_path)

    def _draining(self, spool: DrainSpool) -> BatchDrain:
        if self._drain is None:
            self._drain = self._new_drain(spool)
        self._drain.spool = spool
        return self._drain

    def _new_drain(self, spool: DrainSpool) -> BatchDrain:
        options = self.options
        if options.has_jobs:
            return JobDrain(options.servers, options.queues, spool, options.timeout_s, access=options.access)
        return Drain(
            options.servers, options.queues, spool, options.connections, options.timeout_s, access=options.access
        )
