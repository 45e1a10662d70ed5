"""Items put once and read by many queues: the newest ones in memory, and the queues that follow. A StreamLog writes
items down and reads old ones back; how far each reader has come is in its StreamLine.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from staniel.queues.deferred_free import DeferredFree
from staniel.queues.item import Item, Numbered
from staniel.queues.line import ITEM_COST_BYTES, SMALL_ITEMS_BYTES, SMALL_ITEMS_SHARE

if TYPE_CHECKING:
    from staniel.queues.stream.queue import StreamQueue

# Items are kept and dropped by so many, or so many bytes.
CHUNK_ITEMS = 512
CHUNK_BYTES = 1 << 20
CHUNKS_AT_ONCE = 4  # more are freed in the turns that follow


class StreamLog(Protocol):
    """The place where the items of a stream are written down."""

    batch: int
    written_id: int
    """Items up to this one can be read back."""

    def put(self, item: Numbered, now_ms: int) -> None: ...

    def read(self, item_id: int) -> list[Numbered]:
        """Return some items from the first with at least this id on, in order; none if there is none. Raises
        OSError.
        """


class Chunk(Struct, gc=False):
    """Items with the ids from `first_id` on. `before_bytes`: what the stream had had when it began."""

    first_id: int
    items: list[Numbered]
    before_bytes: int


class Stream:
    """`bytes` and `expiring` count everything that has come since the start (`expiring`: items with an expiry)."""

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
        self.takers: tuple[StreamQueue, ...] = ()  # of what is put to the parent
        self.is_strict = False  # some taker has limits of its own
        self._chunks: list[Chunk] = []
        self._newest: list[Numbered] = []  # the items of the last chunk
        self._chunk_until = -1  # so many bytes, and the next item begins another
        self._flags: list[tuple[int, int]] = [(0, 0)]  # (id, memcache flags from there on)
        self._last_flags = 0
        self.deferred_free: DeferredFree | None = None  # takes what is dropped; else it is freed at once

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        """Keep as much in memory as a line with the same bounds (`Line.bound`); the rest is read back."""
        self.memory_bytes = memory_bytes
        self._heavy_bytes = memory_bytes + int(memory_bytes * SMALL_ITEMS_SHARE) + spare_bytes
        self._chunk_bytes = min(CHUNK_BYTES, memory_bytes // 4)
        self._chunk_items = min(CHUNK_ITEMS, self._heavy_bytes // (4 * ITEM_COST_BYTES))

    @property
    def window_bytes(self) -> int:
        """The number of bytes of payload in memory."""
        return self.bytes - self._chunks[0].before_bytes if self._chunks else 0

    def append(self, item: Item, now_ms: int) -> Numbered:
        """Append `item` as the newest. Returns the same item with its id."""
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
        """Items from this id on are in memory."""
        return self._chunks[0].first_id if self._chunks else self.last_id + 1

    def read(self, item_id: int) -> list[Numbered]:
        """Return some items from the first with at least this id on; none if there is none. Raises OSError."""
        chunks = self._chunks
        if chunks and item_id >= chunks[0].first_id:
            at = -1 if item_id >= chunks[-1].first_id else bisect_right(chunks, item_id, key=_first_id) - 1
            return chunks[at].items[item_id - chunks[at].first_id :]
        found = self.log.read(item_id)
        if found:
            if len(self._flags) > 1:
                self._recall_flags(found)
            return found
        return chunks[0].items[:] if chunks else []

    def _recall_flags(self, items: list[Numbered]) -> None:
        """Set the flags of items read back: a segment has no place for flags, which are known as long as the process
        lives.
        """
        for item in items:
            item.flags = self._flags[bisect_right(self._flags, item.id, key=_first) - 1][1]

    def forget_flags(self, item_id: int) -> None:
        """Forget the flags of the items up to `item_id`, none of which will be read again."""
        at = bisect_right(self._flags, item_id, key=_first) - 1
        if at > 0:
            del self._flags[:at]

    def trim(self) -> None:
        """Drop from memory what all have read, and what is too much, the oldest first."""
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
        """Drop everything: no queue follows any more."""
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
