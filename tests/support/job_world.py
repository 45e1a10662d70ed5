"""A broker that serves workq on the fake disk, with a stepped clock and clients without sockets.

Each turn runs the syncs that are due, unless a test holds them back with `syncs = False`.
"""

from __future__ import annotations

from staniel.broker import protocols
from staniel.protocol.workq.fields import read_id, show_id
from staniel.queues.jobs.job import Job
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Choose, Crash
from tests.support.world import START_MS, Client, World

LOG = "log"


def disk_with_log(files: dict[str, bytes] | None = None) -> Disk:
    """A disk with a spool `s` and a command log `log` that holds these files, all of it durable."""
    disk = Disk()
    disk.make_folder("s")
    disk.make_folder(LOG)
    for name, content in (files or {}).items():
        file = disk.append(f"{LOG}/{name}")
        file.write(content)
        file.close()
    disk.sync_all("")
    return disk


class JobWorld(World):
    """`workq` is TOML for the table [workq]."""

    def __init__(self, workq: str = "", disk: Disk | None = None, now_ms: int = START_MS) -> None:
        self.workq_toml = workq
        self.syncs = True
        config = f'[workq]\nport = 0\ncmdlog_path = "{LOG}"\n{workq}'
        super().__init__(config, disk or disk_with_log(), now_ms)

    def worker(self) -> JobClient:
        client = JobClient(self)
        self.clients.append(client)
        return client

    def turn(self, ms: int = 0) -> None:
        super().turn(ms)
        while self.syncs and self.sync():
            pass

    def pass_time(self, ms: int, step_ms: int = 10) -> None:
        """Turn after turn until so much time has passed."""
        for _ in range(-(-ms // step_ms)):
            self.turn(step_ms)

    def stop(self) -> None:
        self.broker.shutdown(self.now_ms)

    def again(self, disk: Disk | None = None) -> JobWorld:
        """The server started again, on its own disk or on what a crash has left of it."""
        return JobWorld(self.workq_toml, disk or self.disk.kill(), self.now_ms + 1000)

    def crash(self, how: Crash | Choose) -> JobWorld:
        return self.again(self.disk.crash(how))

    @property
    def jobs(self) -> dict[str, Job]:
        return {show_id(id).decode(): job for id, job in self.broker.workq.jobs.by_id.items()}

    def job(self, number: int) -> Job | None:
        raw = read_id(job_id(number).encode())
        assert raw is not None
        return self.broker.workq.jobs.by_id.get(raw)

    def segments(self) -> list[str]:
        return [name for name, _ in self.disk.list(LOG) if name.endswith(".log")]

    def check(self) -> None:
        """Every job stands in exactly one place, and the counts are those of the places."""
        jobs = self.broker.workq.jobs
        for queue in jobs.queues.values():
            mine = [job for job in jobs.by_id.values() if job.terms.queue is queue]
            standing = [*queue.ready, *queue.scheduled]
            assert len(standing) == len(queue.ready) + len(queue.scheduled) == len({job.id for job in standing})
            assert all(jobs.by_id[job.id] is job for job in standing)
            leased = sum(job.state.value == 4 for job in mine)
            finished = sum(job.is_processed for job in mine)
            assert (queue.leased, queue.finished) == (leased, finished)
            assert len(mine) == len(standing) + leased + finished


def job_id(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-{number:012x}"


class JobClient(Client):
    """One workq connection."""

    def __init__(self, world: World) -> None:
        super().__init__(world, protocols.workq())

    def feeds(self, data: bytes) -> JobClient:
        """Raw bytes, and a turn."""
        self.sends(data)
        self.world.turn()
        return self

    def adds(self, number: int, payload: str = "x", name: str = "q", ttr: int = 60_000, ttl: int = 600_000,
             flags: str = "") -> str:  # fmt: skip
        """Add a job; the answer."""
        self.says(f"add {job_id(number)} {name} {ttr} {ttl} {len(payload)} {flags}", payload)
        return self.hears()

    def asks(self, line: str) -> str:
        """One line; the answer."""
        return self.says(line).hears()

    def leases(self, name: str = "q", wait: int = 0) -> str:
        """Which job came, as its number in text, or the answer if none did."""
        heard = self.asks(f"lease {name} {wait}")
        return str(int(heard.split()[2][:8], 16)) if heard.startswith("+OK 1") else heard

    def finishes(self, number: int, result: str = "", command: str = "complete") -> str:
        self.says(f"{command} {job_id(number)} {len(result)}", result)
        return self.hears()

    def hears_raw(self) -> bytes:
        heard, self._heard = self._heard, b""
        return heard
