"""A job of a cluster in tests: journals are read, and a queue is filled with keys; says where its tasks ran.

shipped.py SPOOL SERVER GUARD      # by spark-submit, or with SPARK_REMOTE set
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from staniel import pipeline


def places(batches: Iterator[Any]) -> Iterator[Any]:
    import os

    import pyarrow as pa

    import staniel

    for batch in batches:
        if batch.num_rows:
            where = {"python": sys.executable, "folder": os.getcwd(), "package": str(staniel.__path__[0])}
            yield pa.RecordBatch.from_pydict({"said": [json.dumps(where)]})


def main() -> None:
    spool, server, guard = sys.argv[1:4]
    spark = SparkSession.builder.getOrCreate()
    pipeline.register(spark)
    states = spark.read.format("staniel-journal").option("view", "state").load(spool).count()
    table = spark.range(0, 400, 1, 4).selectExpr("cast(id as string) as value", "concat('order-', id) as order")
    for _ in range(2):
        sink = table.write.format("staniel").mode("append").options(servers=server, queue="jobs")
        sink.options(txnAppId="shipped", txnVersion="1", guardPath=guard).save()
        table.write.format("staniel").mode("append").options(servers=server, queue="keyed", keyColumn="order").save()
    said = spark.range(0, 8, 1, 8).mapInArrow(places, "said string").collect()
    spark.stop()
    print("told", json.dumps({"states": states, "tasks": [json.loads(row.said) for row in said]}))


if __name__ == "__main__":
    main()
