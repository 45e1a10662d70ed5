"""Recovering the queues of a spool, one after the other, and saying how far that is.

Knows their order, and what is reported of each. Refuses to know what a queue's files say, and who looks on.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from broker.config import Config
from broker.report import Level, Report
from broker.upkeep import Upkeep
from journal.layout import Files
from journal.recovery import Recovered
from journal.store import Store
from queues.collection import Collection


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

    def __init__(self, config: Config, store: Store, queues: Collection, upkeep: Upkeep, report: Report) -> None:
        self.config = config
        self.store = store
        self.queues = queues
        self.upkeep = upkeep
        self.report = report
        self.uneven: set[str] = set()  # queues with items whose next reserve a reader would number by another rule

    def run(self, files: dict[str, Files], now_ms: int, tell: Callable[[Progress], None]) -> Progress:
        """The smallest first: whatever is wrong with one of many shows early."""
        sizes = {name: self.store.size(each) for name, each in files.items()}
        progress = Progress(all_queues=len(files), all_bytes=sum(sizes.values()))

        def further(size: int) -> None:
            progress.bytes += size
            tell(progress)

        self.store.recovery.progress = further
        for name in sorted(files, key=lambda name: (sizes[name], name)):
            before = progress.bytes
            if files[name].holds_nothing:
                self.store.recovery.tidy(files[name])
            elif self.config.queue(name).keep_journal:
                self._recover_queue(name, files[name], now_ms, progress)
            else:
                aside = self.store.set_aside(files[name], now_ms)
                hint = "keep_journal is false: the queue starts empty, its old files are kept there"
                self.report(Level.WARNING, "journal.set_aside", queue=name, folder=aside, hint=hint)
            progress.bytes = before + sizes[name]
            progress.queues += 1
            tell(progress)
        return progress

    def _recover_queue(self, name: str, files: Files, now_ms: int, progress: Progress) -> None:
        try:
            recovered, log = self.store.recover(name, files, self.config.queue(name), now_ms)
        except OSError as error:
            self.queues.block(name, str(error.strerror))
            hint = "this queue is not served; make its files readable and writable for this user, then restart"
            self.report(Level.ERROR, "journal.unreadable", queue=name, why=str(error), hint=hint)
            return
        progress.read_bytes += recovered.replayed_bytes
        progress.spared_bytes += recovered.skipped_bytes
        self._tell(name, recovered)
        queue = self.queues.adopt(name, log, now_ms)
        queue.load(recovered.replay.line, recovered.replay.open, recovered.replay.counter)
        self.upkeep.memory.weigh(queue)
        self.upkeep.refills.look(queue)
        if recovered.replay.has_named():
            self.uneven.add(name)

    def _tell(self, name: str, recovered: Recovered) -> None:
        for damage in recovered.damages:
            self.report(
                Level.ERROR,
                "journal.damaged",
                queue=name,
                file=damage.file,
                at=damage.at,
                unread_bytes=damage.lost_bytes,
                why=damage.why,
                saved_as=damage.saved_as,
            )
        for doubt in recovered.doubts:
            level = Level.WARNING if doubt.is_serious else Level.DEBUG
            self.report(level, "journal.read_whole", queue=name, file=doubt.file, why=doubt.why)
