"""Drains a queue into a table, or puts a table into a queue, in a Spark of its own; a process that tests kill.

    python -m tests.pipeline.killed JOB SERVER/QUEUE FOLDER KILL [JOB SERVER/QUEUE FOLDER KILL ...]

JOB is `drain`, `sink`, `once` (the sink with keys), `replay` (with notes), or one of the first three with jobs for
items: `lease`, `add`, `addonce`. KILL is what hooks/sitecustomize.py shall do meanwhile, if it is a worker or the
server that dies, otherwise `-`. Each is started again until it ends well, so that only the death of this process, or
of its Java, ends it early. Of a drain the rows of the table go to FOLDER/rows.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from staniel import pipeline
from staniel.client import Jobs
from staniel.pipeline.sessions import close
from staniel.pipeline.tasks.refill import items_of, refill
from tests.pipeline.conftest import SHORT_LIVED, SMALL_DATA
from tests.support.process import until

ITEMS = 240
TRIES = 8
DRAINS = ("drain", "lease")


def run(spark: SparkSession, job: str, address: str, folder: Path) -> None:
    server, _, queue = address.partition("/")
    checkpoint = str(folder / "checkpoint")
    options = {"servers": server, "queue": queue}
    if job in ("lease", "add", "addonce"):
        options["protocol"] = "workq"
    if job == "replay":
        rows = items_of(spark, str(folder / "in"), True, {})
        refill(rows, "", "", [], {**options, "windowItems": "40"}, 0, str(folder / "guard"))
        return
    if job in DRAINS:
        options |= {"spoolPath": str(folder / "spool"), "maxItemsPerTrigger": "100"}
        source = spark.readStream.format("staniel").options(**options).load()
        writing = source.writeStream.format("parquet").option("path", str(folder / "table"))
    else:
        options |= {"windowItems": "40"}
        options |= {"txnAppId": "copy"} if job in ("once", "addonce") else {"guardPath": str(folder / "guard")}
        source = spark.readStream.schema("value binary").option("maxFilesPerTrigger", "1").parquet(str(folder / "in"))
        writing = source.writeStream.format("staniel").options(**options)
    writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    if job in DRAINS:
        rows = [[bytes(row.value).decode(), row.id] for row in spark.read.parquet(str(folder / "table")).collect()]
        (folder / "rows.json").write_text(json.dumps(rows))
        if job == "lease" and len({row[0] for row in rows}) < ITEMS:  # a killed drain has leased them, for a second
            assert until(lambda: ready_jobs(server, queue)), f"of {ITEMS} jobs {len(rows)} were drained"
            run(spark, job, address, folder)


def ready_jobs(server: str, queue: str) -> int:
    host, _, port = server.partition(":")
    with Jobs(host, int(port)) as jobs:
        return int(jobs.stats(queue)["ready-len"])


def main() -> None:
    os.environ["STANIEL_DRIVER"] = str(os.getpid())
    java = {"spark__driver__extraJavaOptions": SHORT_LIVED}
    spark = pipeline.session("local[2]", spark__sql__shuffle__partitions=2, **java, **SMALL_DATA)
    words = sys.argv[1:]
    for job, address, folder, kill in zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True):
        if kill != "-":
            Path(os.environ["STANIEL_KILL"]).write_text(kill)
        for left in reversed(range(TRIES)):
            try:
                run(spark, job, address, Path(folder))
                break
            except (PySparkException, Py4JError):
                if not left:
                    raise
        assert kill == "-" or not Path(os.environ["STANIEL_KILL"]).exists(), f"nobody came to {kill}"
    close(spark)


if __name__ == "__main__":
    main()
