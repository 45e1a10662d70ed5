"""A worker of a cluster: it works where the leader is. Its members are a real server and some that play a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from staniel.client import Client, ConnectionLost, Jobs
from staniel.client.cluster import Cluster
from staniel.worker import Periodic, Schedule, Server, Settings, Worker
from staniel.worker import periodic as periodic_module
from staniel.worker.events import Hooks, Log, Teller
from staniel.worker.periodic import Ticker
from tests.client.fake_server import HANG_UP, Answer, playing
from tests.client.fake_server import item as item_of
from tests.client.test_cluster import names, set_script
from tests.client.test_cluster_jobs import NOT_LEADING
from tests.support import process
from tests.support.process import run_staniel, running, until
from tests.support.wire import drain
from tests.worker.test_command import worker
from tests.worker.test_periodic import MINUTE, Clock
from tests.worker.test_worker import Seen, Working, numbered

NOWHERE = ("127.0.0.1", 1)
NAMED = b"OK\r\n"  # the reply to the worker's name


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[process.Server]:
    with running(tmp_path) as started:
        yield started


class WorkingFor(Working):
    """A worker whose server is the first of several members."""

    def __init__(self, first: tuple[str, int], *members: tuple[str, int], seen: Seen, **settings: object) -> None:
        quick: dict[str, object] = {"queue": "jobs", "wait_s": 0.05, "grace_s": 20, "concurrency": 1, **settings}
        self.lines: list[str] = []
        self.ending = None
        self.worker = Worker(
            seen, Settings(**quick), Server(*first, members=members),  # type: ignore[arg-type]
            log=Log("w", write=self.lines.append),
        )  # fmt: skip
        self.worker._shared.cluster.members = [first, *members]

    def __enter__(self) -> WorkingFor:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.worker.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def refusing(leader: tuple[str, int]) -> list[Answer]:
    return [NAMED, names(leader)] * 20


def put(leader: process.Server, *items: bytes) -> None:
    with Client(*leader.address) as client:
        client.put_many("jobs", items)


def test_a_worker_goes_at_once_where_a_follower_sends_it(leader: process.Server) -> None:
    put(leader, *numbered(50))
    seen = Seen()
    with playing(*refusing(leader.address)) as follower:
        with WorkingFor(follower.address, seen=seen, concurrency=4) as work:
            assert until(lambda: work.counts["done"] == 50)
        assert 1 <= len(work.logged("connection.lost")) <= 4
        assert all(" again_in_s=0" in line for line in work.logged("connection.lost"))
    assert set(seen.calls.values()) == {1} and drain(leader.address, "jobs") == []


def test_a_worker_passes_over_members_that_are_lost(leader: process.Server) -> None:
    put(leader, b"a")
    seen = Seen()
    with playing(HANG_UP) as ill, WorkingFor(NOWHERE, ill.address, leader.address, seen=seen) as work:
        assert until(lambda: work.counts["done"] == 1)
    assert [" again_in_s=0" in line for line in work.logged("connection.lost")] == [True, True]


def test_a_worker_follows_the_next_leader(leader: process.Server) -> None:
    put(leader, b"b")
    seen = Seen()
    script = [NAMED, item_of(b"a", b"jobs/t=50/open", 7), names(leader.address, 2)]  # the confirm, and the next read
    with playing(*script) as old, WorkingFor(old.address, leader.address, seen=seen, prefetch=1) as work:
        assert until(lambda: work.counts["done"] == 2)
        assert until(lambda: not any(lane.done for lane in work.worker._lanes))
        assert work.worker._shared.cluster.leader == leader.address
    assert seen.calls == {b"a": 1, b"b": 1}


def test_a_worker_waits_for_members_that_name_each_other(leader: process.Server) -> None:
    put(leader, b"a")
    seen = Seen()
    with playing() as one, playing() as other:
        set_script(other, *refusing(one.address))
        set_script(one, *refusing(other.address)[:6], *refusing(leader.address))
        with WorkingFor(one.address, other.address, seen=seen) as work:
            assert until(lambda: work.counts["done"] == 1)
    assert seen.calls == {b"a": 1}


def test_the_command_takes_members(leader: process.Server) -> None:
    put(leader, *numbered(3))
    with playing(*refusing(NOWHERE)) as follower:
        options = ("-p", str(follower.address[1]), "--member", f"127.0.0.1:{leader.port}", "-c", "1")
        with worker(leader, "slow", *options) as one:
            assert until(lambda: len(one.done) == 3)
            one.child.terminate()
            assert one.child.wait(60) == 0
    assert sorted(one.done) == numbered(3)


@pytest.mark.parametrize("member", ["a", "a:", ":1", "a:0", "a:65536", "a:b"])
def test_what_is_no_address_is_refused(member: str) -> None:
    ended = run_staniel("work", "tests.worker.functions:slow", "-q", "q", "--member", member)
    assert ended.returncode == 2 and "HOST:PORT" in ended.stderr


def tickers(schedule: Schedule, server: Server, clock: Clock) -> list[Ticker]:
    """Return those of two workers."""
    return [Ticker("jobs", schedule, server, Teller(Log("w", write=print), Hooks()), wall=clock) for _ in range(2)]


@pytest.mark.programs("python:cronsim")
def test_a_time_has_one_item_in_a_cluster_whose_leader_changes(tmp_path: Path) -> None:
    clock = Clock()
    with running(tmp_path, "--workq-port", "0") as first, playing(*[NOT_LEADING] * 20) as follower:
        schedule = Schedule((Periodic("tick", "* * * * *"),), (follower.address[1], first.workq_address[1]))
        server = Server(*first.address, members=(NOWHERE,))
        with pytest.raises(ValueError, match="one for each of 3 members, not 2"):
            schedule.jobs_addresses(Server(*first.address, members=(NOWHERE, ("a", 1))))
        assert schedule.jobs_addresses(server) == [follower.address, first.workq_address]
        workers = tickers(schedule, server, clock)
        for _ in range(3):
            clock.now += MINUTE
            for each in workers:
                each.add_due(0)
        assert drain(first.address, "jobs") == [b"tick"] * 3
        for each in workers:
            each.close()


@pytest.mark.programs("python:cronsim")
def test_an_item_whose_job_was_not_completed_is_not_put_twice_in_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_module, "TTR_S", 0.05)
    clock = Clock()
    with running(tmp_path, "--workq-port", "0") as leader:
        schedule = Schedule((Periodic("tick", "* * * * *"),), leader.workq_address[1])
        server = Server(*leader.address, members=(NOWHERE,))
        lines: list[str] = []
        log = Log("w", write=lines.append)
        one, other = [Ticker("jobs", schedule, server, Teller(log, Hooks()), wall=clock) for _ in "ab"]
        clock.now += MINUTE
        with monkeypatch.context() as patch:
            patch.setattr(Jobs, "complete", lost)
            with pytest.raises(ConnectionLost):
                one.add_due(0)
        assert drain(leader.address, "jobs") == [b"tick"]

        def is_finished() -> bool:
            other.add_due(0.1)
            with Jobs(*leader.workq_address) as jobs:
                return int(jobs.stats("cron.jobs")["ready-len"]) == 0 and completed

        completed: list[str] = []
        whole = Jobs.complete
        monkeypatch.setattr(Jobs, "complete", lambda self, id: (whole(self, id), completed.append(id)))
        assert until(lambda: bool(is_finished()))
        assert drain(leader.address, "jobs") == []
        assert len([line for line in lines if "schedule.put" in line]) == 1
        one.close()
        other.close()


def lost(*_: object) -> None:
    raise ConnectionLost("the leader was lost")


def test_a_cluster_begins_with_any_member() -> None:
    firsts = {Cluster([NOWHERE, ("a", 1)], partial(float, chance)).members[0] for chance in (0.0, 0.9)}
    assert len(firsts) == 2
