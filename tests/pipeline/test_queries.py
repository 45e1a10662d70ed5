"""Whatever queries are asked of one table, each gets its own rows, though Spark keeps the reader and the partitions of
a DataFrame's last plan for all of its queries. The right rows are what this file's own decoder finds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from staniel.journal.libkestrel.records import SEGMENT_MAGIC, encode_put
from staniel.queues.item import Item
from tests.pipeline.slow_workers import retried
from tests.pipeline.spools import history, write
from tests.pipeline.test_drain import fill, server_address
from tests.support.process import running
from tests.support.records import NOW_MS
from tests.support.workq_log import Script
from tests.support.workq_log import files as log_files

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
OPS = {1: "remove", 2: "add", 3: "reserve", 4: "save_xid", 5: "abort", 6: "confirm", 9: "reserve"}
Row = tuple[str, str]  # queue and op
Counts = list[int]


class Table(Struct):
    """A spool, and what is in it. `first`, `second`: values of `column` that some rows have and some do not."""

    path: Path
    rows: list[Row]
    column: str
    first: str
    second: str

    def count(self, value: str | None = None) -> int:
        at = ("queue", "op").index(self.column)
        return sum(value in (None, row[at]) for row in self.rows)


def decoded(data: bytes) -> Iterator[str]:
    """The ops of a Kestrel file, by the lengths of its records alone."""
    at = 0
    while at < len(data):
        yield OPS[data[at]]
        at += 5 + struct.unpack_from("<i", data, at + 1)[0] if data[at] == 2 else 1 if data[at] in (1, 3) else 5


def kestrel(spool: Path) -> Table:
    rows = []
    for number, queue in enumerate(("jobs", "mail", "news")):
        for path in write(spool, queue, history(number, 90 + 30 * number), 2):
            rows += [(queue, op) for op in decoded(path.read_bytes())]
    return Table(spool, rows, "queue", "jobs", "mail")


def kestrel_by_op(spool: Path) -> Table:
    made = kestrel(spool)
    made.column, made.first, made.second = "op", "add", "confirm"
    return made


def libkestrel(spool: Path) -> Table:
    spool.mkdir()
    counts = {"jobs": 20, "mail": 7, "news": 2}
    for queue, count in counts.items():
        records = [encode_put(Item(b"item", NOW_MS), number, 0) for number in range(1, count + 1)]
        (spool / f"{queue}.{NOW_MS}").write_bytes(SEGMENT_MAGIC + b"".join(records))
    return Table(spool, [(queue, "put") for queue in counts for _ in range(counts[queue])], "queue", "jobs", "mail")


def workq(spool: Path) -> Table:
    spool.mkdir()
    script = Script()
    for number in range(12):
        script.add(number)
    for _ in range(5):
        script.lease()
    for number, data in enumerate(log_files(script.world.disk), start=1):
        (spool / f"{number:09}.log").write_bytes(data)
    return Table(spool, [("", "add")] * 12 + [("", "start-attempt")] * 5, "op", "add", "start-attempt")


def load(spark: SparkSession, table: Table, **options: str) -> DataFrame:
    return spark.read.format("staniel-journal").options(**options).load(str(table.path))


class Asked:
    """One DataFrame and one view, and all kinds of queries over them; each gives what it counts and what is right."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self.spark, self.table = spark, table
        self.rows = load(spark, table)
        self.rows.createOrReplaceTempView("asked")
        self.first, self.second = (f"{table.column} = '{value}'" for value in (table.first, table.second))
        self.right = [table.count(), table.count(table.first), table.count(table.second)]

    def filter_then_none(self) -> tuple[Counts, Counts]:
        return [self.rows.filter(self.first).count(), self.rows.count()], [self.right[1], self.right[0]]

    def none_then_filter(self) -> tuple[Counts, Counts]:
        return [self.rows.count(), self.rows.filter(self.first).count()], self.right[:2]

    def union(self) -> tuple[Counts, Counts]:
        return [self.rows.filter(self.first).union(self.rows.filter(self.second)).count()], [sum(self.right[1:])]

    def join(self) -> tuple[Counts, Counts]:
        both = self.rows.filter(self.first).select("file").crossJoin(self.rows.filter(self.second).select("offset"))
        return [both.count()], [self.right[1] * self.right[2]]

    def subqueries(self) -> tuple[Counts, Counts]:
        wheres = ["true", self.first, self.second]
        counts = ", ".join(f"(select count(*) from asked where {where})" for where in wheres)
        return list(self.spark.sql(f"select {counts}").collect()[0]), self.right

    def cache(self) -> tuple[Counts, Counts]:
        kept = self.rows.filter(self.second).cache()
        found = [kept.count(), self.rows.count(), kept.filter(self.first).count()]
        kept.unpersist()
        return found, [self.right[2], self.right[0], 0]

    def everything(self) -> list[Callable[[], tuple[Counts, Counts]]]:
        return [self.filter_then_none, self.none_then_filter, self.union, self.join, self.subqueries, self.cache]


@pytest.fixture(params=["true", "false"])
def pushdown(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, before or "false")


@pytest.mark.parametrize("make", [kestrel, kestrel_by_op, libkestrel, workq])
def test_each_query_over_one_table_has_its_own_filters(
    spark: SparkSession, pushdown: str, make: Callable[[Path], Table], tmp_path: Path
) -> None:
    asked = Asked(spark, make(tmp_path / "spool"))
    backwards = reversed(asked.everything()) if pushdown == "true" else ()  # otherwise Spark pushes nothing
    for query in [*asked.everything(), *backwards]:
        found, right = query()
        assert found == right, query.__name__


def test_each_query_over_a_batch_of_a_stream_has_its_own_filters(
    spark: SparkSession, pushdown: str, tmp_path: Path
) -> None:
    table = kestrel(tmp_path / "spool")
    with running(tmp_path / "server") as server:
        for queue, count in {"one": 7, "two": 4}.items():
            fill(server_address(server), queue, count)
        live = {"servers": server_address(server), "queues": "one,two", "spoolPath": str(tmp_path / "drained")}
        for name, source, values, right in (
            ("journals", spark.readStream.format("staniel-journal").option("path", str(table.path)), ("jobs", "mail"),
             [table.count(), table.count("jobs"), table.count("mail")]),
            ("live", spark.readStream.format("staniel").options(**live), ("one", "two"), [11, 7, 4]),
        ):  # fmt: skip
            found: list[Counts] = []

            def ask(rows: DataFrame, _: int, values: tuple[str, str] = values, found: list[Counts] = found) -> None:
                first, second = (rows.filter(f"queue = '{value}'") for value in values)
                found += [[rows.count(), first.count(), second.count()], [first.union(second).count(), rows.count()]]

            def run(source: object = source, name: str = name, ask: object = ask) -> None:
                writing = source.load().writeStream.foreachBatch(ask).trigger(availableNow=True)  # type: ignore[attr-defined]
                writing.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()

            retried(run)
            assert found == [right, [right[1] + right[2], right[0]]], name


def test_the_options_queue_and_op_give_the_rows_of_the_filters(spark: SparkSession, tmp_path: Path) -> None:
    table = kestrel(tmp_path / "spool")
    mail = [row for row in table.rows if row[0] == "mail"]
    assert load(spark, table, queue="mail").count() == len(mail)
    adds = load(spark, table, queue="mail", op="add,confirm")
    assert adds.count() == sum(op in ("add", "confirm") for _, op in mail) and adds.filter("op = 'remove'").count() == 0
