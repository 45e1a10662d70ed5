"""Draining live queues into a lake: Parquet by queue and day, through a Spark stream with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from staniel.pipeline.lake.folders import absolute, below
from staniel.pipeline.lake.names import NO_QUEUE
from staniel.pipeline.sources.live_options import DrainOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DAY = "day"
UNKNOWN_DAY = "1970-01-01"
TRIES = 5
TOO_SLOW = "failed to connect back"  # a worker took more than Spark's ten seconds to start and read nothing: retry
CHECKPOINT, SPOOL = "_checkpoint", "_spool"  # Spark's readers ignore names that begin with an underscore

Tell = Callable[[dict[str, Any]], None]


def drain(spark: SparkSession, out: str, given: Mapping[str, str], once: bool, tell: Tell) -> int:
    """Move all items, or jobs, of live queues into Parquet by queue and day. Return their number. `tell` gets every
    batch.

    They are moved at least once, with the same id the second time: see pipeline/sources/drain.py and job_drain.py.
    """
    from pyspark.errors import PySparkException

    if NO_QUEUE in DrainOptions({"spoolPath": out, **given}).queues:
        raise ValueError(f"a table that Spark writes cannot tell a queue {NO_QUEUE} from none")
    progress = BatchProgress(tell)
    for left in reversed(range(TRIES)):
        try:
            watch(_start(spark, absolute(out), given, once), progress)
            break
        except PySparkException as error:
            if TOO_SLOW not in str(error) or not left:
                raise
    return progress.rows


def _start(spark: SparkSession, out: str, given: Mapping[str, str], once: bool) -> StreamingQuery:
    from pyspark.sql import functions as F

    options = {"spoolPath": below(out, SPOOL), **given}
    source = spark.readStream.format("staniel").options(**options).load()
    time = "leaseTime" if "leaseTime" in source.columns else "addTime"  # a lease does not tell when a job was added
    day = F.coalesce(F.date_format(time, "yyyy-MM-dd"), F.lit(UNKNOWN_DAY))
    writing = source.withColumn(DAY, day).writeStream.format("parquet").partitionBy("queue", DAY).option("path", out)
    writing = writing.option("checkpointLocation", below(out, CHECKPOINT)).option("compression", "zstd")
    writing = writing.trigger(availableNow=True) if once else writing.trigger(processingTime="1 second")
    return writing.start()


class BatchProgress:
    """A reporter that reports each batch once, over several starts of one query."""

    def __init__(self, tell: Tell) -> None:
        self.rows = 0
        self._tell = tell
        self._told = -1

    def hear(self, batches: Iterable[Mapping[str, Any]]) -> None:
        for batch in batches:
            if batch["batchId"] > self._told and batch["numInputRows"]:
                self._told = batch["batchId"]
                self.rows += batch["numInputRows"]
                rate = round(batch["processedRowsPerSecond"] or 0)
                self._tell({"batch": self._told, "rows": self.rows, "rate": rate})


def watch(query: StreamingQuery, progress: BatchProgress) -> None:
    """Follow a query until it ends. Raises what ended it."""
    try:
        while not query.awaitTermination(1):
            progress.hear(query.recentProgress)
    finally:
        progress.hear(query.recentProgress)
        query.stop()
