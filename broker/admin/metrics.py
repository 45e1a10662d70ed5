"""The metrics in Prometheus' text format 0.0.4: the figures of `views` and the histograms, made in pieces.

The label `queue` is bounded: beyond QUEUES_MAX queues only the longest get their own series, and the others are added
up under `queue=""`, so that sums over all series stay right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from staniel.broker.admin.process import ProcessFigures
from staniel.broker.admin.reasons import Health, ReasonName
from staniel.broker.admin.views import ServerView
from staniel.broker.admin.watch import Watch
from staniel.broker.counters import ServerCounters
from staniel.broker.figures import METRIC_PREFIX, METRICS, QueueLook
from staniel.broker.latencies import Histogram, Latencies
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.operations.holds import Holds, HoldView, is_active
from staniel.broker.operations.pauses import Pauses
from staniel.broker.put_keys import PutKeys
from staniel.broker.users import Logins
from staniel.broker.wall_clock import WallClock
from staniel.journal.spool import Spool
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUEUES_MAX = 10_000
LENGTH_BITS = 65
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_READS = tuple(figure.read for figure in METRICS)
REASON_QUEUES_MAX = 1_000  # queues named for one reason
QUEUES_PER_PIECE = 1_000  # in one family: half a millisecond, for ages a whole one

NOREPLY_ABOUT = "Requests with noreply that were refused: their clients do not know."
CLOCK_ABOUT = "How far the wall clock was set on since the start; below 0: back."


def escape_label(name: str) -> str:
    """Return a name as the value of a label."""
    if name.isascii() and name.isprintable() and "\\" not in name and '"' not in name:
        return name
    return name.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)


def queue_samples(spool: Spool, queue: Queue, now_ms: int) -> tuple[float, ...]:
    """Return the values of METRICS, in their order. Building a QueueSnapshot would take longer."""
    look = QueueLook(queue, now_ms, spool)
    return tuple([read(look) for read in _READS])


class QueueMetrics:
    """A collector of samples. It gets them queue by queue and returns them by family, as the format requires."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, tuple[float, ...]]] = []  # a label, the values of METRICS
        self._others: list[float] | None = None

    def add(self, name: str, values: tuple[float, ...]) -> None:
        """Add a queue with a label of its own."""
        self._rows.append((f'{{queue="{escape_label(name)}"}} ', values))

    def add_to_others(self, values: tuple[float, ...]) -> None:
        """Add a queue to those that share the label ""."""
        others = self._others or [0] * len(METRICS)
        for at, (figure, value) in enumerate(zip(METRICS, values, strict=True)):
            others[at] = others[at] + value if figure.is_sum else max(others[at], value)
        self._others = others

    def families(self) -> Iterator[bytes]:
        """Yield the text of each family, in pieces of a millisecond at most."""
        rows = self._rows
        for at, figure in enumerate(METRICS):
            name = METRIC_PREFIX + figure.metric
            text = head(name, MetricKind.COUNTER if figure.is_counter else MetricKind.GAUGE, figure.help)
            for begin in range(0, len(rows), QUEUES_PER_PIECE):
                part = rows[begin : begin + QUEUES_PER_PIECE]
                text += "".join([f"{name}{label}{values[at]}\n" for label, values in part])
                if begin + QUEUES_PER_PIECE < len(rows):
                    yield text.encode()
                    text = ""
            if self._others is not None:
                text += f'{name}{{queue=""}} {self._others[at]}\n'
            yield text.encode()


