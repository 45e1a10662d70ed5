"""The figures of a report, computed by Spark jobs that end in small tables: arrivals, depth, ages, waits, redeliveries,
sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from staniel.pipeline.formats.adapters import FORMATS, list_segments
from staniel.pipeline.formats.base import FormatAdapter
from staniel.pipeline.lake.folders import folder
from staniel.pipeline.lake.stores import settings_of
from staniel.pipeline.report.tables import OF_FORMAT, ReportTables
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.planning import check_wanted
from staniel.pipeline.sources.spool_plans import common_format, plan_spools

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BUCKETS = 200
TOP = 8
Count = tuple[int, int, int | None]  # a step of time, what was added in it, what left (None: not known)


class ReportRow(Struct, frozen=True):
    """The figures of a queue, or of one reader of a queue. None: the records do not tell. Sizes are in bytes; ages in
    seconds at the time of the newest item of all; waits in seconds until an item was first delivered.
    """

    queue: str
    bytes: int | None
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
    wait_median_s: float | None = None
    wait_99_s: float | None = None


class TimeStep(Struct, frozen=True):
    """A step of a queue's time. Rates are per second; None: unknown."""

    when: datetime
    arrivals: float
    removals: float | None
    depth: int | None


class ReportFigures(Struct, frozen=True):
    """The content of a report. Histograms map a power of two (of bytes, of seconds, of milliseconds for waits), or a
    number of deliveries, to items; empty if the records do not tell.
    """

    path: str
    form: str
    begin: datetime | None
    end: datetime | None
    step_s: float
    rows: list[ReportRow]
    series: dict[str, list[TimeStep]]
    sizes: dict[int, int]
    ages: dict[int, int]
    deliveries: dict[int, int]
    waits: dict[int, int]
    unknown: tuple[str, ...]


def gather(spark: SparkSession, path: str, given: Mapping[str, str]) -> ReportFigures:
    """Run the jobs. Payloads are not read. Raises ValueError, and what reading raises."""
    options = JournalOptions({**given, "path": path}, settings_of(spark))
    form, size_of = _sizes_of_several(options) if options.is_several else _sizes(options)

    def view(name: str) -> DataFrame:
        chosen = {**given, "view": name, "includeValue": "false", "format": form.name}
        rows: DataFrame = spark.read.format("staniel-journal").options(**chosen).load(path)
        return _by_host(rows) if options.has_host else rows

    tables = OF_FORMAT[form.name](view)
    begin, end = _span(tables.moves)
    step_s = max(1.0, (end - begin).total_seconds() / BUCKETS) if begin and end else 1.0
    counts = _counts(tables, step_s)
    held, held_ages = _held(tables.held, end)
    ever, sizes, deliveries = _ever(tables.ever)
    waited, waits = _waits(tables.waits)
    names = size_of if form.by_queue else counts | held | ever
    lines = tables.lines or [(name, name, name) for name in sorted(names)]
    rows = [
        _row(line, size_of.get(queue), counts.get(queue, []), held.get(reader), ever.get(queue), waited.get(queue))
        for line, queue, reader in lines
    ]
    rows.sort(key=lambda row: row.added, reverse=True)
    top = list(dict.fromkeys(queue for row in rows for line, queue, _ in lines if line == row.queue))[:TOP]
    series = {name: series_of(counts.get(name, []), step_s) for name in top}
    return ReportFigures(
        path, form.name, begin, end, step_s, rows, series, sizes, held_ages, deliveries, waits, tables.unknown
    )


def _sizes(options: JournalOptions) -> tuple[FormatAdapter, dict[str, int]]:
    """Return the format, and the bytes of each selected queue. Raises ValueError."""
    place = folder(options.path)
    form, queues = list_segments(place, options.format)
    check_wanted(place, options, form, queues)
    selected = {name: segments for name, segments in queues.items() if not form.by_queue or name in options.queues}
    return form, {name: sum(segment.bytes for segment in segments) for name, segments in selected.items()}


def _sizes_of_several(options: JournalOptions) -> tuple[FormatAdapter, dict[str, int]]:
    """Return the format, and the bytes of each selected queue, named HOST/QUEUE. Raises SpoolUnreachable,
    ValueError.
    """
    plans, sizes = plan_spools(options), Counter[str]()
    for plan in plans:
        for part in plan.parts:
            sizes[f"{plan.spool.host}/{part.queue}" if options.has_host else part.queue] += part.bytes
    return FORMATS[common_format(plans)](), dict(sizes)


def _by_host(rows: DataFrame) -> DataFrame:
    """Return rows whose queues have the names of their hosts."""
    from pyspark.sql import functions as F

    named = {"queue": F.concat_ws("/", "host", "queue")}
    if "reader" in rows.columns:
        own = F.col("reader").isin("") | (F.col("reader") == F.col("queue"))
        named["reader"] = F.when(own, F.lit("")).otherwise(F.col("reader"))
    return rows.withColumns(named).drop("host")


def _span(moves: DataFrame) -> tuple[datetime | None, datetime | None]:
    from pyspark.sql import functions as F

    (row,) = moves.agg(F.unix_micros(F.min("at")), F.unix_micros(F.max("at"))).collect()
    begin, end = (None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC) for micros in row)
    return begin, end


