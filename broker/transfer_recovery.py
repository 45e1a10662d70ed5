"""Recovery of transfers that an earlier run left unfinished: at startup, or when their queues can be read again.

The intent and the files of both queues together show what has happened. The transaction (in libkestrel's format the
item's id) tells which of several equal items has left; the position tells which copy belongs to which item.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from operator import itemgetter

from msgspec import structs
from msgspec.structs import replace

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.journals import Pinned, removal_log
from staniel.journal.kestrel.find_copies import Search
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.find_copies import StreamSearch
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.spool import Spool, refused_start
from staniel.journal.transfer_log import Fate, FilePosition, Intent, TransferLog, key_of
from staniel.queues.item import Delivery, Item
from staniel.queues.names import family_of
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues
from staniel.queues.transfer_recovery import set_aside_found, set_aside_open
from staniel.queues.xids import steps_past


def _has_zeros(added_ms: int) -> bool:
    """Tell whether a byte of a time is zero although it is not zero in present times: a power cut may have torn the
    time.
    """
    return 0 in added_ms.to_bytes(8, "little", signed=True)[:6]


class TransferRecovery:
    """The recovery of transfers. `transfer_log.kept` has the intents whose outcome is unknown as long as a file cannot
    be read.
    """

    def __init__(
        self,
        queues: Queues,
        spool: Spool,
        transfer_log: TransferLog,
        report: EventSink,
        pin: Callable[[Queue], Pinned],
        unpin: Callable[[Pinned], None],
    ) -> None:
        self.queues = queues
        self._pin, self._unpin = pin, unpin
        self._pinned: dict[str, tuple[Queue, Pinned]] = {}
        """Files that are served but could not be searched, by target. They are not rewritten until they have been
        searched, because the copies could not be found in them after that.
        """
        self.spool = spool
        self.transfer_log = transfer_log
        self.report = report
        self._held: dict[int, tuple[Queue, Delivery]] = {}  # by intent: items held back until its outcome is known
        self.fates: dict[int, Fate | None] = {}  # results of the last `recover`, by intent; None: the copy never landed
        self._ended: set[int] = set()  # intents that `retry` has finished, until their end is durable
        self._claimed: dict[str, set[FilePosition]] = {}  # copies that belong to an intent or an undo, by family
        self._copies: dict[int, bytes] = {}  # during the search, by intent: a checksum shows less than the bytes
        self._torn: dict[int, Log | ReaderLog] = {}  # by intent, of the last search: where a torn copy was removed
        self.also_wanted: Callable[[], set[str]] = set  # queues in whose files others still have to search

    def recover(self, of_operations: Callable[[], list[Intent]] = list) -> list[Intent]:
        """Finish the transfers that can be finished, including `of_operations`, which is called when the log has been
        read. Call this when every queue is loaded, none has been changed, and open reads have not been put back. Return
        the intents that must be kept; the others may be removed once everything is durable. A damaged log is copied to
        the quarantine and reported. Raises SpoolError if it cannot be read.
        """
        log, fs, own = self.transfer_log, self.spool.fs, self.spool.own
        try:
            found = log.read()
        except OSError as error:  # without the log, the items of running transfers would be in both queues
            raise refused_start(error, log.path) from error
        if log.damage.lines:
            try:
                saved_as = quarantine(fs, log.path, 0, fs.size(log.path), f"{own}/damaged")
            except OSError as error:
                saved_as = f"not saved: {error.strerror}"
            lost = "an item whose line is lost may be in both queues"
            hint = lost if log.damage.lost else "all intents are whole, and their transfers are finished"
            counts = structs.asdict(log.damage)
            self.report(Level.ERROR, "intents.damaged", file=log.path, **counts, saved_as=saved_as, hint=hint)
        self._claimed.clear()
        return self._go_through(found + of_operations(), 0)

    def retry(self, now_ms: int) -> None:
        """Recover transfers as at startup, because some queues can be read again. An intent ends when its outcome is
        durable.
        """
        self._claimed.clear()
        known = self.transfer_log.kept
        asked = [intent for intent in known.values() if intent.begin not in self._ended]
        kept = {intent.begin: intent for intent in self._go_through(asked, now_ms)}
        for intent in asked:
            if intent.begin in kept:
                self.transfer_log.retain(kept[intent.begin])
            else:
                self._end_durably(intent, now_ms)
        wanted = {intent.target for intent in kept.values()} | self.also_wanted()
        for target in [target for target in self._pinned if target not in wanted]:
            _, logs = self._pinned.pop(target)
            self.spool.group.call_when_durable(self.transfer_log, partial(self._searched, logs))

    def _searched(self, logs: Pinned, now_ms: int) -> None:
        """Release the pins of files that were searched. The results are durable."""
        self._unpin(logs)

    def pinned(self, queue: Queue) -> Pinned:
        """Return the files of `queue` that must not be changed, because a copy must still be searched for in them."""
        of, logs = self._pinned.get(queue.name, (None, []))
        return logs if of is queue else []

    def keeps(self, log: Log | ReaderLog | StreamWriter) -> bool:
        """Tell whether `log` is among the files of `pinned` of any queue."""
        return any(log in logs for _, logs in self._pinned.values())

    def _end_durably(self, intent: Intent, now_ms: int) -> None:
        """End a kept intent when the changes made for it are durable. Then its target's journal may be rewritten, and a
        startup after a power cut would not find the copy any more, so the result is written first.
        """
        number, source = intent.begin, self.queues.known(intent.source)
        if self.fates[number] is None:  # nothing leaves the source because of the intent
            if number in self._torn:
                self.spool.group.sync_at_once(self._torn[number], now_ms)
            self.transfer_log.end_durably(number)
            return
        log = None if source is None else removal_log(source.journal)
        if log is None:  # nothing leaves the source's files
            self.transfer_log.end_intent(number)
            return
        self._ended.add(number)
        self.transfer_log.retain(replace(intent, fate=Fate.LANDED))
        self.spool.group.call_when_durable(log, self._ending(number))

    def find_copies(self, target: str, position: tuple[int, int], items: list[Item], now_ms: int) -> set[int]:
        """Return which of `items`, by their places, have copies with the same times in `target`, behind `position`,
        that belong to no intent or other undo. Torn copies of the other items, which a power cut has left, are removed,
        and the removal is durable on return. Call this after `recover` or `retry`. Raises OSError.
        """
        queue = self.queues.known(target)
        if queue is None or not items:
            return set()
        intents = [
            Intent(~at, target, item.added_ms, target, *position, *key_of(item)) for at, item in enumerate(items)
        ]
        self._held |= {~at: (queue, Delivery(item, 0)) for at, item in enumerate(items)}  # compared as a whole
        self._torn.clear()
        try:
            found = self._look_for(intents)
            for log in set(self._torn.values()):
                self.spool.group.sync_at_once(log, now_ms)
        finally:
            for intent in intents:
                del self._held[intent.begin]
                self._copies.pop(intent.begin, None)
        return {~number for number, fate in found.items() if fate is Fate.LANDED}

    def fates_of_puts(self, queue: str, intents: list[Intent]) -> dict[int, Fate | None]:
        """Return which of the items of puts, which have no source, are in the files of `queue`; None: the item is not
        there. UNKNOWN: the files cannot be read; then they stay as they are. Call it after `recover` or before `retry`.
        """
        fates = self._find_fates(intents)
        for intent in intents:
            self._copies.pop(intent.begin, None)
        return fates

    def withdraw(self, source: Queue) -> None:
        """Forget the items held back in `source`, which is not served any more and whose files stay. They will be
        searched again.
        """
        self._held = {number: held for number, held in self._held.items() if held[0] is not source}
        if self.pinned(source):
            del self._pinned[source.name]

    def deleted(self, source: Queue) -> None:
        """Forget the items held back in `source`, which is deleted with its files. Another queue of its name must not
        be searched for copies, so the intents end as soon as no crash can bring the files back.
        """
        if self.pinned(source):
            del self._pinned[source.name]
        log = removal_log(source.journal)
        for number in [number for number, intent in self.transfer_log.kept.items() if intent.source == source.name]:
            self._held.pop(number, None)
            self.transfer_log.abandon(number)
            if log is None:
                self.transfer_log.end_intent(number)
            else:
                self.spool.group.call_when_durable(log, self._ending_for_good(number))

    def _ending_for_good(self, number: int) -> Callable[[int], None]:
        def end(now_ms: int) -> None:
            self.transfer_log.end_intent(number)
            self.spool.group.ask_for_sync(self.transfer_log)

        return end

    def _ending(self, number: int) -> Callable[[int], None]:
        def end(now_ms: int) -> None:
            self._ended.discard(number)
            self.transfer_log.end_intent(number)

        return end

    def _go_through(self, intents: list[Intent], now_ms: int) -> list[Intent]:
        """Carry out what the intents require and return those that must be kept. Copies are searched for first, because
        the later steps change journals.
        """
        found: dict[int, Fate | None] = {}
        self._torn.clear()
        by_files: dict[str, list[Intent]] = {}
        for intent in intents:
            by_files.setdefault(self.files_of(intent.target), []).append(intent)
        for _, for_these in sorted(by_files.items()):
            found |= self._find_fates(for_these)
        self.fates = found
        kept: list[Intent] = []
        for source in sorted({intent.source for intent in intents}):
            kept += self._apply_fates(source, [intent for intent in intents if intent.source == source], found, now_ms)
        self._copies.clear()
        return sorted(kept, key=lambda intent: intent.begin)

    def files_of(self, target: str) -> str:
        """Return a name of the files that `target` is in: readers of a family share theirs in libkestrel's format."""
        family = family_of(target)
        return family if family in self.spool.streams.families else target

    def is_to_search(self, target: str) -> bool:
        """Tell whether a copy must still be searched for in the files that `target` is in."""
        return any(
            intent.fate is Fate.UNKNOWN and self.files_of(intent.target) == self.files_of(target)
            for intent in self.transfer_log.kept.values()
        )

    def _find_fates(self, intents: list[Intent]) -> dict[int, Fate | None]:
        """Return the results of the search for copies, all in the same files, by intent; None: the copy never
        landed.
        """
        fates = {intent.begin: intent.fate for intent in intents}
        unknown = [intent for intent in intents if intent.fate is Fate.UNKNOWN]
        asked = [intent for intent in unknown if not self.is_blocked(intent.target)]
        if not asked:
            return {**fates}
        try:
            return {**fates, **self._look_for(asked)}
        except OSError as error:
            hint = (
                "items for it are held back in their queues, and its journal is not rewritten: it grows until they "
                "can be searched; make its files readable for this user, then reload"
            )
            for target in sorted({intent.target for intent in asked}):
                self.report(Level.WARNING, "transfer.kept", target=target, why=str(error), hint=hint)
                queue = self.queues.known(target)
                if queue is not None and target not in self._pinned:
                    self._pinned[target] = queue, self._pin(queue)
            return {**fates}

    def _look_for(self, intents: list[Intent]) -> dict[int, Fate | None]:
        """Search for copies, all in the same files. They were written in the order of the intents, so of equal copies
        the first belongs to the first intent, also if their targets are several readers of a family. But copies of
        items that have left their source have landed, whatever the order. If a copy did not land, remove what a power
        cut has left of it. Raises OSError.
        """
        target = intents[0].target
        files = self.files_of(target)
        claimed = self._claimed.setdefault(files, set())
        if len({intent.copy_key for intent in intents}) < len(intents):
            intents = sorted(intents, key=self._is_still_there)
        search = (StreamSearch if files in self.spool.streams.families else Search)(
            self.spool.fs, self.spool.folder, target
        )
        places = [search.position_after(intent.after, intent.at) for intent in intents]
        landed: dict[tuple[int, int, int], list[tuple[FilePosition, bytes]]] = {}
        keys, sizes = {intent.copy_key for intent in intents}, {intent.size for intent in intents}
        times = {intent.added_ms for intent in intents}
        suspects: list[tuple[FilePosition, Item]] = []  # possible torn copies
        for place, item in search.added_since(min(places)):
            if (key := key_of(item)) in keys:
                if place not in claimed:
                    landed.setdefault(key, []).append((place, item.data))
            elif len(item.data) in sizes and (item.added_ms in times or _has_zeros(item.added_ms)):
                suspects.append((place, item))
        fates: dict[int, Fate | None] = {}
        for intent, place in zip(intents, places, strict=True):
            copy = self._claim(intent, place, landed.get(intent.copy_key, []))
            fates[intent.begin] = None if copy is None else Fate.LANDED
            if copy is not None:
                found, self._copies[intent.begin] = copy
                claimed.add(found)
        for intent, place in zip(intents, places, strict=True):
            if fates[intent.begin] is None:
                for found, torn in suspects:
                    if found >= place and found not in claimed and self._remove_torn(intent, torn):
                        claimed.add(found)
                        break
        return fates

    def _claim(
        self, intent: Intent, place: FilePosition, copies: list[tuple[FilePosition, bytes]]
    ) -> tuple[FilePosition, bytes] | None:
        """Remove from `copies` the first one, in their order, that may belong to `intent`, and return it. Copies before
        `place` belong to others.
        """
        held = self._held.get(intent.begin)
        for at in range(bisect_left(copies, place, key=itemgetter(0)), len(copies)):
            if held is None or copies[at][1] == held[1].item.data:
                return copies.pop(at)
        return None

    def _is_still_there(self, intent: Intent) -> bool:
        """Tell whether the item may still be in its source. If not, its removal is recorded, and so its copy is
        durable. Only transactions show that; ids do not.
        """
        source = self.queues.known(intent.source)
        if source is None or not intent.xid or intent.begin in self._held:
            return True
        return steps_past(source.last_xid, intent.xid) > 0 or intent.xid in source.open_reads

    def _remove_torn(self, intent: Intent, torn: Item) -> bool:
        """Remove `torn` if it is the torn copy, left by a power cut, of `intent`, whose item is still in its source.
        Return True if it was. Raises OSError.
        """
        queue = self.queues.known(intent.target)
        if queue is None or not intent.is_torn(torn):
            return False
        whole = self._waiting(intent)
        if whole is None or any(byte not in (0, right) for byte, right in zip(torn.data, whole.data, strict=True)):
            return False
        key = key_of(torn)
        taken = set_aside_found(queue, 0, lambda item, item_id: key_of(item) == key)
        if taken is not None:
            queue.release(taken)
            if (log := removal_log(queue.journal)) is not None:
                self._torn[intent.begin] = log
            self.report(Level.WARNING, "transfer.torn", target=intent.target, bytes=intent.size)
        return True

    def _waiting(self, intent: Intent) -> Item | None:
        """Return the item in its source whose copy has not landed; None if it is not there. Raises OSError."""
        if (held := self._held.get(intent.begin)) is not None:
            return held[1].item
        source = self.queues.known(intent.source)
        if source is None:
            return None
        under_its_number = source.open_reads.get(intent.xid)
        first = [under_its_number.item] if under_its_number is not None else []
        is_open = [taken.item for taken in source.open_reads.values()]
        items = chain(first, is_open, source.line.walk())
        return next((item for item in items if intent.matches(item, getattr(item, "id", 0))), None)

    def _apply_fates(
        self, name: str, intents: list[Intent], found: dict[int, Fate | None], now_ms: int
    ) -> Iterable[Intent]:
        """Do in one source what the results for its copies require. Return the intents that must be kept."""
        source = self.queues.known(name)
        if source is None:
            if not self.is_blocked(name):
                return []  # the queue is deleted, and the items with it
            known = [(intent, found[intent.begin]) for intent in intents]
            return [replace(intent, fate=fate) for intent, fate in known if fate is not None]
        last = source.last_xid
        kept = []
        for intent in sorted(intents, key=lambda intent: (steps_past(last, intent.xid), intent.begin)):
            fate = found[intent.begin]
            try:
                if not self._finish_intent(source, intent, fate, last, now_ms):
                    kept.append(intent)
            except OSError as error:
                hint = "its items for other queues stay in it; make its files readable for this user, then reload"
                self.report(Level.WARNING, "transfer.kept", source=name, why=str(error), hint=hint)
                if fate is not None:
                    kept.append(replace(intent, fate=fate))
        return kept

    def _finish_intent(self, source: Queue, intent: Intent, fate: Fate | None, last: int, now_ms: int) -> bool:
        """Finish an intent. Return whether it has ended. `last`: the last transaction that the journal knew of. Raises
        OSError.
        """
        holder, held = self._held.pop(intent.begin, (None, None))
        if holder is not source:
            held = None  # that queue is deleted, and the files may now belong to another one
        if fate is None:
            if held is not None:
                source.take_back(held)
                source.time_out(now_ms)  # a waiting reader gets it
            return True
        taken = held or self._find(source, intent, last)
        if fate is Fate.UNKNOWN and taken is not None:
            self._held[intent.begin] = source, taken
            return False
        gone = "recorded" if taken is not None and source.release(taken) else "not found"
        self.report(Level.INFO, "transfer.finished", source=source.name, target=intent.target, removal=gone)
        return True

    def _find(self, source: Queue, intent: Intent, last: int) -> Delivery | None:
        """Set aside the item that must leave, and return it; None if it has left. Its transaction is recorded before
        its removal, so an item whose transaction is in the journal and not open has left; a waiting equal item is
        another one.
        """
        if intent.xid and steps_past(last, intent.xid) <= 0:
            return set_aside_open(source, intent.xid, intent.matches)
        copy = self._copies.get(intent.begin)

        def means(item: Item, item_id: int) -> bool:
            return intent.matches(item, item_id) and copy in (None, item.data)

        return set_aside_found(source, intent.xid, means)

    def is_blocked(self, name: str) -> bool:
        """Tell whether there may be files of queue `name` that could not be read."""
        blocked = self.queues.blocked
        return self.queues.known(name) is None and (name in blocked or family_of(name) in blocked)
