"""Idempotency keys of puts: a put whose key is known is refused as already stored. Keys are remembered durably, for
`put_key_life`, and `max_put_keys` of them at most, by the queue that was put to.

1. The key's line, which names the place of its item, is written to `.staniel/keys` and synced (journal/put_key_log.py).
2. The item is added to the queue, in memory at once: from here on the key is known.
3. The item is synced. The reply waits as for any put, and so does the reply to a repeated put.
4. `PutsStored` is written, without haste. Until it is durable the journal is pinned: not rewritten, packed or started
   over, so that recovery can look for the item at the place in the line.

Steps 1 and 4 are done once a turn for all puts with keys. After a crash `search` looks for the items of lines without
`PutsStored`, in the way of transfers. An item that is there may have been read and confirmed since: its record is there
all the same. If a queue's files cannot be read, its unfinished keys are unclear until a reload can read them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct, structs

from staniel.broker.events import EventSink, Level
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.transfers import Transfers
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.journals import append_log
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.own_files import KeptFile
from staniel.journal.put_key_log import Forgotten, KeyedPut, PutKeyLog, PutsStored, PutsVoid, Record, replayed
from staniel.journal.spool import refused_start
from staniel.journal.transfer_log import Fate, key_of
from staniel.queues.item import Item
from staniel.queues.queue import Queue

DROPPED_PER_PUT = 16
DROPPED_PER_LOOK = 2000  # 0.5 us each
DELETED_MAX = 1000
AppendLog = Log | StreamWriter


class KnownKey(Struct, gc=False):
    """A key that was put. `put_ms`: when, in server time."""

    number: int
    put_ms: int


class PutKeys:
    """The keys of all queues."""

    def __init__(self, transfers: Transfers, limits: LimitsReached, report: EventSink) -> None:
        self._transfers, self._limits, self._report = transfers, limits, report
        self._queues, self._spool, self._group = transfers.queues, transfers.spool, transfers.group
        self.log = log = PutKeyLog(self._spool.fs, self._spool.own)
        log.on_pending, log.close_after_sync = transfers.write_before_all, self._group.close_after_sync
        transfers.write_also = self._write_first
        transfers.recovery.also_wanted = lambda: {put.queue for put in self._unclear.values()}
        self._spool.kept.append(KeptFile(log.path, lambda: log.is_lost, lambda: log.write_anew(self._records())))
        self.life_ms = self.max_keys = 0  # see `configure`
        self.is_used = False  # there are keys, or files of an earlier run
        self.repeated = 0  # puts that were refused as already stored
        self._known: OrderedDict[str, KnownKey] = OrderedDict()  # in the order of the puts; by queue and key
        self._latest: dict[str, int] = {}  # by queue: its latest put with a key
        self._void_until: dict[str, int] = {}  # by deleted queue: keys of puts up to this number are forgotten
        self._unfinished: dict[int, KeyedPut] = {}  # by number: whose items are not durable
        self._unclear: dict[str, KeyedPut] = {}  # of an earlier run, whose items cannot be looked for; as in `_known`
        self._turn: dict[AppendLog, list[int]] = {}  # the puts of this turn

    def configure(self, life_ms: int, max_keys: int) -> None:
        """Take over changed settings. Keys beyond them are forgotten bit by bit."""
        self.life_ms, self.max_keys = life_ms, max_keys

    def __len__(self) -> int:
        return len(self._known)

    def is_known(self, queue: str, key: str, now_ms: int) -> bool:
        """Tell whether an item was put to `queue` with `key`, and the key's life has not ended."""
        known = self._known.get(_named(queue, key))
        return known is not None and self._counts(queue, known, now_ms)

    def has_keys(self, queue: str) -> bool:
        """Tell whether `queue` may have keys that count: it must not go by itself, they would be forgotten with it."""
        is_named = self._latest.get(queue, 0) >= self._oldest_known()
        return is_named or any(put.queue == queue for put in self._unclear.values())

    def _oldest_known(self) -> int:
        """Return the number of the oldest put whose key is known; without any, that of the next put."""
        return next(iter(self._known.values())).number if self._known else self.log.last + 1

    def why_unclear(self, queue: str, key: str) -> str:
        """Return why it cannot be known whether an earlier put with `key` has stored its item; "" if it can."""
        if self._unclear and _named(queue, key) in self._unclear:
            return f"whether {queue} has the item of this key is not known: its files cannot be read; retry later"
        return ""

    @property
    def is_on(self) -> bool:
        """True if the settings let puts have keys."""
        return self.life_ms > 0 and self.max_keys > 0

    def must_wait(self, queue: Queue) -> AppendLog | None:
        """Return the file of `queue` that must first be rewritten, or deleted, before another put with a key may begin;
        None if there is none.
        """
        log = append_log(queue.journal)
        return log if log is not None and self._transfers.is_on_hold(log) else None

    def add(self, queue: Queue, key: str, position: tuple[int, int], item: Item, now_ms: int) -> None:
        """Note that `item`, which has just been added to `queue` behind `position`, was put with `key`."""
        self.is_used = True
        number = self.log.next_number()
        self._remember(queue.name, key, KnownKey(number, now_ms))
        self._drop(DROPPED_PER_PUT, now_ms)
        log = append_log(queue.journal)
        if log is None:
            return  # as durable as the queue is, which is in memory alone
        self._unfinished[number] = put = KeyedPut(number, queue.name, key, *position, *key_of(item))
        self._group.pending_bytes += self.log.append(put, durably=True)
        if log not in self._turn:
            self._turn[log] = []
            log.open_transfers += 1
        self._turn[log].append(number)

    def _write_first(self) -> None:
        """Make the lines of this turn durable before its items are written. Raises JournalFailure."""
        group, turn = self._group, self._turn
        group.write_or_release_ballast(self.log.write_and_sync, self.log.path)
        if turn:
            self._turn = {}
            for log, numbers in turn.items():
                group.call_when_durable(log, partial(self._items_synced, log, numbers), patiently=True)

    def _items_synced(self, log: AppendLog, numbers: list[int], now_ms: int) -> None:
        for number in numbers:
            del self._unfinished[number]
        self.log.append(PutsStored(numbers), durably=False)
        self._group.call_when_durable(self.log, partial(self._end, log), patiently=True)

    def _end(self, log: AppendLog, now_ms: int) -> None:
        self._transfers.unpin([log])

    def _remember(self, queue: str, key: str, known: KnownKey) -> None:
        name = _named(queue, key)
        self._known.pop(name, None)  # a key whose life has ended: it comes behind the others
        self._known[name] = known
        self._latest[queue] = max(known.number, self._latest.get(queue, 0))

    def _counts(self, queue: str, known: KnownKey, now_ms: int) -> bool:
        return known.put_ms + self.life_ms > now_ms and known.number > self._void_until.get(queue, 0)

    def drop_old(self, now_ms: int) -> None:
        """Forget keys whose life has ended. Called each second."""
        if self._known:
            self._drop(DROPPED_PER_LOOK, now_ms)
        oldest = self._oldest_known()
        if self._unclear:
            oldest = min(oldest, *(put.put for put in self._unclear.values()))
        self.log.drop_files(oldest)
        if len(self._void_until) > DELETED_MAX or not self._known:
            self._void_until = {name: until for name, until in self._void_until.items() if until >= oldest}

    def _drop(self, count_max: int, now_ms: int) -> None:
        """Forget the oldest keys, `count_max` at most, if their life has ended or there are too many."""
        known = self._known
        for _ in range(count_max):
            name = next(iter(known), "")
            if not name or (len(known) <= self.max_keys and known[name].put_ms + self.life_ms > now_ms):
                return
            queue = name.partition("/")[0]
            if self._counts(queue, known.pop(name), now_ms):
                self._limits.log_limit("max_put_keys", now_ms, queue=queue)

    def forget(self, queue: Queue) -> Callable[[], None]:
        """Forget the keys of `queue`, durably, before its files are removed: no crash may leave a key whose item was
        deleted. If a crash undoes the deletion, the keys stay forgotten: a repeated put is stored again, not lost.
        Return a function that remembers the keys again, durably; call it at once if the files cannot be removed. Both
        raise JournalFailure.
        """
        name, before = queue.name, self._void_until.get(queue.name, 0)
        latest = self._latest.pop(name, 0)
        unclear = {key: put for key, put in self._unclear.items() if put.queue == name}
        if not latest and not unclear:
            return lambda: None
        for key in unclear:
            del self._unclear[key]
        self._void(queue, self.log.last)

        def remember() -> None:
            self._latest[name] = latest
            self._unclear |= unclear
            self._void(queue, before)

        return remember

    def _void(self, queue: Queue, until: int) -> None:
        """Note durably that the keys of puts to `queue` up to number `until` do not count; a later note replaces an
        earlier one. Raises JournalFailure.
        """
        self._void_until[queue.name] = until
        if append_log(queue.journal) is not None:
            self.log.append(Forgotten(queue.name, until), durably=True)
            self._write_first()

    # after a crash, or a stop

    def search(self, now_ms: int) -> list[Record]:
        """Read the log, and look for the items of unfinished puts. Call it when every queue is loaded and no journal
        has been rewritten. Returns what `write_found` has to write. Raises SpoolError.
        """
        try:
            records = self.log.read()
        except OSError as error:
            raise refused_start(error, self.log.path) from error
        if records is None:
            return []
        self.is_used = True
        self._report_damage()
        stored, unfinished = replayed(records)
        self._void_until = {record.forgotten: record.until for record in records if isinstance(record, Forgotten)}
        names = dict.fromkeys(put.queue for put in (*stored, *unfinished))
        forgotten = {name for name in names if not self._may_have_keys(name)}
        for put in stored:
            if put.queue not in forgotten:
                self._remember_since(put, now_ms)
        unfinished = [put for put in unfinished if put.queue not in forgotten]
        found = [record for _, record in self._search_items(unfinished, now_ms)]
        self._drop(len(self._known), now_ms)
        return [*(Forgotten(name, self.log.last) for name in sorted(forgotten)), *found]

    def _may_have_keys(self, queue: str) -> bool:
        """Tell whether `queue` was not deleted just before the end of the last run."""
        return self._queues.known(queue) is not None or self._transfers.recovery.is_blocked(queue)

    def _report_damage(self) -> None:
        fs, folder = self._spool.fs, f"{self._spool.own}/damaged"
        for path, damage in self.log.damaged.items():
            try:
                saved_as = quarantine(fs, path, 0, fs.size(path), folder)
            except OSError as error:
                saved_as = f"not saved: {error.strerror}"
            lost = "a put that is repeated with a lost key is stored again"
            hint = lost if damage.lost else "nothing is lost"
            counts = structs.asdict(damage)
            self._report(Level.ERROR, "put_keys.damaged", file=path, **counts, saved_as=saved_as, hint=hint)

    def _remember_since(self, put: KeyedPut, now_ms: int) -> None:
        """Remember the key of an earlier run. If the wall clock was set back since, its life begins now at the
        latest.
        """
        put_ms = min(now_ms, self._queues.calendar.moment_ms(put.added_ms, now_ms))
        self._remember(put.queue, put.key, KnownKey(put.put, put_ms))

    def _search_items(self, unfinished: Iterable[KeyedPut], now_ms: int) -> list[tuple[str, Record]]:
        """Look for the items of `unfinished`; return what has been found out, by queue. The others stay unclear."""
        found: list[tuple[str, Record]] = []
        by_queue: dict[str, list[KeyedPut]] = {}
        for put in unfinished:
            by_queue.setdefault(put.queue, []).append(put)
        for queue, puts in sorted(by_queue.items()):
            fates = self._transfers.recovery.fates_of_puts(queue, [put.intent for put in puts])
            stored = [put for put in puts if fates[put.intent.begin] is Fate.LANDED]
            void = [put for put in puts if fates[put.intent.begin] is None]
            for put in stored:
                self._remember_since(put, now_ms)
            for put in puts:
                name = _named(put.queue, put.key)
                if fates[put.intent.begin] is Fate.UNKNOWN:
                    self._unclear[name] = put
                elif self._unclear.get(name) is put:
                    del self._unclear[name]
            if stored:
                found.append((queue, PutsStored([put.put for put in stored])))
            if void:
                found.append((queue, PutsVoid([put.put for put in void])))
        if found:  # in the order of the puts again
            self._known = OrderedDict(sorted(self._known.items(), key=lambda entry: entry[1].number))
        return found

    def write_found(self, records: list[Record]) -> None:
        """Write what `search` has found, durably. Call it when everything that was found is durable, and before any
        journal is rewritten. Raises JournalFailure.
        """
        for record in records:
            self.log.append(record, durably=True)
        self._write_first()

    @property
    def has_unclear(self) -> bool:
        """True if the items of some puts could not be looked for."""
        return bool(self._unclear)

    def retry(self, now_ms: int) -> None:
        """Look again for the items of unclear puts, because some queues can be read again."""
        for name, record in self._search_items(list(self._unclear.values()), now_ms):
            queue = self._queues.known(name)
            if queue is not None and (log := append_log(queue.journal)) is not None:
                self._group.sync_at_once(log, now_ms)  # a killed server may have left the items in the page cache
            self.log.append(record, durably=True)

    def _records(self) -> Iterator[Record]:
        """Yield all that the log must hold, to write it anew."""
        calendar = self._queues.calendar
        yield from (Forgotten(queue, until) for queue, until in self._void_until.items())
        finished = []
        for name, known in self._known.items():
            queue, _, key = name.partition("/")
            if known.number in self._unfinished or known.number <= self._void_until.get(queue, 0):
                continue
            finished.append(known.number)
            yield KeyedPut(known.number, queue, key, 0, 0, calendar.shown_ms(known.put_ms), 0, 0)
        yield PutsStored(finished)
        yield from self._unfinished.values()
        yield from self._unclear.values()


def _named(queue: str, key: str) -> str:
    """Return the key as one word: names of queues have no slash."""
    return f"{queue}/{key}"
