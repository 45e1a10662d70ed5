"""A blocking connection for jobs, over workq's protocol, and the ids of jobs.

A job is not bound to the connection that leased it: after a lost connection it is completed over another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from staniel.pipeline.sources.access import PLAIN, Access
from staniel.pipeline.sources.connection import ProtocolBroken, ServerConnection, ServerLost, ServerRefused
from staniel.protocol.client.replies import Error
from staniel.protocol.client.workq.conversation import JobConversation
from staniel.protocol.client.workq.replies import Inspected, Job, JobAnswer, JobReply
from staniel.protocol.workq.fields import read_id
from staniel.protocol.workq.job_requests import LeaseJob
from staniel.protocol.workq.requests import FinishJob, InspectQueue, InspectServer, WorkqRequest

PORT = 9922


class JobConnection(ServerConnection[WorkqRequest, JobReply]):
    """A connection for jobs. The protocol has no login: the server knows a user by the certificate."""

    PORT = PORT

    def __init__(self, server: str, timeout_s: float = 30.0, access: Access = PLAIN) -> None:
        """Connect, and see that jobs are served there. Raises what the base class raises."""
        super().__init__(server, JobConversation(), timeout_s, access)

    def _greet(self, access: Access) -> None:
        try:
            reply = self._ask_first(InspectServer())
        except ProtocolBroken as broken:
            raise ServerRefused(f"{broken}; is that its port of [workq]?") from broken
        if isinstance(reply, Error):
            hint = "" if access.certificate_file else "; users of jobs are known by their certificate: certificateFile"
            raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}{hint}")

    def request_leases(self, queues: Sequence[str], count: int, wait_ms: int) -> None:
        """Ask for up to `count` jobs; the first may wait."""
        names = tuple(encoded_name(queue) for queue in queues)
        self.send([LeaseJob(names, wait_ms), *[LeaseJob(names, 0)] * (count - 1)])

    def receive_leases(self, leased: list[Job]) -> None:
        """Append the leased jobs to `leased`, also those that came before the server was lost. Raises ServerRefused if
        an error came and no job is in the list.
        """
        for replies in self._replies():
            for reply in replies:
                if isinstance(reply, Job):
                    leased.append(reply)
                elif isinstance(reply, Error) and not leased:
                    raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}")

    def complete(self, ids: Sequence[str]) -> None:
        """Complete jobs. Those that have a result, or are gone, are not asked for again. Raises ServerRefused."""
        for reply in self.ask(*[FinishJob(read_id(id.encode()) or b"", b"", True) for id in ids]):
            if isinstance(reply, Error):
                raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}")

    def ready_jobs(self, queues: Sequence[str]) -> dict[str, int]:
        """Return how many jobs are ready in those of the queues that the server knows. Raises ServerRefused."""
        counts = {}
        for queue, reply in zip(
            queues, self.ask(*[InspectQueue(encoded_name(queue)) for queue in queues]), strict=True
        ):
            if isinstance(reply, Error):
                raise ServerRefused(f"{self.server}: {reply.fault.value} {reply.why}")
            if isinstance(reply, Inspected):
                (values,) = reply.objects.values()
                counts[queue] = int(values["ready-len"])
            elif reply is not JobAnswer.NOT_FOUND:
                raise ServerLost(f"{self.server}: no figures of {queue}: {reply}")
        return counts


def encoded_name(queue: str) -> bytes:
    """Return a name as it is sent; the protocol refuses what is no name."""
    return queue.encode("latin-1", "replace")


def id_of_key(key: str) -> bytes:
    """Return the id of the job with this key: that of `staniel.client.id_for`."""
    return as_job_id(uuid.uuid5(uuid.NAMESPACE_URL, f"staniel:{key}").bytes)


def as_job_id(digest: bytes) -> bytes:
    """Return 16 bytes as an id: with the marks of a UUID of version 4."""
    raw = bytearray(digest)
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)
