"""The figures of a queue, each described once: `stats`, `/metrics`, `/api/queues`, the rows of pages and `staniel top`
take them from FIGURES by name.

A new figure is one line of FIGURES, and a field of QueueSnapshot or QueueRow below if these show it. A counter is also
declared in queues/counters.py, and code in queues/ counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from staniel.broker.access import why_unreadable
from staniel.broker.admin.held_reads import HeldByReads, held_files
from staniel.broker.admin.reasons import ReasonName
from staniel.journal.journals import append_log, primary_log, removal_log, total_bytes
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.protocol.memcache.requests import Dialect
from staniel.queues import ages
from staniel.queues.config import SYNC_OS, UNLIMITED_ITEMS, Format
from staniel.queues.queue import Queue

if TYPE_CHECKING:
    from staniel.journal.spool import Spool

SYNC_NAMES = {0: "always", SYNC_OS: "os"}
METRIC_PREFIX = "staniel_queue_"


class QueueSnapshot(Struct, frozen=True):
    """A queue. `age_ms`: the age of the oldest ready item; `oldest_ms`: that of the oldest of all items, open reads
    included. `unsynced_bytes`: bytes in its files that a power cut could take. `put_items` and `delivered_items`: since
    the process loaded the queue. `sync`: "always", "os", or a duration. `unreadable`: why its items cannot be read; ""
    if they can. `held_bytes`: the size of files that only open reads keep; `held_ms`: for how long.
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


class QueueRow(Struct, frozen=True, array_like=True):
    """A queue's row for pages, as an array. `oldest_at_ms` 0: no item is ready. Rates: items a second since the last
    sample. `max_items` -1: no limit. `dead_letters_to` "": nowhere. A deleted queue is its name alone. `reasons`: those
    reasons of `health` about the queue that need time to notice.
    """

    name: str
    items: int
    bytes: int
    oldest_at_ms: int
    put_rate: float
    get_rate: float
    open_reads: int
    waiters: int
    unsynced_bytes: int
    journal_bytes: int
    paused: str
    sync: str
    max_items: int
    dead_letters_to: str
    unreadable: bool
    memory_bytes: int
    reasons: tuple[ReasonName, ...] = ()


class QueueLook:
    """A look at a queue, from which its figures are read."""

    __slots__ = ("_held", "counters", "dialect", "journal", "line", "now_ms", "queue", "spool")

    def __init__(self, queue: Queue, now_ms: int, spool: Spool, dialect: Dialect = Dialect.MEMCACHED) -> None:
        queue.sync_counters()
        self.queue, self.now_ms, self.spool, self.dialect = queue, now_ms, spool, dialect
        self.line, self.counters, self.journal = queue.line, queue.counters, queue.journal
        self._held: HeldByReads | None = None

    @property
    def held(self) -> HeldByReads:
        """The files that the queue's open reads keep. Finding them takes time."""
        if self._held is None:
            self._held = held_files(self.queue, self.now_ms)
        return self._held

    def age_ms(self) -> int:
        """Return the age of the oldest ready item."""
        return 0 if self.line.read_error is not None else ages.ready_ms(self.queue, self.now_ms)

    def age_in_stats_ms(self) -> int:
        """Return the `age` of `stats`. In the Kestrel dialect it has Kestrel's meaning."""
        if self.dialect is Dialect.KESTREL:
            return self.queue.age_ms(self.now_ms)
        return ages.ready_ms(self.queue, self.now_ms)

    def max_items(self) -> int:
        count = self.queue.config.max_items
        return count if count < UNLIMITED_ITEMS else -1

    def unsynced_bytes(self) -> int:
        """Return how many bytes of a queue's files no sync has covered yet. In libkestrel's format these are the bytes
        of two files, for its items and for its removals.
        """
        fs, added, removed = self.spool.fs, append_log(self.journal), removal_log(self.journal)
        size = fs.unsynced_bytes(added.path) if added is not None else 0
        if removed is not None and removed is not added:
            size += fs.unsynced_bytes(removed.path)
        return size

    def journal_format(self) -> str:
        if primary_log(self.journal) is None:
            return "none"
        is_stream = self.spool.format_of(self.queue.name, self.queue.config) is Format.LIBKESTREL
        return str((Format.LIBKESTREL if is_stream else Format.KESTREL).value)

    def sync(self) -> str:
        if primary_log(self.journal) is None:
            return "none"
        sync_ms = self.queue.config.sync_ms
        return SYNC_NAMES.get(sync_ms, f"{sync_ms}ms")

    def unreadable(self) -> str:
        error = self.line.read_error
        return "" if error is None else why_unreadable(error)

    def file_bytes(self) -> int:
        log = primary_log(self.journal)
        return log.current_bytes if log else 0

    def rewrites(self) -> int:
        log = primary_log(self.journal)
        return log.rewrites if isinstance(log, Log) else 0

    def rotations(self) -> int:
        log = primary_log(self.journal)
        return log.rotations if isinstance(log, Log | StreamWriter) else 0


