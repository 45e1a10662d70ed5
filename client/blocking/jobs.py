# Made of client/aio/jobs.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The client for jobs, in workq's protocol: add, lease, complete and the others. Each says what is true when it fails.

A job is not bound to a connection, unlike an open item: after a lost connection, jobs that were leased on it can be
completed on another one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime

from staniel.client.blocking.closing import Connecting
from staniel.client.blocking.connection import Connection, ConnectionState
from staniel.client.errors import ConnectionLost, NoJob
from staniel.client.headers import Tracing, split_job, with_headers
from staniel.client.job_messages import (
    add_request,
    check,
    names_of,
    nanoseconds,
    new_id,
    raw_id,
    terms_of,
    texts,
    wait_ms,
)
from staniel.client.messages import bytes_of
from staniel.protocol.client.workq.conversation import JobConversation
from staniel.protocol.client.workq.replies import Inspected, Job, JobReply, JobResult
from staniel.protocol.workq.fields import show_id
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.requests import (
    AwaitResult,
    FinishJob,
    InspectJob,
    InspectQueue,
    InspectQueues,
    InspectServer,
    ScheduleJob,
    WorkqRequest,
)

PAGE = 100  # the most queues in one reply


class Jobs(Connecting):
    """A connection for one request at a time, of one thread at a time: a second one gets Busy at once.

    It connects in its `with` block, by `connect`, or with the first request. A request that is interrupted, or
    whose reply does not come, closes the connection, and every later call raises ConnectionLost. Every method can raise
    ConnectionLost, Busy, and Refused with the server's text.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 9922,
        *,
        tls: ssl.SSLContext | None = None,
        connect_timeout_s: float = 10,
        answer_timeout_s: float = 30,
        tracing: Tracing | None = None,
    ) -> None:
        """Prepare a client; nothing is sent yet.

        `tls` is needed for a `tls_port`; workq's protocol has no login, so a server with users knows this client by the
        certificate that `tls.load_cert_chain` has loaded. A server that is silent for longer than its wait plus
        `answer_timeout_s` counts as lost. With `tracing`, jobs are added with headers and leased as JobWithHeaders.
        """
        self._tracing = tracing
        self._connect_timeout_s = connect_timeout_s
        self._connection: Connection[WorkqRequest, JobReply] = Connection(
            (host, port), tls, answer_timeout_s, JobConversation()
        )

    def connect(self) -> None:
        """Connect, unless that is done. Raises ConnectionLost."""
        self._connection.in_exchange(self._make_ready)

    def _make_ready(self) -> None:
        if self._connection.state is ConnectionState.NEW:
            self._connection.connect(self._connect_timeout_s)

    @property
    def is_usable(self) -> bool:
        """True if the connection is not made yet, or is open and at rest in this process."""
        return self._connection.state is ConnectionState.NEW or self._connection.is_at_rest

    def close(self) -> None:
        """Close the connection. Leased jobs stay leased until their time to run has ended."""
        self._connection.close("closed by this program")

    # add

    def add(
        self,
        name: str,
        payload: bytes,
        *,
        delay_s: float = 0,
        priority: int = 0,
        ttr_s: float = 60,
        ttl_s: float = 86_400,
        max_attempts: int = 0,
        max_fails: int = 0,
        id: str = "",
    ) -> str:
        """Add a job, and return its id: `id`, or a new one. Raises DuplicateJob if a job with this id is there.

        After `delay_s`, by this machine's clock, it is leased to a worker, high `priority` first. If the worker has not
        finished it within `ttr_s` it is leased again, `max_attempts` times in all (0: 255); then it has failed. `ttl_s`
        is the life of the job and its result, at most 30 days. If the call is interrupted or raises ConnectionLost, the
        job may be added or not; its `outcome` says whether that is known, and its `job_id` is the `id` with which it
        can be added again without becoming two.
        """
        raw = raw_id(id) if id else new_id()
        terms = terms_of(name, priority, ttr_s, ttl_s, max_attempts, max_fails)
        return self._add(name, payload, lambda payload: add_request(raw, terms, payload, delay_s))

    def schedule(
        self,
        name: str,
        payload: bytes,
        at: datetime,
        *,
        priority: int = 0,
        ttr_s: float = 60,
        ttl_s: float = 86_400,
        max_attempts: int = 0,
        max_fails: int = 0,
        id: str = "",
    ) -> str:
        """Add a job that is leased from `at` on, a time with a zone. Everything else is as in `add`; `ttl_s` counts
        from `at`.
        """
        raw = raw_id(id) if id else new_id()
        terms = terms_of(name, priority, ttr_s, ttl_s, max_attempts, max_fails)
        at_ns = nanoseconds(at)
        return self._add(name, payload, lambda payload: ScheduleJob(raw, terms, at_ns, payload))

    def _add(self, name: str, payload: bytes, request_of: Callable[[bytes], AddJob | ScheduleJob]) -> str:
        if self._tracing is None:
            return self._added(request_of(bytes_of(payload)))
        with self._tracing.sending(name, 1) as headers:
            return self._added(request_of(with_headers(payload, headers)))

    def _added(self, request: AddJob | ScheduleJob) -> str:
        id = show_id(request.id).decode()
        self._one(request, f"id {id}", id)
        return id

    # work

    def lease(self, *names: str, wait_s: float = 0) -> Job | None:
        """Lease the next job of these names, None if none comes within `wait_s`.

        It is this worker's for the job's `ttr_ms`; then it is leased again. If the call is interrupted or raises
        ConnectionLost, a job may have been leased: it comes again when its time is over.
        """
        reply = self._one(LeaseJob(names_of(names), wait_ms(wait_s)), " ".join(names), wait_s=wait_s)
        if not isinstance(reply, Job):
            return None
        return reply if self._tracing is None else split_job(reply)

    def complete(self, job: Job | str, result: bytes = b"") -> None:
        """End a job with success; `result` is for the clients that wait for it.

        Raises JobFinished if it has a result already, NoJob if it does not exist any more. A worker whose lease has
        timed out may still complete its job, unless another one has. If no reply comes, call this again on a new
        connection: JobFinished then means that the first call had an effect, or another worker was faster.
        """
        self._finish_job(job, result, success=True)

    def fail(self, job: Job | str, result: bytes = b"") -> None:
        """End a job without success; `result` says why. It is not leased again, unless the server honours `max_fails`.
        Errors are as in `complete`.
        """
        self._finish_job(job, result, success=False)

    def _finish_job(self, job: Job | str, result: bytes, *, success: bool) -> None:
        raw = raw_id(job)
        id = show_id(raw).decode()
        self._one(FinishJob(raw, bytes_of(result), success), f"id {id}", id)

    # look

    def result(self, job: Job | str, *, wait_s: float = 0) -> JobResult | None:
        """Return the result of a job, None if it has none within `wait_s`. Raises NoJob if the job is gone."""
        raw = raw_id(job)
        id = show_id(raw).decode()
        reply = self._one(AwaitResult(raw, wait_ms(wait_s)), f"id {id}", id, wait_s)
        return reply if isinstance(reply, JobResult) else None

    def delete(self, job: Job | str) -> bool:
        """Delete a job, whatever its state. Return False if it was not there."""
        raw = raw_id(job)
        id = show_id(raw).decode()
        try:
            self._one(DeleteJob(raw), f"id {id}", id)
        except NoJob:
            return False
        return True

    def inspect(self, job: Job | str) -> dict[str, str]:
        """Return what the server knows of a job: state, attempts, priority, payload and others. Raises NoJob."""
        raw = raw_id(job)
        id = show_id(raw).decode()
        return texts(self._one(InspectJob(raw), f"id {id}", id))

    def stats(self, name: str = "") -> dict[str, str]:
        """Return the server's figures, or those of the jobs of one name: `ready-len` and `scheduled-len`. Raises NoJob
        for a name that has not been used since the server's start.
        """
        request = InspectQueue(names_of((name,))[0]) if name else InspectServer()
        return texts(self._one(request, f"name {name}"))

    def names(self) -> list[str]:
        """Return the names of jobs that have been used since the server's start, in order."""
        found: list[str] = []
        while True:
            reply = self._one(InspectQueues(len(found), PAGE), "any name")
            assert isinstance(reply, Inspected), reply
            found += reply.objects
            if len(reply.objects) < PAGE:
                return found

    # internal

    def _one(self, request: WorkqRequest, what: str, id: str = "", wait_s: float = 0) -> JobReply:
        try:
            if self._connection.state is ConnectionState.NEW:
                self.connect()
            reply = self._connection.request(request, wait_s, is_shielded=isinstance(request, FinishJob))
        except ConnectionLost as lost:
            lost.job_id = id
            raise
        return check(reply, what)
