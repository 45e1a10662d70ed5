"""Drains a queue into a table, or puts a table into a queue, in a Spark of its own; a process that tests kill.

    python -m tests.pipeline.killed JOB SERVER/QUEUE FOLDER KILL [JOB SERVER/QUEUE FOLDER KILL ...]

JOB is `drain`, `sink` or `once` (the sink with keys). KILL is what hooks/sitecustomize.py shall do meanwhile, if it is
a worker that dies. Each is started again until it ends well, so that only the death of this process, or of its Java,
ends it early. Of a drain the rows of the table go to FOLDER/rows.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.pipeline.sessions import close
from tests.pipeline.conftest import SHORT_LIVED, SMALL_DATA

TRIES = 8


def run(spark: SparkSession, job: str, address: str, folder: Path) -> None:
    server, _, queue = address.partition("/")
    checkpoint = str(folder / "checkpoint")
    if job == "drain":
        options = {"servers": server, "queue": queue, "spoolPath": str(folder / "spool"), "maxItemsPerTrigger": "100"}
        source = spark.readStream.format("staniel").options(**options).load()
        writing = source.writeStream.format("parquet").option("path", str(folder / "table"))
    else:
        options = {"servers": server, "queue": queue, "windowItems": "40"}
        options |= {"txnAppId": "copy"} if job == "once" else {"guardPath": str(folder / "guard")}
        source = spark.readStream.schema("value binary").option("maxFilesPerTrigger", "1").parquet(str(folder / "in"))
        writing = source.writeStream.format("staniel").options(**options)
    writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    if job == "drain":
        rows = [[bytes(row.value).decode(), row.id] for row in spark.read.parquet(str(folder / "table")).collect()]
        (folder / "rows.json").write_text(json.dumps(rows))


def main() -> None:
    os.environ["STANIEL_DRIVER"] = str(os.getpid())
    java = {"spark__driver__extraJavaOptions": SHORT_LIVED}
    spark = pipeline.session("local[2]", spark__sql__shuffle__partitions=2, **java, **SMALL_DATA)
    words = sys.argv[1:]
    for job, address, folder, kill in zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True):
        if kill.endswith(" worker"):
            Path(os.environ["STANIEL_KILL"]).write_text(kill)
        for left in reversed(range(TRIES)):
            try:
                run(spark, job, address, Path(folder))
                break
            except PySparkException:
                if not left:
                    raise
        assert not kill.endswith(" worker") or not Path(os.environ["STANIEL_KILL"]).exists(), f"nobody came to {kill}"
    close(spark)


if __name__ == "__main__":
    main()