def pause_name(queue: Queue) -> str:
    """Return which requests of the queue are paused."""
    if queue.gets_paused:
        return "all" if queue.puts_paused else "gets"
    return "puts" if queue.puts_paused else "none"


class Unit(Enum):
    """The unit of a figure."""

    COUNT = "count"
    BYTES = "bytes"
    MS = "ms"
    SECONDS = "seconds"
    TEXT = "text"


class Figure(NamedTuple):
    """A figure of a queue. `name`: in `/api/queues` and in rows, if it is there. `metric` and `stat`: its names in
    `/metrics`, after METRIC_PREFIX, and in `stats`; "" if it is not there. `stat_if`: the condition under which `stats`
    shows it.
    """

    name: str
    unit: Unit
    read: Callable[[QueueLook], Any]
    stat: str = ""
    metric: str = ""
    help: str = ""
    stat_if: Callable[[QueueLook], bool] | None = None

    @property
    def is_counter(self) -> bool:
        return self.metric.endswith("_total")

    @property
    def is_sum(self) -> bool:
        """True if the value of several queues is the sum of theirs; otherwise it is the maximum."""
        return self.unit is not Unit.SECONDS


COUNT, BYTES, MS, SECONDS, TEXT = Unit.COUNT, Unit.BYTES, Unit.MS, Unit.SECONDS, Unit.TEXT
FIGURES = (
    Figure("name", TEXT, attrgetter("queue.name")),
    Figure(
        *("items", COUNT, attrgetter("queue.waiting_items")),
        stat="items",
        metric="items",
        help="Items that wait in the queue.",
    ),
    Figure(
        *("bytes", BYTES, attrgetter("queue.waiting_bytes")),
        stat="bytes",
        metric="bytes",
        help="Payload of the items that wait.",
    ),
    Figure("age_ms", MS, QueueLook.age_ms),
    Figure(
        "age_s",
        SECONDS,
        lambda of: 0 if of.line.read_error is not None else of.age_ms() / 1000,
        metric="age_seconds",
        help="Age of the oldest item that waits.",
    ),
    Figure("age_in_stats_ms", MS, QueueLook.age_in_stats_ms, stat="age"),
    Figure("oldest_ms", MS, lambda of: ages.oldest_ms(of.queue, of.now_ms), stat="age_of_all"),
    Figure("memory_items", COUNT, attrgetter("line.memory_items"), stat="mem_items"),
    Figure(
        "memory_bytes",
        BYTES,
        attrgetter("line.memory_bytes"),
        stat="mem_bytes",
        metric="memory_bytes",
        help="Payload kept in memory.",
    ),
    Figure(
        "open_reads",
        COUNT,
        lambda of: len(of.queue.open_reads),
        stat="open_transactions",
        metric="open_reads",
        help="Items in the hands of clients.",
    ),
    Figure(
        "delayed_items",
        COUNT,
        lambda of: len(of.queue.delayed) + len(of.queue.resting),
        stat="delayed_items",
        metric="delayed_items",
        help="Items at rest: before another try, or put with a delay.",
    ),
    Figure("leaving_items", COUNT, lambda of: len(of.queue.in_transfer) + (of.queue.transferring_head is not None)),
    Figure(
        "waiters",
        COUNT,
        lambda of: len(of.queue.waiters),
        stat="waiters",
        metric="waiters",
        help="Clients that wait for an item.",
    ),
    Figure(
        "put_items",
        COUNT,
        attrgetter("counters.total_items"),
        stat="total_items",
        metric="put_items_total",
        help="Items put since the start.",
    ),
    Figure(
        "put_bytes",
        BYTES,
        attrgetter("counters.put_bytes"),
        metric="put_bytes_total",
        help="Payload put since the start.",
    ),
    Figure(
        "delivered_items",
        COUNT,
        attrgetter("counters.get_items_hit"),
        metric="delivered_items_total",
        help="Items handed out since the start.",
    ),
    Figure(
        "expired_items",
        COUNT,
        attrgetter("counters.expired_items"),
        stat="expired_items",
        metric="expired_items_total",
        help="Items expired since the start.",
    ),
    Figure(
        "discarded_items",
        COUNT,
        attrgetter("counters.discarded"),
        stat="discarded",
        metric="discarded_items_total",
        help="Items dropped for new ones.",
    ),
    Figure(
        "dead_letters",
        COUNT,
        attrgetter("counters.dead_letters"),
        stat="dead_letters",
        metric="dead_letters_total",
        help="Items given up to the dead letters.",
    ),
    Figure(
        "timed_out_reads",
        COUNT,
        attrgetter("counters.timed_out_transactions"),
        stat="timed_out_transactions",
        metric="timed_out_reads_total",
        help="Open reads ended by time.",
    ),
    Figure(
        "aborted_reads",
        COUNT,
        attrgetter("counters.canceled_transactions"),
        stat="canceled_transactions",
        metric="aborted_reads_total",
        help="Open reads given back.",
    ),
    Figure("opened_reads", COUNT, attrgetter("counters.transactions"), stat="transactions"),
    Figure("flushes", COUNT, attrgetter("counters.total_flushes"), stat="total_flushes"),
    Figure("journal_format", TEXT, QueueLook.journal_format),
    Figure(
        "journal_bytes",
        BYTES,
        lambda of: total_bytes(of.journal),
        metric="journal_bytes",
        help="Size of the queue's journal files.",
    ),
    Figure("journal_file_bytes", BYTES, QueueLook.file_bytes, stat="logsize"),
    Figure("journal_rewrites", COUNT, QueueLook.rewrites, stat="journal_rewrites"),
    Figure("journal_rotations", COUNT, QueueLook.rotations, stat="journal_rotations"),
    Figure(
        "unsynced_bytes",
        BYTES,
        QueueLook.unsynced_bytes,
        metric="unsynced_bytes",
        help="Written, and not yet synced to the disk.",
    ),
    Figure("sync", TEXT, QueueLook.sync),
    Figure("max_items", COUNT, QueueLook.max_items),
    Figure("dead_letters_to", TEXT, attrgetter("queue.config.dead_letter_queue")),
    Figure(
        "held_bytes",
        BYTES,
        attrgetter("held.bytes"),
        stat="held_bytes",
        metric="held_bytes",
        help="Segments that only open reads keep.",
        stat_if=lambda of: of.held.bytes > 0,
    ),
    Figure("held_ms", MS, attrgetter("held.ms"), stat="held_ms", stat_if=lambda of: of.held.bytes > 0),
    Figure(
        "held_s",
        SECONDS,
        lambda of: of.held.ms / 1000,
        metric="held_seconds",
        help="For how long the first of these reads is open.",
    ),
    Figure("children", TEXT, lambda of: list(of.queue.children)),
    Figure(
        "children_text",
        TEXT,
        lambda of: ",".join(of.queue.children),
        stat="children",
        stat_if=attrgetter("queue.had_children"),
    ),
    Figure(
        "paused",
        TEXT,
        lambda of: pause_name(of.queue),
        stat="paused",
        stat_if=lambda of: of.queue.gets_paused or of.queue.puts_paused,
    ),
    Figure(
        "unreadable", TEXT, QueueLook.unreadable, stat="unreadable", stat_if=lambda of: of.line.read_error is not None
    ),
)
"""The figures, in the order of QueueSnapshot and `/metrics`."""

