"""Putting items of a lake, or of journals, into live queues: which rows, in which order, at which rate."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING

from staniel.pipeline.lake.archived import is_archive
from staniel.pipeline.lake.folders import folder, without_secrets
from staniel.pipeline.sources.journal_options import JournalOptions, moment_ms
from staniel.pipeline.sources.live_options import SinkOptions
from staniel.pipeline.sources.options import Options, QueuePatterns, as_option
from staniel.pipeline.sources.planning import formats_of_view, no_queue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INFERRING = "spark.sql.sources.partitionColumnTypeInference.enabled"
APPLICATION = "replay"  # in the names of keys and notes
ITEM_OPS = ["add", "add_xid", "continue", "put"]


def items_of(spark: SparkSession, path: str, parquet: bool, given: Mapping[str, str]) -> DataFrame:
    """Return the items of an archive or a spool, in the order of adding.

    They are the items still in the queues, or with `view` `ops` every item ever added. With `parquet`, the files of an
    archive are read as they are, every item ever added; names of queues are text there, also if they look like numbers.
    """
    from pyspark.sql import functions as F

    if parquet:
        inferring = spark.conf.get(INFERRING) or "true"
        spark.conf.set(INFERRING, "false")
        try:
            rows = spark.read.option("__globPaths__", "false").parquet(path)
        finally:
            spark.conf.set(INFERRING, inferring)
    else:
        reading = {"view": "state", **given}
        check_items(JournalOptions({**reading, "path": path}))
        rows = spark.read.format("staniel-journal").options(**reading).load(path)
    if "op" in rows.columns:
        rows = rows.filter(F.col("op").isin(ITEM_OPS))
    if parquet and {"op", "size", "addTime", "expireTime"} <= set(rows.columns):
        # Archives of earlier versions have the placeholder records of packs as empty items without a time.
        timeless = F.col("addTime").isNull() & F.col("expireTime").isNull()
        rows = rows.filter(~(timeless & (F.coalesce("size", F.lit(0)) == 0)))
    if "position" in rows.columns:
        # In libkestrel's format an item has a row for each reader that has not read it, but is put once.
        own = F.coalesce(F.concat(F.lit("position "), "position"), F.concat(F.lit("xid "), "xid"))
        is_alone = F.col("reader").isNull()
        alone = rows.withColumn("_key", F.when(is_alone, own).otherwise(F.col("id").cast("string")))
        place = F.when(is_alone, F.col("position")).otherwise(F.col("id"))
        return alone.dropDuplicates(["queue", "_key"]).drop("_key").orderBy("queue", place.asc_nulls_first(), "xid")
    order = [name for name in ("addTime", "file", "offset", "id") if name in rows.columns]
    return rows.orderBy(*order)


def check_items(options: JournalOptions) -> None:
    """Refuse a command log of workq, with ValueError: queues of items hold no jobs."""
    if options.is_several or is_archive(options.path):
        return
    if formats_of_view(folder(options.path), options)[0][0].name == "workq":
        raise ValueError(f"{without_secrets(options.path)} is a command log of workq: its jobs are not put as items")


def refill(
    rows: DataFrame,
    since: str,
    until: str,
    queues: list[str],
    options: Mapping[str, str],
    rate: int,
    notes: str = "",
) -> int:
    """Put the selected rows. Return their number. `queues` has names or shell patterns, empty for all. One task does
    it, so that order and rate hold. `notes` is a folder for the progress of this replay: a repeated one goes on, and
    puts each item once.

    Raises ValueError for an invalid time and for an unknown queue; ServerLost, with nothing put, if a server does not
    reply; ServerRefused if one rejects the login. Times without a zone are UTC.
    """
    from pyspark.sql import functions as F

    SinkOptions(options).reach()
    if since:
        rows = rows.filter(F.col("addTime") >= F.timestamp_millis(F.lit(moment_ms(since, "since", UTC))))
    if until:
        rows = rows.filter(F.col("addTime") < F.timestamp_millis(F.lit(moment_ms(until, "until", UTC))))
    if queues:
        names = [] if "queue" not in rows.columns else [row[0] for row in rows.select("queue").distinct().collect()]
        known = [name for name in names if name is not None]
        wanted = QueuePatterns(Options({"queues": as_option(queues)}, {"queues"}, "replay"))
        if unmet := wanted.unmet(known):
            raise ValueError(no_queue(unmet[0], "what is to be put", known))
        rows = rows.filter(F.col("queue").isin([name for name in known if name in wanted]))
    columns = [name for name in ("queue", "value", "flags", "expireTime") if name in rows.columns]
    chosen = rows.select(*columns).filter("value is not null")
    if "queue" in options:
        chosen = chosen.drop("queue")
    chosen = chosen.coalesce(1).persist()
    count = int(chosen.count())
    sink = chosen.write.format("staniel").mode("append").options(**options)
    if notes:
        sink = sink.options(guardPath=notes, txnAppId=APPLICATION, txnVersion="0")
    sink.option("maxItemsPerSecond", str(rate)).save()
    chosen.unpersist()
    return count
