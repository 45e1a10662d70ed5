"""Jobs of a cluster: each request goes to the member that leads, which is searched for when it has changed."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Sequence

from staniel.client.aio.jobs import Jobs
from staniel.client.aio.leading import ask_leader
from staniel.client.aio.transport import Turn
from staniel.client.cluster import Cluster, may_search_on
from staniel.client.errors import Busy, ClientError, ConnectionLost, Outcome
from staniel.client.headers import Tracing
from staniel.client.servers import Address, Servers, chance
from staniel.protocol.client.workq.replies import JobReply
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.requests import AwaitResult, FinishJob, InspectServer, ScheduleJob, WorkqRequest

BUSY = "another task is using this client; give each task one of its own"
CHANGES = (AddJob, ScheduleJob, FinishJob, DeleteJob)
"""The requests that are sent to no other member if it is unknown whether they had an effect. A lease may be: the job
comes again when its time is over.
"""


class ClusterJobs(Jobs):
    """The calls of Jobs for the jobs of a cluster, for one request at a time, of one task at a time.

    A connection is made when a member is asked, and again after it was lost. A forked process begins with connections
    of its own.
    """

    def __init__(
        self,
        members: Sequence[Address],
        *,
        leader_wait_s: float = 5,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 2,
        answer_timeout_s: float = 30,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a client of `members`, each the host and the port of a member's jobs; nothing is sent yet.

        A member that does not lead names the leader's port for items, which has no jobs: so name all members. If none
        leads, the client searches for `leader_wait_s` before NoLeader is raised. The other arguments are those of Jobs.
        Raises ValueError for no member, or one that is named twice.
        """
        super().__init__(tracing=tracing)
        addresses = Servers([(host, port) for host, port in members], chance).addresses
        if not leader_wait_s >= 0:
            raise ValueError(f"a wait is a number of seconds from 0 up: leader_wait_s is {leader_wait_s}")
        self._cluster = Cluster(addresses, chance, names_are_addresses=False)
        self._leader_wait_s = leader_wait_s

        def make(address: Address) -> Jobs:
            return Jobs(*address, tls=tls, connect_timeout_s=connect_timeout_s, answer_timeout_s=answer_timeout_s)

        self._make = make
        self._reset_connections()

    def _reset_connections(self) -> None:
        self._process = os.getpid()
        self._members: dict[Address, Jobs] = {}
        self._turn = Turn()
        self._is_closed = False

    async def connect(self) -> None:
        """Find the leader. Raises NoLeader, Refused."""
        await self._one(InspectServer(), "the server")

    async def close(self) -> None:
        """Close all connections. Leased jobs stay leased until their time to run has ended."""
        self._is_closed = True
        for jobs in list(self._members.values()):
            await jobs.close()

    async def _one(self, request: WorkqRequest, what: str, id: str = "", wait_s: float = 0) -> JobReply:
        if os.getpid() != self._process:
            self._reset_connections()  # the connections are the parent's
        until_s = time.monotonic() + wait_s

        async def ask(address: Address, patience_s: float) -> JobReply:
            jobs = await self._jobs_at(address)
            jobs._connection.limit_answers(patience_s)
            left_s = max(0.0, until_s - time.monotonic())
            wait_ms = math.ceil(left_s * 1000)
            if isinstance(request, LeaseJob):
                return await jobs._one(LeaseJob(request.names, wait_ms), what, id, left_s)
            if isinstance(request, AwaitResult):
                return await jobs._one(AwaitResult(request.id, wait_ms), what, id, left_s)
            return await jobs._one(request, what, id)

        def may_repeat(lost: ConnectionLost) -> bool:
            return lost.outcome is Outcome.NOT_DONE or not isinstance(request, CHANGES)

        def may_go_on(error: ClientError) -> bool:
            return not self._is_closed and may_search_on(error, may_repeat)

        turn, hold = self._turn, object()
        try:
            if not turn.acquire(hold):
                raise Busy(BUSY)
            reply = (await ask_leader(self._cluster, ask, may_go_on, self._leader_wait_s))[0]
            turn.end(hold)
            return reply
        except ConnectionLost as lost:
            lost.job_id = id
            raise
        finally:
            try:
                turn.end(hold)
            finally:
                turn.end(hold)  # in case an exception came first

    async def _jobs_at(self, address: Address) -> Jobs:
        """Return the connection to a member, a new one if it was lost. Raises ConnectionLost after `close`."""
        if self._is_closed:
            raise ConnectionLost("closed by this program", Outcome.NOT_DONE)
        jobs = self._members.get(address)
        if jobs is not None and not jobs.is_usable:  # a member that does not lead disconnects after its refusal
            await jobs.close()
            jobs = None
        if jobs is None:
            jobs = self._members[address] = self._make(address)
        return jobs