class NamedQueues:
    """The choice of the queues that get a label of their own: all of them, or roughly the QUEUES_MAX longest. The
    boundary is a power of two. Call `count_length` for each queue, then `decide`, then `takes` once for each queue.
    Queues may change between the calls.
    """

    def __init__(self, count: int) -> None:
        """Begin the choice among `count` queues. If there are few, no queue is measured."""
        self.are_all = count <= QUEUES_MAX
        self._by_bits = [0] * LENGTH_BITS
        self._least_bits, self._of_least = 0, QUEUES_MAX
        self._left = QUEUES_MAX

    def count_length(self, queue: Queue, now_ms: int) -> bool:
        self._by_bits[len(queue.line).bit_length()] += 1
        return True

    def decide(self) -> None:
        """Find the boundary: the largest number of bits so that the queues of that length and longer are more than
        QUEUES_MAX, but the longer ones alone are not.
        """
        left = QUEUES_MAX
        for bits in reversed(range(LENGTH_BITS)):
            if self._by_bits[bits] > left:
                self._least_bits, self._of_least = bits, left
                return
            left -= self._by_bits[bits]

    def takes(self, queue: Queue) -> bool:
        if self.are_all:
            return True
        bits = len(queue.line).bit_length()
        if bits < self._least_bits or not self._left:
            return False
        if bits == self._least_bits:
            if not self._of_least:
                return False
            self._of_least -= 1
        self._left -= 1
        return True


Sample = tuple[str, MetricKind, str, float]


def of_copies(watch: Watch, now_ms: int) -> list[Sample]:
    copies = watch.copies
    count, size, age_ms = copies.count, copies.bytes, copies.age_ms(now_ms)
    return [
        ("staniel_damaged_copies", MetricKind.GAUGE, "Copies of bytes that could not be read.", count),
        ("staniel_damaged_bytes", MetricKind.GAUGE, "Size of these copies.", size),
        ("staniel_damaged_oldest_seconds", MetricKind.GAUGE, "Age of the oldest of these copies.", age_ms / 1000),
    ]


def of_read(watch: Watch, refused_removals: int) -> list[Sample]:
    about = "Bytes of journals that have been read and could be given back."
    most = "If more has been read, it is packed away before the disk is full: a quarter of the disk."
    refused = "Packs, segments and deleted queues of which the system refuses to remove files."
    return [
        ("staniel_journals_read_bytes", MetricKind.GAUGE, about, watch.read_bytes),
        ("staniel_journals_read_bytes_max", MetricKind.GAUGE, most, watch.read_bytes_max),
        ("staniel_removals_refused", MetricKind.GAUGE, refused, refused_removals),
    ]


def of_service(view: ServerView, health: Health) -> list[Sample]:
    """Return the samples that tell whether clients are served."""
    return [
        ("staniel_up_seconds", MetricKind.GAUGE, "Time since the start.", view.uptime_ms / 1000),
        (
            "staniel_ready",
            MetricKind.GAUGE,
            "1 if consumers are served, 0 if /health/ready says why not.",
            int(health.ready),
        ),
        (
            "staniel_ready_for_puts",
            MetricKind.GAUGE,
            "1 if no request is refused, 0 if /health/ready?for=puts says which are.",
            int(health.ready_for_puts),
        ),
        ("staniel_warnings", MetricKind.GAUGE, "Reasons that /health/ready lists.", len(health.reasons)),
    ]


def of_traffic(view: ServerView, counters: ServerCounters) -> list[Sample]:
    return [
        ("staniel_connections", MetricKind.GAUGE, "Clients connected.", view.connections),
        ("staniel_connections_total", MetricKind.COUNTER, "Clients since the start.", counters.total_connections),
        ("staniel_queues", MetricKind.GAUGE, "Queues.", view.queues),
        ("staniel_puts_total", MetricKind.COUNTER, "Put requests since the start.", counters.cmd_set),
        ("staniel_gets_total", MetricKind.COUNTER, "Get requests since the start.", counters.cmd_get),
        ("staniel_get_hits_total", MetricKind.COUNTER, "Gets that found an item.", counters.get_hits),
        ("staniel_get_misses_total", MetricKind.COUNTER, "Gets that found none.", counters.get_misses),
        ("staniel_read_bytes_total", MetricKind.COUNTER, "Bytes received from clients.", counters.bytes_read),
        ("staniel_written_bytes_total", MetricKind.COUNTER, "Bytes sent to clients.", counters.bytes_written),
    ]


def of_disk(spool: Spool) -> list[Sample]:
    (free, total), is_full = spool.fs.free_bytes(spool.folder), spool.group.is_full
    return [
        ("staniel_disk_free_bytes", MetricKind.GAUGE, "Free on the disk of the spool.", free),
        ("staniel_disk_bytes", MetricKind.GAUGE, "Size of the disk of the spool.", total),
        ("staniel_disk_full", MetricKind.GAUGE, "1 while puts are refused for want of space.", int(is_full)),
    ]


