"""Queues whose files could not be read, tried again at a reload: the files may have been repaired, or removed.

A queue that has been in service goes on where it stood. One that a start could not read is recovered as at a start,
and so are the transfers from and to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.broker.events import Level
from staniel.broker.recovery import Progress, Start
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.spool import SpoolError
from staniel.queues.queue import Queue

if TYPE_CHECKING:
    from staniel.broker.broker import Broker


def revive(broker: Broker, now_ms: int) -> None:
    """Never raises: what still cannot be read stays as it is, and is told again."""
    for queue in broker.queues.all():
        if queue.line.trouble is not None:
            _read_again(broker, queue)
    if broker.unreadable or broker.transfers.intents.kept:
        _recover(broker, now_ms)
    if broker.serves_jobs and broker.workq.trouble:
        _recover_jobs(broker, now_ms)


def _recover_jobs(broker: Broker, now_ms: int) -> None:
    try:
        broker.workq.recover(now_ms)
    except SpoolError as error:
        broker.workq.trouble = str(error)
    broker.allow_jobs()


def _read_again(broker: Broker, queue: Queue) -> None:
    tail = queue.line.tail
    if isinstance(tail, ReadBehind):
        try:
            gone = tail.give_up_gone()
        except OSError:
            return
        for name in gone:
            hint = "its items are lost; the queue is served without them"
            broker.report(Level.ERROR, "journal.gone", queue=queue.name, file=name, hint=hint)
    queue.read_again()
    broker.upkeep.refills.retry(queue)


def _recover(broker: Broker, now_ms: int) -> None:
    tried, broker.unreadable = broker.unreadable, set()
    try:
        found = broker.store.look()
    except OSError:
        broker.unreadable = tried
        return
    start = Start(broker)
    known = set(broker.queues.by_name)
    for name in sorted(tried):
        broker.streams.unblock(name)
        if name in found.streams:
            broker.streams.recover_one(name, found.streams[name], now_ms)
        elif name in found.kestrel:
            start.recover_one(name, found.kestrel[name], now_ms, Progress())
    broker.transfers.unfinished.go_on(now_ms)
    for queue in [queue for queue in broker.queues if queue.name not in known]:
        queue.return_open_reads()
        broker.queues.create_expiry_target(queue, now_ms)
        broker.pauses.apply_to(queue)
    if start.uneven:
        broker.commit(now_ms)
        broker.even_out(sorted(start.uneven), now_ms)
