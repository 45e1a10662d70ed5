"""The client for asyncio and trio, on anyio (the extra `aio`). See docs/client.md.

`client`, `multi`, `pool`, `jobs` and `cluster_jobs` have what programs call, `connection` one connection with its
time-outs, `leading` the search for a cluster's leader, `monitoring` the items of a monitor.
`packaging/blocking_client.py` makes the blocking client from these; only `transport` has a twin written by hand.
`asyncio_socket` and `trio_socket` are the sockets of the two loops; `client/sockets.py` has what all transports share.
"""

from __future__ import annotations

from staniel.client.aio.client import Client
from staniel.client.aio.cluster_jobs import ClusterJobs
from staniel.client.aio.jobs import Jobs
from staniel.client.aio.monitoring import Monitoring
from staniel.client.aio.multi import MultiClient
from staniel.client.aio.pool import ClusterPool, Pool
from staniel.client.errors import (
    Busy,
    ClientError,
    ConnectionLost,
    DuplicateJob,
    Full,
    JobFinished,
    NoJob,
    NoLeader,
    NotAllStored,
    NotOpen,
    Outcome,
    Refused,
)
from staniel.client.job_messages import id_for
from staniel.client.messages import PutOutcome, ServerItem
from staniel.protocol.client.replies import Item
from staniel.protocol.client.workq.replies import Job, JobResult

__all__ = [
    "Busy",
    "Client",
    "ClientError",
    "ClusterJobs",
    "ClusterPool",
    "ConnectionLost",
    "DuplicateJob",
    "Full",
    "Item",
    "Job",
    "JobFinished",
    "JobResult",
    "Jobs",
    "Monitoring",
    "MultiClient",
    "NoJob",
    "NoLeader",
    "NotAllStored",
    "NotOpen",
    "Outcome",
    "Pool",
    "PutOutcome",
    "Refused",
    "ServerItem",
    "id_for",
]