def _counts(tables: ReportTables, step_s: float) -> dict[str, list[Count]]:
    """Count added and removed items by queue and step, in the order of time."""
    from pyspark.sql import functions as F

    bucket = F.floor(F.unix_micros("at") / (step_s * 1e6)).alias("bucket")
    totals = F.sum("added").alias("added"), F.sum("removed").alias("removed")
    by_queue: dict[str, list[Count]] = {}
    firsts: dict[tuple[str, str], int] = {}
    rows = tables.moves.groupBy("queue", "file", bucket).agg(*totals).collect()
    rows.sort(key=lambda row: (row["bucket"] is None, row["bucket"]))
    for row in rows:
        if row["queue"] is not None:
            counts = by_queue.setdefault(row["queue"], [])
            at = row["bucket"]
            if at is None:
                # Records before a file's first item have no time; they count at its time.
                at = firsts.get((row["queue"], row["file"]), counts[-1][0] if counts else 0)
            firsts.setdefault((row["queue"], row["file"]), at)
            counts.append((at, row["added"], row["removed"] if tables.knows_removals else None))
    return by_queue


def _held(held: DataFrame, end: datetime | None) -> tuple[dict[str, Any], dict[int, int]]:
    """Return the number and ages of the items in the queues at the end."""
    from pyspark.sql import functions as F

    end_s = F.lit(end.timestamp() if end else None).cast("double")
    aged = held.withColumn("age", F.greatest(F.lit(0.0), end_s - F.col("addTime").cast("double")))
    return _by_queue(
        aged.withColumn("power", _power(F.col("age"))),
        F.count("*").alias("depth"),
        F.sum(F.col("open").cast("int")).alias("opens"),
        F.percentile_approx("age", 0.5).alias("median"),
        F.max("age").alias("max"),
    )


def _ever(ever: DataFrame) -> tuple[dict[str, Any], dict[int, int], dict[int, int]]:
    """Return the sizes and deliveries of all items that ever existed."""
    from pyspark.sql import functions as F

    queues, sizes = _by_queue(
        ever.withColumn("power", _power(F.col("size"))),
        F.sum(F.col("redelivered").cast("int")).alias("redelivered"),
        F.percentile_approx("size", [0.5, 0.99]).alias("sizes"),
        F.max("size").alias("max"),
    )
    counted = ever.filter("deliveries is not null").groupBy("deliveries").count().orderBy("deliveries").collect()
    return queues, sizes, {row["deliveries"]: row["count"] for row in counted}


def _waits(waits: DataFrame | None) -> tuple[dict[str, Any], dict[int, int]]:
    from pyspark.sql import functions as F

    if waits is None:
        return {}, {}
    powers = waits.withColumn("power", _power(F.col("seconds") * 1000))
    return _by_queue(powers, F.percentile_approx("seconds", [0.5, 0.99]).alias("waits"))


def _by_queue(rows: DataFrame, *figures: Column) -> tuple[dict[str, Any], dict[int, int]]:
    """Return figures by queue, and the number of rows of each `power`; in one job."""
    from pyspark.sql import functions as F

    grouped = rows.groupingSets([["queue"], ["power"]], "queue", "power")
    collected = grouped.agg(F.count("*").alias("rows"), F.grouping("power").alias("is_queue"), *figures).collect()
    queues = {row["queue"]: row for row in collected if row["is_queue"] and row["queue"] is not None}
    powers = {row["power"]: row["rows"] for row in collected if not row["is_queue"] and row["power"] is not None}
    return queues, dict(sorted(powers.items()))


def _power(number: Column) -> Column:
    from pyspark.sql import functions as F

    return F.floor(F.log2(number + 1)).cast("int")


def _row(line: str, size: int | None, counts: list[Count], now: Any, ever: Any, waited: Any) -> ReportRow:
    added = sum(added for _, added, _ in counts)
    depth = now["depth"] if now else 0
    removals = [removed for _, _, removed in counts if removed is not None]
    return ReportRow(
        line,
        size,
        added,
        sum(removals) if removals or not counts else added - depth,
        depth,
        now["opens"] if now else 0,
        ever["redelivered"] if ever else 0,
        ever["sizes"][0] if ever else 0,
        ever["sizes"][1] if ever else 0,
        ever["max"] if ever else 0,
        (now["median"] or 0.0) if now else 0.0,
        (now["max"] or 0.0) if now else 0.0,
        waited["waits"][0] if waited else None,
        waited["waits"][1] if waited else None,
    )


def series_of(counts: list[Count], step_s: float) -> list[TimeStep]:
    """Return the steps in the order of time. Only the first of a run of empty steps is included."""
    known: dict[int, tuple[int, int | None]] = {}
    for bucket, added, removed in counts:
        before = known.get(bucket, (0, 0))
        known[bucket] = (before[0] + added, None if removed is None else (before[1] or 0) + removed)
    knows_removals = all(removed is not None for _, removed in known.values())
    quiet: set[int] = set()
    for bucket in known:
        quiet |= {bucket + 1} - known.keys()  # a line falls to 0 there
    series, depth = [], 0
    for bucket in sorted([*known, *quiet]):
        added, removed = known.get(bucket, (0, 0))
        depth = max(0, depth + added - (removed or 0))
        when = datetime.fromtimestamp(bucket * step_s, UTC)
        gone = (removed or 0) / step_s if knows_removals else None
        series.append(TimeStep(when, added / step_s, gone, depth if knows_removals else None))
    return series
