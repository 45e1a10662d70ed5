"""What the journals of a fleet tell of its queues: arrivals, depth, ages, redeliveries, sizes.

Knows the questions, as Spark jobs that end in small tables, and what the records cannot answer. Refuses to draw:
report_page.py does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS = 200
TOP = 8
UNKNOWN = (
    "Records of removals carry no time. They are drawn at the add time of the newest item before them.",
    "So a removal is never drawn too late, and in a quiet queue too early.",
    "How long items waited cannot be computed from a Kestrel journal: the time of taking is not written down.",
    "Ages are those of items that are still there.",
    "An item that expired and one that a client took without a reserve are both written as a removal.",
    "Deliveries count reserves; a take without one is not counted.",
    "What was packed or rewritten is seen only as what was alive then, with its own add times.",
)


class Row(Struct, frozen=True):
    """One queue in figures. Sizes in bytes, ages in seconds at the time of the newest item of all."""

    queue: str
    bytes: int
    added: int
    removed: int
    depth: int
    opens: int
    redelivered: int
    size_median: int
    size_99: int
    size_max: int
    age_median_s: float
    age_max_s: float


class Report(Struct, frozen=True):
    """All that is drawn. `series`: queue to (times, arrivals a second, removals a second, depth)."""

    path: str
    begin: datetime | None
    end: datetime | None
    step_s: float
    rows: list[Row]
    series: dict[str, list[tuple[datetime, float, float, int]]]
    sizes: dict[int, int]  # power of two to items
    ages: dict[int, int]  # power of two of seconds to items
    deliveries: dict[int, int]  # how often delivered to items
    unknown: tuple[str, ...] = UNKNOWN


def gather(spark: SparkSession, path: str, given: Mapping[str, str]) -> Report:
    """Run the jobs. Payloads are not read."""

    def view(name: str) -> DataFrame:
        options = {**given, "view": name, "includeValue": "false"}
        return spark.read.format("staniel-journal").options(**options).load(path)

    from pyspark.sql import functions as F

    spans = view("summaries").agg(F.min("oldest"), F.max("newest")).collect()[0]
    begin, end = spans[0], spans[1]
    seconds = (end - begin).total_seconds() if begin else 0.0
    step_s = max(1.0, seconds / BUCKETS)
    counts = _counts(view("ops"), step_s)
    held = _held(view("state"), end)
    items = _items(view("items"))
    bytes_of = {
        row["queue"]: row["bytes"]
        for row in view("summaries").groupBy("queue").agg(F.sum("bytes").alias("bytes")).collect()
    }
    rows = [_row(queue, bytes_of[queue], counts.get(queue, []), held, items) for queue in sorted(bytes_of)]
    rows.sort(key=lambda row: row.added, reverse=True)
    return Report(
        path,
        begin,
        end,
        step_s,
        rows,
        {row.queue: _series(counts.get(row.queue, []), step_s) for row in rows[:TOP]},
        _histogram(items, "sizes"),
        _histogram(held, "ages"),
        _histogram(items, "deliveries"),
    )


def _counts(ops: DataFrame, step_s: float) -> dict[str, list[Any]]:
    """Per queue and step: what was added and what left, in the order of time."""
    from pyspark.sql import functions as F

    bucket = F.floor(F.unix_micros("asOf") / (step_s * 1e6)).alias("bucket")
    added = F.sum(F.when(F.col("op").isin("add", "add_xid", "continue", "put"), 1).otherwise(0)).alias("added")
    gone = F.sum(F.when(F.col("op").isin("remove", "confirm", "continue"), 1).otherwise(0)).alias("removed")
    found: dict[str, list[Any]] = {}
    # Records in front of a file's first item have no time: they are counted with it.
    rows = ops.groupBy("queue", bucket).agg(added, gone).orderBy("queue", F.col("bucket").desc_nulls_last())
    for row in rows.collect():
        counts = found.setdefault(row["queue"], [])
        at = row["bucket"] if row["bucket"] is not None else counts[-1][0] if counts else 0
        counts.append((at, row["added"], row["removed"]))
    return found


def _held(state: DataFrame, end: datetime | None) -> dict[str, Any]:
    """What is in the queues at the end: how much, and how old."""
    from pyspark.sql import functions as F

    age = F.greatest(F.lit(0.0), (F.lit(end).cast("timestamp").cast("double") - F.col("addTime").cast("double")))
    aged = state.withColumn("age", age).persist()
    found: dict[str, Any] = {"queues": {}, "ages": {}}
    rows = aged.groupBy("queue").agg(
        F.count("*").alias("depth"),
        F.sum((F.col("state") == "open").cast("int")).alias("opens"),
        F.percentile_approx("age", 0.5).alias("median"),
        F.max("age").alias("max"),
    )
    for row in rows.collect():
        found["queues"][row["queue"]] = row
    power = F.floor(F.log2(F.col("age") + 1)).cast("int").alias("power")
    found["ages"] = {
        row["power"]: row["count"] for row in aged.groupBy(power).count().collect() if row["power"] is not None
    }
    aged.unpersist()
    return found


def _items(items: DataFrame) -> dict[str, Any]:
    """Sizes and deliveries of all items that ever were."""
    from pyspark.sql import functions as F

    kept = items.select("queue", "size", "deliveries").persist()
    found: dict[str, Any] = {"queues": {}}
    rows = kept.groupBy("queue").agg(
        F.sum((F.col("deliveries") > 1).cast("int")).alias("redelivered"),
        F.percentile_approx("size", [0.5, 0.99]).alias("sizes"),
        F.max("size").alias("max"),
    )
    for row in rows.collect():
        found["queues"][row["queue"]] = row
    power = F.floor(F.log2(F.col("size") + 1)).cast("int").alias("power")
    found["sizes"] = {row["power"]: row["count"] for row in kept.groupBy(power).count().collect()}
    found["deliveries"] = {row["deliveries"]: row["count"] for row in kept.groupBy("deliveries").count().collect()}
    kept.unpersist()
    return found


def _row(queue: str, size: int, counts: list[Any], held: dict[str, Any], items: dict[str, Any]) -> Row:
    now, ever = held["queues"].get(queue), items["queues"].get(queue)
    return Row(
        queue,
        size,
        sum(added for _, added, _ in counts),
        sum(removed for _, _, removed in counts),
        now["depth"] if now else 0,
        now["opens"] if now else 0,
        ever["redelivered"] if ever else 0,
        ever["sizes"][0] if ever else 0,
        ever["sizes"][1] if ever else 0,
        ever["max"] if ever else 0,
        (now["median"] or 0.0) if now else 0.0,
        (now["max"] or 0.0) if now else 0.0,
    )


def _series(counts: list[Any], step_s: float) -> list[tuple[datetime, float, float, int]]:
    """In the order of time. Of steps in which nothing happened only the first of a run is there."""
    series = []
    depth = 0
    known: dict[int, tuple[int, int]] = {}
    for bucket, added, removed in counts:
        before = known.get(bucket, (0, 0))
        known[bucket] = (before[0] + added, before[1] + removed)
    quiet: set[int] = set()
    for bucket in known:
        quiet |= {bucket + 1} - known.keys()  # a line falls to 0 there
    for bucket in sorted([*known, *quiet]):
        added, removed = known.get(bucket, (0, 0))
        depth = max(0, depth + added - removed)
        when = datetime.fromtimestamp(bucket * step_s, UTC)
        series.append((when, added / step_s, removed / step_s, depth))
    return series


def _histogram(found: dict[str, Any], name: str) -> dict[int, int]:
    return dict(sorted(found[name].items()))
