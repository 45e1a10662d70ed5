"""Snapshots of a server for operators: queues, open reads, clients. All interfaces of the server show the same Structs.

Times are epoch milliseconds of the wall clock if a name ends in `_at_ms`, else durations. Looking changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, structs

from staniel.broker.access import why_unreadable
from staniel.broker.operations.held_reads import held_files
from staniel.broker.stats import pause_name
from staniel.broker.version import VERSION
from staniel.compiled import BUILD
from staniel.journal.journals import append_log, primary_log, removal_log, total_bytes
from staniel.queues import ages
from staniel.queues.config import SYNC_OS, Format
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

if TYPE_CHECKING:
    from staniel.broker.broker import Broker
    from staniel.broker.session import Session

HOLDS_MAX = 20  # queues of one client
WALLS = frozenset(("added_at_ms", "expires_at_ms", "put_at_ms", "left_at_ms"))
View = TypeVar("View", bound=Struct)
SYNC_NAMES = {0: "always", SYNC_OS: "os"}


class QueueSnapshot(Struct, frozen=True):
    """A queue. `age_ms`: of the oldest item that can be handed out; `oldest_ms`: of all that it holds, open reads
    included. `unsynced_bytes`: written to its files, and a power cut could take them. `put_items` and
    `delivered_items`: since the process loaded it. `sync`: "always", "os", or a duration. `unreadable`: why nothing can
    be read from it; empty if it can. `held_bytes`: of files that open reads alone keep, `held_ms`: for how long.
    """

    name: str
    items: int
    bytes: int
    age_ms: int
    oldest_ms: int
    memory_items: int
    memory_bytes: int
    open_reads: int
    delayed_items: int
    leaving_items: int
    waiters: int
    put_items: int
    put_bytes: int
    delivered_items: int
    expired_items: int
    discarded_items: int
    dead_letters: int
    timed_out_reads: int
    aborted_reads: int
    journal_format: str
    journal_bytes: int
    unsynced_bytes: int
    sync: str
    paused: str
    children: list[str]
    unreadable: str
    held_bytes: int = 0
    held_ms: int = 0


class OpenReadView(Struct, frozen=True):
    """An item that a client has open. `client` "": disconnected, or unknown. `times_out_at_ms` 0: only its client ends
    the read. `data_bytes`: of the item.
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
    """The open reads of one client on one queue. `since_at_ms`: of the oldest."""

    queue: str
    count: int
    since_at_ms: int


class ClientView(Struct, frozen=True):
    """A connection. `waits_for` "": it does not wait. `backlog`: requests read and not executed yet. `user` "":
    no login, or none is required. `connected_at_ms` 0: unknown. `holds`: the open reads that `open_reads`
    counts, of HOLDS_MAX queues at most, and its leases.
    """

    number: int
    address: str
    protocol: str
    state: str
    open_reads: int
    waits_for: str
    backlog: int
    user: str = ""
    connected_at_ms: int = 0
    holds: tuple[HeldView, ...] = ()


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
    """The jobs of one name of workq's. `leased`: with a worker; `finished`: completed or failed, and not yet forgotten;
    `waiters`: workers that wait for one.
    """

    name: str
    ready: int
    scheduled: int
    leased: int
    finished: int
    waiters: int


def queue_view(broker: Broker, queue: Queue, now_ms: int) -> QueueSnapshot:
    """Return a snapshot of one queue. Takes 10 us."""
    queue.sync_counters()
    line, counters, config, journal = queue.line, queue.counters, queue.config, queue.journal
    error, held = line.read_error, held_files(queue, now_ms)
    is_kept = primary_log(journal) is not None
    is_stream = is_kept and broker.spool.format_of(queue.name, config) is Format.LIBKESTREL
    kept_in = (Format.LIBKESTREL if is_stream else Format.KESTREL).value if is_kept else "none"
    return QueueSnapshot(
        name=queue.name,
        items=line.present,
        bytes=line.bytes,
        age_ms=0 if error is not None else ages.ready_ms(queue, now_ms),
        oldest_ms=ages.oldest_ms(queue, now_ms),
        memory_items=line.memory_items,
        memory_bytes=line.memory_bytes,
        open_reads=len(queue.open_reads),
        delayed_items=len(queue.delayed),
        leaving_items=len(queue.leaving) + (queue.unrecorded is not None),
        waiters=len(queue.waiters),
        put_items=counters.total_items,
        put_bytes=counters.put_bytes,
        delivered_items=counters.get_items_hit,
        expired_items=counters.expired_items,
        discarded_items=counters.discarded,
        dead_letters=counters.dead_letters,
        timed_out_reads=counters.timed_out_transactions,
        aborted_reads=counters.canceled_transactions,
        journal_format=kept_in,
        journal_bytes=total_bytes(journal),
        unsynced_bytes=unsynced_bytes(broker, queue),
        sync=SYNC_NAMES.get(config.sync_ms, f"{config.sync_ms}ms") if is_kept else "none",
        paused=pause_name(queue),
        children=list(queue.children),
        unreadable="" if error is None else why_unreadable(error),
        held_bytes=held.bytes,
        held_ms=held.ms,
    )


def unsynced_bytes(broker: Broker, queue: Queue) -> int:
    """Return how many bytes of a queue's files no sync has covered yet. In libkestrel's format: of the file for its
    items and of the file for its removals together.
    """
    fs, added, removed = broker.spool.fs, append_log(queue.journal), removal_log(queue.journal)
    found = fs.unsynced_bytes(added.path) if added is not None else 0
    if removed is not None and removed is not added:
        found += fs.unsynced_bytes(removed.path)
    return found


