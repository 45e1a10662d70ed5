"""Statistics of the server, its queues and jobs, under Kestrel's names and in Kestrel's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import repeat
from operator import call
from typing import TYPE_CHECKING, TypeVar

from staniel.broker.counters import ServerCounters
from staniel.broker.figures import STAT_NAMES, STAT_READS, STATS_SOMETIMES, QueueLook
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.status import StatusControl
from staniel.broker.users import Logins
from staniel.broker.version import WIRE_VERSION
from staniel.compiled import BUILD
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.queue import Queue
from staniel.queues.registry import Alias, Queues

if TYPE_CHECKING:
    from staniel.broker.jobs import JobService
    from staniel.broker.operations.holds import Holds
    from staniel.broker.put_keys import PutKeys
    from staniel.journal.spool import Spool
    from staniel.queues.jobs.queue import JobQueue


S = TypeVar("S", str, bytes)
RUN = 2048  # names that are sorted in one piece


def named_stats(queue: Queue, spool: Spool, now_ms: int, dialect: Dialect) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of one queue, with the names that it has in the statistics of all queues."""
    for name, value in queue_stats(queue, spool, now_ms, dialect):
        yield f"queue_{queue.name}_{name}", value


def other_stats(queues: Queues, jobs: JobService | None) -> Iterator[list[tuple[str, object]]]:
    """Yield (name, value) of everything that belongs neither to the server nor to a queue: blocked names, waiters for
    queues that do not exist yet, aliases, jobs. The pieces are short, and the server may change between them.
    """
    for name, why in list(queues.blocked.items()):
        yield [(f"queue_{name}_unreadable", why)]
    for name, count in list(queues.waiters_by_name):
        yield [(f"queue_{name}_waiters", count)]
    for alias_name, alias in list(queues.aliases.items()):
        yield [(f"queue_{alias_name}_{name}", value) for name, value in alias_stats(alias)]
    if jobs is not None:
        yield from job_stats(jobs)


def by_name(queues: Queues, spool: Spool, name: str, now_ms: int, dialect: Dialect) -> Iterator[tuple[str, object]]:
    """Yield the statistics of one queue or alias; nothing for an unknown one."""
    queue = queues.find(name)
    if queue is not None:
        yield from queue_stats(queue, spool, now_ms, dialect)
    elif name in queues.aliases:
        yield from alias_stats(queues.aliases[name])
    elif name in queues.blocked:
        yield "unreadable", queues.blocked[name]


class QueueTotals:
    """The sums over all queues in the server's statistics, added up queue by queue."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self.items = self.bytes = self.memory_bytes_max = self.unreadable = 0
        for queue in queues:
            self.add(queue)

    def add(self, queue: Queue) -> None:
        self.items += queue.waiting_items
        self.bytes += queue.waiting_bytes
        self.memory_bytes_max += queue.config.max_memory_bytes
        self.unreadable += queue.line.read_error is not None


def server_stats(
    queues: Queues, spool: Spool, status: StatusControl, counters: ServerCounters, totals: QueueTotals, now_ms: int
) -> Iterator[tuple[str, object]]:
    """Yield Kestrel's statistics of the server, then those that describe it."""
    yield "uptime", (now_ms - status.started_ms) // 1000
    yield "time", (now_ms + queues.calendar.ahead_ms) // 1000
    yield "version", WIRE_VERSION
    yield "curr_items", totals.items
    yield "total_items", counters.total_items
    yield "bytes", totals.bytes
    # The part of the machine's memory that the queues may fill, according to their max_memory_size.
    yield "reserved_memory_ratio", f"{totals.memory_bytes_max / spool.fs.memory_bytes():.3f}"
    for name in ("curr_connections", "total_connections", "cmd_get", "cmd_set", "cmd_peek", "get_hits", "get_misses"):
        yield name, getattr(counters, name)
    yield "bytes_read", counters.bytes_read
    yield "bytes_written", counters.bytes_written
    yield "queue_creates", queues.created
    yield "queue_deletes", queues.deleted
    yield "queue_expires", queues.expired
    yield "build", BUILD.lower().replace(" ", "-")  # one word, because clients split the line
    yield "status", status.reported.value.lower()


