"""A walk through the pipeline, as one would go through it in a notebook: a server's journals on Spark.

    python journals_on_spark.py --spool spool [--server 127.0.0.1:22133 --queue done]

Needs `pip install 'staniel[spark]'`, and `'staniel[spark-jre]'` where there is no Java 17. Reading takes nothing out of
the queues. With --server it ends by putting a table into a live queue and draining it again.
"""

from __future__ import annotations

import argparse
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from staniel import pipeline


def what_happened(spark: SparkSession, spool: str) -> None:
    """Every record that the server wrote, as a table."""
    ops = spark.read.format("staniel-journal").load(spool)
    ops.groupBy("queue", "op").count().orderBy("queue", "op").show()


def what_is_there(spark: SparkSession, spool: str) -> None:
    """The contents of every queue, in the order in which they would be delivered, and without their payloads."""
    state = spark.read.format("staniel-journal").options(view="state", includeValue="false").load(spool)
    state.groupBy("queue", "state").agg(F.count("*").alias("items"), F.sum("size").alias("bytes")).orderBy(
        "queue"
    ).show()


def what_was_there(spark: SparkSession, spool: str) -> None:
    """The same, as it was when the first half of the items had been added: time travel."""
    items = spark.read.format("staniel-journal").options(view="items", includeValue="false").load(spool)
    middle = items.agg(F.percentile_approx(F.unix_millis("addTime"), 0.5)).collect()[0][0]
    then = spark.read.format("staniel-journal").options(view="state", endingTimestamp=str(middle)).load(spool)
    print(f"at {middle} ms: {then.count()} items")
    items.groupBy("queue", "state", "deliveries").count().orderBy("queue", "state", "deliveries").show()


def into_a_lake(spark: SparkSession, spool: str, lake: str) -> None:
    """Once through the journals, exactly once into Parquet; run again, it takes only what is new."""
    for name in ("first", "second"):
        source = spark.readStream.format("staniel-journal").options(includeValue="false").load(spool)
        query = (
            source.writeStream.trigger(availableNow=True)
            .option("checkpointLocation", f"{lake}/_checkpoint")
            .partitionBy("queue")
            .start(f"{lake}/ops", format="parquet")
        )
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        print(f"{name} run: {rows} records")


def through_a_live_queue(spark: SparkSession, server: str, queue: str, lake: str) -> None:
    """A table into a queue, and the queue into a table."""
    table = spark.range(100).select(F.concat(F.lit("job "), F.col("id")).alias("value"))
    table.write.format("staniel").mode("append").options(servers=server, queue=queue).save()
    source = spark.readStream.format("staniel").options(servers=server, queue=queue, spoolPath=f"{lake}/_spool")
    query = (
        source.load()
        .writeStream.trigger(availableNow=True)
        .option("checkpointLocation", f"{lake}/_drain")
        .start(f"{lake}/drained", format="parquet")
    )
    query.awaitTermination()
    drained = spark.read.parquet(f"{lake}/drained")
    print(f"drained {drained.count()} items, {drained.select('id').distinct().count()} ids")


def main() -> None:
    parser = argparse.ArgumentParser(description="A server's journals on Spark.")
    parser.add_argument("--spool", required=True)
    parser.add_argument("--server", default="")
    parser.add_argument("--queue", default="spark-example")
    args = parser.parse_args()
    spark = pipeline.session("local[2]")
    with tempfile.TemporaryDirectory() as lake:
        what_happened(spark, args.spool)
        what_is_there(spark, args.spool)
        what_was_there(spark, args.spool)
        into_a_lake(spark, args.spool, lake)
        if args.server:
            through_a_live_queue(spark, args.server, args.queue, lake)
    spark.stop()


if __name__ == "__main__":
    main()
