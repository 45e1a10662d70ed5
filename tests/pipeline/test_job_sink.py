"""The sink adds jobs: each once if it has an id, or the write a name, whatever comes again and whoever is killed."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from staniel.client import Jobs, id_for
from staniel.pipeline.sources.connection import ServerLost, ServerRefused
from staniel.pipeline.sources.item_rows import all_rows, check_columns
from staniel.pipeline.sources.job_connection import JobConnection
from staniel.pipeline.sources.live_options import BatchSinkOptions, SinkOptions
from staniel.pipeline.sources.repeat_guard import TaskCommit
from staniel.pipeline.sources.row_keys import KeysForgotten
from staniel.pipeline.sources.sink import put_all
from tests.pipeline.job_servers import address_of, job_server, leased, ready
from tests.pipeline.once import Once
from tests.support.certificates import Authority
from tests.support.process import running

VALUES = [f"{number:03d}" for number in range(40)] + ["the same"] * 5
FOUND = Counter(value.encode() for value in VALUES)
GIVEN = {"protocol": "workq", "queue": "mail"}


def added(address: str, columns: dict[str, list[object]], **options: str) -> TaskCommit:
    given = SinkOptions({**GIVEN, "servers": address, "serverTimeoutMs": "2000", **options})
    return put_all(iter([pa.RecordBatch.from_pydict(columns)]), given, None)


def test_a_row_is_a_job_with_the_terms_of_its_columns_or_of_the_options(tmp_path: Path) -> None:
    id, later = str(uuid4()), datetime.now(UTC) + timedelta(hours=1)
    with job_server(tmp_path / "server") as server, Jobs(*server.workq_address) as jobs:
        columns: dict[str, list[object]] = {
            "value": [b"a", b"b"], "queue": ["sms", None], "id": [id, None], "priority": [-3, None],
            "ttrMs": [1500, None], "TTLMS": [70_000, None], "maxAttempts": [4, None], "maxFails": [2, None],
        }  # fmt: skip
        assert added(address_of(server), columns, priority="7", ttrMs="90000").stored == 2
        told = jobs.inspect(id)
        assert {name: told[name] for name in ("name", "ttr", "ttl", "max-attempts", "max-fails", "priority")} == {
            "name": "sms", "ttr": "1500", "ttl": "70000", "max-attempts": "4", "max-fails": "2", "priority": "-3"
        }  # fmt: skip
        job = jobs.lease("mail")
        assert job is not None and (job.payload, job.ttr_ms) == (b"b", 90_000)
        assert jobs.inspect(job)["priority"] == "7" and jobs.inspect(job)["ttl"] == "86400000"
        added(address_of(server), {"value": ["c", "d"], "runAt": [later, None]}, queue="later")
        assert jobs.stats("later") == {"ready-len": "1", "scheduled-len": "1"}


def test_rows_with_ids_are_added_once_whoever_repeats_them(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        address = address_of(server)
        columns: dict[str, list[object]] = {"value": ["a", "b"], "id": [str(uuid4()), str(uuid4()).upper()]}
        assert added(address, columns).stored == 2
        server.restart()
        again = added(address, columns)
        assert (again.stored, again.repeated) == (0, 2)
        with Jobs(*server.workq_address) as jobs:  # also once they are finished
            job = jobs.lease("mail")
            assert job is not None
            jobs.complete(job, b"done")
        assert added(address, columns).repeated == 2
        assert leased(address_of(server), "mail") == Counter([b"b"])


def test_a_column_of_keys_makes_the_ids_that_the_client_makes(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        with Jobs(*server.workq_address) as jobs:
            jobs.add("mail", b"a", id=id_for("größe 1"))
            jobs.add("mail", b"b", id=id_for("17"))
        ended = added(address_of(server), {"value": ["a", "c"], "order": ["größe 1", "x"]}, keyColumn="Order")
        assert (ended.stored, ended.repeated) == (1, 1)
        assert added(address_of(server), {"value": ["b"], "order": [17]}, keyColumn="order").repeated == 1
        assert leased(address_of(server), "mail") == Counter([b"a", b"b", b"c"])


def test_what_is_in_flight_when_a_task_dies_is_added_once_in_whatever_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_server(tmp_path / "server") as server:
        once = Once(address_of(server), tmp_path / "guard", **GIVEN)
        once.die_in(monkeypatch, 3, VALUES)
        once.die_in(monkeypatch, 2, random.Random(1).sample(VALUES, len(VALUES)))
        server.restart()
        ended = once.put(random.Random(2).sample(VALUES, len(VALUES)))
        assert ended.skipped == 0 and ended.repeated >= 18
        assert leased(address_of(server), "mail") == FOUND


@pytest.mark.slow
def test_a_server_killed_at_each_step_of_a_task_costs_and_doubles_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing_line: Callable[[str], None]
) -> None:
    """Steps: before a request is sent, after it, and after its replies were read. Rows without ids and names, too: a
    job's id is chosen before it is sent.
    """
    steps, deadly, kills = [0], [0], 0
    with job_server(tmp_path / "server") as server:

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
            monkeypatch.setattr(JobConnection, name, step(getattr(JobConnection, name)))
        values = VALUES[:12]
        while True:
            deadly[0], steps[0] = deadly[0] + 1, 0
            ended = added(
                address_of(server), {"value": list(values)}, queue=f"q{deadly[0]}", windowItems="6",
                serverTimeoutMs="60000",
            )  # fmt: skip
            if steps[0] < deadly[0]:
                break
            kills += 1
            deadly[0], last = 0, deadly[0]
            assert ended.stored + ended.repeated == len(values)
            assert leased(address_of(server), f"q{last}") == Counter(value.encode() for value in values), f"step {last}"
            deadly[0] = last
    assert kills > 8
    closing_line(f"sink of jobs: server killed at {kills} steps, {kills * len(values)} jobs: 0 missing, 0 repeated")


def test_a_task_that_comes_after_its_jobs_were_forgotten_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with job_server(tmp_path / "server") as server:
        once = Once(address_of(server), tmp_path / "guard", **GIVEN)
        once.die_in(monkeypatch, 3, VALUES)
        once.now_ms += 86_400_000 * 9 // 10 + 1000
        with pytest.raises(
            KeysForgotten, match=r"from row 12 .* is from 77761 s ago, and ttlMs 86400000.*longer ttlMs"
        ):
            once.put(VALUES)
        assert ready(server, "mail") == 18
        warning = Once(address_of(server), tmp_path / "guard", onForgottenKeys="warn", **GIVEN)
        warning.now_ms = once.now_ms
        with caplog.at_level(logging.WARNING, "staniel.pipeline"):
            assert warning.put(VALUES).repeated == 6, "the server has them all the same"
        assert "rows may be stored twice: an earlier try is from 77761 s ago" in caplog.text
        assert leased(address_of(server), "mail") == FOUND


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"value": [None]}, "column value is null in row 0 of a task: no job"),
        ({"value": ["a"], "id": ["17"]}, "column id is '17' in row 0 of a task: a job's id is the text of a UUID"),
        ({"value": ["a"], "ttrMs": [0]}, "row 0 of a task is no job: the time to run in ms is a number from 1"),
        ({"value": ["a"], "queue": ["two words"]}, "row 0 of a task is no job: a name of jobs is 1 to 255 of A-Z"),
        ({"value": ["x" * (1 << 20) + "x"]}, "row 0 of a task is no job: the size of the data in bytes"),
        ({"value": ["a"], "maxAttempts": [256]}, "row 0 of a task is no job: max_attempts is a number from 0 to 255"),
        ({"value": ["a"], "key": [""]}, "column key is '' in row 0 of a task: a key is a text or a number"),
    ],
)
def test_a_row_that_is_no_job_is_told_with_its_number(columns: dict[str, list[object]], match: str) -> None:
    options = SinkOptions({**GIVEN, **({"keyColumn": "key"} if "key" in columns else {})})
    with pytest.raises(ValueError, match=match):
        list(all_rows(iter([pa.RecordBatch.from_pydict(columns)]), options))


def test_columns_that_are_none_of_a_jobs_are_told() -> None:
    value = StructField("value", BinaryType())
    options = SinkOptions(GIVEN)
    check_columns(StructType([value, StructField("ID", StringType())]), options)
    for name, match in (
        ("ttl", "no column ttl: did you mean ttlMs"),
        ("ttrMs", "column ttrMs is string; the sink needs"),
    ):
        with pytest.raises(ValueError, match=match):
            check_columns(StructType([value, StructField(name, StringType())]), options)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"onFull": "drop"}, "option onFull is for protocol=memcache"),
        ({"keyLife": "2h", "keyColumn": "a"}, "option keyLife is for protocol=memcache"),
        ({"user": "a", "tokenFile": "b"}, "users of jobs are known by certificateFile"),
        ({"priority": "high"}, "option priority is a whole number, not 'high'"),
        ({"protocol": "memcache", "ttrMs": "7"}, "option ttrMs is for protocol=workq"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SinkOptions({**GIVEN, **given})
    assert BatchSinkOptions(GIVEN).servers == ["127.0.0.1:9922"]


CONFIG = """
[tls]
certificate = "{server.certificate}"
key = "{server.key}"
client_ca = "{ca}"
[memcache]
port = 0
[workq]
port = "none"
tls_port = 0
[users.worker]
roles = ["read", "write"]
queues = ["mail*"]
certificates = ["worker.example"]
"""


def test_users_of_jobs_are_known_by_their_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("worker.example")
    config = CONFIG.format(server=authority.issue("server"), ca=authority.path)
    with running(tmp_path / "server", config=config) as server:
        address = f"localhost:{server.second_port}"
        tls = {"caFile": str(authority.path)}
        known = {**tls, "certificateFile": str(own.certificate), "keyFile": str(own.key)}
        rows: dict[str, list[object]] = {"value": ["a"]}
        assert added(address, rows, **known).stored == 1
        with pytest.raises(ServerRefused, match="user worker may not write to other"):
            added(address, rows, **known, queue="other")
        with pytest.raises(ServerRefused, match="users of jobs are known by their certificate: certificateFile"):
            added(address, rows, **tls)
        with pytest.raises((ServerRefused, ServerLost), match="caFile names its authority"):
            added(address, rows, tls="true")


def test_a_server_that_is_gone_is_told_after_the_timeout(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        server.kill()
        with pytest.raises(ServerLost, match=f"no answer from {address_of(server)}"):
            added(address_of(server), {"value": ["a"]}, serverTimeoutMs="300")
