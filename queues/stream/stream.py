"""Items that are put once and read by many queues.

A Stream has the newest items in memory, and knows the queues that follow. A StreamLog writes items down and reads old
ones back. A StreamLine is the line of one queue that follows: nothing is appended to it, its items are those of the
stream that it has not read. It knows which item it reads next and which ids are not for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from staniel.queues.deferred_free import DeferredFree
from staniel.queues.item import LOST_MS, Delivery, Item, Numbered, is_remnant, new_delivery
from staniel.queues.line import (
    ITEM_COST_BYTES,
    LOAD_BYTES,
    SMALL_ITEMS_BYTES,
    SMALL_ITEMS_SHARE,
    IsOver,
    Line,
)

if TYPE_CHECKING:
    from staniel.queues.stream.queue import StreamQueue

# Items are kept and dropped in chunks of this many items or bytes.
CHUNK_ITEMS = 512
CHUNK_BYTES = 1 << 20
CHUNKS_AT_ONCE = 4  # freed in one step; the next turns free more


class StreamLog(Protocol):
    """The storage of the items of a stream."""

    batch: int
    written_id: int
    """The id of the last item that can be read back."""

    def put(self, item: Numbered, now_ms: int) -> None: ...

    def read(self, item_id: int) -> list[Numbered]:
        """Return some items in order, from the first one whose id is at least this; [] if there is none. Raises
        OSError.
        """


class Chunk(Struct, gc=False):
    """Items with the ids from `first_id` on. `before_bytes`: the stream's `bytes` before the first of them."""

    first_id: int
    items: list[Numbered]
    before_bytes: int


