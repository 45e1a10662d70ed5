"""Snapshots of a server for operators: queues, open reads, clients. All interfaces of the server show the same Structs.

Names that end in `_at_ms` are epoch milliseconds of the wall clock; other times are durations. Taking a snapshot
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.counters import ServerCounters
from staniel.broker.leases import Leases
from staniel.broker.status import StatusControl
from staniel.broker.version import VERSION
from staniel.broker.wall_clock import by_the_wall
from staniel.compiled import BUILD
from staniel.queues.calendar import Calendar
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues

if TYPE_CHECKING:
    from staniel.broker.session import Session
    from staniel.journal.spool import Spool
    from staniel.queues.jobs.jobs import Jobs

HOLDS_MAX = 20  # queues of one client


class OpenReadView(Struct, frozen=True):
    """An item that a client has open. `client` "": disconnected, or unknown. `times_out_at_ms` 0: only its client ends
    the read. `data_bytes`: the size of the item.
    """

    xid: int
    id: int
    client: str
    opened_at_ms: int
    held_ms: int
    times_out_at_ms: int
    deliveries: int
    added_at_ms: int
    age_ms: int
    data_bytes: int


class WaiterView(Struct, frozen=True):
    """A client that waits for an item; the first in the line is served first."""

    client: str


class HeldView(Struct, frozen=True):
    """The open reads of one client on one queue. `since_at_ms`: when the oldest was opened."""

    queue: str
    count: int
    since_at_ms: int


class ClientView(Struct, frozen=True):
    """A connection. `waits_for` "": it does not wait. `backlog`: requests that were read and not yet executed. `user`
    "": no login, or none is required. `name`: the client's own name for itself, "" if it sent none. `connected_at_ms`
    0: unknown. `holds`: the open reads that `open_reads` counts, of at most HOLDS_MAX queues, and the client's leases.
    `silent_ms`: how long ago the client last sent a request or took a reply; -1: unknown.
    """

    number: int
    address: str
    protocol: str
    state: str
    open_reads: int
    waits_for: str
    backlog: int
    user: str = ""
    name: str = ""
    connected_at_ms: int = 0
    holds: tuple[HeldView, ...] = ()
    silent_ms: int = -1


class ServerView(Struct, frozen=True):
    """The server as a whole."""

    version: str
    build: str
    spool: str
    status: str
    started_at_ms: int
    now_ms: int
    uptime_ms: int
    connections: int
    queues: int
    jobs: int
    put_items: int
    gets: int
    bytes_read: int
    bytes_written: int
    is_full: bool
    is_stopping: bool


class JobsView(Struct, frozen=True):
    """The jobs of one name of workq's. `leased`: with a worker. `finished`: completed or failed, and not yet removed.
    `waiters`: workers that wait for a job.
    """

    name: str
    ready: int
    scheduled: int
    leased: int
    finished: int
    waiters: int


def open_reads(
    queue: Queue, leases: Leases, now_ms: int, offset: int, limit: int, holders: dict[int, str]
) -> list[OpenReadView]:
    """Return open reads and their clients, the oldest first. `holders` is the result of `find_holders`."""
    timeout_ms = queue.config.open_timeout_ms
    calendar = queue.calendar
    return [
        by_the_wall(_open_read(taken, leases, calendar, holders, timeout_ms, now_ms), calendar.ahead_ms)
        for taken in islice(queue.open_reads.values(), offset, offset + limit)
    ]


def _open_read(
    taken: Delivery, leases: Leases, calendar: Calendar, holders: dict[int, str], timeout_ms: int, now_ms: int
) -> OpenReadView:
    lease = leases.find(taken)
    return OpenReadView(
        xid=taken.xid,
        id=taken.id,
        client=lease.address if lease is not None else holders.get(taken.xid, ""),
        opened_at_ms=taken.opened_ms,
        held_ms=max(0, now_ms - taken.opened_ms),
        times_out_at_ms=taken.opened_ms + timeout_ms if timeout_ms else 0,
        deliveries=taken.deliveries,
        added_at_ms=taken.item.added_ms,
        age_ms=max(0, now_ms - calendar.added_ms(taken.item, now_ms)),
        data_bytes=len(taken.item.data),
    )


def find_holders(sessions: Iterable[Session], queue: Queue, holders: dict[int, str]) -> Iterator[None]:
    """Write into `holders`, by xid, the address of each open read's client, for `queue`; one client a step."""
    for session in list(sessions):
        for held_of, taken in session.reads.get(queue.name, ()):
            if held_of is queue:
                holders[taken.xid] = session.address
        yield


