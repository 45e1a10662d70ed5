"""Journals into a lake: Parquet by queue and day, a bit further at each run. And the same from a live queue.

Knows the two streaming jobs and their folders. Refuses to know the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DAY = "day"
UNKNOWN_DAY = "1970-01-01"
CHECKPOINT, SPOOL = "_checkpoint", "_spool"  # Spark's readers leave out what begins with an underscore
BATCH_BYTES = "256m"

Tell = Callable[[dict[str, Any]], None]


def archive(spark: SparkSession, path: str, out: str, given: Mapping[str, str], tell: Tell) -> int:
    """Add what has been written to the journals since the last run; how many records that were.

    Exactly once: Spark's file sink lists the files of each batch in its own log. `tell` hears of every batch.
    """
    options = {"maxBytesPerTrigger": BATCH_BYTES, **given}
    source = spark.readStream.format("staniel-journal").options(**options).load(path)
    return _follow(_by_day(source, "asOf"), out, tell, True)


def drain(spark: SparkSession, out: str, given: Mapping[str, str], once: bool, tell: Tell) -> int:
    """Take everything out of live queues into Parquet by queue and day; how many items that were."""
    options = {"spoolPath": f"{out}/{SPOOL}", **given}
    source = spark.readStream.format("staniel").options(**options).load()
    return _follow(_by_day(source, "addTime"), out, tell, once)


def _by_day(source: DataFrame, clock: str) -> DataFrame:
    from pyspark.sql import functions as F

    day = F.coalesce(F.date_format(clock, "yyyy-MM-dd"), F.lit(UNKNOWN_DAY))
    return source.withColumn(DAY, day)


def _follow(rows: DataFrame, out: str, tell: Tell, once: bool) -> int:
    writing = rows.writeStream.format("parquet").partitionBy("queue", DAY).option("path", out)
    writing = writing.option("checkpointLocation", f"{out}/{CHECKPOINT}").option("compression", "zstd")
    writing = writing.trigger(availableNow=True) if once else writing.trigger(processingTime="1 second")
    return watch(writing.start(), tell)


def watch(query: StreamingQuery, tell: Tell) -> int:
    """Tell of each batch until the query ends; the rows of all. Raises what ended it."""
    told, rows = -1, 0
    try:
        while True:
            ended = query.awaitTermination(1)
            for progress in query.recentProgress:
                if progress["batchId"] > told and progress["numInputRows"]:
                    told = progress["batchId"]
                    rows += progress["numInputRows"]
                    tell({"batch": told, "rows": rows, "rate": round(progress["processedRowsPerSecond"] or 0)})
            if ended:
                return rows
    finally:
        query.stop()