def refusal_stats(
    paused: int, unreadable: int, logins: Logins, counters: ServerCounters, keys: PutKeys, limits: LimitsReached
) -> Iterator[tuple[str, object]]:
    """Yield the statistics of paused and unreadable queues and of refused requests. They follow the server's."""
    yield "paused_queues", paused
    yield "unreadable_queues", unreadable
    yield "logins", logins.succeeded
    yield "logins_failed", logins.failed
    yield "commands_refused", logins.refused
    yield "noreply_refused", counters.noreply_refused
    yield "put_keys", len(keys)
    yield "puts_repeated", keys.repeated
    for name, count in limits.counts.items():
        yield f"limit_{name}", count


def hold_stats(holds: Holds, now_ms: int) -> Iterator[tuple[str, object]]:
    """Yield the statistics of retention holds."""
    yield "holds", len(holds)
    yield "holds_dropped", holds.dropped_at_limit
    for hold in holds.views(now_ms) if len(holds) else ():
        yield f"hold_{hold.name}_state", hold.state.value
        yield f"hold_{hold.name}_age_msec", hold.age_ms
        yield f"hold_{hold.name}_bytes", hold.bytes


def queue_stats(queue: Queue, spool: Spool, now_ms: int, dialect: Dialect) -> Iterator[tuple[str, object]]:
    """Yield Kestrel's statistics of one queue, then our own. `logsize` is the current journal file in bytes."""
    look = QueueLook(queue, now_ms, spool, dialect)
    yield from zip(STAT_NAMES, map(call, STAT_READS, repeat(look)), strict=True)
    for stat, read, is_shown in STATS_SOMETIMES:
        if is_shown(look):
            yield stat, read(look)


def alias_stats(alias: Alias) -> Iterator[tuple[str, object]]:
    yield "put_items", alias.put_items
    yield "put_bytes", alias.put_bytes
    yield "children", ",".join(alias.targets)


def job_stats(service: JobService) -> Iterator[list[tuple[str, object]]]:
    """Yield (name, value) of all jobs and their log, then of every name of jobs, in short pieces."""
    jobs, log = service.jobs, service.log
    yield [
        ("jobs", len(jobs.by_id)),
        ("jobs_evicted", jobs.evicted),
        ("jobs_timed_out", jobs.timed_out),
        ("jobs_logsize", log.stored_bytes),
        ("jobs_log_segments", len(log.segments)),
        ("jobs_log_records", log.records),
        ("jobs_log_cleanings", service.cleanings),
    ]
    for name in in_order(jobs.queues):
        queue = jobs.queues.get(name) if name is not None else None
        if queue is None:
            yield []  # sorting is not finished, or the last job of that name is gone
        else:
            shown = queue.name.decode("latin-1")
            yield [(f"jobs_{shown}_{key}", value) for key, value in job_queue_stats(queue)]


def in_order(names: Iterable[S]) -> Iterator[S | None]:
    """Yield the present names, sorted; before them None for each piece of sorting, which takes a millisecond."""
    left = list(names)
    runs = []
    for at in range(0, len(left), RUN):
        runs.append(sorted(left[at : at + RUN]))
        yield None
    yield from merge(*runs)


def job_queue_stats(queue: JobQueue) -> Iterator[tuple[str, object]]:
    """Yield the counts of one name: its ready, scheduled, leased and finished jobs, and the clients that wait."""
    yield "ready", len(queue.ready)
    yield "scheduled", len(queue.scheduled)
    yield "leased", queue.leased
    yield "finished", queue.finished
    yield "waiters", len(queue.waiters)
