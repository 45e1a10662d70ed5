"""Items on their way from one queue to another: expired ones, dead letters, moved ones. Neither lost nor doubled.

Knows the order of the steps: intent, copy, sync, removal. Refuses to know why an item leaves. In memory the copy is in
the target at once; the source forgets the item when the disk has the copy.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from msgspec import Struct

from broker.report import Level, Report
from journal.group import CommitGroup
from journal.intents import Intent, Intents, key_of
from journal.kept import intake, landing, outlet
from journal.libkestrel_reader import Reader
from journal.libkestrel_search import StreamSearch
from journal.libkestrel_writer import Writer
from journal.log import Log
from journal.search import Place, Search
from journal.store import Store
from queues.collection import Collection, Refused
from queues.departures import Dropped
from queues.item import Item, Taken
from queues.names import parent_of
from queues.ports import Reason
from queues.queue import CLOSED, Queue


class Parting(Struct, frozen=True):
    """An item that leaves `source`. `target` only for a moved one; else the settings say, when it is its turn."""

    source: Queue
    taken: Taken
    reason: Reason
    target: str

    @property
    def destination(self) -> str:
        if self.reason is Reason.MOVED:
            return self.target
        config = self.source.config
        return config.expire_to_queue if self.reason is Reason.EXPIRED else config.dead_letter_queue


class Transfers:
    """The heir of every queue."""

    def __init__(self, queues: Collection, store: Store, report: Report) -> None:
        self.queues = queues
        self.store = store
        self.group: CommitGroup = store.group
        self.intents = Intents(store.fs, f"{store.own}/intents")
        self.report = report
        self._line: deque[Parting] = deque()
        self._stuck: deque[Parting] = deque()
        self._busy = False

    def inherit(self, source: Queue, taken: Taken, reason: Reason, now_ms: int, target: str = "") -> None:
        """Take charge of an item. A put into the target may expire others there: they queue up here, not on the
        stack.
        """
        self._pass_on(Parting(source, taken, reason, target), now_ms)

    def _pass_on(self, parting: Parting, now_ms: int) -> None:
        self._line.append(parting)
        if self._busy:
            return
        self._busy = True
        try:
            while self._line:
                self._transfer(self._line.popleft(), now_ms)
        finally:
            self._busy = False

    def retry(self, now_ms: int) -> None:
        """Try again what had no place to go."""
        for _ in range(len(self._stuck)):
            self._pass_on(self._stuck.popleft(), now_ms)

    def prepare(self) -> None:
        """Make the new intents durable, before the copies are written. Raises OSError."""
        self.intents.prepare()

    def recover(self) -> set[str]:
        """Finish what an earlier run had under way. Call it when every queue is loaded and none has been changed.

        Returns the queues whose journals must be rewritten before the intents may be forgotten.
        """
        intents = self.intents.read()
        uneven: set[str] = set()
        for target in sorted({intent.target for intent in intents}):
            self._recover_into(target, [intent for intent in intents if intent.target == target], uneven)
        return uneven

    def _recover_into(self, target: str, intents: list[Intent], uneven: set[str]) -> None:
        """Remove what has a copy in `target`. Copies were written in the order of the intents, so of equal ones that
        landed the first belong to the first.
        """
        is_stream = (parent_of(target) or target) in self.store.streams.families
        search = (StreamSearch if is_stream else Search)(self.store.fs, self.store.folder, target)
        places = [search.place(intent.after, intent.at) for intent in intents]
        landed: dict[tuple[int, int, int], list[Place]] = {}
        for place, item in search.added_since(min(places)):
            landed.setdefault(key_of(item), []).append(place)
        for intent, place in zip(intents, places, strict=True):
            copies = landed.get(intent.copy_key, [])
            copies[:] = [copy for copy in copies if copy >= place]
            if copies:
                copies.pop(0)
                self._finish(intent, uneven)

    def _finish(self, intent: Intent, uneven: set[str]) -> None:
        source = self.queues.find(intent.source)
        dropped = Dropped.NOT_FOUND if source is None else source.departures.drop_if(intent.means)
        if dropped is Dropped.UNRECORDED:
            uneven.add(intent.source)
        self.report(Level.INFO, "transfer.finished", source=intent.source, target=intent.target, removal=dropped.value)

    def _transfer(self, parting: Parting, now_ms: int) -> None:
        source, taken, name = parting.source, parting.taken, parting.destination
        if source.state is CLOSED:
            return  # it has been deleted, with what was still to leave it
        if self.group.is_full:
            self._stuck.append(parting)  # a copy that nobody has admitted would eat up the reserve
            return
        try:
            target = self.queues.make(name, now_ms)
        except Refused as refused:
            self.report(Level.ERROR, "transfer.stuck", source=source.name, target=name, why=refused.why)
            self._stuck.append(parting)
            return
        old = taken.item
        copy = Item(old.data, now_ms, old.expires_ms if parting.reason is Reason.MOVED else 0, old.flags)
        came_by, own, log = intake(source.journal), outlet(source.journal), intake(target.journal)
        if came_by is not None and came_by.arrivals:
            # It may itself have come just now: it goes on when the disk knows that it is here.
            self.group.after(came_by, partial(self._pass_on, parting))
        elif own is not None and log is not None:
            self._journaled(source, taken, own, target, log, copy)
        else:
            # One of the two lives in memory alone: there is nothing that a crash could get out of step.
            target.accept(copy, now_ms)
            source.departures.release(taken)

    def _journaled(
        self, source: Queue, taken: Taken, own: Log | Reader, target: Queue, log: Log | Writer, copy: Item
    ) -> None:
        """Neither journal is rewritten before this is over: the copy must be found where it was written."""
        number = self.intents.begin(source.name, taken.item.added_ms, target.name, *landing(log), copy)
        own.pins += 1
        log.pins += 1
        log.arrivals += 1
        target.accept(copy, copy.added_ms)
        self.group.after(log, partial(self._landed, source, taken, own, log, number))

    def _landed(
        self, source: Queue, taken: Taken, own: Log | Reader, log: Log | Writer, number: int, now_ms: int
    ) -> None:
        """The disk has the copy."""
        log.arrivals -= 1
        source.departures.release(taken)
        self.group.after(own, partial(self._gone, own, log, number))

    def _gone(self, own: Log | Reader, log: Log | Writer, number: int, now_ms: int) -> None:
        """The disk has the removal."""
        own.pins -= 1
        log.pins -= 1
        self.intents.end(number)
