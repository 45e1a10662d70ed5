"""The table of workloads: a row each, and what a row means to the load generator.

To add a row, add a line to WORKLOADS. `ops` is sized for about a second a run on a small machine, and so that a backlog
stays below 128 MB: Kestrel's default limit, above which a queue reads from its journal and the measurement differs.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from staniel.bench.harness.contestant import Sync


class Mode(Enum):
    PUT = "put"
    GET = "get"
    FLOOD = "flood"
    PINGPONG = "pingpong"


QUEUES = ("redis", "beanstalkd", "limit")
BROKERS = (*QUEUES, "nats", "rabbitmq")
ALL = (*BROKERS, "memcached")


class Workload(Struct, frozen=True):
    """A row. `producers` of the `conns` connections put, in a flood; `pipeline` requests are in flight on each.

    `jobs`: ours uses workq's protocol, where a get is a lease and the delete of the job before. `rate`: this many
    requests a second are due over all connections, whether or not replies have come.
    """

    name: str
    mode: Mode
    conns: int
    ops: int
    sync: Sync = Sync.JOURNALED
    peers: tuple[str, ...] = QUEUES
    size_bytes: int = 1024
    pipeline: int = 1
    queues: int = 1
    producers: int = 0
    wait: bool = False
    reliable: bool = False
    jobs: bool = False
    rate: int = 0


WORKLOADS = (
    Workload("put", Mode.PUT, conns=100, ops=100_000, peers=ALL),
    Workload("get", Mode.GET, conns=100, ops=100_000, peers=ALL),
    Workload("get-reliable", Mode.GET, conns=100, ops=100_000, peers=BROKERS, reliable=True),
    Workload("flood-1+1", Mode.FLOOD, conns=2, producers=1, ops=20_000),
    Workload("flood-1+1-wait", Mode.FLOOD, conns=2, producers=1, ops=20_000, wait=True),
    Workload("flood-50+50", Mode.FLOOD, conns=100, producers=50, ops=60_000),
    Workload("flood-50+50-wait", Mode.FLOOD, conns=100, producers=50, ops=60_000, wait=True),
    Workload("put-10x32", Mode.PUT, conns=10, pipeline=32, ops=120_000, peers=BROKERS),
    Workload("get-10x32", Mode.GET, conns=10, pipeline=32, ops=120_000, peers=BROKERS),
    Workload("put-64B", Mode.PUT, conns=50, size_bytes=64, ops=120_000),
    Workload("get-64B", Mode.GET, conns=50, size_bytes=64, ops=120_000),
    Workload("open-10k", Mode.PINGPONG, conns=50, rate=10_000, ops=10_000),
    Workload("durable-1c", Mode.PUT, conns=1, ops=4_000, sync=Sync.DURABLE, peers=BROKERS),
    Workload("durable-10c", Mode.PUT, conns=10, ops=10_000, sync=Sync.DURABLE, peers=BROKERS),
    Workload("durable-100c", Mode.PUT, conns=100, ops=24_000, sync=Sync.DURABLE, peers=BROKERS),
    Workload(
        "durable-reliable-10c",
        Mode.GET,
        conns=10,
        ops=8_000,
        sync=Sync.DURABLE,
        peers=("redis", "limit"),
        reliable=True,
    ),
    Workload("jobs-add", Mode.PUT, conns=100, ops=60_000, peers=("redis",), jobs=True),
    Workload("jobs-lease", Mode.GET, conns=100, ops=60_000, peers=("redis",), jobs=True),
    Workload("jobs-durable-100c", Mode.PUT, conns=100, ops=24_000, sync=Sync.DURABLE, peers=("redis",), jobs=True),
    Workload("durable-100q", Mode.PUT, conns=100, queues=100, ops=24_000, sync=Sync.DURABLE),
)


class Step(Struct, frozen=True):
    """A call of the load generator. Unmeasured steps fill the queue, or empty it to check the items."""

    args: tuple[str, ...]
    measured: bool


def steps(workload: Workload, proto: str, kv: bool) -> tuple[Step, ...]:
    """Return the calls that make one run of the row, in order.

    Every put item is read back and checked in every run, so a fast reply without a stored item does not count.
    """
    common = _common(workload, proto, kv)
    measured = Step((*common, *_measured(workload, proto)), measured=True)
    match workload.mode:
        case Mode.PUT:
            return measured, Step((*common, "--mode", "get", *_ASIDE), measured=False)
        case Mode.GET:
            return Step((*common, "--mode", "put", *_ASIDE), measured=False), measured
        case Mode.FLOOD | Mode.PINGPONG:
            return (measured,)


_ASIDE = ("--conns", "10", "--pipeline", "32")


def _common(workload: Workload, proto: str, kv: bool) -> tuple[str, ...]:
    sizes = {"--ops": workload.ops, "--size": workload.size_bytes, "--queues": workload.queues}
    numbers = [word for option, value in sizes.items() for word in (option, str(value))]
    return ("--proto", proto, *numbers, *(["--kv"] if kv else []))


def _measured(workload: Workload, proto: str) -> tuple[str, ...]:
    words = ["--mode", workload.mode.value, "--conns", str(workload.conns), "--pipeline", str(workload.pipeline)]
    if workload.producers:
        words += ["--producers", str(workload.producers)]
    if workload.rate:
        words += ["--rate", str(workload.rate)]
    if workload.wait:
        words.append("--wait")
    if workload.reliable and proto in ("memcache", "nats"):  # the others confirm every read, or cannot
        words.append("--reliable")
    return tuple(words)
