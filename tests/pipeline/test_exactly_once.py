"""The sink with keys stores each row once: whatever comes again, in whatever order, and whoever is killed meanwhile."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from staniel.pipeline.sources.connection import BlockingConnection, ServerRefused
from staniel.pipeline.sources.item_rows import ItemRow, all_rows, check_columns
from staniel.pipeline.sources.live_options import BatchSinkOptions, SinkOptions
from staniel.pipeline.sources.repeat_guard import TaskCommit
from staniel.pipeline.sources.row_keys import KeysForgotten, RowKeys
from staniel.pipeline.sources.sink import QueueFull, WindowWriter, put_all
from staniel.protocol.client.replies import Answer
from staniel.protocol.memcache import requests as memcache
from tests.pipeline.once import Once
from tests.pipeline.slow_workers import retried
from tests.pipeline.test_drain import server_address
from tests.pipeline.test_live_source import taken
from tests.support.process import running

VALUES = [f"{number:03d}" for number in range(40)] + ["the same"] * 5
LIFE_MS = 3_600_000


def stored(address: str, queue: str = "jobs") -> Counter[str]:
    return Counter(item.data.decode() for item in taken(address, queue))


def keys_of(values: list[str], *scope: str | int) -> list[str]:
    keys = RowKeys(*scope)
    return [keys.with_key(ItemRow("jobs", value.encode(), 0, 0)).key for value in values]


def test_the_key_of_a_row_does_not_depend_on_the_order_and_equal_rows_have_keys_of_their_own() -> None:
    keys = keys_of(VALUES, "copy", "query", 7, 0)
    assert len(set(keys)) == len(VALUES) and all(len(key) <= 30 for key in keys)
    assert set(keys_of(random.Random(5).sample(VALUES, len(VALUES)), "copy", "query", 7, 0)) == set(keys)
    for scope in (("other", "query", 7, 0), ("copy", "again", 7, 0), ("copy", "query", 8, 0), ("copy", "query", 7, 1)):
        assert not set(keys_of(VALUES, *scope)) & set(keys)


def test_what_is_in_flight_when_a_task_dies_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "server") as server:
        once = Once(server_address(server), tmp_path / "guard")
        once.die_in(monkeypatch, 3, VALUES)
        ended = once.put(VALUES)
        assert (ended.skipped, ended.repeated, ended.stored) == (12, 6, len(VALUES) - 18)
        assert stored(server_address(server)) == Counter(VALUES)


def test_rows_that_come_in_another_order_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "server") as server:
        once = Once(server_address(server), tmp_path / "guard")
        once.die_in(monkeypatch, 3, VALUES)
        once.die_in(monkeypatch, 2, random.Random(1).sample(VALUES, len(VALUES)))
        ended = once.put(random.Random(2).sample(VALUES, len(VALUES)))
        assert ended.skipped == 0 and ended.repeated >= 18
        assert stored(server_address(server)) == Counter(VALUES)


def test_rows_are_known_after_a_restart_of_the_server_in_both_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "server", config='[queues.lib]\njournal_format = "libkestrel"\n') as server:
        for queue in ("jobs", "lib"):
            guard = tmp_path / f"guard-{queue}"
            Once(server_address(server), guard, queue=queue).die_in(monkeypatch, 3, VALUES)
            server.restart()
            Once(server_address(server), guard, queue=queue).put(VALUES)
            assert stored(server_address(server), queue) == Counter(VALUES)


@pytest.mark.slow
def test_a_server_killed_at_each_step_of_a_task_costs_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing_line: Callable[[str], None]
) -> None:
    """Steps: before a request is sent, after it, and after its replies were read. The task goes on by itself."""
    steps, kills = [0], 0
    with running(tmp_path / "server") as server:
        server.options = (*server.options, "--port", str(server.port))
        deadly = [0]

        def step(call: Callable[..., object]) -> Callable[..., object]:
            def around(*args: object) -> object:
                for number in range(2):
                    steps[0] += 1
                    if steps[0] == deadly[0]:
                        server.restart()
                    if not number:
                        found = call(*args)
                return found

            return around

        for name in ("send", "receive"):
            monkeypatch.setattr(BlockingConnection, name, step(getattr(BlockingConnection, name)))
        values = VALUES[:18]
        while True:
            deadly[0], steps[0] = deadly[0] + 1, 0
            once = Once(server_address(server), tmp_path / f"guard{deadly[0]}", queue=f"q{deadly[0]}")
            ended = once.put(values)
            if steps[0] < deadly[0]:
                break
            kills += 1
            assert ended.stored + ended.repeated == len(values)
            assert stored(server_address(server), f"q{deadly[0]}") == Counter(values), f"step {deadly[0]}"
    assert kills > 15
    closing_line(f"sink with keys: server killed at {kills} steps, {kills * len(values)} items: 0 missing, 0 repeated")


def test_a_task_that_comes_after_the_keys_were_forgotten_is_refused_before_it_puts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "server") as server:
        address = server_address(server)
        once = Once(address, tmp_path / "guard")
        once.die_in(monkeypatch, 3, VALUES)
        once.now_ms += LIFE_MS * 9 // 10
        with monkeypatch.context() as patched:  # a try that dies before it puts makes nothing younger
            patched.setattr(WindowWriter, "put", lambda self, rows: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                once.put(VALUES)
        once.now_ms += 1000
        with pytest.raises(KeysForgotten, match=r"from row 12 .* is from 3241 s ago, and keyLife is 3600 s.*=warn"):
            once.put(VALUES)
        with pytest.raises(KeysForgotten, match="from row 0 of"):
            once.put(VALUES[::-1])
        assert sum(stored(address).values()) == 18
        warning = Once(address, tmp_path / "guard", onForgottenKeys="warn")
        warning.now_ms = once.now_ms
        with caplog.at_level(logging.WARNING, "staniel.pipeline"):
            assert warning.put(VALUES).repeated == 6, "the server has them all the same"
        assert "rows may be stored twice: an earlier try is from 3241 s ago" in caplog.text
        once.now_ms += 10 * LIFE_MS
        assert once.put(VALUES).skipped == len(VALUES), "where nothing is in doubt nothing is refused"


def test_a_longer_life_of_keys_is_told_by_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path / "server", config='[server]\nput_key_life = "2d"\n') as server:
        once = Once(server_address(server), tmp_path / "guard", keyLife="2d")
        once.die_in(monkeypatch, 3, VALUES)
        once.now_ms += 40 * LIFE_MS
        once.put(VALUES)
        assert stored(server_address(server)) == Counter(VALUES)


def test_a_repeated_task_is_refused_if_the_server_had_too_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path / "server", config="[server]\nmax_put_keys = 10\n") as server:
        once = Once(server_address(server), tmp_path / "guard")
        once.die_in(monkeypatch, 3, VALUES)
        with pytest.raises(KeysForgotten, match="more keys than its setting max_put_keys"):
            once.put(VALUES)


def test_queues_that_keep_no_keys_are_refused_before_anything_is_put(tmp_path: Path) -> None:
    config = "[queues.memory]\nkeep_journal = false\n[queues.parent]\n"
    with running(tmp_path / "server", config=config) as server:
        address = server_address(server)
        connection = BlockingConnection(address)
        connection.ask(memcache.Set("parent+child", b"x"))
        with pytest.raises(ServerRefused, match="queue memory has keep_journal = false, so its keys end"):
            Once(address, tmp_path / "g1", queue="memory").put(VALUES)
        with pytest.raises(ServerRefused, match="key= needs one queue, and parent has fan-out children"):
            Once(address, tmp_path / "g2", queue="parent").put(VALUES)
        assert stored(address, "memory") == Counter() and stored(address, "parent+child") == Counter("x")
        connection.close()


def test_a_server_that_remembers_no_keys_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "server", config='[server]\nput_key_life = "none"\n') as server:
        once = Once(server_address(server), tmp_path / "guard")
        with pytest.raises(ServerRefused, match="key= is not in use on this server: put_key_life is none"):
            once.put(VALUES)


def test_a_full_queue_is_waited_for_with_keys_too(tmp_path: Path) -> None:
    with running(tmp_path / "server", config="[queues.jobs]\nmax_items = 10\n") as server:
        address = server_address(server)
        once = Once(address, tmp_path / "guard", onFull="fail")
        with pytest.raises(QueueFull):
            once.put(VALUES)
        found = stored(address)
        while True:
            try:
                once.put(VALUES)
                break
            except QueueFull:
                found += stored(address)
        assert found + stored(address) == Counter(VALUES)


def test_two_tries_at_a_time_store_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with speculation: the earlier try has rows in flight when the later one begins."""
    with running(tmp_path / "server") as server:
        once = Once(server_address(server), tmp_path / "guard")
        real, calls = WindowWriter._try, [0]

        def slowly(self: WindowWriter, window: list[ItemRow]) -> list[ItemRow]:
            left = real(self, window)
            calls[0] += 1
            if calls[0] == 2:
                once.put(VALUES)
            return left

        monkeypatch.setattr(WindowWriter, "_try", slowly)
        with pytest.raises(Exception, match="another try of this task"):
            once.put(VALUES)
        assert stored(server_address(server)) == Counter(VALUES)


