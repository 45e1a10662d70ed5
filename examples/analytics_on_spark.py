"""Five questions about queues, each as a stream or job to copy: latencies, poison jobs, rates, a lake, cold spools.

    python analytics_on_spark.py latencies --log spool/.staniel/cmdlog --out lake/latencies
    python analytics_on_spark.py poison --log spool/.staniel/cmdlog --server 127.0.0.1:22133 --out lake/poison
    python analytics_on_spark.py rates --spool spool --queue clicks --out lake/rates
    python analytics_on_spark.py lake --server 127.0.0.1:22133 --queue clicks --out lake/clicks --days 90
    python analytics_on_spark.py cold --spool '/data/*/spool'

Needs `pip install 'staniel[spark]'`. A run takes what is new and ends; the next one goes on from its checkpoint. `lake`
takes items out of the queue, the others only read journals.
"""

from __future__ import annotations

import argparse
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from staniel import pipeline
from staniel.pipeline.tasks.pack import SpoolInUse, pack
from staniel.queues.config import JournalDialect


def records(spark: SparkSession, path: str, **options: str) -> DataFrame:
    """The records of journals, or of a command log of jobs, as a stream. A server removes files whose jobs have ended;
    if one was not read to its end, `failOnDataLoss=false` reads those that remain again.
    """
    options = {"failOnDataLoss": "false", **options}
    return spark.readStream.format("staniel-journal").options(**options).load(path)


def start(table: DataFrame, out: str) -> StreamingQuery:
    """Append to Parquet in `out`, exactly once, and end with what is there."""
    writing = table.writeStream.option("checkpointLocation", f"{out}/_checkpoint").trigger(availableNow=True)
    return writing.start(out, format="parquet")


def latencies(spark: SparkSession, log: str, out: str) -> StreamingQuery:
    """From a job's addition to its completion: percentiles by minute and queue. Jobs that take longer than an hour do
    not count, so a minute is written when the watermark, ten minutes behind, is an hour past it.
    """
    added = records(spark, log, op="add", includeValue="false").select("id", "queue", F.col("asOf").alias("added"))
    ended = records(spark, log, op="complete").select(F.col("id").alias("done"), F.col("asOf").alias("ended"))
    both = (
        added.withWatermark("added", "10 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .join(
            ended.withWatermark("ended", "10 minutes").dropDuplicatesWithinWatermark(["done"]),
            F.expr("id = done AND ended BETWEEN added AND added + INTERVAL 1 HOUR"),
        )
    )
    ms = (F.unix_millis("ended") - F.unix_millis("added")).alias("ms")
    percentiles = F.percentile_approx("ms", [0.5, 0.95, 0.99]).alias("p50_p95_p99")
    minutes = both.select("queue", "ended", ms).groupBy(F.window("ended", "1 minute"), "queue")
    return start(minutes.agg(F.count("*").alias("jobs"), percentiles), out)


def poison(spark: SparkSession, log: str, server: str, out: str, times: int = 3) -> StreamingQuery:
    """Jobs that failed or timed out so many times within a day go to the queue `poison`, each once, as its id."""
    ends = records(spark, log, op="fail,timeout-attempt", includeValue="false").withWatermark("asOf", "1 day")
    ends = ends.dropDuplicatesWithinWatermark(["file", "offset"])
    counts = ends.groupBy("id", F.window("asOf", "1 day")).count().where(f"count >= {times}")

    def put(rows: DataFrame, _: int) -> None:
        sink = rows.select(F.col("id").alias("value"), "id").write.format("staniel").mode("append")
        sink.options(servers=server, queue="poison", keyColumn="id").save()

    writing = counts.writeStream.outputMode("update").option("checkpointLocation", f"{out}/_checkpoint")
    return writing.trigger(availableNow=True).foreachBatch(put).start()