class Stream:
    """The newest items, and the readers. `bytes` and `expiring` count all items since the start (`expiring`: those with
    an expiry).
    """

    __slots__ = (
        "__dict__",  # the simulator listens to `append`
        "_chunk_bytes",
        "_chunk_items",
        "_chunk_until",
        "_chunks",
        "_flags",
        "_heavy_bytes",
        "_last_flags",
        "_newest",
        "bytes",
        "deferred_free",
        "expiring",
        "is_strict",
        "last_id",
        "log",
        "members",
        "memory_bytes",
        "parent",
        "takers",
    )

    def __init__(self, log: StreamLog, last_id: int, memory_bytes: int) -> None:
        self.log = log
        self.last_id = last_id
        self.bound(memory_bytes)
        self.bytes = self.expiring = 0
        self.members: dict[str, StreamQueue] = {}
        self.parent: StreamQueue | None = None
        self.takers: tuple[StreamQueue, ...] = ()  # readers of what is put to the parent
        self.is_strict = False  # a taker has limits of its own
        self._chunks: list[Chunk] = []
        self._newest: list[Numbered] = []  # the items of the last chunk
        self._chunk_until = -1  # when `bytes` reaches this, the next item begins another chunk
        self._flags: list[tuple[int, int]] = [(0, 0)]  # (id, memcache flags from there on)
        self._last_flags = 0
        self.deferred_free: DeferredFree | None = None  # takes dropped items; without it they are freed at once

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        """Keep as much in memory as a line with the same bounds (`Line.bound`). The rest is read back."""
        self.memory_bytes = memory_bytes
        self._heavy_bytes = memory_bytes + int(memory_bytes * SMALL_ITEMS_SHARE) + spare_bytes
        self._chunk_bytes = min(CHUNK_BYTES, memory_bytes // 4)
        self._chunk_items = min(CHUNK_ITEMS, self._heavy_bytes // (4 * ITEM_COST_BYTES))

    @property
    def window_bytes(self) -> int:
        """The number of bytes of payload in memory."""
        return self.bytes - self._chunks[0].before_bytes if self._chunks else 0

    def append(self, item: Item, now_ms: int) -> Numbered:
        """Append `item` as the newest. Return the same item with its id."""
        flags = item.flags
        item_id = self.last_id + 1
        numbered = Numbered(item.data, item.added_ms, item.expires_ms, flags, item_id)
        self.log.put(numbered, now_ms)
        self.last_id = item_id
        if flags != self._last_flags:
            self._last_flags = flags
            self._flags.append((item_id, flags))
        if item.expires_ms:
            self.expiring += 1
            for member in self.members.values():
                member.stream_line.expiring += 1
        newest, size = self._newest, self.bytes
        if len(newest) >= self._chunk_items or size >= self._chunk_until:
            newest = self._newest = []
            self._chunk_until = size + self._chunk_bytes
            self._chunks.append(Chunk(item_id, newest, size))
        newest.append(numbered)
        self.bytes = size + len(item.data)
        return numbered

    @property
    def window_items(self) -> int:
        """The number of items in memory."""
        return self.last_id + 1 - self.window_id

    @property
    def window_id(self) -> int:
        """The id of the first item in memory."""
        return self._chunks[0].first_id if self._chunks else self.last_id + 1

    def read(self, item_id: int) -> list[Numbered]:
        """Return some items from the first one whose id is at least this; [] if there is none. Raises OSError."""
        chunks = self._chunks
        if chunks and item_id >= chunks[0].first_id:
            at = -1 if item_id >= chunks[-1].first_id else bisect_right(chunks, item_id, key=_first_id) - 1
            return chunks[at].items[item_id - chunks[at].first_id :]
        items = self.log.read(item_id)
        if items:
            if len(self._flags) > 1:
                self._recall_flags(items)
            return items
        return chunks[0].items[:] if chunks else []

    def _recall_flags(self, items: list[Numbered]) -> None:
        """Set the flags of items that were read back. A segment has no place for flags; they are known while the
        process runs.
        """
        for item in items:
            item.flags = self._flags[bisect_right(self._flags, item.id, key=_first) - 1][1]

    def forget_flags(self, item_id: int) -> None:
        """Forget the flags of the items up to `item_id`, which will not be read again."""
        at = bisect_right(self._flags, item_id, key=_first) - 1
        if at > 0:
            del self._flags[:at]

    def trim(self) -> None:
        """Drop from memory the oldest items: those that all readers have read, and those beyond the bound."""
        chunks = self._chunks
        if not chunks:
            return
        needed = min([member.stream_line.next_id for member in self.members.values()], default=self.last_id + 1)
        gone = 0
        for chunk in chunks:
            stop_id = chunk.first_id + len(chunk.items)
            size = self.bytes - chunk.before_bytes
            weight = size + ITEM_COST_BYTES * (self.last_id + 1 - chunk.first_id)
            is_too_much = size > self.memory_bytes or weight > self._heavy_bytes
            if needed < stop_id and not (is_too_much and self.log.written_id >= stop_id - 1):
                break
            gone += 1
        self._drop(gone)

    def abandon(self) -> None:
        """Drop everything, because no queue follows any more."""
        self._drop(len(self._chunks))

    def _drop(self, count: int) -> None:
        """Drop the first `count` chunks."""
        chunks = self._chunks
        if self.deferred_free is not None and count > CHUNKS_AT_ONCE:
            self.deferred_free.add_pieces([chunk.items for chunk in chunks[:count]])
        del chunks[:count]
        if not chunks:
            self._chunk_until = -1


def _first(entry: tuple[int, int]) -> int:
    return entry[0]


def _first_id(chunk: Chunk) -> int:
    return chunk.first_id


class Progress(Protocol):
    """The confirmations of a reader: every id up to `head`, and those in `done`."""

    head: int

    @property
    def done(self) -> ConfirmedIds: ...


class ConfirmedIds(Protocol):
    def __bool__(self) -> bool: ...

    def __contains__(self, item_id: int) -> bool: ...

    def reach(self, item_id: int) -> int: ...

    def nth_outside(self, item_id: int, count: int) -> int: ...


class Counts(Struct, frozen=True, gc=False):
    """The counts of a stream at some moment, under the stream's names."""

    last_id: int
    bytes: int


class StreamLine(Line):
    """A line over a stream. Its items from `next_id` on are the stream's; those before them are in memory, as in any
    line. An item that is confirmed but not read yet is not for this queue.

    `on_disk`, `on_disk_bytes` and `bytes` are differences: the stream's count so far, minus an origin that moves when
    this line reads, drops or leaves out items. So a put costs the same for any number of followers, and reading a
    number changes nothing. `expiring` is a field: a put of an item with an expiry adds to that of each member.

    `dropped`: (first, last) of ids that were dropped and are not in the journal yet.
    """

    __slots__ = (
        "_added_bytes_origin",
        "_added_origin",
        "_bytes_origin",
        "_next_id",
        "_on_disk_bytes_origin",
        "_on_disk_origin",
        "_source",
        "changed",
        "dropped",
        "progress",
        "stream",
    )

    def __init__(self, stream: Stream, progress: Progress) -> None:
        self.stream = stream
        self.progress = progress
        self._source: Stream | Counts = stream
        self._next_id = progress.head + 1
        self._added_origin, self._added_bytes_origin = stream.last_id, stream.bytes
        self.changed: Callable[[], object] = int  # called after it has read items into memory
        self.dropped: list[tuple[int, int]] = []
        super().__init__()
        self.on_disk = self.on_disk_bytes = self.bytes = 0  # through the properties
        self.last_id = progress.head

    def expect(self, items: int, size: int, expiring: int) -> None:
        """Add this many items of the stream's past, which are still to be read."""
        self._on_disk_origin -= items
        self._on_disk_bytes_origin -= size
        self._bytes_origin -= size
        self.expiring += expiring

    def stop_following(self) -> None:
        """Stop following the stream. Items that are put from now on are not for this queue, a parent that only feeds
        its children.
        """
        self._source = Counts(self.stream.last_id, self.stream.bytes)

    def follow_from_end(self) -> None:
        """Follow the stream again. Its items so far are not for this queue."""
        source, stream = self._source, self.stream
        items, size = stream.last_id - source.last_id, stream.bytes - source.bytes
        self.expect(-items, -size, 0)
        self._added_origin += items
        self._added_bytes_origin += size
        self._next_id = stream.last_id + 1
        self._source = stream

    def leave_out(self, item: Numbered) -> None:
        """Leave out the newest item of the stream, which is not for this queue."""
        size = len(item.data)
        self.expect(-1, -size, -1 if item.expires_ms else 0)
        self._added_origin += 1
        self._added_bytes_origin += size

    def sync(self) -> tuple[int, int]:
        """Return (items, payload bytes) that were put for this queue since the last call."""
        source = self._source
        items, size = source.last_id - self._added_origin, source.bytes - self._added_bytes_origin
        self._added_origin, self._added_bytes_origin = source.last_id, source.bytes
        return items, size

    @property
    def next_id(self) -> int:
        """The id of the first item that has not been read."""
        return max(self._next_id, self.progress.head + 1)

    # numbers

    @property
    def on_disk(self) -> int:
        return self._source.last_id - self._on_disk_origin

    @on_disk.setter
    def on_disk(self, value: int) -> None:
        self._on_disk_origin = self._source.last_id - value

    @property
    def on_disk_bytes(self) -> int:
        return self._source.bytes - self._on_disk_bytes_origin

    @on_disk_bytes.setter
    def on_disk_bytes(self, value: int) -> None:
        self._on_disk_bytes_origin = self._source.bytes - value

    @property
    def bytes(self) -> int:
        return self._source.bytes - self._bytes_origin

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._bytes_origin = self._source.bytes - value

    def weight_bytes(self) -> int:
        """Return the cost of the items that only this line keeps in memory, without those that the stream keeps for
        all.
        """
        payload = self._on_disk_bytes_origin - self._bytes_origin
        return payload + ITEM_COST_BYTES * (len(self.in_memory) + len(self.returned))

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        super().bound(memory_bytes, spare_bytes)
        self.stream.bound(memory_bytes, spare_bytes)

    @property
    def memory_items(self) -> int:
        """The number of items that this line could deliver without reading a file."""
        if self.next_id >= self.stream.window_id:
            return len(self)
        return len(self.in_memory) + len(self.returned) + min(self.stream.window_items, self.on_disk)

    @property
    def memory_bytes(self) -> int:
        if self.next_id >= self.stream.window_id:
            return self.bytes
        return self.bytes - self.on_disk_bytes + min(self.stream.window_bytes, self.on_disk_bytes)

    # the line

    def append(self, item: Item) -> int:
        raise NotImplementedError("items come from the stream")

    def pop(self) -> Delivery:
        if self.returned:
            return self._pop_returned()
        item = self.in_memory.popleft()
        self._bytes_origin += len(item.data)
        if item.expires_ms:
            self.expiring -= 1
            self.remnants -= is_remnant(item)
        item_id: int = item.id  # type: ignore[attr-defined]
        self.last_id = item_id
        seq = self.left
        self.left = seq + 1
        return new_delivery(item, item_id, 1 + item.errors, 0, 0, seq)  # type: ignore[attr-defined]

    def drop(self) -> int:
        if self.returned:
            return self._drop_returned()
        if not self.in_memory:
            self.load()
            if not self.in_memory:
                return self.last_id
        item = self.in_memory.popleft()
        self._gone(item)
        self.left += 1
        self.last_id = item_id = self._id_after(item)
        return item_id

    def expire(self, now_ms: int, oldest_ms: int, count_max: int) -> int:
        count = 0
        while count < count_max and (head := self.head()) is not None:
            if not (head.expires_ms and head.expires_ms < now_ms) and head.added_ms >= oldest_ms:
                break
            item_id = self.drop()
            self.dropped.append((item_id, item_id))
            count += 1
        return count

    def expire_those(self, is_expired: IsOver, count_max: int) -> int:
        count = 0
        while count < count_max and (head := self.head()) is not None and is_expired(head):
            item_id = self.drop()
            self.dropped.append((item_id, item_id))
            count += 1
        return count

    def sweep(self, is_over: IsOver, seq: int, look_max: int, count_max: int) -> tuple[int, int]:
        wanted = seq - self.left + look_max if seq else look_max
        while len(self.in_memory) < wanted and self.on_disk and self.next_id >= self.stream.window_id:
            if self.bytes - self.on_disk_bytes >= self.stream.memory_bytes:
                break
            self.load()  # from memory
        return super().sweep(is_over, seq, look_max, count_max)

    def clear(self) -> int:
        count = len(self)
        self.dropped += [(delivery.id, delivery.id) for delivery in self.returned]
        first_id = self._id_after(self.in_memory[0]) if self.in_memory else self.next_id
        if first_id <= self.stream.last_id:
            self.dropped.append((first_id, self.stream.last_id))
        self.left += count - len(self.returned)
        self.abandon()
        self.on_disk = self.on_disk_bytes = self.bytes = self.expiring = self.remnants = 0
        self.last_id = self.stream.last_id
        self._next_id = self.last_id + 1
        return count

    def count(self, count_max: int, since_max: int = 0) -> bool:
        """Return True: the items of a stream have ids already."""
        return True

    def walk(self) -> Iterator[Item]:
        yield from [delivery.item for delivery in reversed(self.returned)]
        yield from list(self.in_memory)
        left, next_id = self.on_disk, self.next_id
        while left > 0 and (more := self.stream.read(next_id)):
            own = self._own(more)
            yield from own
            left -= len(own)
            next_id = more[-1].id + 1

    # read-behind

    def load(self, size_max: int = LOAD_BYTES) -> None:
        before = len(self.in_memory)
        while len(self.in_memory) == before and self.on_disk and self.read_error is None:
            try:
                items = self.stream.read(self.next_id)
            except OSError as error:
                self.read_error = error
                self.on_read_error()
                return
            if not items:
                self._lose_the_rest()
                return
            self._next_id = items[-1].id + 1
            self.take_in(self._own(items))
            self.changed()

    def load_all(self) -> bool:
        """Return True. The stream keeps everything in memory that it can."""
        return True

    def measure_dropped(self) -> None:
        """Do nothing: no item is dropped unread."""

    def take_in(self, items: list[Item]) -> None:
        self.in_memory.extend(items)
        self._on_disk_origin += len(items)
        size = lost = 0
        for item in items:
            size += len(item.data)
            if item.expires_ms == LOST_MS:
                lost += 1
        self._on_disk_bytes_origin += size
        self.expiring += lost
        if not self.on_disk:
            # The size of a lost item is not known.
            self.bytes -= self.on_disk_bytes
            self.on_disk_bytes = 0

    def _own(self, items: list[Numbered]) -> list[Item]:
        done = self.progress.done
        return [item for item in items if item.id not in done] if done else list[Item](items)

    def _lose_the_rest(self) -> None:
        """Drop items that were counted but have no files any more."""
        self.bytes -= self.on_disk_bytes
        self.on_disk = self.on_disk_bytes = 0

    def _id_after(self, item: Item) -> int:
        assert isinstance(item, Numbered)
        return item.id
