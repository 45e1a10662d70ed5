"""`staniel-journal` in a real Spark: batch and streaming, found without registration."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from staniel import pipeline
from staniel.queues.config import JournalDialect
from tests.pipeline.slow_workers import retried
from tests.pipeline.spools import contents, history, replayed, write
from tests.support.records import NOW_MS, addx


def read(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return (
        spark.read.format("staniel-journal")
        .options(**{key: str(value) for key, value in options.items()})
        .load(str(path))
    )


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    write(folder, "jobs", history(1, 2000), 3)
    write(folder, "mail", history(2, 1000, JournalDialect.KESTREL_24), 1)
    return folder


def test_the_state_of_a_fleet_is_what_replay_finds(spark: SparkSession, spool: Path) -> None:
    found = read(spark, spool, view="state").collect()
    for queue, files in {"jobs": 3, "mail": 1}.items():
        paths = [*sorted(spool.glob(f"{queue}.*")), spool / queue]
        assert len(paths) == files
        told = [(r.state, bytes(r.value), r.flags, r.deliveries, r.xid, r.id) for r in found if r.queue == queue]
        assert told == contents(replayed(paths))


def test_records_can_be_counted_filtered_and_split(spark: SparkSession, spool: Path) -> None:
    ops = read(spark, spool, minPartitions=6)
    assert ops.rdd.getNumPartitions() >= 5
    counts = {row.op: row["count"] for row in ops.filter("queue = 'jobs'").groupBy("op").count().collect()}
    whole = read(spark, spool, queue="jobs").collect()
    assert sum(counts.values()) == len(whole) and counts["add"] == sum(row.op == "add" for row in whole)
    adds = read(spark, spool, includeValue="false").filter((F.col("op") == "add") & (F.col("queue") == "jobs"))
    assert adds.count() == counts["add"] and adds.filter("value is not null").count() == 0


def test_a_schema_may_name_fewer_columns_and_nothing_else(spark: SparkSession, spool: Path) -> None:
    source = spark.read.format("staniel-journal")
    assert source.schema("size bigint, queue string").load(str(spool)).columns == ["size", "queue"]
    with pytest.raises(PySparkException, match="there is no column payload; there are queue, file"):
        spark.read.format("staniel-journal").schema("payload binary").load(str(spool)).count()
    with pytest.raises(PySparkException, match="column size is int64, not string"):
        spark.read.format("staniel-journal").schema("size string").load(str(spool)).count()


def test_times_and_names_are_as_in_sql(spark: SparkSession, spool: Path) -> None:
    items = read(spark, spool, view="items", queue="mail")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        middle = "date_format(percentile_approx(addTime, 0.5), 'yyyy-MM-dd HH:mm:ss.SSS')"
        (text,) = items.selectExpr(middle).collect()[0]
        since = pipeline.read(spark, str(spool), queue="mail", op="add", startingTimestamp=text)
        expected = items.filter(f"addTime >= '{text}'").count()
        assert 0 < since.count() == expected < items.count()
        assert since.schema["addTime"].dataType.simpleString() == "timestamp"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.unset("spark.sql.timestampType")
    chosen = spark.read.format("staniel-journal").schema("SIZE bigint, Queue string").load(str(spool))
    assert chosen.columns == ["SIZE", "Queue"] and chosen.filter("size is not null").count() > 0


def test_a_thread_of_one_s_own_can_write_once_the_session_is_its_own(spark: SparkSession) -> None:
    said = []

    def put(is_active: bool) -> None:
        if is_active:
            pipeline.activate(spark)
        try:
            spark.range(1).write.format("staniel").mode("append").option("queue", "jobs").save()
        except Exception as error:  # without a session PySpark cannot make one of its own of Java's
            said.append(str(error))

    for is_active in (False, True):
        thread = Thread(target=put, args=(is_active,))
        thread.start()
        thread.join()
    assert "DATA_SOURCE_NOT_FOUND" in said[0] and "the sink needs a column value" in said[1]


def test_a_wrong_option_names_the_right_one(spark: SparkSession, spool: Path) -> None:
    with pytest.raises(PySparkException, match="has no option onkorrupt; did you mean onCorrupt"):
        read(spark, spool, onKorrupt="fail").count()


class Stream:
    """A query over a spool into Parquet, run to the end of what is there whenever that is asked for."""

    def __init__(self, spark: SparkSession, folder: Path, **options: object) -> None:
        self.spark = spark
        self.spool = folder / "spool"
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.options = {key: str(value) for key, value in options.items()}

    def run(self) -> int:
        """How many batches it took."""
        return retried(self._run)

    def _run(self) -> int:
        source = self.spark.readStream.format("staniel-journal").options(**self.options).load(str(self.spool))
        query = (
            source.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .option("path", str(self.out))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    def values(self) -> list[bytes]:
        found = self.spark.read.parquet(str(self.out)).filter("op = 'add'").select("value", "offset").collect()
        return sorted(bytes(row.value) for row in found)


def items(first: int, count: int) -> tuple[bytes, list[bytes]]:
    values = [b"item %06d" % number for number in range(first, first + count)]
    return b"".join(addx(value) for value in values), values


def test_a_stream_follows_growth_and_rotation_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, maxBytesPerTrigger="4k")
    stream.spool.mkdir()
    current = stream.spool / "jobs"
    data, first = items(0, 200)
    current.write_bytes(data + addx(b"torn")[:-3])
    assert stream.run() >= 2
    assert stream.values() == first
    data, second = items(200, 100)
    current.write_bytes(current.read_bytes()[: -len(addx(b"torn")) + 3] + data)
    current.rename(stream.spool / f"jobs.{NOW_MS}")
    data, third = items(300, 100)
    current.write_bytes(data)
    stream.run()
    assert stream.values() == first + second + third
    assert stream.run() == 0


def test_a_journal_that_was_rewritten_under_a_stream_is_reported_or_read_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.spool.mkdir()
    data, first = items(0, 50)
    (stream.spool / "jobs").write_bytes(data)
    stream.run()
    data, second = items(900, 50)
    (stream.spool / "jobs").write_bytes(data)
    with pytest.raises(PySparkException, match=r"jobs: byte \d+ of jobs is gone: the journal was packed, rewritten"):
        stream.run()
    stream.options["failOnDataLoss"] = "false"
    stream.run()
    assert stream.values() == first + second
