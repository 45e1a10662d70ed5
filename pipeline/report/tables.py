"""The input of a report: tables with the same columns from the views of each format, as far as its records have
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMON = ("Ages are those of items that are still there.",)
DEAD_UNKNOWN = "Which items became dead letters is not written down: look at the depth of the dead letter queues."
KESTREL_UNKNOWN = (
    "Records of removals carry no time. They are drawn at the add time of the newest item before them.",
    "So a removal is never drawn too late, and in a quiet queue too early.",
    "How long items waited cannot be computed from a Kestrel journal: the time of taking is not written down.",
    *COMMON,
    "An item that expired and one that a client took without a reserve are both written as a removal.",
    "Deliveries count reserves; a take without one is not counted.",
    "What was packed or rewritten is seen only as what was alive then, with its own add times.",
    DEAD_UNKNOWN,
)
LIBKESTREL_UNKNOWN = (
    "A reader's file says how far it is, and not when it got there.",
    "So removals over time, depth over time and how long items waited cannot be known.",
    "Segments that every reader has done with are gone, and their items are not counted.",
    "Added and removed are those of the segments that are there. Each reader is a line of the table.",
    *COMMON,
    "How often an item was delivered is not written down. Redelivered are items that were put with errors.",
    DEAD_UNKNOWN,
)
WORKQ_UNKNOWN = (
    "Waiting is from the time of adding, or the time that a job was scheduled for, to its first attempt.",
    "Later attempts of the same job are counted, their waiting is not.",
    "Jobs that the log was cleaned of are not counted. Dead letters are jobs that have failed.",
    "The log is one for all queues, so a queue has no size on the disk of its own.",
    *COMMON,
)
ADDS = ("add", "add_xid", "continue", "stand_in")  # a stand-in was an item once, and its removal follows
GONE = ("remove", "confirm", "continue")
LIVE = ("queued", "leased", "scheduled")


class ReportTables(Struct, frozen=True):
    """The tables of a report.

    `moves`: queue, file, at, added, removed (null: unknown). `held`: queue, addTime, open. `ever`: queue, size,
    redelivered, deliveries, dead (null: unknown). `waits`: queue, seconds. `lines`: (name of a line of the report, its
    queue in moves and ever, its queue in held), None: one for each queue.
    """

    moves: DataFrame
    held: DataFrame
    ever: DataFrame
    unknown: tuple[str, ...]
    waits: DataFrame | None = None
    lines: list[tuple[str, str, str]] | None = None
    knows_removals: bool = True


View = Callable[[str], "DataFrame"]


def of_kestrel(view: View) -> ReportTables:
    ops = view("ops")
    added = F.col("op").isin(*ADDS).cast("int").alias("added")
    removed = F.col("op").isin(*GONE).cast("int").alias("removed")
    items = view("items")
    nothing = F.lit(None).cast("int")
    return ReportTables(
        ops.select("queue", "file", F.col("asOf").alias("at"), added, removed),
        view("state").select("queue", "addTime", (F.col("state") == "open").alias("open")),
        items.select(
            "queue", "size", (F.col("deliveries") > 1).alias("redelivered"), "deliveries", nothing.alias("dead")
        ),
        KESTREL_UNKNOWN,
    )


def of_libkestrel(view: View) -> ReportTables:
    puts = view("ops").filter("op = 'put'")
    nothing = F.lit(None).cast("int")
    named = F.when(F.col("reader").isin("") | (F.col("reader") == F.col("queue")), F.col("queue")).otherwise(
        F.concat("queue", F.lit("+"), "reader")
    )
    lines = [
        (row["name"], row["queue"], row["name"])
        for row in view("readers").select("queue", named.alias("name")).distinct().collect()
    ]
    return ReportTables(
        puts.select("queue", "file", F.col("addTime").alias("at"), F.lit(1).alias("added"), nothing.alias("removed")),
        view("state").select(named.alias("queue"), "addTime", F.lit(False).alias("open")),
        puts.select(
            "queue",
            "size",
            (F.col("errorCount") > 0).alias("redelivered"),
            nothing.alias("deliveries"),
            nothing.alias("dead"),
        ),
        LIBKESTREL_UNKNOWN,
        lines=sorted(lines),
        knows_removals=False,
    )


def of_workq(view: View) -> ReportTables:
    jobs = view("jobs")
    came = jobs.select(
        "queue", "file", F.col("addTime").alias("at"), F.lit(1).alias("added"), F.lit(0).alias("removed")
    )
    left = jobs.filter("endTime is not null").select(
        "queue", "file", F.col("endTime").alias("at"), F.lit(0).alias("added"), F.lit(1).alias("removed")
    )
    ready = F.greatest("addTime", F.coalesce("runAt", "addTime")).cast("double")
    waited = F.greatest(F.lit(0.0), F.col("firstStart").cast("double") - ready).alias("seconds")
    return ReportTables(
        came.unionAll(left),
        jobs.filter(F.col("state").isin(*LIVE)).select("queue", "addTime", (F.col("state") == "leased").alias("open")),
        jobs.select(
            "queue",
            "size",
            (F.col("attempts") > 1).alias("redelivered"),
            F.col("attempts").alias("deliveries"),
            (F.col("state") == "failed").alias("dead"),
        ),
        WORKQ_UNKNOWN,
        jobs.filter("firstStart is not null").select("queue", waited),
    )


OF_FORMAT: dict[str, Callable[[View], ReportTables]] = {
    "kestrel": of_kestrel,
    "libkestrel": of_libkestrel,
    "workq": of_workq,
}
