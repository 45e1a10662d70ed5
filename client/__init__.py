"""Clients for Staniel and for any other server with Kestrel's memcache protocol. See docs/client.md.

No client of one server retries by itself: the program decides when to, and `examples/` shows one way. `aio/` has
the client for asyncio and trio, on anyio (an extra). `blocking/` is generated from it and needs only the standard
library. `kombu/` is the transport for kombu and Celery. They share `messages`, `job_messages`, `servers`, `headers`,
`forks`, `talk` and `errors`, and `protocol/client` has the bytes. No module here may need the server's packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from staniel.client.blocking.client import Client
from staniel.client.blocking.cluster_jobs import ClusterJobs
from staniel.client.blocking.jobs import Jobs
from staniel.client.blocking.multi import MultiClient
from staniel.client.blocking.pool import ClusterPool, Pool
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
from staniel.protocol.client.replies import History, Item, Past
from staniel.protocol.client.workq.replies import Job, JobResult

if TYPE_CHECKING:
    from staniel.client.aio.client import Client as TrioClient
    from staniel.client.aio.client import Client as connect
    from staniel.client.aio.monitoring import Monitoring

__all__ = [
    "Busy",
    "Client",
    "ClientError",
    "ClusterJobs",
    "ClusterPool",
    "ConnectionLost",
    "DuplicateJob",
    "Full",
    "History",
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
    "Past",
    "Pool",
    "PutOutcome",
    "Refused",
    "ServerItem",
    "TrioClient",
    "connect",
    "id_for",
]


def __getattr__(name: str) -> Any:
    """Return what `connect`, `TrioClient` and `Monitoring` stand for, names of programs for trio that are older than
    `aio/`. It is loaded when it is first used, so that a blocking program does not import anyio. Raises ImportError
    without the extra `aio`.
    """
    if name not in ("connect", "TrioClient", "Monitoring"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from staniel.client import aio
    except ModuleNotFoundError as error:
        why = f"staniel.client.{name} needs {error.name}: pip install 'staniel[aio]'"
        raise ImportError(why, name=error.name) from error
    return aio.Monitoring if name == "Monitoring" else aio.Client
