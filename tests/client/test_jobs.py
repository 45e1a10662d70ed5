"""The clients for jobs against a real server: what a program sees, and what is known of its jobs when a call fails."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import staniel.client.aio
from staniel.client import (
    Busy,
    ConnectionLost,
    DuplicateJob,
    JobFinished,
    Jobs,
    NoJob,
    Outcome,
    Refused,
    id_for,
)
from tests.client.cancelling import cancel_on_asyncio, cancel_on_trio
from tests.client.fake_server import HANG_UP, playing
from tests.client.kinds import each_kind, each_loop, play
from tests.support.certificates import Authority
from tests.support.process import Server, running, until
from tests.support.wire import stats

Make = Callable[..., Any]
ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
STEPS = 40


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path, "--workq-port", "0") as started:
        yield started


def playing_jobs(kind: str, body: Any) -> None:
    play(kind, body, of="Jobs")


@each_kind
def test_payloads_and_results_of_wider_elements_are_sent_whole(server: Server, kind: str) -> None:
    wide = memoryview(b"0123456789abcdef").cast("Q")

    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs:
            at = datetime.now(UTC)
            ids = [await jobs.add("mail", wide), await jobs.schedule("mail", wide, at)]
            for _ in ids:
                job = await jobs.lease("mail", wait_s=20)
                assert job.payload == wide.tobytes()
                await jobs.complete(job, wide)
            assert [(await jobs.result(id, wait_s=20)).data for id in ids] == [wide.tobytes()] * 2
            with pytest.raises(TypeError):
                await jobs.add("mail", "text")

    playing_jobs(kind, body)


@each_kind
def test_a_job_goes_to_a_worker_and_its_result_back(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as boss, make(*server.workq_address) as worker:
            id = await boss.add("mail", b"a\r\nb", ttr_s=5)
            assert await boss.result(id) is None
            job = await worker.lease("other", "mail", wait_s=20)
            assert (job.id, job.name, job.ttr_ms, job.payload) == (id, "mail", 5000, b"a\r\nb")
            await worker.complete(job, b"sent\r\n")
            result = await boss.result(id, wait_s=20)
            assert (result.is_success, result.data) == (True, b"sent\r\n")
            second = await boss.add("mail", b"")
            await worker.fail(await worker.lease("mail"), b"why")
            assert (await boss.result(second)).is_success is False
            assert await worker.lease("mail") is None

    playing_jobs(kind, body)


@each_kind
def test_priority_delay_time_and_attempts_are_the_servers(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs:
            await jobs.add("q", b"low", priority=-1)
            await jobs.add("q", b"high", priority=9)
            later = await jobs.add("q", b"later", delay_s=3600, max_attempts=3)
            soon = datetime.now(UTC) - timedelta(seconds=1)
            await jobs.schedule("q", b"due", soon)
            assert [(await jobs.lease("q")).payload for _ in range(3)] == [b"high", b"due", b"low"]
            assert await jobs.lease("q") is None
            seen = await jobs.inspect(later)
            assert (seen["payload"], seen["max-attempts"], seen["attempts"]) == ("later", "3", "0")
            assert await jobs.stats("q") == {"ready-len": "0", "scheduled-len": "1"}
            assert "active-clients" in await jobs.stats()
            assert await jobs.names() == ["q"]

    playing_jobs(kind, body)


@each_kind
def test_an_id_makes_a_job_one_job(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs:
            id = id_for("report of 2026-11-29")
            assert await jobs.add("q", b"a", id=id) == id == id_for("report of 2026-11-29")
            with pytest.raises(DuplicateJob) as twice:
                await jobs.add("q", b"b", id=id)
            with pytest.raises(DuplicateJob):
                await jobs.schedule("q", b"b", datetime.now(UTC), id=id)
            assert twice.value.outcome is Outcome.NOT_DONE
            await jobs.complete(id)
            with pytest.raises(JobFinished):
                await jobs.complete(id)
            with pytest.raises(DuplicateJob):
                await jobs.add("q", b"c", id=id)
            assert (await jobs.delete(id), await jobs.delete(id)) == (True, False)
            for call in (jobs.complete(id), jobs.fail(id), jobs.result(id), jobs.inspect(id), jobs.stats("unheard")):
                with pytest.raises(NoJob):
                    await call

    playing_jobs(kind, body)


@each_kind
def test_a_job_whose_time_is_over_comes_again_and_may_still_be_completed(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as slow, make(*server.workq_address) as quick:
            await slow.add("q", b"a", ttr_s=0.05)
            first = await slow.lease("q")
            again = await quick.lease("q", wait_s=20)
            assert again.id == first.id
            await slow.complete(first, b"slow")
            with pytest.raises(JobFinished):
                await quick.complete(again, b"quick")
            assert (await quick.result(again)).data == b"slow"

    playing_jobs(kind, body)


@each_kind
def test_what_cannot_be_sent_is_a_value_error(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs:
            for wrong in (
                jobs.add("a b", b""),
                jobs.add("q", b"", id="x"),
                jobs.add("q", b"", id="6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
                jobs.add("q", b"", delay_s=-1),
                jobs.add("q", b"", ttr_s=float("inf")),
                jobs.add("q", b"", ttl_s=0),
                jobs.schedule("q", b"", datetime(2026, 1, 1)),
                jobs.lease(),
                jobs.lease("q", wait_s=-1),
                jobs.lease("q", wait_s=100_000),
            ):
                with pytest.raises(ValueError):
                    await wrong
            with pytest.raises(Refused, match="Invalid Time"):
                await jobs.schedule("q", b"", datetime(1970, 1, 2, tzinfo=UTC))
            assert await jobs.lease("q") is None

    playing_jobs(kind, body)


CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "add": lambda jobs: jobs.add("q", b"a", id=ID),
    "delayed": lambda jobs: jobs.add("q", b"a", delay_s=3600, id=ID),
    "schedule": lambda jobs: jobs.schedule("q", b"a", datetime.now(UTC), id=ID),
    "lease": lambda jobs: jobs.lease("q"),
    "complete": lambda jobs: jobs.complete(ID),
    "fail": lambda jobs: jobs.fail(ID),
    "result": lambda jobs: jobs.result(ID),
    "delete": lambda jobs: jobs.delete(ID),
    "inspect": lambda jobs: jobs.inspect(ID),
    "stats": lambda jobs: jobs.stats(),
    "names": lambda jobs: jobs.names(),
}
BAD = {"hangs up": HANG_UP, "garbage": b"STORED\r\n", "half": b"+OK 1\r\n", "silence": None}
WITHOUT_JOB = ("lease", "stats", "names")


@each_kind
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_answer_closes_the_connection_and_the_error_names_the_job(call: str, bad: str, kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make(*fake.address, answer_timeout_s=0.1)
        with pytest.raises(ConnectionLost) as lost:
            await CALLS[call](jobs)
        assert (lost.value.outcome, lost.value.job_id) == (Outcome.UNKNOWN, "" if call in WITHOUT_JOB else ID)
        with pytest.raises(ConnectionLost) as later:
            await CALLS[call](jobs)
        assert later.value.outcome is Outcome.NOT_DONE

    with playing(BAD[bad]) as fake:
        playing_jobs(kind, body)
        assert fake.is_left.wait(60)
        assert len(fake.heard) == 1


@each_kind
@pytest.mark.parametrize("call", CALLS)
def test_a_server_killed_before_a_call_is_named_and_the_call_can_be_made_again(
    server: Server, call: str, kind: str
) -> None:
    async def body(make: Make) -> None:
        jobs = make(*server.workq_address)
        needs_job = call not in ("add", "delayed", "schedule")
        await jobs.add("q", b"a", **({"id": ID} if needs_job else {}))
        server.restart()
        with pytest.raises(ConnectionLost) as lost:
            await CALLS[call](jobs)
        assert lost.value.outcome in (Outcome.UNKNOWN, Outcome.NOT_DONE)
        async with make(*server.workq_address) as again:
            await CALLS[call](again)

    playing_jobs(kind, body)


@each_kind
def test_a_lease_outlives_the_server_and_is_completed_on_a_new_connection(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make(*server.workq_address)
        id = await jobs.add("q", b"a")
        job = await jobs.lease("q")
        server.restart()
        with pytest.raises(ConnectionLost):
            await jobs.complete(job)
        async with make(*server.workq_address) as again:
            assert await again.lease("q") is None
            await again.complete(job, b"done")
            server.restart()
        async with make(*server.workq_address) as third:
            assert (await third.result(id)).data == b"done"

    playing_jobs(kind, body)


@each_kind
@pytest.mark.parametrize("waits", ["lease", "result"])
def test_a_server_killed_during_a_wait_ends_the_wait(server: Server, waits: str, kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make(*server.workq_address)
        await jobs.add("other", b"a", id=ID)

        def kill() -> None:
            key = "jobs_q_waiters"
            until(lambda: waits == "result" or stats(server.address).get(key) == "1")
            server.restart()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, kill)
            with pytest.raises(ConnectionLost) as lost:
                await (jobs.lease("q", wait_s=60) if waits == "lease" else jobs.result(ID, wait_s=60))
            assert lost.value.outcome in (Outcome.UNKNOWN, Outcome.NOT_DONE)

    if kind == "blocking":  # the adapter blocks the loop, not the thread that kills
        blocking_wait(server, waits)
    else:
        playing_jobs(kind, body)


def blocking_wait(server: Server, waits: str) -> None:
    import threading

    jobs = Jobs(*server.workq_address)
    jobs.add("other", b"a", id=ID)
    killer = threading.Thread(
        target=lambda: (until(lambda: stats(server.address).get("jobs_q_waiters") == "1" or waits == "result"),
                        server.restart())
    )  # fmt: skip
    killer.start()
    with pytest.raises(ConnectionLost):
        jobs.lease("q", wait_s=60) if waits == "lease" else jobs.result(ID, wait_s=60)
    killer.join()


@each_kind
def test_a_port_where_nothing_listens_is_named(kind: str) -> None:
    async def body(make: Make) -> None:
        with pytest.raises(ConnectionLost, match=r"no connection to 127\.0\.0\.1:1: ") as lost:
            await make("127.0.0.1", 1).add("q", b"a", id=ID)
        assert (lost.value.outcome, lost.value.job_id) == (Outcome.NOT_DONE, ID)

    playing_jobs(kind, body)


CONFIG = """
[tls]
certificate = "{server.certificate}"
key = "{server.key}"
client_ca = "{ca}"
[workq]
port = "none"
tls_port = 0
[users.worker]
roles = ["read", "write"]
queues = ["*"]
certificates = ["worker.example"]
"""


@each_kind
def test_a_certificate_is_the_login_of_a_user(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("worker.example")

    async def body(make: Make) -> None:
        address = ("localhost", server.second_port)
        stranger = ssl.create_default_context(cafile=str(authority.path))
        async with make(*address, tls=stranger) as jobs:
            with pytest.raises(Refused, match="unauthenticated"):
                await jobs.add("q", b"a")
        known = ssl.create_default_context(cafile=str(authority.path))
        known.load_cert_chain(mine.certificate, mine.key)
        async with make(*address, tls=known) as jobs:
            await jobs.add("q", bytes(1 << 20))
            assert (await jobs.lease("q")).payload == bytes(1 << 20)
        with pytest.raises(ConnectionLost, match="certificate verify failed") as lost:
            await make(*address, tls=ssl.create_default_context()).stats()
        assert lost.value.outcome is Outcome.NOT_DONE

    config = CONFIG.format(server=authority.issue("server"), ca=authority.path)
    with running(tmp_path / "server", config=config) as server:
        playing_jobs(kind, body)


def test_a_fork_is_noticed_and_the_parents_connection_goes_on(server: Server) -> None:
    with Jobs(*server.workq_address) as jobs:
        jobs.add("mail", b"a", id=ID)
        job = jobs.lease("mail")
        assert job is not None
        child = os.fork()
        if child == 0:
            try:
                jobs.complete(job)
            except ConnectionLost as lost:
                jobs.close()
                os._exit(0 if "was forked" in str(lost) and lost.outcome is Outcome.NOT_DONE else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        jobs.complete(job, b"done")
        result = jobs.result(ID)
        assert result is not None and result.data == b"done"


@each_kind
def test_a_wall_clock_that_jumps_moves_delays_alone(server: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs:
            monkeypatch.setattr("time.time", lambda: now_s() + 86_400)
            await jobs.add("mail", b"a")
            assert (await jobs.lease("mail", wait_s=10)).payload == b"a"
            assert await jobs.lease("mail", wait_s=0.01) is None

    now_s = time.time
    playing_jobs(kind, body)


@each_loop
def test_a_second_task_is_told_at_once(server: Server, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make(*server.workq_address) as jobs, anyio.create_task_group() as tasks:
            tasks.start_soon(waiting, jobs)
            while stats(server.address).get("jobs_q_waiters") != "1":
                await anyio.lowlevel.checkpoint()
            with pytest.raises(Busy, match="another task"):
                await jobs.stats()
            async with make(*server.workq_address) as other:
                await other.add("q", b"a")

    async def waiting(jobs: Any) -> None:
        assert (await jobs.lease("q", wait_s=30)).payload == b"a"

    playing_jobs(kind, body)


async def worked(jobs: Any, how: str, name: str) -> None:
    if how == "add":
        await jobs.add(name, b"b")
    elif how == "lease":
        await jobs.lease(name)
    elif how == "waiting lease":
        await jobs.lease(f"{name}-empty", wait_s=30)
    else:
        await jobs.complete(await jobs.lease(name))


async def is_in_step(jobs: Any, server: Server) -> None:
    """What a client reads after a cancellation is the answer to its own request, or nothing."""
    if jobs._connection.why:
        with pytest.raises(ConnectionLost) as lost:
            await jobs.stats()
        assert lost.value.outcome is Outcome.NOT_DONE
    else:
        assert "started" in await jobs.stats()
        assert await jobs.lease("nothing") is None


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("how", ["add", "lease", "waiting lease", "complete"])
def test_asyncio_may_cancel_at_any_step(server: Server, how: str, native: bool) -> None:
    async def one(steps: int) -> None:
        name = f"{how.replace(' ', '-')}-{steps}"
        async with staniel.client.aio.Jobs(*server.workq_address) as jobs:
            await jobs.add(name, b"a")
            await cancel_on_asyncio(lambda: worked(jobs, how, name), steps, native)
            await is_in_step(jobs, server)

    async def whole() -> None:
        for steps in range(STEPS):
            await one(steps)

    asyncio.run(whole())


@pytest.mark.parametrize("how", ["add", "lease", "waiting lease", "complete"])
def test_trio_may_cancel_at_any_checkpoint(server: Server, how: str) -> None:
    async def one(steps: int) -> None:
        name = f"{how.replace(' ', '-')}-{steps}"
        async with staniel.client.aio.Jobs(*server.workq_address) as jobs:
            await jobs.add(name, b"a")
            await cancel_on_trio(lambda: worked(jobs, how, name), steps)
            await is_in_step(jobs, server)

    async def whole() -> None:
        for steps in range(STEPS):
            await one(steps)

    trio.run(whole)
