"""`staniel` in a real Spark: draining into a table, filling queues from one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from staniel.pipeline.lake.folders import LocalFolder
from staniel.pipeline.sources.connection import BlockingConnection
from staniel.pipeline.sources.item_rows import ItemRow, all_rows, check_columns
from staniel.pipeline.sources.live_options import BatchSinkOptions, DrainOptions, SinkOptions
from staniel.pipeline.sources.repeat_guard import RepeatGuard, TaskReplaced, digest_of, forget_before
from staniel.pipeline.sources.sink import QueueFull, WindowWriter, put_all
from staniel.protocol.client.replies import Item
from staniel.protocol.client.requests import read
from tests.pipeline.slow_workers import retried
from tests.pipeline.test_drain import fill, server_address
from tests.support.process import running


def taken(server: str, queue: str) -> list[Item]:
    connection = BlockingConnection(server)
    found = []
    while isinstance(reply := connection.ask(read(queue))[0], Item):
        found.append(reply)
    connection.close()
    return found


def test_a_drain_ends_with_what_was_there_and_goes_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:

        def run() -> list[int]:
            options = {"servers": server_address(server), "queue": "jobs", "spoolPath": str(tmp_path / "spool")}
            source = spark.readStream.format("staniel").options(**options, maxItemsPerTrigger="250")
            writing = source.load().writeStream.format("parquet").trigger(availableNow=True)
            writing = writing.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "ck"))
            query = writing.start()
            query.awaitTermination()
            return [progress.numInputRows for progress in query.recentProgress]

        first = fill(server_address(server), "jobs", 600)
        rows = retried(run)
        assert max(rows) <= 250 and sum(rows) == 600
        second = fill(server_address(server), "jobs", 30)
        assert sum(retried(run)) == 30
        assert taken(server_address(server), "jobs") == []
        found = spark.read.parquet(str(tmp_path / "out")).collect()
        assert sorted(bytes(row.value) for row in found) == sorted(first + second)
        assert len({row.id for row in found}) == 630 and {row.server for row in found} == {server_address(server)}
        assert all(row.addTime is not None and row.queue == "jobs" for row in found)


def test_a_table_is_put_to_the_queues_that_its_column_names(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        servers = [server_address(first), server_address(second)]
        table = spark.range(400).selectExpr("concat('q', id % 4) as queue", "cast(id as string) as value")
        table.write.format("staniel").mode("append").option("servers", ",".join(servers)).save()
        found = {queue: [len(taken(server, queue)) for server in servers] for queue in ("q0", "q1", "q2", "q3")}
        assert all(sorted(counts) == [0, 100] for counts in found.values())


def test_a_stream_that_spark_repeats_is_put_once(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        rows = [[bytes([letter])] for letter in b"abcdefghij"]
        spark.createDataFrame(rows, "value binary").coalesce(1).write.parquet(str(tmp_path / "in"))
        options = {"servers": server_address(server), "queue": "jobs", "guardPath": str(tmp_path / "guard")}

        def run() -> None:
            source = spark.readStream.schema("value binary").parquet(str(tmp_path / "in"))
            writing = source.writeStream.format("staniel").options(**options).trigger(availableNow=True)
            writing.option("checkpointLocation", str(tmp_path / "ck")).start().awaitTermination()

        retried(run)
        for commit in (tmp_path / "ck" / "commits").iterdir():
            commit.unlink()  # as if the driver had died between the last task and its note
        retried(run)
        assert sorted(item.data for item in taken(server_address(server), "jobs")) == [row[0] for row in rows]


def test_the_same_rows_to_other_servers_or_by_another_query_are_put_there_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        rows = [[bytes([letter])] for letter in b"abcdefghij"]
        spark.createDataFrame(rows, "value binary").coalesce(1).write.parquet(str(tmp_path / "in"))

        def run(server: str, checkpoint: str) -> None:
            options = {"servers": server, "queue": "jobs", "guardPath": str(tmp_path / "guard")}
            source = spark.readStream.schema("value binary").parquet(str(tmp_path / "in"))
            writing = source.writeStream.format("staniel").options(**options).trigger(availableNow=True)
            writing.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

        here, there = server_address(first), server_address(second)
        retried(lambda: run(here, "ck1"))
        retried(lambda: run(here, "ck2"))
        assert sorted(item.data for item in taken(here, "jobs")) == sorted([row[0] for row in rows] * 2)
        for commit in (tmp_path / "ck2" / "commits").iterdir():
            commit.unlink()  # the same batch of the same query once more, and elsewhere
        retried(lambda: run(there, "ck2"))
        assert sorted(item.data for item in taken(there, "jobs")) == [row[0] for row in rows]


def test_a_guard_tells_rows_apart_that_differ_only_in_where_they_are_cut() -> None:
    assert digest_of(ItemRow("jobs", b"a", 0, 0), "") != digest_of(ItemRow("job", b"sa", 0, 0), "")
    assert digest_of(ItemRow("jobs", b"a", 0, 1), "") != digest_of(ItemRow("jobs", b"a", 0, 0), "")


def test_a_guard_is_forgotten_by_the_batches_behind_it_and_by_no_other_query(tmp_path: Path) -> None:
    place = str(tmp_path)
    for name in ("k1.000000000001.000000.json", "k1.000000000002.000000.json", "k2.000000000001.000000.json"):
        RepeatGuard(place, name).note_stored([ItemRow("jobs", b"a", 0, 0)])
    (tmp_path / "k1.000000000001.000000.json.77.88.new").write_bytes(b'{"rows": 4')
    forget_before(place, {"k1"}, 2)
    assert [name[:15] for name, _ in LocalFolder(place).list()] == ["k1.000000000002", "k2.000000000001"]


def test_a_task_that_fails_half_way_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "server", config="[queues.jobs]\nmax_items = 50\n") as server:
        address, values = server_address(server), [b"%03d" % number for number in range(100)]
        spark.createDataFrame([[each] for each in values], "value binary").coalesce(1).write.parquet(
            str(tmp_path / "in")
        )
        options = {"servers": address, "queue": "jobs", "guardPath": str(tmp_path / "guard"), "onFull": "fail"}

        def run() -> None:
            source = spark.readStream.schema("value binary").parquet(str(tmp_path / "in"))
            writing = source.writeStream.format("staniel").options(**options, windowItems="10")
            writing = writing.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "ck"))
            writing.start().awaitTermination()

        with pytest.raises(PySparkException, match="queue jobs is full; 50 items were put before"):
            retried(run)
        first = taken(address, "jobs")
        retried(run)
        assert [item.data for item in [*first, *taken(address, "jobs")]] == values


def test_a_batch_write_that_is_repeated_under_its_number_is_put_once(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        table = spark.createDataFrame([[bytes([letter])] for letter in b"abcdefghij"], "value binary").coalesce(1)
        options = {"servers": server_address(server), "queue": "jobs", "guardPath": str(tmp_path / "guard")}

        def put(batch: int, name: str = "copy") -> None:
            writing = table.write.format("staniel").mode("append").options(**options, appId=name)
            retried(lambda: writing.option("batchId", batch).save())

        put(1)
        put(1)
        assert len(taken(server_address(server), "jobs")) == 10
        put(2)
        put(2)
        put(2, "another")
        assert len(taken(server_address(server), "jobs")) == 20
        with pytest.raises(PySparkException, match="batch 1 of appId copy comes after batch 2"):
            put(1)
        for some in ({"guardPath": "g"}, {"guardPath": "g", "appId": "a"}, {"batchId": "1"}):
            with pytest.raises(ValueError, match="guardPath"):
                BatchSinkOptions(some)


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"queues": "a"}, BatchSinkOptions, "option queues of staniel is for reading"),
        ({"maxItemsPerTrigger": "5"}, SinkOptions, "option maxItemsPerTrigger of staniel is for reading"),
        ({"batchId": "5"}, SinkOptions, "option batchId of staniel is for batch writes"),
        ({"onFull": "drop"}, DrainOptions, "option onFull of staniel is for writing"),
        ({"path": "a"}, DrainOptions, "option path of staniel is for other sources"),
        ({"appId": "a"}, SinkOptions, "appId names what a guard knows: give guardPath"),
        ({"fs.s3a.secret": "a"}, DrainOptions, "no option fs.s3a.secret"),
    ],
)
def test_an_option_that_is_not_looked_at_is_refused(
    options: dict[str, str], kind: Callable[[dict[str, str]], object], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        kind({"queue": "jobs", "spoolPath": "s", **options} if kind is DrainOptions else options)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("flags double", "column flags is double; the sink needs integer or"),
        ("flags string", "column flags is string"),
        ("expireTime timestamp_ntz", "column expireTime is timestamp_ntz, .* as timestamp_ltz"),
        ("expireTime bigint", "column expireTime is bigint; the sink needs timestamp"),
    ],
)
def test_a_column_of_another_type_is_refused(kind: str, match: str) -> None:
    options = SinkOptions({"queue": "jobs"})
    check_columns(StructType.fromDDL("value string, flags smallint, expireTime timestamp"), options)
    with pytest.raises(ValueError, match=match):
        check_columns(StructType.fromDDL(f"value string, {kind}"), options)


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"flags": [0, -1]}, "column flags is -1 in row 101 of a task"),
        ({"flags": [2**32, 0]}, "column flags is 4294967296 in row 100"),
        ({"expireTime": [None, -1]}, "column expireTime is -1 microseconds from 1970 on in row 101"),
        ({"expireTime": [0, None]}, "column expireTime is 0 micro"),
        ({"value": ["a", None]}, "column value is null in row 101"),
    ],
)
def test_a_row_that_is_no_item_is_named_by_column_and_number(columns: dict[str, list[object]], match: str) -> None:
    found = {"value": pa.array(columns.get("value", ["a", "b"]))}
    if "flags" in columns:
        found["flags"] = pa.array(columns["flags"], pa.int64())
    if "expireTime" in columns:
        found["expireTime"] = pa.array(columns["expireTime"], pa.timestamp("us", "UTC"))
    first = pa.RecordBatch.from_pydict({"value": ["x"] * 100})
    with pytest.raises(ValueError, match=match):
        list(all_rows(iter([first, pa.RecordBatch.from_pydict(found)]), SinkOptions({"queue": "jobs"})))


def test_what_is_no_item_is_told_before_anything_is_put(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.range(3)
    with pytest.raises(PySparkException, match="the sink needs a column value"):
        table.write.format("staniel").mode("append").option("queue", "jobs").save()
    with pytest.raises(PySparkException, match="only be streamed, because reading takes items out"):
        spark.read.format("staniel").options(queue="jobs", spoolPath=str(tmp_path)).load().count()


def sink(server: str, **options: str) -> SinkOptions:
    return SinkOptions({"servers": server, "queue": "jobs", **options})


def batches(values: list[str]) -> Iterator[pa.RecordBatch]:
    return iter([pa.RecordBatch.from_pydict({"value": values})])


def test_a_full_queue_is_waited_for_failed_or_dropped_as_asked(tmp_path: Path) -> None:
    with running(tmp_path / "server", config="[queues.jobs]\nmax_items = 5\n") as server:
        values = [str(number) for number in range(8)]
        address = server_address(server)
        assert put_all(batches(values), sink(address, onFull="drop"), None).dropped == 3
        with pytest.raises(QueueFull, match="queue jobs is full"):
            put_all(batches(values), sink(address, onFull="fail"), None)
        with pytest.raises(QueueFull):
            put_all(batches(values), sink(address, onFull="wait", fullTimeoutMs="50"), None)
        assert [item.data for item in taken(address, "jobs")] == [b"0", b"1", b"2", b"3", b"4"]


def test_the_guard_skips_what_was_stored_and_nothing_that_differs(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        options = sink(server_address(server), windowItems="2")
        values = ["a", "b", "c", "d"]
        broken = RepeatGuard(str(tmp_path / "guard"), "app.1.0.json")
        broken.note_stored([ItemRow("jobs", b"a", 0, 0), ItemRow("jobs", b"b", 0, 0)])
        again = put_all(batches(values), options, RepeatGuard(str(tmp_path / "guard"), "app.1.0.json"))
        assert (again.skipped, again.stored) == (2, 2)
        other = put_all(batches(["x", "b", "c", "d"]), options, RepeatGuard(str(tmp_path / "guard"), "app.1.0.json"))
        assert (other.skipped, other.stored) == (0, 4)
        assert [name for name, _ in LocalFolder(str(tmp_path / "guard")).list()] == ["app.1.0.json"]


def test_of_two_tries_of_a_task_at_a_time_the_earlier_one_puts_nothing_more(tmp_path: Path) -> None:
    values = [str(number) for number in range(20)]
    with running(tmp_path / "server") as server:
        address = server_address(server)
        options = sink(address, windowItems="4")
        guards = [RepeatGuard(str(tmp_path / "guard"), "k.1.0.json") for _ in range(2)]

        def rows() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"value": values[:8]})
            assert put_all(batches(values), options, guards[1]).skipped == 8
            yield pa.RecordBatch.from_pydict({"value": values[8:]})

        with pytest.raises(TaskReplaced):
            put_all(rows(), options, guards[0])
        assert [item.data.decode() for item in taken(address, "jobs")] == values


def test_an_earlier_try_that_outlives_its_batch_puts_nothing_more(tmp_path: Path) -> None:
    values = [str(number) for number in range(20)]
    with running(tmp_path / "server") as server:
        address, place = server_address(server), str(tmp_path / "guard")
        options = sink(address, windowItems="4")
        guards = [RepeatGuard(place, "k.1.0.json") for _ in range(2)]

        def rows() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pydict({"value": values[:8]})
            assert put_all(batches(values), options, guards[1]).skipped == 8
            forget_before(place, {"k"}, 2)  # the next batch has been put, too
            yield pa.RecordBatch.from_pydict({"value": values[8:]})

        with pytest.raises(TaskReplaced):
            put_all(rows(), options, guards[0])
        assert [item.data.decode() for item in taken(address, "jobs")] == values


def test_what_is_in_flight_when_another_try_begins_is_all_that_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [str(number) for number in range(20)]
    with running(tmp_path / "server") as server:
        address = server_address(server)
        options = sink(address, windowItems="4")
        guards = [RepeatGuard(str(tmp_path / "guard"), "k.1.0.json") for _ in range(2)]
        real, calls = WindowWriter._try, [0]

        def slowly(self: WindowWriter, window: list[ItemRow]) -> list[ItemRow]:
            left = real(self, window)
            calls[0] += 1
            if calls[0] == 2:
                assert put_all(batches(values), options, guards[1]).skipped == 4
            return left

        monkeypatch.setattr(WindowWriter, "_try", slowly)
        with pytest.raises(TaskReplaced):
            put_all(batches(values), options, guards[0])
        found = Counter(item.data.decode() for item in taken(address, "jobs"))
        assert found == Counter(values) + Counter(values[4:8])