def waiters(queue: Queue, offset: int, limit: int) -> list[WaiterView]:
    """Return the clients that wait, in the order in which they are served."""
    return [WaiterView(getattr(waiter, "address", "")) for waiter in islice(queue.waiters, offset, offset + limit)]


def clients(
    sessions: Mapping[Session, int],
    leases: Leases,
    active_ms_of: Callable[[Session], int],
    offset: int,
    limit: int,
    now_ms: int,
) -> Iterator[ClientView]:
    """Yield connections, the oldest first. `sessions`: the time when each connected. `active_ms_of` returns when one
    last sent or took bytes; 0: unknown.
    """
    leased = leases.by_session()
    for session, connected_ms in islice(sessions.items(), offset, offset + limit):
        active_ms = active_ms_of(session)
        silent_ms = max(0, now_ms - active_ms) if active_ms else -1
        yield _client_view(session, connected_ms, leased.get(session.number, {}), silent_ms)


def _client_view(session: Session, connected_ms: int, leased: dict[str, tuple[int, int]], silent_ms: int) -> ClientView:
    waited_at = session.waited_at
    # A session keeps a read that an operator gave back, or that timed out, until its client asks for the read.
    held = {
        name: [taken for queue, taken in reads if queue.open_reads.get(taken.xid) is taken]
        for name, reads in session.reads.items()
    }
    held = {name: reads for name, reads in held.items() if reads}
    holds = [HeldView(name, len(reads), reads[0].opened_ms) for name, reads in islice(held.items(), HOLDS_MAX)]
    holds += [HeldView(name, count, since_ms) for name, (count, since_ms) in islice(leased.items(), HOLDS_MAX)]
    ahead_ms = session.calendar.ahead_ms
    view = ClientView(
        number=session.number,
        address=session.address,
        protocol=session.protocol,
        state=session.state.value,
        open_reads=sum(map(len, held.values())) + sum(count for count, _ in leased.values()),
        waits_for=getattr(waited_at, "name", "") if waited_at is not None else "",
        backlog=len(session.backlog),
        user=session.user,
        name=session.client_name,
        connected_at_ms=connected_ms,
        holds=tuple([by_the_wall(held, ahead_ms) for held in holds]),
        silent_ms=silent_ms,
    )
    return by_the_wall(view, ahead_ms)


def server_view(
    queues: Queues, spool: Spool, status: StatusControl, counters: ServerCounters, jobs: Jobs | None, now_ms: int
) -> ServerView:
    wall_ms = queues.calendar.wall_ms
    return ServerView(
        version=VERSION,
        build=BUILD,
        spool=spool.folder,
        status=status.reported.value.lower(),
        started_at_ms=wall_ms(status.started_ms),
        now_ms=wall_ms(now_ms),
        uptime_ms=now_ms - status.started_ms,
        connections=counters.curr_connections,
        queues=len(queues),
        jobs=0 if jobs is None else len(jobs.by_id),
        put_items=counters.total_items,
        gets=counters.cmd_get,
        bytes_read=counters.bytes_read,
        bytes_written=counters.bytes_written,
        is_full=spool.group.is_full,
        is_stopping=status.is_stopping,
    )


def jobs_by_name(jobs: Jobs, offset: int, limit: int) -> list[JobsView]:
    """Return the jobs by name, in the order in which the names were first used."""
    return [
        JobsView(
            name=queue.name.decode("latin-1"),
            ready=len(queue.ready),
            scheduled=len(queue.scheduled),
            leased=queue.leased,
            finished=queue.finished,
            waiters=len(queue.waiters),
        )
        for queue in islice(jobs.queues.values(), offset, offset + limit)
    ]
