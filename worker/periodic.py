"""Periodic items: at the times of a cron expression, one of many workers puts an item on the queue.

Each worker computes the times and adds, at each one, a job whose id belongs to schedule and time, so there is one job
however many workers add it. One of them leases the job, puts the item, and completes the job. If it dies before, the
job is leased again when its time to run is over; only if it dies between put and completion are there two items. In a
cluster the put has the job's id as its key, because a leader may be lost between the two: then there is one.

Times that pass while no worker runs are left out; of several that pass while the server is away the last one counts. If
a clock is put back, a time that has passed is not repeated: its job is still there.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from msgspec import Struct

from staniel.client.blocking.client import Client
from staniel.client.blocking.cluster_jobs import ClusterJobs
from staniel.client.blocking.jobs import Jobs
from staniel.client.blocking.multi import MultiClient
from staniel.client.errors import ClientError, DuplicateJob, Full, JobFinished, Refused
from staniel.client.job_messages import id_for
from staniel.client.messages import PutOutcome
from staniel.client.servers import Address
from staniel.protocol.workq.fields import is_name
from staniel.worker.events import Teller
from staniel.worker.settings import Server

TTR_S = 30.0
"""The time from lease to completion, within which an item is put."""
TTL_S = 86_400.0
"""The life of a job, in which its time is not repeated, whatever clocks say."""
WAIT_S = 1.0
PAUSE_S = 2.0


class Periodic(Struct, frozen=True):
    """A periodic item: its data, `data` or `name`, is put at the times of `cron`, in the zone."""

    name: str
    cron: str
    data: bytes = b""
    zone: str = "UTC"


class Schedule(Struct, frozen=True):
    """The periodic items of a worker, and the port of the jobs of its server. In a cluster it is that of every member,
    or there is one port for each, in the order of the server and its `members`.
    """

    periodics: tuple[Periodic, ...]
    jobs_port: int | tuple[int, ...] = 9922

    def jobs_addresses(self, server: Server) -> list[Address]:
        """Return where the jobs of the server and of each other member are. Raises ValueError."""
        members = [server.address, *server.members]
        ports = (self.jobs_port,) if isinstance(self.jobs_port, int) else self.jobs_port
        if len(ports) == 1:
            ports *= len(members)
        if len(ports) != len(members):
            raise ValueError(f"expected one port for jobs, or one for each of {len(members)} members, not {len(ports)}")
        addresses = [(host, port) for (host, _), port in zip(members, ports, strict=True)]
        return list(dict.fromkeys(addresses))


class Times:
    """The times of one periodic item, from `now` on. Raises ValueError for a wrong expression or zone, ImportError
    without the extra `cron`.
    """

    def __init__(self, periodic: Periodic, now: datetime) -> None:
        from cronsim import CronSimError

        self.periodic = periodic
        self._now = now
        try:
            self._zone = ZoneInfo(periodic.zone)
            self.next = self._next_after(now)
        except CronSimError as error:
            raise ValueError(f"{periodic.cron!r} is no cron expression: {error}") from error
        except (OSError, KeyError) as error:
            raise ValueError(f"{periodic.zone!r} is no time zone") from error

    def passed(self, now: datetime) -> datetime | None:
        """Return the last time that has passed since the previous call, None if none has. If the clock was put back,
        what comes next is what follows the present: the clock may have been a year ahead.
        """
        was, self._now = self._now, now
        if now < was:
            self.next = self._next_after(now)
        if self.next is None or self.next > now:
            return None
        from cronsim import CronSim

        local = now.astimezone(self._zone)
        self.next = self._next_after(now)
        return next(CronSim(self.periodic.cron, local.replace(microsecond=local.microsecond or 1), reverse=True), None)

    def _next_after(self, now: datetime) -> datetime | None:
        from cronsim import CronSim

        return next(CronSim(self.periodic.cron, now.astimezone(self._zone)), None)


def wall_clock() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


class Ticker:
    """The thread of a worker that adds jobs at their times, and turns leased ones into items."""

    def __init__(
        self,
        queue: str,
        schedule: Schedule,
        server: Server,
        teller: Teller,
        *,
        wall: Callable[[], datetime] = wall_clock,
    ) -> None:
        """Prepare a ticker. Raises ValueError, ImportError."""
        names = [periodic.name for periodic in schedule.periodics]
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"expected a name for each periodic item, each once, not {names}")
        self._queue = queue
        self._schedule = schedule
        self._server = server
        self._teller = teller
        self._wall = wall
        name = f"cron.{queue}"
        self._name = name if is_name(name.encode("utf-8", "replace")) else f"cron.{id_for(queue)}"
        self._times = [Times(periodic, wall()) for periodic in schedule.periodics]
        self._addresses = schedule.jobs_addresses(server)
        self._data = {periodic.name: periodic.data or periodic.name.encode() for periodic in schedule.periodics}
        self._due: dict[str, datetime] = {}
        """The times that have passed and whose jobs are not known to be added."""
        self._jobs: Jobs | None = None
        self._client: Client | MultiClient | None = None

    def live(self, stopping: threading.Event) -> None:
        """Work until the worker stops."""
        while not stopping.is_set():
            try:
                self.add_due(WAIT_S)
            except Exception as error:  # without this thread no item would be put any more
                why = str(error) if isinstance(error, ClientError) else traceback.format_exc()
                self._teller.log("warning", "schedule.lost", why=why, again_in_s=PAUSE_S)
                self.close()
                stopping.wait(PAUSE_S)
        self.close()

    def add_due(self, wait_s: float) -> None:
        """Add the jobs that are due, and put the items of those that this worker gets to lease. Raises ClientError."""
        jobs = self._connected()
        now = self._wall()
        for times in self._times:
            if (time := times.passed(now)) is not None:
                self._due[times.periodic.name] = time
        for name, time in list(self._due.items()):
            id = id_for(f"cron {self._queue} {name} {time.astimezone(UTC).isoformat()}")
            try:
                jobs.add(self._name, self._data[name], ttr_s=TTR_S, ttl_s=TTL_S, id=id)
            except DuplicateJob:
                pass
            del self._due[name]
        until_next = [(times.next - now).total_seconds() for times in self._times if times.next is not None]
        wait_s = max(min([wait_s, *until_next]), 0)
        while (job := jobs.lease(self._name, wait_s=wait_s)) is not None:
            self._put(jobs, job.id, job.payload)
            wait_s = 0

    def _put(self, jobs: Jobs, id: str, data: bytes) -> None:
        client = self._client
        assert client is not None
        try:
            outcome = client.put(self._queue, data, key=f"cron-{id}" if self._server.members else "")
        except (Full, Refused) as error:  # the job comes again
            self._teller.log("error", "schedule.refused", queue=self._queue, why=str(error), again_in_s=TTR_S)
            return
        if outcome is PutOutcome.STORED:  # else a worker that did not complete the job has put the item
            self._teller.log("info", "schedule.put", queue=self._queue, job=id)
        try:
            jobs.complete(id)
        except JobFinished:
            pass

    def _connected(self) -> Jobs:
        server = self._server
        if self._jobs is None:
            jobs = (
                ClusterJobs(self._addresses, tls=server.tls, answer_timeout_s=server.answer_timeout_s)
                if server.members
                else Jobs(*self._addresses[0], tls=server.tls, answer_timeout_s=server.answer_timeout_s)
            )
            self._jobs = jobs  # before it connects, so that `close` closes it
            jobs.connect()
        if self._client is None:
            self._client = server.cluster_client(self._name) if server.members else server.client(self._name)
        return self._jobs

    def close(self) -> None:
        """Close the connections. The next step makes new ones."""
        for connection in (self._jobs, self._client):
            if connection is not None:
                connection.close()
        self._jobs = self._client = None


def parse(texts: Sequence[str], zone: str) -> tuple[Periodic, ...]:
    """Return the periodic items that the options `NAME=CRON` name. Raises ValueError."""
    found: dict[str, Periodic] = {}
    for text in texts:
        name, equals, cron = text.partition("=")
        if not (name.strip() and equals and cron.strip()) or name.strip() in found:
            raise ValueError(f"a periodic item is given once, as NAME=CRON, not as {text!r}")
        found[name.strip()] = Periodic(name.strip(), cron.strip(), zone=zone)
    return tuple(found.values())
