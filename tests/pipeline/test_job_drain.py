"""Draining jobs loses none, whatever is killed and when, and none comes twice while nobody else leases them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from staniel.client import Jobs
from staniel.pipeline.sources.connection import ServerLost, ServerRefused
from staniel.pipeline.sources.drain import BatchLimits, DrainStep
from staniel.pipeline.sources.drain_spool import DrainSpool
from staniel.pipeline.sources.job_connection import JobConnection
from staniel.pipeline.sources.job_drain import SCHEMA, JobDrain, ServerJobs
from staniel.pipeline.sources.live import LiveStream, Offset
from staniel.pipeline.sources.live_options import DrainOptions
from tests.pipeline.job_servers import add_jobs, address_of, job_server, leased, payloads, ready
from tests.pipeline.test_drain import delivered
from tests.support.process import until

JOBS = 300
ROOT = Path(__file__).resolve().parents[2]
TTR_S = 1.0


def stream(address: str, place: Path, **more: str) -> LiveStream:
    given = {"protocol": "workq", "servers": address, "queue": "mail", "spoolPath": str(place), "pollTimeoutMs": "0"}
    return LiveStream(DrainOptions({**given, "serverTimeoutMs": "10000", **more}), SCHEMA)


def drain_all(address: str, place: Path) -> Counter[bytes]:
    """What a query gets that begins at what is in the spool."""
    found: Counter[bytes] = Counter()
    query = stream(address, place, maxItemsPerTrigger="200")
    limit, at = query.getDefaultReadLimit(), query.initialOffset()
    while (end := query.latestOffset(at, limit)) != at:
        found.update(delivered(query, at, end))
        query.commit(end)
        at = end
    query.stop()
    return found


@pytest.mark.parametrize("step", DrainStep)
def test_a_drainer_killed_at_any_step_loses_and_repeats_no_job(
    tmp_path: Path, step: DrainStep, closing_line: Callable[[str], None]
) -> None:
    with job_server(tmp_path / "server") as server:
        values = add_jobs(server, "mail", payloads(JOBS), TTR_S)
        place = tmp_path / "drained"
        command = [sys.executable, "-m", "tests.pipeline.drainer", "--jobs", address_of(server), "mail", str(place)]
        with subprocess.Popen([*command, "1", "200", step.value], stdout=subprocess.PIPE, cwd=ROOT) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"at %s\n" % step.value.encode()
            child.kill()
        found = drain_all(address_of(server), place)
        while sum(found.values()) < JOBS:  # what was leased and not spooled comes when its time to run has ended
            assert until(lambda: ready(server, "mail")), f"lost {JOBS - sum(found.values())}"
            found += drain_all(address_of(server), place)
        assert found == Counter(values)
        assert not leased(address_of(server), "mail")
        closing_line(f"drain of jobs: killed after {step.value}: {JOBS} jobs, 0 missing, 0 repeated")


@pytest.mark.parametrize("step", DrainStep)
def test_a_server_killed_at_any_step_loses_and_repeats_no_job(tmp_path: Path, step: DrainStep) -> None:
    with job_server(tmp_path / "server") as server:
        values = add_jobs(server, "mail", payloads(JOBS), TTR_S)
        place, killed = tmp_path / "drained", list[DrainStep]()

        def kill(at: DrainStep) -> None:
            if at is step and not killed:
                killed.append(at)
                server.restart()

        with DrainSpool(str(place)) as spool:
            drain = JobDrain([address_of(server)], ["mail"], spool, 30.0, kill)
            drain.fill(1, BatchLimits(200, 1 << 40), 0)
            drain.close()
        assert killed
        found = drain_all(address_of(server), place)
        while sum(found.values()) < JOBS:
            assert until(lambda: ready(server, "mail")), f"lost {JOBS - sum(found.values())}"
            found += drain_all(address_of(server), place)
        assert found == Counter(values)


def test_jobs_whose_time_to_run_ended_in_the_spool_do_not_come_again(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        add_jobs(server, "mail", payloads(5), 0.2)

        class Died(BaseException):
            pass

        def die(at: DrainStep) -> None:
            if at is DrainStep.SYNCED:
                raise Died

        place = tmp_path / "drained"
        with DrainSpool(str(place)) as spool, pytest.raises(Died):
            JobDrain([address_of(server)], ["mail"], spool, after=die).fill(1, BatchLimits(5, 1 << 30), 0)
        assert until(lambda: ready(server, "mail") == 5)
        found = drain_all(address_of(server), place)
        assert sum(found.values()) == len(found) == 5
        assert not leased(address_of(server), "mail")


def test_a_batch_that_cannot_be_completed_is_completed_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with job_server(tmp_path / "server") as server:
        add_jobs(server, "mail", payloads(20))
        place = tmp_path / "drained"
        first = stream(address_of(server), place, serverTimeoutMs="200")
        at = first.initialOffset()
        with monkeypatch.context() as patched:

            def complete(*_: object) -> None:
                raise ServerLost("the cable is out")

            patched.setattr(JobConnection, "complete", complete)
            with pytest.raises(ServerLost, match="the cable is out"):
                first.latestOffset(at, ReadMaxRows(20))
            with pytest.raises(ServerLost, match="the cable is out"):
                first.latestOffset(at, ReadMaxRows(20))
        first.stop()
        with Jobs(*server.workq_address) as jobs:
            assert [jobs.result(id) for id in ids_of(place)] == [None] * len(ids_of(place))
            second = stream(address_of(server), place)
            end: Offset = second.latestOffset(at, ReadMaxRows(20))
            assert len(delivered(second, at, end)) == len(ids_of(place))
            assert all(jobs.result(id) for id in ids_of(place))
        second.stop()


def ids_of(place: Path) -> list[str]:
    spool = DrainSpool(str(place))
    names = [name for names in spool.batches().values() for name in names]
    return [row["id"] for batch in spool.read(names) for row in batch.to_pylist()]


def test_several_servers_and_names_are_drained_within_the_limits(tmp_path: Path) -> None:
    with job_server(tmp_path / "a") as first, job_server(tmp_path / "b") as second:
        for server in (first, second):
            add_jobs(server, "mail", payloads(150))
            add_jobs(server, "sms", payloads(70))
        servers = [address_of(first), address_of(second)]
        with DrainSpool(str(tmp_path / "drained")) as spool:
            drain = JobDrain(servers, ["mail", "sms"], spool)
            assert drain.waiting() == 440
            counts = []
            while count := drain.fill(len(counts) + 1, BatchLimits(100, 1 << 40), 0):
                counts.append(count)
            drain.close()
            rows = [row for names in spool.batches().values() for part in spool.read(names) for row in part.to_pylist()]
        assert max(counts) <= 100 and sum(counts) == 440
        assert Counter((row["queue"], row["server"]) for row in rows) == {
            (queue, server): count for queue, count in (("mail", 150), ("sms", 70)) for server in servers
        }


def test_large_jobs_do_not_exceed_the_bytes_of_a_batch_by_more_than_a_round(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        add_jobs(server, "mail", payloads(20, 1 << 20))
        with DrainSpool(str(tmp_path / "drained")) as spool:
            drain, counts = JobDrain([address_of(server)], ["mail"], spool), list[int]()
            while count := drain.fill(len(counts) + 1, BatchLimits(1000, 6 << 20), 0):
                counts.append(count)
            drain.close()
        assert sum(counts) == 20 and max(counts) <= 8


def test_one_dead_server_of_two_is_an_error_and_no_empty_queue(tmp_path: Path) -> None:
    with job_server(tmp_path / "a") as first, job_server(tmp_path / "b") as second:
        for server in (first, second):
            add_jobs(server, "mail", payloads(50))
        with DrainSpool(str(tmp_path / "drained")) as spool:
            drain = JobDrain([address_of(first), address_of(second)], ["mail"], spool, timeout_s=0.5)
            assert drain.waiting() == 100
            second.kill()
            assert drain.fill(1, BatchLimits(1000, 1 << 20), 0) == 50, "what the other one has"
            with pytest.raises(ServerLost, match=f"no answer from {address_of(second)}"):
                drain.fill(2, BatchLimits(1000, 1 << 20), 0)


def test_a_name_that_no_server_knows_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with job_server(tmp_path / "server") as server, DrainSpool(str(tmp_path / "drained")) as spool:
        drain = JobDrain([address_of(server)], ["mial"], spool)
        with caplog.at_level(logging.WARNING, "staniel.pipeline"):
            assert drain.fill(1, BatchLimits(10, 1000), 0) == drain.waiting() == 0
        assert caplog.text.count("no jobs named mial were added since the start of") == 1
        drain.close()


def test_a_job_that_was_leased_by_another_worker_meanwhile_is_the_only_one_that_runs_twice(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        address = address_of(server)
        server_jobs = ServerJobs(address, ["mail"], 10.0, DrainOptions(GIVEN).access)
        add_jobs(server, "mail", payloads(2), 0.2)
        server_jobs.request_leases(BatchLimits(2, 1 << 30), 0)
        server_jobs.receive_leases()
        assert until(lambda: ready(server, "mail") == 2)
        with Jobs(*server.workq_address) as worker:
            job = worker.lease("mail")
            assert job is not None
            worker.complete(job, b"mine")
            server_jobs.complete([each.id for each in server_jobs.leased])
            result = worker.result(job)
            assert result is not None and result.data == b"mine"
            worker.delete(job)
        server_jobs.complete([job.id])  # one that is gone
        server_jobs.drop()
        assert not leased(address_of(server), "mail")


GIVEN = {"protocol": "workq", "queue": "mail", "spoolPath": "s"}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"connections": "2"}, "option connections is for protocol=memcache"),
        (
            {"user": "a", "tokenFile": "b"},
            "option user is for protocol=memcache; users of jobs are known by certificateF",
        ),
        ({"queue": "two words"}, "'two words' is no name of jobs"),
        ({"protocol": "http"}, "option protocol is one of memcache, workq"),
        ({"servers": "a:b"}, "a server is host:port"),
    ],
)
def test_options_that_do_not_fit_jobs_are_refused(given: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        DrainOptions({**GIVEN, **given})
    assert DrainOptions(GIVEN).servers == ["127.0.0.1:9922"]


def test_a_port_of_another_protocol_is_told(tmp_path: Path) -> None:
    with job_server(tmp_path / "server") as server:
        with pytest.raises(ServerRefused, match="is that its port of \\[workq\\]"):
            JobConnection(f"127.0.0.1:{server.port}", 10)
        server.kill()
        with pytest.raises(ServerLost, match="no answer from"):
            JobConnection(address_of(server), 10)
