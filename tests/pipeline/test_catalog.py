"""Tables of a catalog, and every other way in which Spark hands options, columns and paths to the sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.pipeline.spools import history, write
from tests.support.records import NOW_MS, addx


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    write(tmp_path / "spool", "jobs", history(5, 200), 2)
    write(tmp_path / "spool", "mail", history(6, 60), 1)
    return tmp_path / "spool"


@pytest.fixture
def no_table(spark: SparkSession) -> Iterator[None]:
    yield
    spark.sql("DROP TABLE IF EXISTS journal")


MADE = [
    "OPTIONS (path '{path}', view 'state', queue 'jobs')",
    "OPTIONS (view 'state', queue 'jobs') LOCATION '{path}'",
    "LOCATION '{path}' TBLPROPERTIES ('view' = 'state', 'queue' = 'jobs')",
    "OPTIONS (path '{path}', view 'state', queue 'jobs') COMMENT 'what jobs holds'",
]


@pytest.mark.parametrize("how", MADE)
def test_a_table_of_a_catalog_keeps_its_options_and_is_planned_for_each_query(
    spark: SparkSession, spool: Path, no_table: None, how: str
) -> None:
    right = spark.read.format("staniel-journal").options(view="state", queue="jobs").load(str(spool))
    spark.sql(f"CREATE TABLE journal USING `staniel-journal` {how.format(path=spool)}")
    count = "SELECT count(*) FROM journal"
    assert spark.table("journal").collect() == right.collect() and spark.table("journal").columns == right.columns
    (before,) = spark.sql(count).first() or ()
    assert spark.sql(f"{count} a JOIN journal b ON a.file = b.file AND a.offset = b.offset").first() == (before,)
    with (spool / "jobs").open("ab") as file:
        file.write(addx(b"new", NOW_MS + 10_000))
    assert spark.sql(count).first() == (before + 1,), "another query plans anew"
    (spool / "jobs").unlink()
    assert spark.sql(count).first() != (before + 1,), "also where a file is gone"
    spark.sql("DROP TABLE journal")
    assert list(spool.iterdir()), "a table's files are the server's"


def test_a_query_may_name_other_options_than_the_table_of_a_catalog_keeps(
    spark: SparkSession, spool: Path, no_table: None
) -> None:
    spark.catalog.createTable("journal", path=str(spool), source="staniel-journal", queue="jobs")
    assert {row.queue for row in spark.table("journal").select("queue").distinct().collect()} == {"jobs"}
    mail = spark.sql("SELECT DISTINCT queue, file FROM journal WITH (queue = 'mail', op = 'add')").collect()
    assert mail == [("mail", "mail")]
    assert spark.read.option("QUEUE", "mail").table("journal").select("queue").distinct().collect() == [("mail",)]
    with pytest.raises(PySparkException, match="no option qeue; did you mean queue"):
        spark.read.option("qeue", "mail").table("journal").collect()
    schema = spark.table("journal").schema
    everything = spark.read.format("staniel-journal").schema(schema).load(str(spool))
    assert everything.select("queue").distinct().count() == 2, "a folder that is named has none of the table's options"


def test_a_table_with_columns_of_its_own_keeps_no_options_and_says_so(
    spark: SparkSession, spool: Path, no_table: None
) -> None:
    spark.sql(f"CREATE TABLE journal (queue string, op string) USING `staniel-journal` OPTIONS (path '{spool}')")
    with pytest.raises(PySparkException, match=r"make it with OPTIONS .path '\.\.\.'. and without columns"):
        spark.table("journal").collect()
    assert spark.sql(f"SELECT * FROM journal WITH (path = '{spool}')").count() > 200


def test_a_live_queue_is_no_table_of_a_catalog(spark: SparkSession, no_table: None) -> None:
    with pytest.raises(PySparkException, match="a live queue is no table of a catalog"):
        spark.sql("CREATE TABLE journal USING staniel OPTIONS (servers 'a:1', queue 'jobs')")
    spark.sql("CREATE TABLE journal (queue string, value string) USING staniel OPTIONS (servers 'a:1')")
    with pytest.raises(PySparkException, match="of a table in a catalog Spark gives a writer no options"):
        spark.sql("INSERT INTO journal VALUES ('jobs', 'item')")
    row = spark.createDataFrame([("jobs", "item")], "queue string, value string")
    with pytest.raises(PySparkException, match="the sink needs the option servers"):
        row.write.format("staniel").mode("append").save()
