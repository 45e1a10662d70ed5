"""From a lake, or from journals, back into live queues.

Knows which rows are items, in which order and how fast. Refuses to know how they are put.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.journal_options import moment_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEM_OPS = ["add", "add_xid", "continue", "put"]


def items_of(spark: SparkSession, path: str, parquet: bool, given: Mapping[str, str]) -> DataFrame:
    """The items of an archive or a spool, in the order in which they were added.

    Of a spool only what is still in the queues, unless `view` says `ops`: then every item that was ever added.
    """
    from pyspark.sql import functions as F

    if parquet:
        rows = spark.read.parquet(path)
    else:
        rows = spark.read.format("staniel-journal").options(**{"view": "state", **given}).load(path)
    if "op" in rows.columns:
        rows = rows.filter(F.col("op").isin(ITEM_OPS))
    if "position" in rows.columns:
        return rows.orderBy("queue", F.col("position").asc_nulls_first())
    order = [name for name in ("addTime", "file", "offset", "id") if name in rows.columns]
    return rows.orderBy(*order)


def refill(rows: DataFrame, since: str, until: str, queues: list[str], options: Mapping[str, str], rate: int) -> int:
    """Put the rows that are meant; how many. One task, so that order and rate hold. Raises ValueError for no time."""
    from pyspark.sql import functions as F

    if since:
        rows = rows.filter(F.col("addTime") >= F.timestamp_millis(F.lit(moment_ms(since, "since"))))
    if until:
        rows = rows.filter(F.col("addTime") < F.timestamp_millis(F.lit(moment_ms(until, "until"))))
    if queues:
        rows = rows.filter(F.col("queue").isin(queues))
    columns = [name for name in ("queue", "value", "flags", "expireTime") if name in rows.columns]
    chosen = rows.select(*columns).filter("value is not null")
    if "queue" in options:
        chosen = chosen.drop("queue")
    chosen = chosen.coalesce(1).persist()
    count = int(chosen.count())
    sink = chosen.write.format("staniel").mode("append").options(**options)
    sink.option("maxItemsPerSecond", str(rate)).save()
    chosen.unpersist()
    return count