def of_refusals(queues: Queues, pauses: Pauses, wall: WallClock, logins: Logins) -> list[Sample]:
    """Return the samples of unreadable and paused queues, logins and refused requests."""
    return [
        ("staniel_queues_blocked", MetricKind.GAUGE, "Queues whose files cannot be read.", len(queues.blocked)),
        ("staniel_queues_paused", MetricKind.GAUGE, "Queues of which gets or puts are paused.", len(pauses)),
        ("staniel_clock_apart_seconds", MetricKind.GAUGE, CLOCK_ABOUT, wall.apart_ms // 1000),
        ("staniel_logins_total", MetricKind.COUNTER, "Passwords that were right.", logins.succeeded),
        ("staniel_logins_failed_total", MetricKind.COUNTER, "Passwords and tokens that were wrong.", logins.failed),
        ("staniel_commands_refused_total", MetricKind.COUNTER, "Requests without the right to them.", logins.refused),
    ]


def lines_of(samples: list[Sample]) -> list[str]:
    """Return the samples as text."""
    return [head(name, kind, about) + f"{name} {value}\n" for name, kind, about, value in samples]


def limits_reached(limits: LimitsReached, counters: ServerCounters, keys: PutKeys) -> Iterator[str]:
    if limits.max_connections:
        yield head("staniel_connections_max", MetricKind.GAUGE, "Clients that may be connected at a time.")
        yield f"staniel_connections_max {limits.max_connections}\n"
    name = "staniel_limits_reached_total"
    yield head(name, MetricKind.COUNTER, "How often a limit has kept something from a client.")
    yield "".join([f'{name}{{limit="{limit}"}} {count}\n' for limit, count in limits.counts.items()])
    yield head("staniel_noreply_refused_total", MetricKind.COUNTER, NOREPLY_ABOUT)
    yield f"staniel_noreply_refused_total {counters.noreply_refused}\n"
    yield head("staniel_put_keys", MetricKind.GAUGE, "Idempotency keys of puts that are remembered.")
    yield f"staniel_put_keys {len(keys)}\n"
    yield head("staniel_puts_repeated_total", MetricKind.COUNTER, "Puts that were already stored, by their keys.")
    yield f"staniel_puts_repeated_total {keys.repeated}\n"


def build_info(view: ServerView) -> list[str]:
    return [
        head("staniel_build_info", MetricKind.GAUGE, "The version and the build."),
        f'staniel_build_info{{version="{view.version}",build="{view.build}"}} 1\n',
    ]


def of_certificate(ends_ms: int | None) -> list[Sample]:
    """Return the time when the server's certificate expires, if there is one."""
    if ends_ms is None:
        return []
    about = "When the server's certificate expires, in seconds since 1970."
    return [("staniel_certificate_expiry_timestamp_seconds", MetricKind.GAUGE, about, ends_ms // 1000)]


def of_backup(age_ms: int | None) -> list[Sample]:
    """Return the age of the last backup, if one is known."""
    if age_ms is None:
        return []
    about = "Since the last backup that the server has been told of."
    return [("staniel_backup_age_seconds", MetricKind.GAUGE, about, age_ms / 1000)]


def of_holds(holds: Holds, now_ms: int) -> Iterator[str]:
    """Yield the metrics of retention holds, with the label `hold`, and how many were dropped at their limits."""
    views = holds.views(now_ms)
    values: tuple[tuple[str, str, Callable[[HoldView], float]], ...] = (
        ("staniel_hold_active", "1, or 0 once the hold was dropped at its limit.", lambda hold: int(is_active(hold))),
        ("staniel_hold_age_seconds", "Since the hold was created or last moved.", lambda hold: hold.age_ms / 1000),
        ("staniel_hold_bytes", "In files that are kept for the hold.", lambda hold: hold.bytes),
        ("staniel_hold_bytes_max", "The limit of the hold; 0: none.", lambda hold: hold.max_bytes),
        ("staniel_hold_files", "Files that are kept for the hold.", lambda hold: hold.files),
    )
    for name, about, value in values if views else ():
        rows = [f'{name}{{hold="{escape_label(hold.name)}"}} {value(hold)}\n' for hold in views]
        yield head(name, MetricKind.GAUGE, about) + "".join(rows)
    name = "staniel_holds_dropped_total"
    yield head(name, MetricKind.COUNTER, "Retention holds that were dropped at their limits.")
    yield f"{name} {holds.dropped_at_limit}\n"


def of_jobs(view: ServerView) -> list[Sample]:
    return [("staniel_jobs", MetricKind.GAUGE, "Jobs that the server knows.", view.jobs)]


def of_process(figures: ProcessFigures | None) -> list[Sample]:
    """Return the metrics of the process, under the names that every dashboard of processes uses."""
    if figures is None:
        return []
    return [
        ("process_cpu_seconds_total", MetricKind.COUNTER, "User and system time of the process.", figures.cpu_s),
        ("process_resident_memory_bytes", MetricKind.GAUGE, "Resident memory.", figures.resident_bytes),
        ("process_virtual_memory_bytes", MetricKind.GAUGE, "Virtual memory.", figures.virtual_bytes),
        ("process_open_fds", MetricKind.GAUGE, "Open file descriptors.", figures.open_fds),
        ("process_max_fds", MetricKind.GAUGE, "How many descriptors may be open.", figures.max_fds),
        ("process_start_time_seconds", MetricKind.GAUGE, "Start, in seconds since 1970.", round(figures.started_s, 2)),
    ]


def health_reasons(health: Health, names_by_reason: dict[ReasonName, list[str]]) -> list[str]:
    """Return the metrics of the reasons why an operator should look, and of the queues that each is about."""
    samples = []
    name, counts = "staniel_health_reason", dict.fromkeys(ReasonName, 0)
    counts |= {reason.name: reason.count for reason in health.reasons}
    samples.append(
        head(name, MetricKind.GAUGE, "1, or how many queues it is about, if /health/ready names the reason.")
    )
    samples.append("".join([f'{name}{{reason="{reason.value}"}} {count}\n' for reason, count in counts.items()]))
    name = "staniel_queue_reason"
    samples.append(head(name, MetricKind.GAUGE, "1 for each reason of /health/ready and each queue it is about."))
    for reason, queues in names_by_reason.items():
        some = queues[:REASON_QUEUES_MAX]
        samples.append(
            "".join([f'{name}{{queue="{escape_label(queue)}",reason="{reason.value}"}} 1\n' for queue in some])
        )
    return samples


def histograms(latencies: Latencies) -> Iterator[str]:
    """Yield the histograms of durations. `le` is in seconds."""
    sampled = "of one request at most every 10 ms"
    yield _histogram("staniel_put_seconds", f"From a put's last byte to its answer, {sampled}.", latencies.puts)
    yield _histogram("staniel_get_seconds", f"From a get to its answer, {sampled}; none that waits.", latencies.gets)
    about = "From an item's coming until a waiting client was sent it, of one at most every 10 ms."
    yield _histogram("staniel_delivery_seconds", about, latencies.deliveries)
    yield _histogram("staniel_sync_seconds", "Syncs of the disk that replies wait for, all of them.", latencies.syncs)
    about = "How long an item was here when a get took or opened it, of one at most every 10 ms."
    yield _histogram("staniel_item_rest_seconds", about, latencies.rests)


def _histogram(name: str, about: str, histogram: Histogram) -> str:
    lines, count = [head(name, MetricKind.HISTOGRAM, about)], 0
    for bound, here in zip((*histogram.bounds_s, "+Inf"), histogram.counts, strict=True):
        count += here
        lines.append(f'{name}_bucket{{le="{bound}"}} {count}\n')
    return "".join([*lines, f"{name}_sum {histogram.sum_ns / 1e9}\n{name}_count {count}\n"])


def head(name: str, kind: MetricKind, about: str) -> str:
    """Return the lines that begin a family."""
    return f"# HELP {name} {about}\n# TYPE {name} {kind.value}\n"