BY_NAME = {figure.name: figure for figure in FIGURES}
METRICS = tuple(figure for figure in FIGURES if figure.metric)
STATS_IN_ORDER = (
    *("items", "bytes", "total_items", "logsize", "expired_items", "mem_items", "mem_bytes", "age", "discarded"),
    *("waiters", "open_transactions", "transactions", "canceled_transactions", "total_flushes", "journal_rewrites"),
    *("journal_rotations", "age_of_all", "delayed_items", "timed_out_transactions", "dead_letters"),
)
"""The figures in the order of `stats`: Kestrel's come first, in Kestrel's order, then the others, in the order of
FIGURES.
"""


def _in_order_of_stats() -> tuple[Figure, ...]:
    by_stat = {figure.stat: figure for figure in FIGURES if figure.stat}
    return tuple(by_stat.pop(stat) for stat in STATS_IN_ORDER) + tuple(by_stat.values())


_ORDERED = _in_order_of_stats()
STAT_NAMES = tuple(figure.stat for figure in _ORDERED if figure.stat_if is None)
STAT_READS = tuple(figure.read for figure in _ORDERED if figure.stat_if is None)
STATS_SOMETIMES = tuple((figure.stat, figure.read, figure.stat_if) for figure in _ORDERED if figure.stat_if is not None)
_SNAPSHOT = tuple((name, BY_NAME[name].read) for name in QueueSnapshot.__struct_fields__)
_MEASURED_OVER_TIME = frozenset(("oldest_at_ms", "put_rate", "get_rate", "unreadable", "reasons"))
"""The fields of QueueRow that the sampler adds."""

_ROW = tuple((name, BY_NAME[name].read) for name in QueueRow.__struct_fields__ if name not in _MEASURED_OVER_TIME)


def snapshot(look: QueueLook) -> QueueSnapshot:
    return QueueSnapshot(**{name: read(look) for name, read in _SNAPSHOT})


def queue_row(look: QueueLook, **measured: Any) -> QueueRow:
    """Return a row; `measured` are the fields of _MEASURED_OVER_TIME."""
    return QueueRow(**{name: read(look) for name, read in _ROW}, **measured)
