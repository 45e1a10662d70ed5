"""The streams and jobs of examples/analytics_on_spark.py, on journals with known contents."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql import SparkSession

from staniel.journal.disk.os_fs import OsFs
from tests.pipeline.example_modules import load_example
from tests.pipeline.slow_workers import retried
from tests.pipeline.spools import contents, history, replayed, write
from tests.pipeline.test_cmdlog_views import write as write_log
from tests.pipeline.test_drain import fill, server_address
from tests.pipeline.test_live_source import taken
from tests.support.job_world import job_id
from tests.support.process import running
from tests.support.records import addx
from tests.support.workq_log import Script

MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return load_example("analytics_on_spark")


def rows(spark: SparkSession, out: Path) -> list[Any]:
    return spark.read.parquet(str(out)).collect()


def test_latencies_are_written_once_the_watermark_has_passed_their_minute(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    script = Script()
    for number in range(10):
        script.add(number)
    for number in range(10):
        script.world.turn(1000)
        script.lease()
        script.finish(number)
    log, out = tmp_path / "log", tmp_path / "out"
    log.mkdir()

    def take() -> None:
        write_log(script, log)
        retried(lambda: example.latencies(spark, str(log), str(out)).awaitTermination())

    take()
    assert rows(spark, out) == [], "more may come for that minute"
    script.world.turn(120 * MINUTE_MS)
    script.add(10)
    script.lease()
    script.finish(10)
    take()
    found = rows(spark, out)
    assert sum(row.jobs for row in found) == 10 and {row.queue for row in found} == {"q"}
    (most,) = [row for row in found if row.jobs == max(row.jobs for row in found)]
    p50, p95, p99 = most.p50_p95_p99
    assert 0 < p50 <= p95 <= p99 <= 11_000


def test_jobs_that_fail_too_often_are_told_once(spark: SparkSession, example: ModuleType, tmp_path: Path) -> None:
    script = Script()
    script.add(1, ttr=50)
    script.add(2)
    log, out = tmp_path / "log", tmp_path / "out"
    log.mkdir()
    with running(tmp_path / "server") as server:

        def take() -> list[bytes]:
            write_log(script, log)
            given = str(log), server_address(server), str(out)
            retried(lambda: example.poison(spark, *given).awaitTermination())
            return [item.data for item in taken(server_address(server), "poison")]

        assert {script.lease(), script.lease()} == {"1", "2"}
        script.wait(100)
        told = take()
        for _ in range(2):
            script.lease()
            script.wait(100)
        told += take()
        script.lease()
        script.wait(100)
        assert told + take() == [job_id(1).encode()]


def test_rates_count_each_key_in_the_windows_of_its_items(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    began_ms = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
    users = [("ann", 0), ("bob", 10), ("ann", 20), ("ann", 40), ("late", 600)]
    spool, out = tmp_path / "spool", tmp_path / "out"
    spool.mkdir()
    data = [addx(b'{"user": "%b"}' % user.encode(), began_ms + seconds * 1000) for user, seconds in users]
    (spool / "clicks").write_bytes(b"".join(data))
    retried(lambda: example.rates(spark, str(spool), "clicks", str(out)).awaitTermination())
    retried(lambda: example.rates(spark, str(spool), "clicks", str(out)).awaitTermination())
    found = {(row.user, int(row.window.start.timestamp() * 1000 - began_ms)): row["count"] for row in rows(spark, out)}
    assert found == {("ann", -30_000): 2, ("bob", -30_000): 1, ("ann", 0): 3, ("bob", 0): 1, ("ann", 30_000): 1}


def test_a_lake_has_each_item_once_and_one_file_a_past_day(
    spark: SparkSession, example: ModuleType, tmp_path: Path
) -> None:
    out, today = tmp_path / "lake", datetime.now(UTC)
    with running(tmp_path / "server") as server:
        address = server_address(server)

        def take(now: datetime, days: int = 30) -> Counter[bytes]:
            retried(lambda: example.lake(spark, address, "clicks", str(out), days, now))
            return Counter(bytes(row.value) for row in rows(spark, out)) if list(out.glob("day=*")) else Counter()

        first = Counter(fill(address, "clicks", 50))
        assert take(today) == first
        second = Counter(fill(address, "clicks", 20))
        assert take(today) == first + second
        assert len(list(out.glob("day=*/batch=*"))) > 1
        assert take(today + timedelta(days=3)) == first + second
        days = list(out.glob("day=*"))
        assert [len(list(day.rglob("*.parquet"))) for day in days] == [1] * len(days)
        for day in days:  # killed between the two renames
            day.rename(out / f"_old-{day.name}")
        assert take(today + timedelta(days=3)) == first + second
        assert take(today + timedelta(days=40)) == Counter()


def test_spools_that_no_server_has_open_are_packed(spark: SparkSession, example: ModuleType, tmp_path: Path) -> None:
    held = {}
    for seed, host in enumerate(("web1", "web2", "web3")):
        paths = write(tmp_path / host, "jobs", history(60 + seed, 800), 3)
        held[host] = contents(replayed(paths))
    shutil.rmtree(tmp_path / "web3")
    disk = OsFs()
    disk.make_folder(str(tmp_path / "web2" / ".staniel"))
    disk.lock(str(tmp_path / "web2" / ".staniel" / "lock"))
    lines = example.cold(spark, str(tmp_path / "web*"))
    disk.close()
    assert sorted(line.partition(": ")[0] for line in lines) == ["web1", "web2"]
    assert [line for line in lines if "web2" in line] == ["web2: in use"]
    (packed,) = [line for line in lines if line.startswith("web1: 1 queues packed")]
    assert int(packed.split()[-3]) > 0
    kept = [*sorted((tmp_path / "web1").glob("jobs.*")), tmp_path / "web1" / "jobs"]
    assert contents(replayed(kept)) == held["web1"]
