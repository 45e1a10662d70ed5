"""The redo log and the command log of jobs, which rewrites its segments when all that it has written is on the disk."""

from __future__ import annotations

from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.support.job_world import START_MS, JobWorld, World, job_id


class LoggedJobWorld(JobWorld):
    """With a redo log of checksums, and the command log in the spool."""

    def __init__(self, workq: str = "", disk: Disk | None = None, now_ms: int = START_MS) -> None:
        self.workq_toml = workq
        self.syncs = True
        World.__init__(self, f'server.redo_log = "checksums"\n[workq]\nport = 0\n{workq}', disk, now_ms)

    def again(self, disk: Disk | None = None) -> JobWorld:
        return LoggedJobWorld(self.workq_toml, disk or self.disk.kill(), self.now_ms + 1000)


def test_what_cleaning_rests_on_is_not_cut_off() -> None:
    world = LoggedJobWorld(
        'cmdlog_seg_size = 9\ncmdlog_clean_int = 600\ncmdlog_sync = "interval"\ncmdlog_sync_int = 50'
    )
    worker, jobs = world.worker(), world.broker.workq
    assert [worker.adds(1, "once"), worker.adds(2)] == ["+OK", "+OK"]
    world.do_tasks()
    assert [worker.leases(), worker.finishes(1), worker.adds(3)] == ["1", "+OK", "+OK"]
    jobs.log._segment_bytes = 100_000  # what follows is in one segment, which the log knows
    for number in range(4, 7):
        assert worker.adds(number) == "+OK"
        world.turn(60)
    assert list(world.broker.group.redo.bindings) == [jobs.log.path]
    while jobs.cleaner.is_idle:
        world.turn(20)
    world.syncs = False
    worker.says(f"delete {job_id(1)}")  # so that its result may go, which lies in a segment before
    while not jobs.cleaner.is_idle:
        job = world.crash(Crash.KEEP).job(1)
        assert job is None or job.is_processed
        world.sync()
        world.turn()
    assert "cmdlog.cleaned" in world.events
