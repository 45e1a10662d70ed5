"""Recovering the queues of a spool, one after the other, and saying how far that is.

Knows their order, and what is reported of each. Refuses to know what a queue's files say, and who looks on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.access import why_unreadable
from staniel.broker.events import Level
from staniel.journal.kestrel.files import Files
from staniel.queues.config import Format

if TYPE_CHECKING:
    from staniel.broker.broker import Broker


GONE = "so many of its items are lost; put the file back and restart, or go on without them"
SHORTENED = f"the file has lost its end, and with it so many items; {GONE.partition('; ')[2]}"
STAND_INS = "they stand for items removed before, and what removed them is lost; not handed out"


class Progress(Struct):
    """How far recovery is. Bytes are those of journal files, whether they had to be read or not."""

    queues: int = 0
    bytes: int = 0
    all_queues: int = 0
    all_bytes: int = 0
    read_bytes: int = 0
    spared_bytes: int = 0


def nobody(progress: Progress) -> None:
    """Does not want to know."""


class Start:
    """Of one server, once."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.uneven: set[str] = set()  # queues with items whose next reserve a reader would number by another rule

    def run(self, files: dict[str, Files], now_ms: int, tell: Callable[[Progress], None]) -> Progress:
        """The smallest first: whatever is wrong with one of many shows early."""
        broker = self.broker
        recovery = broker.store.recovery
        sizes = {name: broker.store.size(each) for name, each in files.items()}
        progress = Progress(all_queues=len(files), all_bytes=sum(sizes.values()))

        def further(size: int) -> None:
            progress.bytes += size
            tell(progress)

        recovery.progress = further
        for name in sorted(files, key=lambda name: (sizes[name], name)):
            before = progress.bytes
            self.recover_one(name, files[name], now_ms, progress)
            progress.bytes = before + sizes[name]
            progress.queues += 1
            tell(progress)
        self._sort()
        return progress

    def _sort(self) -> None:
        """Who lists queues sees them by name."""
        by_name = self.broker.queues.by_name
        for name in sorted(by_name):
            by_name[name] = by_name.pop(name)

    def recover_one(self, name: str, files: Files, now_ms: int, progress: Progress) -> None:
        """Bring a queue into service, or see that nobody makes another in its place."""
        broker = self.broker
        try:
            if files.holds_nothing:
                broker.store.recovery.tidy(files)
            elif broker.config.queue(name).keep_journal:
                self._recover(name, files, now_ms, progress)
            else:
                broker.set_aside(name, files, now_ms)
        except OSError as error:
            self._block(name, error)

    def _block(self, name: str, error: OSError) -> None:
        broker = self.broker
        broker.store.claim(name)
        broker.queues.block(name, why_unreadable(error))
        broker.unreadable.add(name)
        hint = "not served; make its files readable and writable for this user, then reload or restart"
        broker.report(Level.ERROR, "journal.unreadable", queue=name, why=str(error), hint=hint)

    def _recover(self, name: str, files: Files, now_ms: int, progress: Progress) -> None:
        """Raises OSError."""
        broker = self.broker
        memory_bytes = broker.upkeep.memory.bytes_for(broker.config.queue(name))
        recovered, log = broker.store.recover(name, files, broker.config.queue(name), now_ms, memory_bytes)
        progress.read_bytes += recovered.replayed_bytes
        progress.spared_bytes += recovered.skipped_bytes
        broker.report_damages(name, recovered.damages)
        for loss in recovered.losses:
            event, hint = ("journal.gone", GONE) if loss.is_gone else ("journal.shortened", SHORTENED)
            items = loss.items if loss.items >= 0 else "unknown"
            broker.report(Level.ERROR, event, queue=name, file=loss.file, items=items, hint=hint)
        if recovered.stand_ins:
            broker.report(Level.ERROR, "journal.stand_ins", queue=name, items=recovered.stand_ins, hint=STAND_INS)
        for rejected in recovered.rejected_sidecars:
            level = Level.WARNING if rejected.is_serious else Level.DEBUG
            broker.report(level, "journal.read_whole", queue=name, file=rejected.file, why=rejected.why)
        broker.streams.compare_format(name, Format.KESTREL)
        queue = broker.queues.adopt(name, log, now_ms)
        queue.load(recovered.replay.line, recovered.replay.open, recovered.replay.counter)
        broker.upkeep.memory.bound(queue)
        broker.upkeep.memory.weigh(queue)
        broker.upkeep.refills.look(queue)
        if recovered.replay.has_named():
            self.uneven.add(name)
