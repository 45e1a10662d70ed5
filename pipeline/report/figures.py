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
COUNTED = ("queue", "file", "bucket", "added", "removed")
SERIES_MAX = 100  # by each of LEADING: of 10,000 queues the lines of all would take 20 MB
LEADING = ("added", "depth", "age_max_s", "redelivered", "dead", "wait_99_s")
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
    dead: int | None = None  # items that were given up

    @property
    def host(self) -> str:
        """The name of its spool, "" if the report is of one."""
        return self.queue.rpartition("/")[0]


class TimeStep(Struct, frozen=True):
    """A step of a queue's time. Rates are per second; None: unknown."""

    when: datetime
    arrivals: float
    removals: float | None
    depth: int | None


class SeriesLine(Struct):
    """The steps of a queue, or of several, from step `at` of the report on, as far as the journals reach. Nothing is
    known of other steps. None: not known at all.
    """

    at: int
    added: list[int]
    removed: list[int] | None
    depth: list[int] | None


class ReportFigures(Struct, frozen=True):
    """The content of a report. `counts` has all queues. `series` has the lines of the queues that lead in any of
    LEADING, of each host (if there are several spools), of each name of a queue over all hosts, and of all together:
    under "queues", "hosts", "names" and "all". Step 0 begins at `first_step` times `step_s`.

    Histograms map a power of two (of bytes, of seconds, of milliseconds for waits), or a
    number of deliveries, to items; empty if the records do not tell.
    """

    path: str
    form: str
    begin: datetime | None
    end: datetime | None
    step_s: float
    first_step: int
    steps: int
    rows: list[ReportRow]
    counts: dict[str, list[Count]]
    series: dict[str, dict[str, SeriesLine]]
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
    queue_of = {line: queue for line, queue, _ in lines}
    leading = list(dict.fromkeys(queue_of[row.queue] for row in leading_rows(rows)))
    first_step, steps = _steps(counts)
    series = lines_of(counts, leading, first_step, options.has_host)
    times = begin, end, step_s, first_step, steps
    histograms = sizes, held_ages, deliveries, waits
    return ReportFigures(path, form.name, *times, rows, counts, series, *histograms, tables.unknown)


def leading_rows(rows: list[ReportRow]) -> list[ReportRow]:
    """Return the rows that lead in any of LEADING."""
    leading: dict[str, ReportRow] = {}
    for figure in LEADING:
        some = [row for row in rows if getattr(row, figure)]
        some.sort(key=lambda row: getattr(row, figure), reverse=True)
        leading |= {row.queue: row for row in some[:SERIES_MAX]}
    return list(leading.values())


def _steps(counts: dict[str, list[Count]]) -> tuple[int, int]:
    """Return the first step, and the number of steps."""
    numbers = [at for queue in counts.values() for at, _, _ in queue]
    return (min(numbers), max(numbers) - min(numbers) + 1) if numbers else (0, 0)


def lines_of(
    counts: dict[str, list[Count]], leading: list[str], first_step: int, has_host: bool
) -> dict[str, dict[str, SeriesLine]]:
    """Return the lines of a report, see ReportFigures. A queue's line ends where the journals of its host do."""
    ends: dict[str, int] = {}
    for name, queue in counts.items():
        host = name.rpartition("/")[0]
        ends[host] = max(ends.get(host, 0), *(at - first_step + 1 for at, _, _ in queue))
    made: dict[str, dict[str, SeriesLine]] = {"queues": {}, "hosts": {}, "names": {}, "all": {}}
    wanted = set(leading)
    for name, queue in counts.items():
        host, _, bare = name.rpartition("/")
        line = _line(queue, first_step, ends[host])
        if name in wanted:
            made["queues"][name] = line
        for kind, key in (("hosts", host), ("names", bare)) if has_host else ():
            _add_up(made[kind], key, line)
        _add_up(made["all"], "", line)
    made["queues"] = {name: made["queues"][name] for name in leading if name in made["queues"]}
    return made


def _line(queue: list[Count], first_step: int, end: int) -> SeriesLine:
    begin = min(at for at, _, _ in queue) - first_step
    added, removed, depth = [0] * (end - begin), [0] * (end - begin), []
    knows_removals = all(gone is not None for _, _, gone in queue)
    for at, came, gone in queue:
        added[at - first_step - begin] += came
        removed[at - first_step - begin] += gone or 0
    items = 0
    for came, left in zip(added, removed, strict=True):
        items = max(0, items + came - left)
        depth.append(items)
    return SeriesLine(begin, added, removed if knows_removals else None, depth if knows_removals else None)


def _add_up(sums: dict[str, SeriesLine], key: str, line: SeriesLine) -> None:
    """Add a line to the sum under `key`. What is unknown of one is unknown of the sum."""
    total = sums.get(key)
    if total is None:
        sums[key] = SeriesLine(line.at, [], [], [])
        total = sums[key]
    total.added = _sum(total.at, total.added, line.at, line.added)
    for name in ("removed", "depth"):
        one, two = getattr(total, name), getattr(line, name)
        setattr(total, name, None if one is None or two is None else _sum(total.at, one, line.at, two))
    total.at = min(total.at, line.at)


def _sum(at: int, steps: list[int], other_at: int, others: list[int]) -> list[int]:
    begin = min(at, other_at)
    total = [0] * (max(at + len(steps), other_at + len(others)) - begin)
    for first, some in ((at, steps), (other_at, others)):
        for number, count in enumerate(some, first - begin):
            total[number] += count
    return total


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
    table = tables.moves.groupBy("queue", "file", bucket).agg(*totals).toArrow()  # of a fleet two million rows
    rows = table.sort_by("bucket").to_pydict()  # nulls come last
    for queue, file, step, added, removed in zip(*(rows[name] for name in COUNTED), strict=True):
        if queue is not None:
            counts = by_queue.setdefault(queue, [])
            at = step
            if at is None:
                # Records before a file's first item have no time; they count at its time.
                at = firsts.get((queue, file), counts[-1][0] if counts else None)
            if at is None:
                continue  # a file without any item: nothing has a time
            firsts.setdefault((queue, file), at)
            counts.append((at, added, removed if tables.knows_removals else None))
    return {queue: counts for queue, counts in by_queue.items() if counts}


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
        F.sum(F.col("dead").cast("int")).alias("dead"),
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
        ever["dead"] if ever else None,
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
