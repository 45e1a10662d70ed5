"""Prometheus' text format 0.0.4 of everything that `views` shows, made in pieces.

The label `queue` is bounded: of more than QUEUES_MAX queues those with the most items and bytes at rest are named, and
the others are added up under `queue=""`, so that nothing is missing from a sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.operations.health import Health
from staniel.broker.operations.views import QueueSnapshot, ServerView

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
QUEUES_MAX = 10_000
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"


class Family(Struct, frozen=True):
    """One metric of queues: its name, what it is, and which attribute of a QueueSnapshot it shows, `scale` times.
    `is_sum`: of several queues it is their sum, else their maximum.
    """

    name: str
    kind: MetricKind
    help: str
    attribute: str
    scale: float = 1
    is_sum: bool = True


FAMILIES = (
    Family("staniel_queue_items", MetricKind.GAUGE, "Items that wait in the queue.", "items"),
    Family("staniel_queue_bytes", MetricKind.GAUGE, "Payload of the items that wait.", "bytes"),
    Family("staniel_queue_age_seconds", MetricKind.GAUGE, "Age of the oldest item that waits.", "age_ms", 0.001, False),
    Family("staniel_queue_memory_bytes", MetricKind.GAUGE, "Payload kept in memory.", "memory_bytes"),
    Family("staniel_queue_open_reads", MetricKind.GAUGE, "Items in the hands of clients.", "open_reads"),
    Family("staniel_queue_delayed_items", MetricKind.GAUGE, "Items at rest before another try.", "delayed_items"),
    Family("staniel_queue_waiters", MetricKind.GAUGE, "Clients that wait for an item.", "waiters"),
    Family("staniel_queue_put_items_total", MetricKind.COUNTER, "Items put since the start.", "put_items"),
    Family("staniel_queue_put_bytes_total", MetricKind.COUNTER, "Payload put since the start.", "put_bytes"),
    Family(
        "staniel_queue_delivered_items_total",
        MetricKind.COUNTER,
        "Items handed out since the start.",
        "delivered_items",
    ),
    Family("staniel_queue_expired_items_total", MetricKind.COUNTER, "Items expired since the start.", "expired_items"),
    Family("staniel_queue_discarded_items_total", MetricKind.COUNTER, "Items dropped for new ones.", "discarded_items"),
    Family(
        "staniel_queue_dead_letters_total", MetricKind.COUNTER, "Items given up to the dead letters.", "dead_letters"
    ),
    Family("staniel_queue_timed_out_reads_total", MetricKind.COUNTER, "Open reads ended by time.", "timed_out_reads"),
    Family("staniel_queue_aborted_reads_total", MetricKind.COUNTER, "Open reads given back.", "aborted_reads"),
    Family("staniel_queue_journal_bytes", MetricKind.GAUGE, "Size of the queue's journal files.", "journal_bytes"),
    Family(
        "staniel_queue_unsynced_bytes", MetricKind.GAUGE, "Written, and not yet synced to the disk.", "unsynced_bytes"
    ),
)


class QueueMetrics:
    """Collects the samples of one queue after another, by family, as the format demands."""

    def __init__(self, named: set[str] | None) -> None:
        """`named`: the queues with a label of their own; None: all."""
        self._named = named
        self._texts = [bytearray() for _ in FAMILIES]  # lines of their own would take three times the memory
        self._others: list[float] | None = None

    def add(self, view: QueueSnapshot) -> None:
        if self._named is not None and view.name not in self._named:
            self._add_up(view)
            return
        label = view.name.encode("utf-8", "backslashreplace").decode().translate(_ESCAPES)
        for family, text in zip(FAMILIES, self._texts, strict=True):
            value = getattr(view, family.attribute)
            shown = value if family.scale == 1 else value * family.scale
            text += f'{family.name}{{queue="{label}"}} {shown}\n'.encode()

    def _add_up(self, view: QueueSnapshot) -> None:
        others = self._others or [0] * len(FAMILIES)
        for at, family in enumerate(FAMILIES):
            value = getattr(view, family.attribute) * family.scale
            others[at] = others[at] + value if family.is_sum else max(others[at], value)
        self._others = others

    def families(self) -> Iterable[bytes]:
        """The text of each family, once: of 10,000 queues half a megabyte, 1 ms each."""
        for at, family in enumerate(FAMILIES):
            text, self._texts[at] = self._texts[at], bytearray()
            if self._others is not None:
                text += f'{family.name}{{queue=""}} {self._others[at]}\n'.encode()
            yield _head(family.name, family.kind, family.help).encode() + text


def names_to_show(broker: Broker) -> set[str] | None:
    """The queues that get a label of their own; None: all of them."""
    if len(broker.queues) <= QUEUES_MAX:
        return None
    largest = sorted(broker.queues, key=lambda queue: (len(queue.line), queue.line.bytes), reverse=True)
    return {queue.name for queue in largest[:QUEUES_MAX]}


def server_metrics(view: ServerView, health: Health, broker: Broker) -> bytes:
    """What there is once a server."""
    counters, group = broker.counters, broker.group
    free, total = broker.spool.fs.free_bytes(broker.spool.folder)
    samples: list[tuple[str, MetricKind, str, float]] = [
        ("staniel_up_seconds", MetricKind.GAUGE, "Time since the start.", view.uptime_ms / 1000),
        (
            "staniel_ready",
            MetricKind.GAUGE,
            "1 if clients are served, 0 if /health/ready says why not.",
            int(health.ready),
        ),
        ("staniel_warnings", MetricKind.GAUGE, "Reasons that /health/ready lists.", len(health.reasons)),
        ("staniel_connections", MetricKind.GAUGE, "Clients connected.", view.connections),
        ("staniel_connections_total", MetricKind.COUNTER, "Clients since the start.", counters.total_connections),
        ("staniel_queues", MetricKind.GAUGE, "Queues.", view.queues),
        ("staniel_puts_total", MetricKind.COUNTER, "Put requests since the start.", counters.cmd_set),
        ("staniel_gets_total", MetricKind.COUNTER, "Get requests since the start.", counters.cmd_get),
        ("staniel_get_hits_total", MetricKind.COUNTER, "Gets that found an item.", counters.get_hits),
        ("staniel_get_misses_total", MetricKind.COUNTER, "Gets that found none.", counters.get_misses),
        ("staniel_read_bytes_total", MetricKind.COUNTER, "Bytes received from clients.", counters.bytes_read),
        ("staniel_written_bytes_total", MetricKind.COUNTER, "Bytes sent to clients.", counters.bytes_written),
        ("staniel_disk_free_bytes", MetricKind.GAUGE, "Free on the disk of the spool.", free),
        ("staniel_disk_bytes", MetricKind.GAUGE, "Size of the disk of the spool.", total),
        ("staniel_disk_full", MetricKind.GAUGE, "1 while puts are refused for want of space.", int(group.is_full)),
        ("staniel_queues_blocked", MetricKind.GAUGE, "Queues whose files cannot be read.", len(broker.queues.blocked)),
        ("staniel_queues_paused", MetricKind.GAUGE, "Queues of which gets or puts are paused.", len(broker.pauses)),
    ]
    text = [_head(name, kind, about) + f"{name} {value}\n" for name, kind, about, value in samples]
    text.append(_head("staniel_build_info", MetricKind.GAUGE, "The version and the build."))
    text.append(f'staniel_build_info{{version="{view.version}",build="{view.build}"}} 1\n')
    if broker.serves_jobs:
        text.append(
            _head("staniel_jobs", MetricKind.GAUGE, "Jobs that the server knows.") + f"staniel_jobs {view.jobs}\n"
        )
    return "".join(text).encode()


def _head(name: str, kind: MetricKind, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind.value}\n"
