"""Undoing a move: those of its items that wait in the target go back to the end of the source, with the times that they
had, each by an intent as they came. The undo file says what they can be known by: when their copies were added, their
length, and a digest. Those that were taken since stay taken, and those that a client has open stay with it.

A queue gives only its head away. So what waits ahead of the wanted ones is set aside and given back in the same step,
PASSED_MAX items at most, and nothing else can come in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct

from staniel.broker import access
from staniel.broker.operations.audit import Result
from staniel.broker.operations.running import CANCELLED
from staniel.broker.operations.undo import UndoRecord
from staniel.broker.session import PULSE, Session, SessionState
from staniel.journal.background import ReadPiece
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.journal.journals import append_log
from staniel.journal.undo_file import MovedItem, digest_of, read_moved
from staniel.queues.interfaces import Reason
from staniel.queues.item import Delivery, Item, is_payload_gone
from staniel.queues.queue import Queue
from staniel.queues.registry import Refused

ITEMS_PER_STEP = 512  # that are looked for together, and returned
BYTES_PER_STEP = 1 << 20
PASSED_MAX = 1000  # items ahead of them; each costs two records and about 5 us
PASSED_BYTES_MAX = 4 << 20  # in memory from then on
LOOK_AGAIN_MS = 50  # at those on their way
Key = tuple[int, int, bytes]


class MoveUndone(Struct, frozen=True):
    """What came of an undo of a move: so many items are back; `open`: so many are in the hands of clients of the
    target; `gone`: so many are not in it any more. `why`: what keeps the others where they are.
    """

    returned: int
    open: int
    gone: int
    why: str


class Wanted(Struct, frozen=True):
    """One item that is looked for: its times before it was moved, and its place in the undo file."""

    item: MovedItem
    slice: int
    place: int


class Lookup:
    """What is looked for, by what it can be known by."""

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Wanted]] = {}
        self._times: set[int] = set()
        self.count = 0

    def add(self, at_ms: int, wanted: Wanted) -> None:
        self._by_key.setdefault((at_ms, wanted.item.size, wanted.item.digest), []).append(wanted)
        self._times.add(at_ms)
        self.count += 1

    def key(self, item: Item) -> Key | None:
        """By which `item` is looked for; None: it is not."""
        if item.added_ms not in self._times or is_payload_gone(item):
            return None
        key = item.added_ms, len(item.data), digest_of(item.data)
        return key if self._by_key.get(key) else None

    def take(self, key: Key) -> Wanted:
        self.count -= 1
        return self._by_key[key].pop(0)

    def all(self) -> list[Wanted]:
        return [each for those in self._by_key.values() for each in those]

    def among(self, items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
        """Each of them, and whether it is looked for; of equal ones no more than are."""
        left = {key: len(each) for key, each in self._by_key.items()}
        for item in items:
            key = self.key(item)
            is_wanted = key is not None and left[key] > 0
            if key is not None and is_wanted:
                left[key] -= 1
            yield item, is_wanted


class RunningReturn:
    """One undo of a move. It ends with its client; what is left can be returned by another undo of the same number.
    `finish` is called with what came of it.
    """

    def __init__(self, session: Session, record: UndoRecord, finish: Callable[[MoveUndone], None], now_ms: int) -> None:
        self.session = session
        self.broker = session.broker
        self.record = record
        self.finish = finish
        self.number = session.broker.audit.next_id()  # of the undo itself, in the audit log
        self.returned = self.open = self.gone = self.hidden = 0
        self._unread = record.content.left
        self._lookup = Lookup()
        record.mover = session
        self.progress = session.broker.operations.begin(
            self.number,
            "undo",
            record.target,
            record.queue,
            record.content.counts()[0],
            session.broker.audit.asker(session),
            now_ms,
        )

    def step(self, now_ms: int) -> None:
        """Read what is to be looked for, look for it, or end."""
        self.progress.advance(self.returned, now_ms)
        if self.progress.is_cancelled and (self._unread or self._lookup.count):
            self._end(CANCELLED, now_ms)
        elif self._unread and self._lookup.count < ITEMS_PER_STEP:
            self._read_next(now_ms)
        elif self._lookup.count:
            try:
                self._return_some(now_ms)
            except Refused as refused:
                self._end(refused.why, now_ms)
        else:
            self._end("", now_ms)

    # the undo file

    def _read_next(self, now_ms: int) -> None:
        place = self.record.content.slices[self._unread[0]]
        session = self.session

        def read(error: OSError | None, now_ms: int) -> None:
            if session.state is SessionState.SUSPENDED:
                session.deliver(error or piece.data)

        try:
            piece = ReadPiece(self.broker.spool.fs, self.record.path, place.at, place.size, 0, read)
        except OSError as error:
            self._end(f"the undo file cannot be read: {error.strerror}", now_ms)
            return
        session.suspend(self._learn)
        self.broker.maintenance.tasks.submit(piece, urgent=True)

    def _learn(self, found: OSError | bytes, now_ms: int) -> None:
        moved = None if isinstance(found, OSError) else read_moved(found)
        if moved is None:
            why = found.strerror if isinstance(found, OSError) else "it is damaged"
            self._end(f"the undo file cannot be read: {why}", now_ms)
            return
        number = self._unread.pop(0)
        kept = self.record.content.kept.get(number, frozenset())
        for place, item in enumerate(moved.items):
            if place not in kept:
                self._lookup.add(moved.at_ms, Wanted(item, number, place))
        self.session.yield_turn(self.step)

    # the queues

    def _return_some(self, now_ms: int) -> None:
        """Raises Refused, and nothing has been done."""
        there = self.broker.queues.find(self.record.target)
        self._check(there)
        count, is_all = (0, True) if there is None else self._look(there)
        if there is None or not count:
            self._leave_rest(there, is_all)
            self.session.yield_turn(self.step)
            return
        back = self.broker.queues.make(self.record.queue, now_ms)
        sent = self._take(there, count)
        for taken, wanted in sent:
            times = wanted.item.added_ms, wanted.item.expires_ms
            self.broker.transfers.accept(there, taken, Reason.MOVED, now_ms, back.name, times)

        def arrived(now_ms: int) -> None:
            self._count_returned(there, back, sent, now_ms)

        if (log := append_log(back.journal)) is not None:
            self.session.retry_after_sync(log, arrived)
        else:
            self.session.yield_turn(arrived)

    def _check(self, there: Queue | None) -> None:
        """Raises Refused if the two queues may not be used now."""
        broker, record = self.broker, self.record
        for name in (record.queue, record.target):
            if name in broker.queues.aliases:
                raise Refused(f"{name} is an alias now", client=False)
            if why := broker.queues.why_blocked(name):
                raise Refused(why, client=False)
            queue = broker.queues.find(name)
            if queue is not None and broker.deletions.is_postponed(queue):
                raise Refused(f"{name} is about to be deleted", client=False)
        if why := access.write_refusal(self.session, None) or access.read_refusal(self.session, there):
            raise Refused(why, client=False)

    def _look(self, there: Queue) -> tuple[int, bool]:
        """(how many of those that are looked for can be returned now, whether the whole line was looked at). Raises
        Refused.
        """
        found = found_bytes = passed = passed_bytes = 0
        group = self.broker.group
        try:
            for item, is_wanted in self._lookup.among(there.line.walk()):
                size = len(item.data) + RECORD_OVERHEAD_BYTES
                if not is_wanted:
                    passed, passed_bytes = passed + 1, passed_bytes + size
                    if passed > PASSED_MAX or passed_bytes > PASSED_BYTES_MAX:
                        return found, False
                    continue
                if group.is_full or not group.admits(found_bytes + size):
                    if not found:
                        raise Refused(access.DISK_FULL, client=False)
                    return found, False
                found, found_bytes = found + 1, found_bytes + size
                if found == ITEMS_PER_STEP or found_bytes >= BYTES_PER_STEP:
                    return found, False
        except OSError as error:
            raise Refused(access.why_unreadable(error), client=False) from error
        return found, True

    def _take(self, there: Queue, count: int) -> list[tuple[Delivery, Wanted]]:
        """Set `count` of them aside; those ahead of them are where they were."""
        found: list[tuple[Delivery, Wanted]] = []
        passed: list[Delivery] = []
        while len(found) < count and (head := there.line.head()) is not None:
            key = self._lookup.key(head)
            taken = there.open_to_leave()
            if key is None:
                passed.append(taken)
            else:
                found.append((taken, self._lookup.take(key)))
        for taken in reversed(passed):
            taken.deliveries -= 1  # no client has seen it
            there.take_back(taken)
        return found

    def _count_returned(self, there: Queue, back: Queue, sent: list[tuple[Delivery, Wanted]], now_ms: int) -> None:
        """The disk has what was copied by now: go on when all have arrived."""
        if any(there.leaving.get(taken.xid) is taken for taken, _ in sent):
            # Something has to come first, or there is no room for them: they are tried again.
            until_ms = now_ms + LOOK_AGAIN_MS
            again = partial(self._count_returned, there, back, sent)
            self.session.park(PULSE, until_ms, lambda _, now_ms: again(now_ms), opens=False, peeks=False)
            return
        stayed = {id(each) for each in there.line.returned}  # called off on their way
        arrived = [wanted for taken, wanted in sent if id(taken) not in stayed]
        self.returned += len(arrived)
        self.session.depend_on(there)
        self.session.depend_on(back)
        self._forget(arrived)
        self.session.yield_turn(self.step)

    def _leave_rest(self, there: Queue | None, is_all: bool) -> None:
        """None of those that are looked for can be returned."""
        open_there = [] if there is None else [*there.open_reads.values(), *there.delayed.values()]
        is_open = sum([is_wanted for _, is_wanted in self._lookup.among([each.item for each in open_there])])
        rest, self._lookup = self._lookup.all(), Lookup()
        self.open += is_open
        if not is_all:
            self.hidden += len(rest) - is_open
        else:
            self.gone += len(rest) - is_open
            if not is_open:
                self._forget(rest)

    def _forget(self, wanted: list[Wanted]) -> None:
        """No undo has to look for them again; should a crash forget that, it finds none of them."""
        kept = self.record.content.kept
        by_slice: dict[int, list[int]] = {}
        for each in wanted:
            by_slice.setdefault(each.slice, []).append(each.place)
        for number, places in by_slice.items():
            kept[number] = kept.get(number, frozenset()) | frozenset(places)

    def _end(self, why: str, now_ms: int) -> None:
        broker, record = self.broker, self.record
        record.mover = None
        if self.hidden and not why:
            why = f"{self.hidden} may wait behind more than {PASSED_MAX} others in {record.target}"
        if why or self.open:
            broker.undos.add(record)
        else:
            broker.undos.drop(record, "")
        result = Result.REFUSED if why and not self.returned else Result.DONE
        self.session.log_event("queue.restored", now_ms, queue=record.queue, items=self.returned, undo=record.id)
        broker.audit.note(
            self.session,
            "undo",
            now_ms,
            queue=record.queue,
            target=str(record.id),
            items=self.returned,
            result=result,
            why=why,
            number=self.number,
        )
        self.progress.open, self.progress.gone = self.open, self.gone
        self.progress.advance(self.returned, now_ms)
        broker.operations.end(self.progress, now_ms, why)
        self.finish(MoveUndone(self.returned, self.open, self.gone, why))
