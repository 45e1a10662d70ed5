"""A queue that follows a stream: one of the readers that share its items. It decides which readers take an item.
Everything that happens to an item after it was put is in Queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, runtime_checkable

from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.item import Item
from staniel.queues.names import parent_of
from staniel.queues.queue import CLOSED, Queue
from staniel.queues.stream.stream import Stream, StreamLine


@runtime_checkable
class ReaderJournal(Protocol):
    """The journal of one reader. In addition to a Journal, it records which ids are confirmed."""

    line: StreamLine

    @property
    def has_file(self) -> bool:
        """True if there is a file. A queue that only feeds its children needs none."""

    def create_at_end(self, now_ms: int) -> None:
        """Create the file, with its position at the end of the stream."""

    def confirm(self, first: int, last: int) -> None:
        """Confirm the ids from `first` to `last`, whose items are removed for good."""

    def leave_out(self, item_id: int) -> None:
        """Confirm a new item, which is not for this reader."""


def queue_of(name: str, config: QueueConfig, journal: Journal, created_ms: int) -> Queue:
    """Return the queue that `journal` is for."""
    kind = type(journal)
    if kind not in _TYPES:
        _TYPES[kind] = StreamQueue if isinstance(journal, ReaderJournal) else Queue
    return _TYPES[kind](name, config, journal, created_ms)


# By the class of a journal: kept, because isinstance looks up every name of a protocol.
_TYPES: dict[type, Callable[[str, QueueConfig, Any, int], Queue]] = {}


def recipients(queue: Queue) -> Sequence[Queue]:
    """Return the readers of items that are put once to `queue` for all of them."""
    if isinstance(queue, StreamQueue) and queue.is_parent:
        return queue.stream.takers
    return (queue,)


class StreamQueue(Queue):
    """A reader of a stream. `orders` takes what is put to it together with its children (`orders+audit`); a child takes
    what is put to it alone.
    """

    __slots__ = (
        "__dict__",  # the simulator overrides `_put`
        "_takes_evenly",
        "is_parent",
        "reader",
        "stream",
        "stream_line",
    )

    def __init__(self, name: str, config: QueueConfig, journal: ReaderJournal, created_ms: int) -> None:
        self.reader = journal
        self.stream_line = line = journal.line  # the same as `line` while the queue is served
        self.stream: Stream = line.stream
        self.is_parent = not parent_of(name)
        self.puts_once, self.copies = False, 1
        self._takes_evenly = False  # all members take what is put here, and need not expire items before
        super().__init__(name, config, journal, created_ms)  # type: ignore[arg-type]
        self.line = line
        line.on_read_error = self._on_line_error
        line.bound(config.max_memory_bytes)
        if not journal.has_file:
            line.stop_following()
        if self.is_parent:
            self.stream.parent = self
        if journal.has_file:
            self.stream.members[name] = self
        self._update_needs_check()

    def configure(self, config: QueueConfig) -> None:
        """Take over changed settings, which apply from the next operation on."""
        super().configure(config)
        self.regroup()

    def _update_needs_check(self) -> None:
        super()._update_needs_check()
        self.needs_check = self.needs_check or self.must_begin_to_take  # and its file may be refused
        self.regroup()

    @property
    def followers(self) -> Collection[Queue]:
        """The readers of the same stream."""
        return self.stream.members.values()

    def regroup(self) -> None:
        """Compute which readers take what is put to the parent."""
        stream = self.stream
        members = list(stream.members.values())
        parents = [member for member in members if member.is_parent and not member.config.fanout_only]
        children = [member for member in members if not (member.is_parent or member.hidden)]
        stream.takers = (*children, *parents)
        sizes = {member.config.max_item_bytes for member in members}
        stream.is_strict = len(sizes) > 1 or any(member._bounded for member in members)
        parent = stream.parent
        if parent is not None:
            all_equal = not stream.is_strict and not any(taker.needs_check for taker in stream.takers)
            parent.puts_once = all_equal and all(child in parent.followers for child in parent.children.values())
            parent.copies = len(stream.takers)
            ages = any(member.config.max_age_ms for member in members)
            is_in = parent.config.fanout_only or parent.name in stream.members
            parent._takes_evenly = all_equal and is_in and not ages and len(stream.takers) == len(members) > 0

    def sync_counters(self) -> None:
        if self.state is CLOSED:
            return  # the queue was counted when it was closed, and has no line any more
        items, size = self.stream_line.sync()
        self.counters.total_items += items
        self.counters.put_bytes += size

    def has_room(self, item: Item, now_ms: int) -> bool:
        """Tell whether all readers would accept `item`."""
        return all(Queue.has_room(taker, item, now_ms) for taker in recipients(self))

    def refuses_puts(self, now_ms: int, was_full: bool) -> bool:
        return any(Queue.refuses_puts(taker, now_ms, was_full) for taker in recipients(self))

    def add(self, item: Item, now_ms: int, forced: bool = False) -> bool:
        """Put `item` to all readers that take it. If a child refuses, the others keep it. Return False if this queue
        itself refuses. `forced`: as in Queue; children get no copy then.
        """
        if forced:
            self.begin_to_take(now_ms)
            self._put(item, (self,), now_ms)
            return True
        size = len(item.data)
        stream = self.stream
        if self._takes_evenly and not stream.expiring:
            if size > self.config.max_item_bytes or self.state is CLOSED:
                return False
            stream.append(item, now_ms)
            for taker in stream.takers:
                if taker.waiters:
                    taker._serve(now_ms)
            return True
        if self.state is CLOSED:
            return False
        if self.must_begin_to_take:
            self.begin_to_take(now_ms)
        takers = stream.takers if self.is_parent else (self,)
        if stream.is_strict:
            willing = tuple([taker for taker in takers if taker._lets_in(size, now_ms)])
            self.copies = len(willing)
            if willing:
                self._put(item, willing, now_ms)
            return self in willing or self not in takers
        if size > self.config.max_item_bytes:
            return False
        self._put(item, takers, now_ms)
        return True

    def _lets_in(self, size: int, now_ms: int) -> bool:
        """Tell whether an item of `size` bytes may be added. Make room for it if the settings say so."""
        if size > self.config.max_item_bytes:
            return False
        return not self._bounded or self._make_room(now_ms)

    def _put(self, item: Item, takers: tuple[StreamQueue, ...], now_ms: int) -> None:
        stream = self.stream
        if not takers:
            return  # the parent only feeds its children, and there are none
        for taker in takers:
            if taker.config.max_age_ms or (stream.expiring and taker.line.expiring):
                taker.expire(now_ms, taker.config.max_expire_sweep)
        numbered = stream.append(item, now_ms)
        if len(takers) < len(stream.members):
            for member in stream.members.values():
                if member not in takers:
                    member.stream_line.leave_out(numbered)
                    member.reader.leave_out(numbered.id)
        for taker in takers:
            if taker.waiters:
                taker._serve(now_ms)

    @property
    def must_begin_to_take(self) -> bool:
        """True if this is a parent that has only fed its children, and takes what is put to it from now on."""
        return self.is_parent and not self.config.fanout_only and self.name not in self.stream.members

    def begin_to_take(self, now_ms: int) -> None:
        """Get a file, with its position at the end, if this queue has none because it only feeds its children. Raises
        OSError; nothing has changed then.
        """
        if self.name not in self.stream.members:
            self.reader.create_at_end(now_ms)
            self.stream_line.follow_from_end()
            self.stream.members[self.name] = self
            self._update_needs_check()

    def leave_to_parent(self, now_ms: int) -> None:
        """Prepare the deletion of this reader. If it is the last one with a file, the parent gets one first: a start
        reads segments without any reader file from the oldest item on. Raises OSError; nothing has changed then.
        """
        parent = self.stream.parent
        if parent is not None and list(self.stream.members) == [self.name]:
            parent.begin_to_take(now_ms)

    def record_cleared(self, count: int) -> None:
        """Record that `count` heads are removed."""
        if self.state is CLOSED:
            return  # a command over many queues may reach a deleted one, which has no line any more
        dropped, self.stream_line.dropped = self.stream_line.dropped, []
        for first, last in dropped:
            self.reader.confirm(first, last)

    def close(self) -> None:
        """Stop serving this queue. The other readers continue."""
        self.sync_counters()
        super().close()
        self.stream.members.pop(self.name, None)
        if self.is_parent:
            self.stream.parent = None
        if not self.stream.members:
            self.stream.abandon()
        self.regroup()
