"""Live queues into a lake: Parquet by queue and day, through Spark's own stream and its checkpoint.

Knows the streaming job and its folders. Refuses to know how a queue is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.files import absolute

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DAY = "day"
UNKNOWN_DAY = "1970-01-01"
CHECKPOINT, SPOOL = "_checkpoint", "_spool"  # Spark's readers leave out what begins with an underscore

Tell = Callable[[dict[str, Any]], None]


def drain(spark: SparkSession, out: str, given: Mapping[str, str], once: bool, tell: Tell) -> int:
    """Take everything out of live queues into Parquet by queue and day; how many items that were. `tell` hears of every
    batch. At least once, with the same id when twice: see pipeline/drain.py."""
    from pyspark.sql import functions as F

    out = absolute(out)
    options = {"spoolPath": f"{out}/{SPOOL}", **given}
    source = spark.readStream.format("staniel").options(**options).load()
    day = F.coalesce(F.date_format("addTime", "yyyy-MM-dd"), F.lit(UNKNOWN_DAY))
    writing = source.withColumn(DAY, day).writeStream.format("parquet").partitionBy("queue", DAY).option("path", out)
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
