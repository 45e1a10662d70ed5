"""A real server is killed at each step of each request of each call: what the client says of the call is true
afterwards. All calls of one kind of client are cut by one kill, each on a queue and a connection of its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from staniel.client import Client, ConnectionLost, DuplicateJob, Jobs, NoJob, Outcome, PutOutcome, id_for
from tests.client.cut_line import WAIT_S, CutLine, Kill, Step
from tests.client.kinds import each_kind, play
from tests.support.process import Server, running, until
from tests.support.wire import drain

Body = Callable[[Any, str, Callable[[], None]], Coroutine[Any, Any, None]]
ITEMS = [b"a", b"b"]
NEW = [b"1", b"2", b"3"]
LATER = datetime.now(UTC) + timedelta(days=1)


class Call:
    """A call: what it does after the line is armed, how many requests it has, and the items of its queue if it has had
    an effect. `is_in_parts`: half of its request may have half of the effect.
    """

    def __init__(self, body: Body, requests: int, done: list[bytes], *, is_in_parts: bool = False) -> None:
        self.body = body
        self.name = body.__name__
        self.requests = requests
        self.done = done
        self.is_in_parts = is_in_parts


CALLS: list[Call] = []
JOB_CALLS: list[Call] = []


def call(done: list[bytes], *, requests: int = 1, is_in_parts: bool = False) -> Callable[[Body], Body]:
    def note(body: Body) -> Body:
        CALLS.append(Call(body, requests, done, is_in_parts=is_in_parts))
        return body

    return note


def job_call(body: Body) -> Body:
    JOB_CALLS.append(Call(body, 1, []))
    return body


@call([*ITEMS, b"1"])
async def put(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.put(queue, b"1")


@call([*ITEMS, b"1"])
async def put_with_ttl(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.put(queue, b"1", ttl_s=86_400, flags=7)


@call([*ITEMS, b"1"])
async def put_with_key(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.put(queue, b"1", key=queue)


@call([*ITEMS, *NEW], is_in_parts=True)
async def put_many(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.put_many(queue, NEW)


@call([b"b"], requests=2)
async def get(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.get(queue)


@call([b"b"], requests=2)
async def get_of_several(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.get([f"{queue}-none", queue])


@call([b"b"], requests=2)
async def reserve(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    async with client.reserve(queue, wait_s=1):
        pass


@call([b"b"])
async def confirm(client: Any, queue: str, arm: Callable[[], None]) -> None:
    item = await client.open(queue)
    arm()
    await client.confirm(item)


@call([b"b"])
async def next_items(client: Any, queue: str, arm: Callable[[], None]) -> None:
    items, _ = await client.next_items(queue, 1)
    arm()
    await client.next_items(queue, 1, confirm=items)


@call([b"b"])
async def end_of_a_monitor(client: Any, queue: str, arm: Callable[[], None]) -> None:
    async with client.monitor(queue, wait_s=60, max_items=1) as items:
        async for _ in items:
            pass
        arm()


@call([])
async def flush(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.flush(queue)


@call([])
async def delete(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.delete(queue)


@call(ITEMS)
async def open(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.open(queue)


@call(ITEMS)
async def abort(client: Any, queue: str, arm: Callable[[], None]) -> None:
    item = await client.open(queue)
    arm()
    await client.abort(item)


@call(ITEMS)
async def extend(client: Any, queue: str, arm: Callable[[], None]) -> None:
    item = await client.open(queue)
    arm()
    await client.extend(item)


@call(ITEMS)
async def history(client: Any, queue: str, arm: Callable[[], None]) -> None:
    item = await client.open(queue)
    arm()
    await client.history(item)


@call(ITEMS)
async def peek(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.peek(queue)


@call(ITEMS)
async def stats(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.stats()


@call(ITEMS)
async def version(client: Any, queue: str, arm: Callable[[], None]) -> None:
    arm()
    await client.version()


@job_call
async def add(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.add(name, b"1", id=id_for(f"new {name}"))


@job_call
async def schedule(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.schedule(name, b"1", LATER, id=id_for(f"new {name}"))


@job_call
async def lease(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.lease(name)


@job_call
async def complete(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.complete(id_for(name), b"good")


@job_call
async def fail(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.fail(id_for(name), b"bad")


@job_call
async def delete_a_job(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.delete(id_for(name))


@job_call
async def result(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.result(id_for(name))


@job_call
async def inspect(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.inspect(id_for(name))


@job_call
async def stats_of_jobs(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.stats(name)


@job_call
async def names(jobs: Any, name: str, arm: Callable[[], None]) -> None:
    arm()
    await jobs.names()


class Case:
    """One call that is cut at one step of one of its requests, in a thread of its own."""

    def __init__(self, server: Server, call: Call, step: Step, skip: int, kind: str, kill: Kill) -> None:
        self.call = call
        self.step = step
        self.is_last = skip == call.requests - 1
        self.queue = f"{call.name}-{step.name}-{skip}"
        self.lost: ConnectionLost | None = None
        self.wrong: BaseException | None = None
        self.of = "Jobs" if call in JOB_CALLS else "Client"
        self.line = CutLine(server.workq_address if self.of == "Jobs" else server.address, step, skip, kill)
        self._kind = kind
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            play(self._kind, self._played, of=self.of)
        except BaseException as error:
            self.wrong = error
        finally:
            self.line.is_there.set()
            self.line.is_sent.set()

    async def _played(self, make: Callable[..., Any]) -> None:
        client = make(*self.line.address)
        try:
            await client.connect()
            await self.call.body(client, self.queue, self.line.arm)
        except ConnectionLost as lost:
            self.lost = lost
        finally:
            await client.close()

    @property
    def must_be_done(self) -> bool | None:
        """Whether the call has had its effect; None: perhaps, or in part."""
        if self.call.is_in_parts and self.step in (Step.HALF, Step.ANSWERED):
            return None
        return self.step is Step.ANSWERED and self.is_last

    def __repr__(self) -> str:
        return f"{self.queue}: {self.lost!r} {self.wrong!r}"


def cases_of(server: Server, calls: list[Call], kind: str, kill: Kill) -> list[Case]:
    return [
        Case(server, each, step, skip, kind, kill)
        for each in calls
        for step in Step
        for skip in (range(each.requests) if step is not Step.UNSENT else (0,))
    ]


def stop(server: Server) -> None:
    """Stop the server, and wait until each of its threads has stopped."""
    os.kill(server.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")
    assert until(
        lambda: all(b") T" in (task / "stat").read_bytes() for task in tasks.iterdir()),
    )


def cut_all(server: Server, cases: list[Case], kill: Kill) -> None:
    """Run all cases to their steps, then kill the server."""
    for each in cases:
        each.thread.start()
    for each in cases:
        assert each.line.is_there.wait(WAIT_S), each
    stop(server)
    kill.is_stopped.set()
    for each in cases:
        assert each.step is not Step.WHOLE or each.line.is_sent.wait(WAIT_S), each
    server.kill()
    kill.is_dead.set()
    for each in cases:
        each.thread.join(WAIT_S)
        assert not each.thread.is_alive(), each
        each.line.close()


def check_queue(server: Server, client: Client, case: Case) -> None:
    """Compare what is in the queue with what the client has said."""
    assert case.lost is not None
    done = case.call.done
    if case.call.name == "put_with_key":
        again = client.put(case.queue, b"1", key=case.queue)
        assert (again is PutOutcome.ALREADY_STORED) is case.must_be_done, case
        assert drain(server.address, case.queue) == done, case
        return
    found = drain(server.address, case.queue)
    if case.must_be_done is None:
        assert found == done[: len(found)] and len(found) >= len(ITEMS), case
        assert len(found) - len(ITEMS) >= case.lost.answered, case
    else:
        assert found == (done if case.must_be_done else ITEMS), case
    if case.call.requests == 2 and not (case.is_last and case.step is not Step.UNSENT):
        assert case.lost.item is None, case
    elif case.call.requests == 2 or case.call.name == "confirm":
        assert case.lost.item is not None and case.lost.item.data == b"a", case


def check_job(jobs: Jobs, case: Case) -> None:
    """Compare what is known of the job with what the client has said."""
    assert case.lost is not None and case.must_be_done is not None
    id = id_for(case.queue)
    match case.call.name:
        case "add" | "schedule":
            id = id_for(f"new {case.queue}")
            assert case.lost.job_id == id
            try:
                jobs.add(case.queue, b"1", id=id)
            except DuplicateJob:
                assert case.must_be_done, case
            else:
                assert not case.must_be_done, case
        case "complete" | "fail":
            found = jobs.result(id)
            assert (found is not None) is case.must_be_done, case
            assert found is None or found.is_success is (case.call.name == "complete")
        case "delete_a_job":
            try:
                jobs.inspect(id)
            except NoJob:
                assert case.must_be_done, case
            else:
                assert not case.must_be_done, case
        case _:
            assert jobs.inspect(id)["name"] == case.queue, case


@each_kind
@pytest.mark.parametrize("calls", [CALLS, JOB_CALLS], ids=["items", "jobs"])
def test_what_a_client_says_of_a_call_is_true_after_the_server_was_killed(
    tmp_path: Path, calls: list[Call], kind: str
) -> None:
    kill = Kill()
    with running(tmp_path, "--workq-port", "0") as server:
        cases = cases_of(server, calls, kind, kill)
        with Client(*server.address) as client, Jobs(*server.workq_address) as jobs:
            for each in cases:
                if each.of == "Jobs":
                    jobs.add(each.queue, b"a", id=id_for(each.queue))
                else:
                    client.put_many(each.queue, ITEMS)
        cut_all(server, cases, kill)
        server.start()
        with Client(*server.address) as client, Jobs(*server.workq_address) as jobs:
            for each in cases:
                assert each.wrong is None and each.lost is not None, each
                is_known = each.step is Step.UNSENT and each.call.name != "end_of_a_monitor"  # which has begun before
                assert each.lost.outcome is (Outcome.NOT_DONE if is_known else Outcome.UNKNOWN), each
                if each.of == "Jobs":
                    check_job(jobs, each)
                else:
                    check_queue(server, client, each)
