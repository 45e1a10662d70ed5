"""Servers of jobs for the tests of the pipeline, and what is in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from staniel.client import Jobs
from staniel.pipeline.sources.job_connection import JobConnection
from staniel.protocol.client.workq.replies import Job, JobAnswer
from staniel.protocol.workq.job_requests import AddJob
from staniel.protocol.workq.job_terms import JobTerms
from tests.support.process import Server, running


@contextmanager
def job_server(folder: Path, *options: str, config: str = "") -> Iterator[Server]:
    """A server with jobs, that keeps its ports when it is started again."""
    with running(folder, "--workq-port", "0", *options, config=config) as server:
        ports = ("--port", str(server.port), "--workq-port", str(server.second_port))
        server.options = (*server.options, *ports)
        yield server


def address_of(server: Server) -> str:
    return f"127.0.0.1:{server.second_port}"


def payloads(count: int, size: int = 0) -> list[bytes]:
    return [(b"job %06d" % number).ljust(size) for number in range(count)]


def add_jobs(server: Server, queue: str, values: list[bytes], ttr_s: float = 60) -> list[bytes]:
    """Add a job for each of these payloads, and return them."""
    terms = JobTerms(queue.encode(), round(ttr_s * 1000), 86_400_000)
    connection = JobConnection(address_of(server))
    assert set(connection.ask(*[AddJob(uuid4().bytes, terms, value) for value in values])) == {JobAnswer.OK}
    connection.close()
    return values


def leased(address: str, queue: str) -> Counter[bytes]:
    """Lease and complete all that is ready, and return the payloads."""
    found: list[Job] = []
    connection = JobConnection(address)
    seen = -1
    while len(found) > seen:
        seen = len(found)
        connection.request_leases([queue], 100, 0)
        connection.receive_leases(found)
    connection.complete([job.id for job in found])
    connection.close()
    return Counter(job.payload for job in found)


def ready(server: Server, queue: str) -> int:
    with Jobs(*server.workq_address) as jobs:
        return int(jobs.stats(queue)["ready-len"])
