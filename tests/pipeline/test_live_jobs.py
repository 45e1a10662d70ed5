"""`staniel` with protocol=workq in a real Spark: draining jobs into a table, adding those of one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from staniel.client import Jobs
from tests.pipeline.job_servers import add_jobs, address_of, job_server, leased, payloads
from tests.pipeline.slow_workers import retried
from tests.pipeline.test_job_sink import GIVEN, VALUES


def test_a_query_drains_jobs_and_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:

        def run() -> list[int]:
            options = {"protocol": "workq", "servers": address_of(server), "queue": "mail"}
            source = spark.readStream.format("staniel").options(**options, spoolPath=str(tmp_path / "spool"))
            writing = source.load().writeStream.format("parquet").trigger(availableNow=True)
            writing = writing.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "ck"))
            query = writing.start()
            query.awaitTermination()
            return [progress.numInputRows for progress in query.recentProgress]

        first = add_jobs(server, "mail", payloads(300))
        assert sum(retried(run)) == 300
        second = add_jobs(server, "mail", payloads(30))
        assert sum(retried(run)) == 30
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted(bytes(row.value) for row in rows) == sorted(first + second)
        assert {(row.queue, row.ttrMs, row.server) for row in rows} == {("mail", 60_000, address_of(server))}
        assert len({row.id for row in rows}) == 330 and all(row.leaseTime is not None for row in rows)
        with Jobs(*server.workq_address) as jobs:
            result = jobs.result(rows[0].id)
            assert result is not None and result.is_success


def test_a_stream_that_spark_repeats_adds_each_job_once(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies between the last task and the note of the batch; the notes of the sink are lost, too."""
    with job_server(tmp_path / "server") as server:
        table = spark.createDataFrame([[value] for value in VALUES], "value string")
        table.coalesce(1).write.parquet(str(tmp_path / "in"))
        options = {**GIVEN, "servers": address_of(server), "txnAppId": "copy", "windowItems": "10"}

        def run() -> None:
            source = spark.readStream.schema("value string").parquet(str(tmp_path / "in"))
            sink = source.writeStream.format("staniel").options(**options).trigger(availableNow=True)
            sink.option("checkpointLocation", str(tmp_path / "ck")).start().awaitTermination()

        retried(run)
        for lost in (("commits",), ("commits", "staniel-sink")):
            for path in [path for place in lost for path in (tmp_path / "ck" / place).iterdir()]:
                path.unlink()
            retried(run)
        assert leased(address_of(server), "mail") == Counter(value.encode() for value in VALUES)


def test_the_jobs_of_a_command_log_are_added_to_another_server(spark: SparkSession, tmp_path: Path) -> None:
    with job_server(tmp_path / "a") as first, job_server(tmp_path / "b") as second:
        values = add_jobs(first, "mail", payloads(30))
        assert sum(leased(address_of(first), "mail").values()) == 30
        values += add_jobs(first, "sms", [b"one", b"two"])
        log = str(first.spool / ".staniel" / "cmdlog")
        waiting = spark.read.format("staniel-journal").option("view", "jobs").load(log).where("state = 'queued'")
        for _ in range(2):  # their ids are those that they had
            sink = waiting.write.format("staniel").mode("append").options(protocol="workq", servers=address_of(second))
            retried(sink.save)
        assert leased(address_of(second), "sms") == Counter(values[30:])
        with Jobs(*second.workq_address) as jobs:
            assert jobs.names() == ["sms"]