def by_the_wall(view: View, ahead_ms: int) -> View:
    """Return the view with moments of server time converted to the wall clock, which is `ahead_ms` ahead. Moments that
    items carry are the wall clock's already: see WALLS.
    """
    if not ahead_ms:
        return view
    moments = {name: getattr(view, name) for name in view.__struct_fields__ if name.endswith("at_ms")}
    changes = {name: moment + ahead_ms for name, moment in moments.items() if moment and name not in WALLS}
    return structs.replace(view, **changes)


def open_reads(
    broker: Broker, queue: Queue, now_ms: int, offset: int, limit: int, holders: dict[int, str]
) -> list[OpenReadView]:
    """Return open reads and their clients, the oldest first. `holders`: found by `find_holders`."""
    timeout_ms = queue.config.open_timeout_ms
    ahead_ms = broker.calendar.ahead_ms
    return [
        by_the_wall(_open_read(broker, taken, holders, timeout_ms, now_ms), ahead_ms)
        for taken in islice(queue.open_reads.values(), offset, offset + limit)
    ]


def _open_read(broker: Broker, taken: Delivery, holders: dict[int, str], timeout_ms: int, now_ms: int) -> OpenReadView:
    lease = broker.leases.find(taken)
    return OpenReadView(
        xid=taken.xid,
        id=taken.id,
        client=lease.address if lease is not None else holders.get(taken.xid, ""),
        opened_at_ms=taken.opened_ms,
        held_ms=max(0, now_ms - taken.opened_ms),
        times_out_at_ms=taken.opened_ms + timeout_ms if timeout_ms else 0,
        deliveries=taken.deliveries,
        added_at_ms=taken.item.added_ms,
        age_ms=max(0, now_ms - broker.calendar.added_ms(taken.item, now_ms)),
        data_bytes=len(taken.item.data),
    )


def find_holders(broker: Broker, queue: Queue, found: dict[int, str]) -> Iterator[None]:
    """Note in `found` the address of the client that holds each open read of `queue`, by xid; one client a step."""
    for session in list(broker.sessions()):
        for held_of, taken in session.reads.get(queue.name, ()):
            if held_of is queue:
                found[taken.xid] = session.address
        yield


def waiters(queue: Queue, offset: int, limit: int) -> list[WaiterView]:
    """Return the clients that wait, in the order in which they are served."""
    return [WaiterView(getattr(each, "address", "")) for each in islice(queue.waiters, offset, offset + limit)]


def clients(broker: Broker, offset: int, limit: int) -> Iterator[ClientView]:
    """Yield connections, the oldest first."""
    leased = broker.leases.by_session()
    for session in islice(broker.sessions(), offset, offset + limit):
        yield client_view(broker, session, leased.get(session.number, {}))


def client_view(broker: Broker, session: Session, leased: dict[str, tuple[int, int]]) -> ClientView:
    waited_at = session.waited_at
    # A session forgets a read that an operator gave back or that timed out only when its client asks for it.
    held = {
        name: [taken for queue, taken in reads if queue.open_reads.get(taken.xid) is taken]
        for name, reads in session.reads.items()
    }
    held = {name: reads for name, reads in held.items() if reads}
    holds = [HeldView(name, len(reads), reads[0].opened_ms) for name, reads in islice(held.items(), HOLDS_MAX)]
    holds += [HeldView(name, count, since_ms) for name, (count, since_ms) in islice(leased.items(), HOLDS_MAX)]
    ahead_ms = broker.calendar.ahead_ms
    found = ClientView(
        number=session.number,
        address=session.address,
        protocol=session.protocol,
        state=session.state.value,
        open_reads=sum(map(len, held.values())) + sum(count for count, _ in leased.values()),
        waits_for=getattr(waited_at, "name", "") if waited_at is not None else "",
        backlog=len(session.backlog),
        user=session.user,
        connected_at_ms=broker.connected_ms(session),
        holds=tuple([by_the_wall(held, ahead_ms) for held in holds]),
    )
    return by_the_wall(found, ahead_ms)


def server_view(broker: Broker, now_ms: int) -> ServerView:
    counters = broker.counters
    return ServerView(
        version=VERSION,
        build=BUILD,
        spool=broker.spool.folder,
        status=broker.status.reported.value.lower(),
        started_at_ms=broker.calendar.wall_ms(broker.started_ms),
        now_ms=broker.calendar.wall_ms(now_ms),
        uptime_ms=now_ms - broker.started_ms,
        connections=counters.curr_connections,
        queues=len(broker.queues),
        jobs=len(broker.workq.jobs.by_id) if broker.serves_jobs else 0,
        put_items=counters.total_items,
        gets=counters.cmd_get,
        bytes_read=counters.bytes_read,
        bytes_written=counters.bytes_written,
        is_full=broker.group.is_full,
        is_stopping=broker.stopping,
    )


def jobs(broker: Broker, offset: int, limit: int) -> list[JobsView]:
    """Return the jobs by name, in the order in which the names were first used; none if no jobs are served."""
    queues = broker.workq.jobs.queues.values() if broker.serves_jobs else ()
    return [
        JobsView(
            name=each.name.decode("latin-1"),
            ready=len(each.ready),
            scheduled=len(each.scheduled),
            leased=each.leased,
            finished=each.finished,
            waiters=len(each.waiters),
        )
        for each in islice(queues, offset, offset + limit)
    ]
