"""Draining jobs: lease, spool, sync, complete. drain.py does the same with items.

A job stays leased for its time to run, whichever process is killed, and is completed by its id over any connection. So
the jobs in the spool are completed again after every accident, and come again only if another client leased them
meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa

from staniel.pipeline.lake.arrow import TIME, schema
from staniel.pipeline.sources.access import PLAIN, Access
from staniel.pipeline.sources.connection import ServerLost
from staniel.pipeline.sources.drain import FIRST_ITEMS, ROUND_BYTES, BatchDrain, BatchLimits, DrainStep
from staniel.pipeline.sources.drain_spool import DrainSpool, arrow_stream
from staniel.pipeline.sources.job_connection import JobConnection
from staniel.protocol.client.workq.replies import Job

LOGGER = logging.getLogger("staniel.pipeline")
SCHEMA = schema(
    queue=pa.string(), value=pa.binary(), id=pa.string(), ttrMs=pa.int64(), leaseTime=TIME, server=pa.string()
)
ROUND_JOBS = 200  # of a server: each may have 1 MiB
COMPLETED_AT_ONCE = 500
Outcome = TypeVar("Outcome")


class ServerJobs:
    """The jobs of one server. `leased`: those of the present round."""

    def __init__(self, server: str, queues: Sequence[str], timeout_s: float, access: Access) -> None:
        self.server = server
        self.queues = queues
        self.leased: list[Job] = []
        self.capacity = 0
        self.lost = ""
        self._timeout_s = timeout_s
        self._access = access
        self._lost_s = 0.0
        self._mean_bytes = ROUND_BYTES // FIRST_ITEMS
        self._connection: JobConnection | None = None

    def request_leases(self, limits: BatchLimits, wait_ms: int) -> None:
        """Ask for as many jobs as the limits and memory seem to allow. Raises ServerLost."""
        fit = max(1, min(limits.bytes, ROUND_BYTES) // max(self._mean_bytes, 1))
        self.leased, self.capacity = [], min(limits.items, fit, ROUND_JOBS)
        self._connected().request_leases(self.queues, self.capacity, wait_ms)

    def receive_leases(self) -> None:
        """Receive the jobs. Raises ServerLost; those that came before are kept."""
        self._connected().receive_leases(self.leased)
        if self.leased:
            mean = sum(len(job.payload) for job in self.leased) // len(self.leased) + 64
            self._mean_bytes = max(mean, self._mean_bytes // 4)

    def complete(self, ids: Sequence[str]) -> None:
        """Complete jobs, again until the server has replied. Raises ServerLost after the timeout."""
        for first in range(0, len(ids), COMPLETED_AT_ONCE):
            some = ids[first : first + COMPLETED_AT_ONCE]
            self._insist(lambda connection: connection.complete(some))  # noqa: B023 - called at once

    def ready(self) -> dict[str, int]:
        """Return how many jobs wait in each queue that the server knows. Raises ServerLost."""
        return self._insist(lambda connection: connection.ready_jobs(self.queues))

    def attempt(self, act: Callable[[], None]) -> bool:
        """Return True if a call succeeds, False if the server was lost: the next round connects again."""
        try:
            act()
        except ServerLost as error:
            self._lost_s = self._lost_s if self.lost else time.monotonic()
            self.lost = str(error)
            self.capacity = len(self.leased)
            self.drop()
            return False
        self.lost = ""
        return True

    @property
    def is_overdue(self) -> bool:
        """True if the server has not replied for longer than the timeout."""
        return bool(self.lost) and time.monotonic() - self._lost_s > self._timeout_s

    def drop(self) -> None:
        """Close the connection. Leased jobs stay leased until their time to run ends."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> JobConnection:
        if self._connection is None:
            self._connection = JobConnection(self.server, self._timeout_s, self._access)
        return self._connection

    def _insist(self, ask: Callable[[JobConnection], Outcome]) -> Outcome:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask(self._connected())
            except ServerLost:
                self.drop()
                if time.monotonic() > until:
                    raise
                time.sleep(min(0.2, self._timeout_s / 10))