def keyed(address: str, keys: list[str | None], values: list[str]) -> TaskCommit:
    options = SinkOptions({"servers": address, "queue": "jobs", "keyColumn": "OrderId"})
    return put_all(iter([pa.RecordBatch.from_pydict({"value": values, "orderid": keys})]), options, None)


def test_a_column_of_keys_is_what_other_clients_would_send(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        address = server_address(server)
        connection = BlockingConnection(address)
        replies = connection.ask(memcache.KeyedSet(memcache.Set("jobs", b"a"), "größe".encode().decode("latin-1")))
        assert replies == [Answer.STORED]
        connection.close()
        ended = keyed(address, ["größe", "order-2", "order-3/x"], ["a", "b", "c"])
        assert (ended.stored, ended.repeated) == (2, 1)
        ended = keyed(address, ["order-3/x", "order-4", "order-2"], ["c", "d", "b"])
        assert (ended.stored, ended.repeated) == (1, 2)
        assert stored(address) == Counter("abcd")


def test_a_stream_that_spark_repeats_is_stored_once_by_its_keys_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The driver dies between the last task and the note of the batch; the notes of the sink are lost, too."""
    with running(tmp_path / "server") as server:
        table = spark.createDataFrame([[value] for value in VALUES], "value string")
        table.coalesce(1).write.parquet(str(tmp_path / "in"))
        options = {"servers": server_address(server), "queue": "jobs", "txnAppId": "copy", "windowItems": "10"}

        def run() -> None:
            source = spark.readStream.schema("value string").parquet(str(tmp_path / "in"))
            sink = source.writeStream.format("staniel").options(**options).trigger(availableNow=True)
            sink.option("checkpointLocation", str(tmp_path / "ck")).start().awaitTermination()

        retried(run)
        assert list((tmp_path / "ck" / "staniel-sink").iterdir())
        for lost in (("commits",), ("commits", "staniel-sink")):
            for path in [path for place in lost for path in (tmp_path / "ck" / place).iterdir()]:
                path.unlink()
            retried(run)
        assert stored(server_address(server)) == Counter(VALUES)


def test_a_batch_of_foreach_batch_is_stored_once_in_whatever_order(spark: SparkSession, tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        address = server_address(server)
        first = [[value] for value in VALUES]
        second = random.Random(4).sample(first, len(first))

        def put(rows: list[list[str]], version: int) -> None:
            sink = spark.createDataFrame(rows, "value string").coalesce(1).write.format("staniel").mode("append")
            sink = sink.options(servers=address, queue="jobs", txnAppId="copy", guardPath=str(tmp_path / "guard"))
            retried(lambda: sink.option("txnVersion", version).save())

        put(first, 1)
        put(second, 1)
        assert stored(address) == Counter(VALUES)
        put(second, 2)
        assert stored(address) == Counter(VALUES)


@pytest.mark.parametrize("key", [None, "", "two words", "a\nb", "x" * 251, "ü" * 126])
def test_a_value_that_is_no_key_is_told_with_its_row(key: str | None) -> None:
    rows = pa.RecordBatch.from_pydict({"value": ["a", "b"], "orderid": ["fine", key]})
    with pytest.raises(ValueError, match=r"column OrderId is .* in row 1 of a task: a key has 1 to 250 bytes"):
        list(all_rows(iter([rows]), SinkOptions({"queue": "jobs", "keyColumn": "OrderId"})))


def test_a_column_of_keys_is_a_string_or_an_integer() -> None:
    options = SinkOptions({"queue": "jobs", "keyColumn": "ID"})
    table = StructType([StructField("value", StringType())])
    with pytest.raises(ValueError, match="keyColumn names ID, which is not there"):
        check_columns(table, options)
    check_columns(StructType([*table, StructField("id", LongType())]), options)
    with pytest.raises(ValueError, match="keyColumn names ID, which is double: a key is a string or an integer"):
        check_columns(StructType([*table, StructField("id", DoubleType())]), options)


def test_delta_s_names_are_taken_and_the_note_of_a_stream_lies_in_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "ck")
    for name in ("txnAppId", "txn.appId"):
        stream = SinkOptions({"queue": "jobs", name: "copy", "checkpointLocation": checkpoint})
        assert (stream.has_keys, stream.app_id, stream.guard_path) == (True, "copy", f"{checkpoint}/staniel-sink")
    given = {"queue": "jobs", "guardPath": "g", "txnAppId": "copy"}
    for name in ("txnVersion", "txn.version", "batchId"):
        assert BatchSinkOptions({**given, name: "7"}).batch == 7
    assert not SinkOptions({"queue": "jobs", "checkpointLocation": checkpoint}).guard_path
    assert BatchSinkOptions({"queue": "jobs", "keyColumn": "id"}).has_keys


@pytest.mark.parametrize(
    ("given", "kind", "match"),
    [
        ({"txnAppId": "a"}, SinkOptions, "txnAppId needs guardPath, a folder"),
        ({"txnAppId": "a", "guardPath": "g"}, BatchSinkOptions, "guardPath, appId and batchId together"),
        ({"txnAppId": "a", "appId": "a", "guardPath": "g"}, SinkOptions, "appId and txnAppId say the same"),
        ({"txnAppId": "a", "txn.appId": "a"}, SinkOptions, "txn.appId and txnAppId say the same"),
        ({"txnAppId": "a", "txnVersion": "1", "guardPath": "g"}, SinkOptions, "batchId of staniel is for batch writes"),
        ({"keyLife": "2h"}, SinkOptions, "keyLife and onForgottenKeys are for writes with keys"),
        ({"keyColumn": "a", "onForgottenKeys": "maybe"}, SinkOptions, "onForgottenKeys is one of fail, warn"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(
    given: dict[str, str], kind: Callable[[dict[str, str]], object], match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        kind({"queue": "jobs", **given})


def test_a_server_that_speaks_as_kestrel_does_is_refused(tmp_path: Path) -> None:
    with running(tmp_path / "server", config='[memcache]\ndialect = "kestrel"\n') as server:
        once = Once(server_address(server), tmp_path / "guard")
        with pytest.raises(ServerRefused, match=r'knows no keys of puts: it is no Staniel, or has dialect = "kestrel"'):
            once.put(VALUES)
        assert stored(server_address(server)) == Counter()
