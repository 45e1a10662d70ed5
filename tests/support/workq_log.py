"""A script of everything that can happen to jobs, on tiny segments, and what must hold of the log whenever it stops."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from staniel.queues.jobs.job import Job
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Choose, Crash
from tests.support.job_world import LOG, JobClient, JobWorld, disk_with_log, job_id
from tests.support.workq_original import Original

SETTINGS = "cmdlog_seg_size = 260\ncmdlog_clean_int = 200"
Snapshot = dict[bytes, tuple[object, ...]]


def state_of(job: Job) -> tuple[object, ...]:
    return (job.state.value, job.attempts, job.payload, job.result, job.created_ns, job.time_ns, job.terms.queue.name)


def snapshot(world: JobWorld) -> Snapshot:
    return {id: state_of(job) for id, job in world.broker.workq.jobs.by_id.items()}


def files(disk: Disk) -> list[bytes]:
    """The segments, in order."""
    names = sorted(name for name, _ in disk.list(LOG) if name.endswith(".log"))
    return [disk.read(f"{LOG}/{name}", 0, disk.size(f"{LOG}/{name}")) for name in names]


def as_the_original_reads(world: JobWorld) -> Snapshot:
    """(state, attempts, payload, result) by id; raises Refused if it would not start."""
    original = Original(world.now_ms - 20).replay(files(world.disk))  # time is noticed a few milliseconds late
    return {
        bytes.fromhex(id): (job["state"], job["attempts"], job["payload"], job["result"])
        for id, job in original.jobs.items()
    }


class Script:
    """Requests one after the other; `safe` is what was true when the last answer had come."""

    def __init__(self, disk: Disk | None = None, settings: str = SETTINGS) -> None:
        self.world = JobWorld(settings, disk)
        self.client: JobClient = self.world.worker()
        self.safe: Snapshot = snapshot(self.world)

    def note(self) -> None:
        self.safe = snapshot(self.world)

    def add(self, number: int, **options: int | str) -> None:
        assert self.client.adds(number, f"job {number}", **options) == "+OK"  # type: ignore[arg-type]
        self.note()

    def lease(self) -> str:
        got = self.client.leases()
        self.note()
        return got

    def finish(self, number: int, command: str = "complete") -> None:
        assert self.client.finishes(number, f"result {number}", command) == "+OK"
        self.note()

    def delete(self, number: int) -> None:
        assert self.client.asks(f"delete {job_id(number)}") == "+OK"
        self.note()

    def wait(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.world.turn(20)
            self.note()


def everything(script: Script) -> None:
    """Adds, leases, results, time-outs, deletes, an id used again, expiry, schedules; cleaning goes on meanwhile."""
    for number in range(1, 7):
        script.add(number, ttr=50 if number % 2 else 60_000, flags="-max-attempts=2" if number == 1 else "")
    for _ in range(4):
        script.lease()
    script.finish(2)
    script.wait(120)
    script.delete(3)
    script.add(3, ttl=60_000)
    script.finish(4, "fail")
    script.delete(2)
    script.wait(240)
    script.add(7, ttl=100)
    script.lease()
    script.wait(260)
    script.delete(3)
    script.add(3)
    script.add(8)
    script.delete(8)
    script.wait(220)
    script.delete(5)
    script.delete(1)
    script.wait(240)
    script.add(9)
    script.delete(6)
    script.wait(440)


def by_chance(seed: int) -> Callable[[Script], None]:
    """Two hundred requests on a dozen ids, drawn by lot."""

    def run(script: Script) -> None:
        random = Random(seed)
        client, jobs = script.client, script.world.broker.workq.jobs
        for _ in range(200):
            number = random.randrange(1, 13)
            match random.randrange(9):
                case 0 | 1 | 2:
                    ttl, ttr = random.choice((90, 600_000, 600_000)), random.choice((30, 60_000))
                    flags = random.choice(("", "-max-attempts=1", "-priority=3"))
                    client.adds(number, "p" * random.randrange(40), ttr=ttr, ttl=ttl, flags=flags)
                case 3:
                    at = random.choice(("2023-11-14T22:13:21Z", "2200-01-01T00:00:00.5Z"))
                    client.says(f"schedule {job_id(number)} q 60000 600000 {at} 2", "xy").hears()
                case 4:
                    client.leases()
                case 5:
                    client.finishes(number, "r" * random.randrange(30), random.choice(("complete", "fail")))
                case 6 | 7:
                    client.asks(f"delete {job_id(number)}")
                case _:
                    script.wait(random.choice((20, 60, 140)))
            script.note()
        assert len(jobs.by_id) <= 12

    return run


def steps_of(run: Callable[[Script], None]) -> int:
    script = Script()
    run(script)
    return len(script.world.disk.log)


def interrupted(run: Callable[[Script], None], stop_at: int) -> Script | None:
    """The script stopped before a step of the disk; None: it stopped before the server had started."""
    disk = disk_with_log()
    disk.stop_at = stop_at
    script = None
    try:
        script = Script(disk)
        run(script)
    except PowerCut:
        pass
    return script


def wrongs(script: Script, how: Crash | Choose) -> list[str]:
    """What a power cut has cost: each job is as it was when the last answer came, or as it was just going to be."""
    now = snapshot(script.world)
    after = script.world.crash(how)
    after.check()
    found = snapshot(after)
    return [
        f"{id.hex()}: {found.get(id)}, was {script.safe.get(id)}, was becoming {now.get(id)}"
        for id in {*script.safe, *now, *found}
        if found.get(id) not in (script.safe.get(id), now.get(id)) and not is_over(script, id, found)
    ]


def is_over(script: Script, id: bytes, found: Snapshot) -> bool:
    """Whether the job's time has run out while the server was down."""
    job = script.world.broker.workq.jobs.by_id.get(id)
    return id not in found and job is not None and job.limit_ms <= script.world.now_ms + 1000
