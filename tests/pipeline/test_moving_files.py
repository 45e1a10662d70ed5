"""Files that grow, rotate, shrink or vanish between the planning of a query and its tasks: followed or told, never a
wrong row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from staniel.journal.libkestrel.records import SEGMENT_MAGIC, encode_put
from staniel.queues.item import Item
from tests.support.records import NOW_MS, addx

OLD = [b"old %d" % number for number in range(40)]
NEW = [b"new %d, and longer than what was there before" % number for number in range(60)]
SEALED = [b"sealed %d" % number for number in range(10)]


def data(values: list[bytes]) -> bytes:
    return b"".join(map(addx, values))


def grow(spool: Path) -> None:
    with (spool / "jobs").open("ab") as file:
        file.write(data(NEW))


def rotate(spool: Path) -> None:
    (spool / "jobs").rename(spool / f"jobs.{NOW_MS + 9}")
    (spool / "jobs").write_bytes(data(NEW))


def rewrite(spool: Path) -> None:
    (spool / "jobs").write_bytes(data(NEW))


def shrink(spool: Path) -> None:
    (spool / "jobs").write_bytes(data(OLD[:3]))


def vanish(spool: Path) -> None:
    (spool / "jobs").unlink()


def pack(spool: Path) -> None:
    """Another file gets the name of a sealed one, and is longer."""
    packed = spool / f"jobs.{NOW_MS}.pack"
    packed.write_bytes(data(SEALED[5:] + NEW))
    packed.rename(spool / f"jobs.{NOW_MS}")


def planned(spark: SparkSession, spool: Path, **options: str) -> DataFrame:
    """A query whose files have been chosen already."""
    rows = spark.read.format("staniel-journal").options(**options).load(str(spool))
    rows._jdf.queryExecution().toRdd().getNumPartitions()
    return rows


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / f"jobs.{NOW_MS}").write_bytes(data(SEALED))
    (tmp_path / "jobs").write_bytes(data(OLD))
    return tmp_path


@pytest.mark.parametrize("happens", [grow, rotate])
def test_a_file_that_grows_or_rotates_is_read_as_it_was_planned(
    spark: SparkSession, spool: Path, happens: Callable[[Path], None]
) -> None:
    rows = planned(spark, spool)
    happens(spool)
    assert sorted(bytes(row.value) for row in rows.collect()) == sorted(SEALED + OLD)


@pytest.mark.parametrize("happens", [rewrite, shrink, vanish, pack])
def test_a_file_whose_bytes_are_gone_fails_the_query_in_one_line(
    spark: SparkSession, spool: Path, happens: Callable[[Path], None]
) -> None:
    rows = planned(spark, spool, view="state")
    happens(spool)
    with pytest.raises(PySparkException, match="rotated, packed, rewritten or removed meanwhile"):
        rows.collect()


def test_a_spool_without_journals_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / ".staniel").mkdir()
    assert spark.read.format("staniel-journal").load(str(tmp_path)).collect() == []


def test_a_spool_of_two_formats_is_read_format_by_format(spark: SparkSession, spool: Path) -> None:
    segment = SEGMENT_MAGIC + b"".join(encode_put(Item(b"%d" % n, NOW_MS), n) for n in range(1, 6))
    (spool / "news.100").write_bytes(segment)
    with pytest.raises(PySparkException, match="holds queues of two formats, jobs of kestrel's"):
        spark.read.format("staniel-journal").load(str(spool))
    for form, count in (("kestrel", len(SEALED + OLD)), ("libkestrel", 5)):
        assert len(spark.read.format("staniel-journal").option("format", form).load(str(spool)).collect()) == count
