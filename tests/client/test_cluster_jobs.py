"""ClusterJobs: the member that leads is found, remembered and searched for again. Over members that play a script, and
over a real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from staniel.client import Busy, ClusterJobs, ConnectionLost, NoLeader, Outcome, Refused
from staniel.client.cluster import Cluster
from staniel.client.servers import Address
from tests.client.fake_server import HANG_UP, Answer, FakeServer, Last, scripted
from tests.client.kinds import each_kind, each_loop, play
from tests.support.process import running

Make = Callable[..., Any]
OK, TIMEOUT = b"+OK\r\n", b"-TIMEOUT\r\n"
NOT_LEADING = Last(b"-SERVER-ERROR not the leader: 127.0.0.1:22133\r\n")
NO_LEADER = Last(b"-SERVER-ERROR not the leader\r\n")
ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
A, B, C = ("a", 9922), ("b", 9922), ("c", 9922)


def leased(payload: bytes) -> bytes:
    return b"+OK 1\r\n%b mail 5000 %d\r\n%b\r\n" % (ID.encode(), len(payload), payload)


def jobs_of(kind: str, body: Callable[[Make], Any], **options: Any) -> None:
    """Run `body` with clients that begin with the first member, and search once."""

    def made(members: list[Address], **more: Any) -> Any:
        jobs = make_any(members, **{"leader_wait_s": 0, **options, **more})
        getattr(jobs, "blocking", jobs)._cluster.members = members
        return jobs

    async def whole(make: Make) -> None:
        nonlocal make_any
        make_any = make
        await body(made)

    make_any: Make = ClusterJobs
    play(kind, whole, of="ClusterJobs")


def set_script(server: FakeServer, *answers: Answer) -> None:
    server._script = iter(answers)


@each_kind
def test_the_member_that_leads_gets_this_request_and_all_later_ones(kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make([follower.address, leader.address])
        await jobs.add("mail", b"a", id=ID)
        job = await jobs.lease("mail")
        assert (job.id, job.payload) == (ID, b"a")
        await jobs.complete(job)
        assert await jobs.delete(ID) is True
        await jobs.close()
        with pytest.raises(ConnectionLost, match="closed by this program"):
            await jobs.lease("mail")

    with scripted([NOT_LEADING], [OK, leased(b"a"), OK, OK]) as (follower, leader):
        jobs_of(kind, body)
        assert (len(follower.heard), len(leader.heard)) == (1, 4)


@each_kind
def test_a_member_that_refused_may_lead_later(kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make([one.address, other.address])
        await jobs.add("mail", b"a")
        await jobs.add("mail", b"b")
        await jobs.close()

    with scripted([NOT_LEADING, OK], [OK, NOT_LEADING]) as (one, other):
        jobs_of(kind, body)
        assert (len(one.heard), len(other.heard)) == (2, 2)


@each_kind
def test_while_no_member_leads_the_search_goes_on_and_then_says_what_each_replied(kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make([one.address, other.address], leader_wait_s=60)
        await jobs.add("mail", b"a")
        await jobs.close()
        jobs = make([one.address, ("127.0.0.1", 1)])
        with pytest.raises(NoLeader, match=r"names none; 127\.0\.0\.1:1 is lost: ") as none:
            await jobs.add("mail", b"a", id=ID)
        assert (none.value.outcome, none.value.job_id) == (Outcome.NOT_DONE, ID)
        await jobs.close()

    with scripted([NOT_LEADING, NO_LEADER, NO_LEADER], [NO_LEADER, OK]) as (one, other):
        jobs_of(kind, body)


@each_kind
def test_a_change_of_unknown_outcome_is_sent_to_no_other_member_and_a_lease_is(kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make([ill.address, well.address])
        with pytest.raises(ConnectionLost) as lost:
            await jobs.add("mail", b"a", id=ID)
        assert (lost.value.outcome, lost.value.job_id, well.heard) == (Outcome.UNKNOWN, ID, [])
        job = await jobs.lease("mail", wait_s=3600)
        assert job.payload == b"b"
        await jobs.close()

    with scripted([HANG_UP, HANG_UP], [leased(b"b")]) as (ill, well):
        jobs_of(kind, body)
        wait_ms = int(well.heard[0].split()[-1])
        assert 3_500_000 < wait_ms <= 3_600_000


@each_loop
def test_the_search_for_a_leader_that_is_to_complete_a_job_can_be_cancelled(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(make: Make) -> None:
        async def cancelled_pause(seconds: float) -> None:
            scope.cancel()
            await anyio.sleep(seconds)

        monkeypatch.setattr("staniel.client.aio.leading.pause", cancelled_pause)
        jobs = make([("127.0.0.1", 1)], leader_wait_s=60)
        with anyio.CancelScope() as scope:
            await jobs.complete(ID)
        assert scope.cancelled_caught
        await jobs.close()

    jobs_of(kind, body)


@each_kind
def test_a_refusal_of_the_leader_is_the_clusters(kind: str) -> None:
    async def body(make: Make) -> None:
        jobs = make([leader.address, member.address])
        with pytest.raises(Refused, match="disk"):
            await jobs.add("mail", b"a")
        await jobs.close()

    with scripted([b"-SERVER-ERROR the disk is full\r\n"], []) as (leader, member):
        jobs_of(kind, body)
        assert member.heard == []


@each_kind
def test_jobs_of_a_real_leader_go_on_over_a_restart(tmp_path: Path, kind: str) -> None:
    async def body(make: Make) -> None:
        async with make([follower.address, leader.workq_address], leader_wait_s=30) as jobs:
            first = await jobs.add("mail", b"a")
            job = await jobs.lease("mail")
            assert job.id == first
            port = leader.workq_address[1]
            leader.restart()
            inner = getattr(jobs, "blocking", jobs)
            inner._cluster.members = [leader.workq_address]
            assert port and await jobs.add("mail", b"b")
            await jobs.complete(job, b"sent")
            assert (await jobs.result(first)).data == b"sent"
            assert (await jobs.names()) == ["mail"]
            assert int((await jobs.stats("mail"))["ready-len"]) == 1

    with running(tmp_path, "--workq-port", "0") as leader, scripted([NOT_LEADING] * 9) as (follower,):
        jobs_of(kind, body)


def test_a_second_call_at_the_same_time_is_told_so_and_wrong_arguments_are_refused() -> None:
    jobs = ClusterJobs([A], leader_wait_s=0)
    assert jobs._turn.acquire(object())
    with pytest.raises(Busy, match="another thread is using this client"):
        jobs.lease("mail")
    for members, wait_s in (([], 0), ([A, A], 0), ([A], -1)):
        with pytest.raises(ValueError):
            ClusterJobs(members, leader_wait_s=wait_s)


def test_a_name_says_on_which_host_the_leader_is() -> None:
    search = Cluster([A, B, C], lambda: 0.0, names_are_addresses=False).search()
    assert search.next_server() == A
    search.note_failure(A, Refused("SERVER_ERROR not the leader: c:22133"))
    assert [search.next_server(), search.next_server(), search.next_server()] == [C, B, None]