def rates(spark: SparkSession, spool: str, queue: str, out: str) -> StreamingQuery:
    """Items a minute for each `user` in the JSON of a queue's payloads, in windows that begin every 30 s."""
    items = records(spark, spool, queue=queue).where("addTime IS NOT NULL").withWatermark("addTime", "1 minute")
    user = F.get_json_object(F.col("value").cast("string"), "$.user").alias("user")
    return start(items.groupBy(F.window("addTime", "1 minute", "30 seconds"), user).count(), out)


def lake(spark: SparkSession, server: str, queue: str, out: str, days: int, today: datetime) -> None:
    """Drain a queue into Parquet by day; make one file of each past day, and remove days that are older than `days`.

    Each batch overwrites its own files, so that a repeated one doubles nothing.
    """
    put_back(Path(out))
    source = spark.readStream.format("staniel").options(servers=server, queue=queue, spoolPath=f"{out}/_spool").load()
    day = F.date_format(F.coalesce("addTime", F.current_timestamp()), "yyyy-MM-dd").alias("day")

    def store(rows: DataFrame, batch: int) -> None:
        parts = rows.select("*", day, F.lit(batch).alias("batch"))
        parts.write.partitionBy("day", "batch").option("partitionOverwriteMode", "dynamic").parquet(
            out, mode="overwrite"
        )

    writing = source.writeStream.option("checkpointLocation", f"{out}/_checkpoint").trigger(availableNow=True)
    writing.foreachBatch(store).start().awaitTermination()
    for folder in sorted(Path(out).glob("day=*")):
        that_day = datetime.strptime(folder.name, "day=%Y-%m-%d").replace(tzinfo=UTC)
        if today - that_day > timedelta(days=days):
            shutil.rmtree(folder)
        elif today - that_day > timedelta(days=1):
            compact(spark, folder)


def compact(spark: SparkSession, folder: Path) -> None:
    """Replace the files of a day by one, without items that came twice. Files that come late are added by the next run.
    Between the two renames readers do not see the day.
    """
    parts = [part for part in folder.glob("batch=*") if part.name != "batch=-1"]
    if not parts:
        return
    new, old = folder.parent / f"_new-{folder.name}", folder.parent / f"_old-{folder.name}"
    once = spark.read.parquet(str(folder)).dropDuplicates(["server", "queue", "id"]).drop("batch")
    once.coalesce(1).write.parquet(str(new / "batch=-1"), mode="overwrite")
    folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old)


def put_back(out: Path) -> None:
    """Finish what a run that was killed amid `compact` has left."""
    for old in out.glob("_old-day=*"):
        folder = out / old.name.removeprefix("_old-")
        shutil.rmtree(old) if folder.exists() else old.rename(folder)


def cold(spark: SparkSession, spools: str) -> list[str]:
    """Pack the spools of a fleet which no server has open, the largest first; those of running servers pack themselves.
    Return a line for each.
    """
    found = spark.read.format("staniel-journal").option("view", "spools").load(spools)
    lines = []
    for row in found.where("error IS NULL AND format = 'kestrel'").orderBy(F.desc("bytes")).collect():
        try:
            packed = pack(spark, row.path, {}, JournalDialect.DOCUMENTS)
        except SpoolInUse:
            lines.append(f"{row.host}: in use")
            continue
        saved = sum(queue.before_bytes - queue.after_bytes for queue in packed)
        lines.append(f"{row.host}: {len(packed)} queues packed, {saved} bytes less")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Streams and jobs about queues.")
    parser.add_argument("what", choices=["latencies", "poison", "rates", "lake", "cold"])
    for name in ("log", "spool", "server", "queue", "out"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--days", type=int, default=90)
    args = parser.parse_args()
    spark = pipeline.session("local[2]")
    match args.what:
        case "latencies":
            latencies(spark, args.log, args.out).awaitTermination()
        case "poison":
            poison(spark, args.log, args.server, args.out).awaitTermination()
        case "rates":
            rates(spark, args.spool, args.queue, args.out).awaitTermination()
        case "lake":
            lake(spark, args.server, args.queue, args.out, args.days, datetime.now(UTC))
        case "cold":
            print(*cold(spark, args.spool), sep="\n")
    spark.stop()


if __name__ == "__main__":
    main()
