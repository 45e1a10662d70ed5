"""The undo of a move.

Items that still wait in the target return to the end of the source, with the times that they had, each by an intent, as
when they were moved. The undo file identifies them by the time when their copies were added, their length, and a
digest. Items that were taken meanwhile stay taken, and those that a client has open stay with it.

The undo of a redrive takes the items from one home after the other, roughly in their order.

A queue delivers only its head. So items ahead of the wanted ones are set aside and returned in the same step,
PASSED_MAX items at most, and no other item can come in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from msgspec import Struct

from staniel.broker import access
from staniel.broker.operations.audit import Requester
from staniel.broker.operations.running import CANCELLED, Operations
from staniel.broker.operations.transfer import (
    BYTES_PER_SLICE,
    ITEMS_PER_SLICE,
    OVERHEAD_BYTES,
    SliceUnderWay,
    TransferOperation,
)
from staniel.broker.operations.undo import OperationHead, UndoRecord
from staniel.journal.background import ReadPiece
from staniel.journal.operation_file import OperationFile
from staniel.journal.undo_file import (
    Back,
    BackItem,
    FileNumber,
    Head,
    Kept,
    MovedItem,
    MovingItem,
    Over,
    Settled,
    UndoBegan,
    UndoEnded,
    digest_of,
    read_moved,
)
from staniel.queues.item import Delivery, Item, Numbered, is_payload_gone, item_with, new_item, past_bytes
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

READ_AHEAD_ITEMS = 4 * ITEMS_PER_SLICE  # items that are searched for at the same time
SLICES_PER_STEP = 16  # in the undo of a redrive, whose slices are small
# The undo file is read in pieces of so many slices, or of READ_BYTES if those are fewer.
SLICES_PER_READ = 2
SLICES_PER_READ_HOMEWARD = 128  # a redrive has small slices
READ_BYTES = 32 << 10
READ_AHEAD_HOMEWARD_ITEMS = 16 * READ_AHEAD_ITEMS  # more, so that each of many homes has some
PASSED_MAX = 1000  # items ahead of the wanted ones; each costs two records and about 5 us
PASSED_BYTES_MAX = 4 << 20  # of those items, which are in memory from then on
PASSING_ITEMS = 512  # items to return together from behind others, so that those are passed less often
PASSING_BYTES = 1 << 20
Key = tuple[int, int, bytes]


class Wanted(Struct, frozen=True):
    """An item to find: its times before the move, and its place in the undo file."""

    item: MovedItem | MovingItem
    slice: int
    place: int


class Lookup:
    """Items to find, by the key that identifies each: time added, size, digest."""

    def __init__(self) -> None:
        self._by_key: dict[Key, list[Wanted]] = {}
        self._times: set[int] = set()
        self.count = 0

    def add(self, at_ms: int, wanted: Wanted) -> None:
        self._by_key.setdefault((at_ms, wanted.item.size, wanted.item.digest), []).append(wanted)
        self._times.add(at_ms)
        self.count += 1

    def key(self, item: Item) -> Key | None:
        """Return the key under which `item` would be found; None if it is not among the items to find."""
        if item.added_ms not in self._times or is_payload_gone(item):
            return None
        key = item.added_ms, len(item.data), digest_of(item.data)
        return key if key in self._by_key else None

    def cross_off(self, key: Key) -> Wanted:
        self.count -= 1
        those = self._by_key[key]
        if len(those) == 1:
            del self._by_key[key]
            return those[0]
        return those.pop(0)

    def all(self) -> list[Wanted]:
        return [wanted for those in self._by_key.values() for wanted in those]

    def among(self, items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
        """Yield each of `items`, and whether it is to be found. Of equal items, no more than are to be found."""
        left = {key: len(wanted) for key, wanted in self._by_key.items()}
        for item in items:
            key = self.key(item)
            is_wanted = key is not None and left[key] > 0
            if key is not None and is_wanted:
                left[key] -= 1
            yield item, is_wanted


class RunningReturn(TransferOperation):
    """The undo of a move. Items that are left when it ends early can be returned by another undo of the same number.
    `source`: the queue that is searched now. With several homes, a home that cannot be searched is skipped.
    """

    obeys_limits = False
    keeps_times = True
    slices_per_step = 1

    def __init__(self, operations: Operations, by: Requester, source: Queue, record: UndoRecord, now_ms: int) -> None:
        """Begin the undo. `source`: the queue that the items were moved to, or one of several. Raises OSError before
        any change.
        """
        undoing = record.content.undoing
        number = undoing.id if undoing is not None else operations.tools.audit.next_id()
        total = record.content.counts()[0]
        super().__init__(operations, OperationHead(number, "undo", total, by), source, record.queue, now_ms)
        self._is_homeward = record.content.began.is_homeward
        if self._is_homeward:
            self.queue_name, self.target = record.queue, ""
            self.slices_per_step = SLICES_PER_STEP
        self.record = record
        self._hidden: Counter[str] = Counter()  # items that may wait behind too many others, by queue
        self._unread = record.content.left
        self._lookups: dict[str, Lookup] = {}  # by the queue that the items were moved to
        self._lookup = Lookup()  # the items to find in `source`
        self._left_out = ""  # the reason why one of several queues is skipped
        self._sent: dict[int, list[Wanted]] = {}  # by the id of a slice's list
        self._file = OperationFile(self.tools.group, self.tools.undos.folder, record.path)
        record.holder = self
        if record.content.is_cut_off:
            self.write(Over())  # otherwise the next startup would continue the move that is being undone
        if undoing is None:
            self.write(UndoBegan(number, self.tools.calendar.wall_ms(now_ms), total, by.address, by.protocol, by.user))
        self.begin(now_ms, str(record.id))
        self.tools.timers.soon(self)

    # the undo file

    def _read_next(self, now_ms: int) -> None:
        assert self.record is not None
        places = self.record.content.slices
        numbers = self._unread[: SLICES_PER_READ_HOMEWARD if self._is_homeward else SLICES_PER_READ]
        begin = places[numbers[0]].at
        numbers = [number for number in numbers if number == numbers[0] or places[number].end <= begin + READ_BYTES]
        fs = self.tools.fs

        def read(error: OSError | None, now_ms: int) -> None:
            self._is_reading = False
            for number in numbers:
                if not self._is_all_begun:
                    self._learn(error or piece.data[places[number].at - begin : places[number].end - begin], now_ms)
            self.tools.timers.soon(self)

        try:
            piece = ReadPiece(fs, self.record.path, begin, places[numbers[-1]].end - begin, 0, read)
        except OSError as error:
            self.stop_sending(f"the undo file cannot be read: {error.strerror}", now_ms)
            return
        self._is_reading = True
        self.tools.tasks.submit(piece, urgent=True)

    def _learn(self, content: OSError | bytes, now_ms: int) -> None:
        moved = None if isinstance(content, OSError) else read_moved(content)
        if moved is None:
            why = content.strerror if isinstance(content, OSError) else "it is damaged"
            self.stop_sending(f"the undo file cannot be read: {why}", now_ms)
            return
        assert self.record is not None
        number = self._unread.pop(0)
        kept = self.record.content.kept.get(number, frozenset())
        items: Sequence[MovedItem | MovingItem] = moved.items
        lookup = self._lookups.setdefault(self.record.content.target_of(number), Lookup())
        for place, item in enumerate(items):
            if place not in kept:
                lookup.add(moved.at_ms, Wanted(item, number, place))

    # the queues

    def _begin_slice(self, now_ms: int) -> int:
        wanted = sum([lookup.count for lookup in self._lookups.values()])
        if self.is_cancelled and (self._unread or wanted):
            self.stop_sending(CANCELLED, now_ms)
            return 0
        if self._unread and wanted < (READ_AHEAD_HOMEWARD_ITEMS if self._is_homeward else READ_AHEAD_ITEMS):
            self._read_next(now_ms)
            return 0
        if not wanted:
            self.stop_sending("", now_ms)
            return 0
        try:
            return self._return_some(now_ms)
        except QueueRefused as refused:
            self.stop_sending(refused.why, now_ms)
            return 0

    def _return_some(self, now_ms: int) -> int:
        """Return some of the items to their queue. Raises QueueRefused before any change."""
        self._check()
        source = self._next_source()
        if source is None:
            return 0
        back = self.tools.queues.make_to_take(self.next_target, now_ms)
        taken, passed, is_all = self._set_aside_next(source)
        if not taken:
            if any(slice_.source is source for slice_ in self._under_way):
                self._is_waiting = True  # transfers under way may bring the last ones back
                return passed
            self._leave_rest(source, is_all)
            return passed
        self._send(taken, back, now_ms)
        return passed + len(taken)

    def _check(self) -> None:
        """Check that items may be returned now. Raises QueueRefused."""
        refusal = access.write_refusal(self, None) or access.read_refusal(self, None)
        if why := self._misuse(self.next_target) or refusal:
            raise QueueRefused(why, client=False)

    def _misuse(self, name: str) -> str:
        """Return why the name is not that of a queue in service; "" if it is."""
        queues = self.tools.queues
        return f"{name} is an alias now" if name in queues.aliases else queues.why_blocked(name)

    def _next_source(self) -> Queue | None:
        """Return the queue to search next. Return None if it must wait, or if it cannot be searched and its items are
        given up. Raises QueueRefused.
        """
        name = next(name for name, lookup in self._lookups.items() if lookup.count)
        self._lookup = self._lookups[name]
        source, why = self.tools.queues.find(name), self._misuse(name)
        if source is not None and not why:
            self.source = source
            if self._is_held_back():
                return None
            why = access.read_refusal(self, source)
        if source is not None and not why:
            return source
        if why and not self._is_homeward:
            raise QueueRefused(why, client=False)
        unsearched = self._lookups.pop(name).all()
        if why:
            self._left_out = self._left_out or why
        else:
            self.gone += len(unsearched)
            self._forget(unsearched)
        return None

    def _set_aside_next(self, source: Queue) -> tuple[list[tuple[Delivery, Wanted]], int, bool]:
        """Set aside items to return. Return (those items, how many were passed, True if no others are left). Raises
        QueueRefused.
        """
        lookup, group, line = self._lookup, self.tools.group, source.line
        pairs: list[tuple[Delivery, Wanted]] = []
        size = 0
        admitted_bytes = 2 * BYTES_PER_SLICE + ITEMS_PER_SLICE * OVERHEAD_BYTES
        if group.is_full or not group.admits(admitted_bytes):
            admitted_bytes = 0  # each item is checked
        while len(pairs) < ITEMS_PER_SLICE and size < BYTES_PER_SLICE:
            head = line.head()
            if head is None:
                if line.read_error is not None and not pairs:
                    raise QueueRefused(access.why_unreadable(line.read_error), client=False)
                return pairs, 0, True
            if (key := lookup.key(head)) is None:
                break
            asked_bytes = size + OVERHEAD_BYTES * (len(pairs) + 1) + len(head.data)
            if asked_bytes > admitted_bytes and (group.is_full or not group.admits(asked_bytes)):
                if not pairs:
                    raise QueueRefused(access.disk_full(group), client=False)
                return pairs, 0, False
            size += len(head.data)
            pairs.append((source.open_head_for_transfer(), lookup.cross_off(key)))
        if pairs:
            return pairs, 0, False
        return self._set_aside_passing(source)

    def _set_aside_passing(self, source: Queue) -> tuple[list[tuple[Delivery, Wanted]], int, bool]:
        """Set aside items that are not at the head: items ahead of them are passed, and put back. Return the same as
        `_set_aside_next`.
        """
        count, is_all = self._count_returnable(source)
        pairs: list[tuple[Delivery, Wanted]] = []
        passed: list[Delivery] = []
        while len(pairs) < count and (head := source.line.head()) is not None:
            key = self._lookup.key(head)
            taken = source.open_head_for_transfer()
            if key is None:
                passed.append(taken)
            else:
                pairs.append((taken, self._lookup.cross_off(key)))
        for taken in reversed(passed):
            source.take_back_unseen(taken)
        return pairs, len(passed), is_all

    def _count_returnable(self, source: Queue) -> tuple[int, bool]:
        """Search the line. Return (how many of the items to find can be returned now, True if the whole line was
        searched). Raises QueueRefused.
        """
        count = found_bytes = passed = passed_bytes = 0
        group = self.tools.group
        try:
            for item, is_wanted in self._lookup.among(source.line.walk()):
                size = len(item.data) + OVERHEAD_BYTES
                if not is_wanted:
                    passed, passed_bytes = passed + 1, passed_bytes + size
                    if passed > PASSED_MAX or passed_bytes > PASSED_BYTES_MAX:
                        return count, False
                    continue
                if group.is_full or not group.admits(found_bytes + size):
                    if not count:
                        raise QueueRefused(access.disk_full(group), client=False)
                    return count, False
                count, found_bytes = count + 1, found_bytes + size
                if count == PASSING_ITEMS or found_bytes >= PASSING_BYTES:
                    return count, False
        except OSError as error:
            raise QueueRefused(access.why_unreadable(error), client=False) from error
        return count, True

    def _send(self, pairs: list[tuple[Delivery, Wanted]], back: Queue, now_ms: int) -> None:
        taken = [delivery for delivery, _ in pairs]
        transfers = self.tools.transfers
        latest_ms = transfers.latest_ms(now_ms)
        copies: list[Item] = []
        for delivery, wanted in pairs:
            item, was = delivery.item, wanted.item
            past = _past(item, was) if type(item) is not Item or type(was) is not MovingItem else was.past
            copy = (
                item_with(past, item.data, was.added_ms, was.expires_ms, item.flags)
                if past
                else new_item(item.data, was.added_ms, was.expires_ms, item.flags)
            )
            copies.append(copy if was.added_ms <= latest_ms else transfers.earlier(copy, now_ms))

        def describe(after: FileNumber, at: int) -> Back:
            return Back(after, at, _described(pairs, copies))

        self._sent[id(taken)] = [wanted for _, wanted in pairs]
        self.send(taken, copies, back, describe, now_ms)

    def note_kept(self, slice_: SliceUnderWay) -> None:
        """Write nothing. All items of a Back are returned, or none if their queue is deleted; then no copy can be
        mistaken for theirs.
        """

    def note_settled(self, slice_: SliceUnderWay) -> None:
        self._is_waiting = False
        wanted = self._sent.pop(id(slice_.taken))
        self._forget(wanted[: slice_.sent])
        lookup = self._lookups.setdefault(slice_.source.name, Lookup())
        for unsent, taken in zip(wanted[slice_.sent :], slice_.taken[slice_.sent :], strict=True):
            lookup.add(taken.item.added_ms, unsent)
        assert self.record is not None
        content = self.record.content
        self.write(Settled(content.settled, content.settled_backs + 1, *slice_.behind))

    def _leave_rest(self, source: Queue, is_all: bool) -> None:
        """Give up the items to find that stay in a queue, because none of them can be returned now."""
        # Items that another operation has set aside return when it ends.
        aside = (source.open_reads, source.delayed, source.resting, source.in_transfer)
        open_there = [delivery for deliveries in aside for delivery in deliveries.values()]
        is_open = sum([is_wanted for _, is_wanted in self._lookup.among([delivery.item for delivery in open_there])])
        unreturned = self._lookups.pop(source.name).all()
        self.open += is_open
        if not is_all:
            self._hidden[source.name] += len(unreturned) - is_open
        else:
            self.gone += len(unreturned) - is_open
            if not is_open:
                self._forget(unreturned)

    def _forget(self, wanted: list[Wanted]) -> None:
        """Write that no undo has to search for these items any more."""
        by_slice: dict[int, list[int]] = {}
        for item in wanted:
            by_slice.setdefault(item.slice, []).append(item.place)
        for number, places in by_slice.items():
            self.write(Kept(number, places))

    # the end

    def last_frames(self) -> list[Head]:
        return [UndoEnded()]

    def close(self, now_ms: int) -> None:
        record, why = self.record, self.ended_early
        assert record is not None
        record.holder = None
        hidden = +self._hidden
        if hidden and not why:
            where = next(iter(hidden)) if len(hidden) == 1 else f"{len(hidden)} queues"
            why = f"{hidden.total()} may wait behind more than {PASSED_MAX} others in {where}"
        why = why or self._left_out
        if not why and not self.open:
            self.tools.undos.drop(record, "")
        self.log_event("queue.restored", now_ms, queue=record.queue, items=self.done, undo=record.id)
        self.end(why, now_ms, str(record.id))


def _past(item: Item, was: MovedItem | MovingItem) -> bytes:
    noted = was.past if isinstance(was, MovingItem) else b""
    return past_bytes(item) or noted


def _described(pairs: list[tuple[Delivery, Wanted]], copies: list[Item]) -> list[BackItem]:
    described = []
    for (taken, wanted), copy in zip(pairs, copies, strict=True):
        item = taken.item
        item_id = item.id if isinstance(item, Numbered) else 0
        xid = 0 if item_id else taken.xid
        data, added_ms = item.data, copy.added_ms
        described.append(
            BackItem(wanted.slice, wanted.place, item.added_ms, added_ms, len(data), crc32(data), xid, item_id)
        )
    return described