class JobDrain(BatchDrain):
    """A drain of jobs. Leased jobs come again when their time to run ends; spooled ones are completed when their batch
    is read.
    """

    def __init__(
        self,
        servers: Sequence[str],
        queues: Sequence[str],
        spool: DrainSpool,
        timeout_s: float = 30.0,
        after: Callable[[DrainStep], None] = lambda step: None,
        access: Access = PLAIN,
    ) -> None:
        self.servers = [ServerJobs(server, queues, timeout_s, access) for server in servers]
        super().__init__(spool, self.servers, timeout_s, after)
        self.queues = queues
        self._first = 0  # the first server of the next round; rotated, so that each gets its share of little room

    def _run_round(self, batch: int, number: int, limits: BatchLimits, wait_ms: int) -> tuple[int, bool]:
        asked = self._request_leases(limits, wait_ms // len(self.servers))
        for server in asked:
            server.attempt(server.receive_leases)
        leased = [(server.server, server.leased) for server in asked if server.leased]
        jobs = [job for _, some in leased for job in some]
        if not jobs:
            return 0, False
        self.after(DrainStep.RESERVED)
        self.spool.put(batch, number, encode_jobs(leased), lambda: self.after(DrainStep.SPOOLED))
        self.after(DrainStep.SYNCED)
        for server in asked:
            server.complete([job.id for job in server.leased])
        self.after(DrainStep.CONFIRMED)
        limits.items -= len(jobs)
        limits.bytes -= sum(len(job.payload) for job in jobs)
        return len(jobs), len(jobs) >= sum(server.capacity for server in asked)

    def _request_leases(self, limits: BatchLimits, wait_ms: int) -> list[ServerJobs]:
        """Send all requests, so that the servers work at the same time. Return the servers that were asked."""
        servers = self.servers[self._first :] + self.servers[: self._first]
        self._first = (self._first + 1) % len(servers)
        asked = []
        left = BatchLimits(limits.items, limits.bytes)
        for behind, server in zip(range(len(servers), 0, -1), servers, strict=True):
            share = BatchLimits(-(-left.items // behind), -(-left.bytes // behind))
            if not share.spent and server.attempt(partial(server.request_leases, share, wait_ms)):
                asked.append(server)
                left = BatchLimits(left.items - server.capacity, left.bytes - share.bytes)
        return asked

    def confirm_spooled(self, names: list[str]) -> None:
        """Complete the jobs of these files, which a killed drain may not have done. Raises ServerLost, ServerRefused.

        A server that is not drained any more is not asked: its jobs may come again if it is known by another name.
        """
        for server in self.servers:
            rows = [row for batch in self.spool.read(names) for row in batch.select(["id", "server"]).to_pylist()]
            server.complete([row["id"] for row in rows if row["server"] == server.server])

    def waiting(self) -> int:
        """Return how many jobs are ready on the servers. Raises ServerLost, ServerRefused."""
        counts = [server.ready() for server in self.servers]
        for queue in self.queues:
            if not self._known and not any(queue in count for count in counts):
                servers = " and ".join(server.server for server in self.servers)
                LOGGER.warning("no jobs named %s were added since the start of %s", queue, servers)
        self._known = True
        return sum(sum(count.values()) for count in counts)

    def close(self) -> None:
        for server in self.servers:
            server.drop()
            server.lost = ""


def encode_jobs(leased: Sequence[tuple[str, Sequence[Job]]]) -> bytes:
    """Return the jobs of servers as an Arrow stream."""
    jobs = [job for _, some in leased for job in some]
    columns = [
        pa.array([job.name for job in jobs], pa.string()),
        pa.array([job.payload for job in jobs], pa.binary()),
        pa.array([job.id for job in jobs], pa.string()),
        pa.array([job.ttr_ms for job in jobs], pa.int64()),
        pa.repeat(pa.scalar(time.time_ns() // 1000, pa.int64()), len(jobs)).view(TIME),
        pa.array([server for server, some in leased for _ in some], pa.string()),
    ]
    return arrow_stream(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
