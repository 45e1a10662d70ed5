"""The line of one queue: the items ready to be handed out, in delivery order, their bytes and ids, and how many of the
last ones only the journal holds (read-behind). Queues and replay use the same class, so that both give an item the
same id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from staniel.queues.checkpoint import Checkpoint
from staniel.queues.deferred_free import DeferredFree
from staniel.queues.deques import append, popleft
from staniel.queues.item import ID_SHIFT, LOST_MS, Delivery, Item, id_after, is_remnant, new_delivery, remnant_of

# What an item costs beside its payload: the Item, the header of its bytes, its place in the line, the allocator's
# rounding. Measured with a million items of 10, 100 and 1000 bytes: 104 to 131.
ITEM_COST_BYTES = 128
# Read-behind counts payload, as Kestrel does, as long as small items do not make up much more than that.
SMALL_ITEMS_SHARE = 0.4
SMALL_ITEMS_BYTES = 64 << 10
LOAD_BYTES = 128 << 10  # read at once, while a client waits, when nothing was read ahead
UNBOUNDED = 2**62


IsOver = Callable[[Item], bool]


class Tail(Protocol):
    """The items of a line that only the journal holds, by their seq: the first item that ever came has seq 0."""

    def load(self, seq: int, size_max: int) -> list[Item]:
        """Read the items from `seq` on, about `size_max` bytes of them, at least one. An unreadable item is replaced by
        one that is `lost`.
        """

    def measure(self, seq: int, count: int) -> tuple[int, int]:
        """Return (payload bytes, number with an expiry) of `count` items from `seq` on."""

    def newest_id(self, seq: int, count: int) -> int:
        """Return the id of the last of `count` items from `seq` on, had they left one by one and nothing before
        them.
        """


class Line:
    """Returned items first (the last returned is the head), then fresh ones in the order they were added, then those
    that only the journal holds. What every line has; `PlainLine` keeps its numbers in fields, a `StreamLine` (stream/)
    computes them, and is asked for them by the same names.
    """

    __slots__ = (
        "added_bytes",
        "added_expiring",
        "deferred_free",
        "expiring",
        "full_bytes",
        "heavy_bytes",
        "in_memory",
        "last_id",
        "left",
        "look_items",
        "on_read_error",
        "read_error",
        "remnants",
        "returned",
        "tail",
    )

    # Payload, in memory and on disk; how many items only the journal holds; their payload. Each kind of line has its
    # own: fields of this class would, compiled, hide the properties of a StreamLine.
    bytes = on_disk = on_disk_bytes = 0

    def __init__(self, memory_bytes: int = UNBOUNDED, tail: Tail | None = None) -> None:
        self.in_memory: deque[Item] = deque()
        self.returned: list[Delivery] = []
        self.expiring = 0  # how many of the items have an expiry of their own
        self.remnants = 0  # of these: nothing is left of them, see sweeping.py
        self.added_bytes = 0  # of payload, and how many with an expiry, of all items that ever joined the end
        self.added_expiring = 0
        self.last_id = 0
        self.left = 0  # how many fresh items have left: the seq of the next one
        self.tail = tail
        self.read_error: OSError | None = None
        """Why the next items cannot be read from the journal. Nothing is read any more until it is None again."""
        self.on_read_error: Callable[[], object] = int  # when trouble begins
        self.deferred_free: DeferredFree | None = None  # takes what is cleared; else it is freed at once
        self.bound(memory_bytes)

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        """Keep about `memory_bytes` of payload in memory at most, and no more than 1.4 times that and `spare_bytes` of
        real memory.
        """
        if self.tail is None:
            memory_bytes = UNBOUNDED
        self.full_bytes = memory_bytes
        small_bytes = int(memory_bytes * SMALL_ITEMS_SHARE) + spare_bytes
        self.heavy_bytes = memory_bytes + small_bytes
        self.look_items = small_bytes // ITEM_COST_BYTES  # with fewer, only payload can fill the line

    def __len__(self) -> int:
        return len(self.in_memory) + len(self.returned) + self.on_disk

    def reaches(self, items: int, size_bytes: int) -> bool:
        """Tell whether the line has so many items, or so many bytes of payload."""
        return self.present >= items or self.bytes >= size_bytes

    @property
    def head_seq(self) -> int:
        """The seq of the head, of a line that is not empty."""
        return self.returned[-1].seq if self.returned else self.left

    @property
    def present(self) -> int:
        """The number of items for people and for limits: remnants are places, not items."""
        return len(self) - self.remnants

    @property
    def end(self) -> int:
        """The seq of the item that comes next."""
        return self.left + len(self.in_memory) + self.on_disk

    @property
    def memory_items(self) -> int:
        return len(self.in_memory) + len(self.returned)

    @property
    def memory_bytes(self) -> int:
        """Payload in memory."""
        return self.bytes - self.on_disk_bytes

    @property
    def is_full(self) -> bool:
        """Tell whether memory has taken all it may."""
        if self.bytes - self.on_disk_bytes >= self.full_bytes:
            return True
        return len(self.in_memory) >= self.look_items and self.weight_bytes() >= self.heavy_bytes

    def head(self) -> Item | None:
        if self.returned:
            delivery = self.returned[-1]
            return delivery.item
        if not self.in_memory and self.on_disk:
            self.load()
        return self.in_memory[0] if self.in_memory else None

    def peek(self) -> Delivery | None:
        """Return the head as `pop` would give it, and leave it where it is."""
        head = self.head()
        if self.returned:
            delivery = self.returned[-1]
            return Delivery(
                delivery.item, delivery.id, delivery.deliveries + 1, seq=delivery.seq, client=delivery.client
            )
        return Delivery(head, self._id_after(head), seq=self.left) if head is not None else None

    def abandon(self) -> None:
        """Let go of the items in memory. The line is empty then, or will never be used again."""
        in_memory, returned, size = self.in_memory, self.returned, self.memory_bytes
        self.in_memory, self.returned = deque(), []
        if self.deferred_free is not None:
            self.deferred_free.add(in_memory, size)
            self.deferred_free.add(returned, size)

    def give_back(self, delivery: Delivery) -> None:
        """Make `delivery` the head."""
        item = delivery.item
        self.returned.append(delivery)
        self.bytes += len(item.data)  # type: ignore[misc]  # a slot or a property, as below
        if item.expires_ms:
            self.expiring += 1
            self.remnants += is_remnant(item)

    def items(self) -> list[Item]:
        """Return all items, head first, in memory."""
        return list(self.walk())

    def _gone(self, item: Item) -> None:
        self.bytes -= len(item.data)  # type: ignore[misc]
        if item.expires_ms:
            self.expiring -= 1
            self.remnants -= is_remnant(item)

    def _pop_returned(self) -> Delivery:
        delivery = self.returned.pop()
        self._gone(delivery.item)
        return Delivery(delivery.item, delivery.id, delivery.deliveries + 1, seq=delivery.seq, client=delivery.client)

    def _drop_returned(self) -> int:
        delivery = self.returned.pop()
        self._gone(delivery.item)
        return delivery.id

    def sweep(self, is_over: IsOver, seq: int, look_max: int, count_max: int) -> tuple[int, int]:
        """Make remnants of items in memory that have expired by their own expiry, `count_max` at most, from the fresh
        one with `seq` on; 0: from the head on. (how many, the seq from which to go on, 0 when through.)
        """
        count = 0
        if not seq:
            for delivery in self.returned[-look_max:]:
                if count < count_max and _is_sweepable(delivery.item, is_over):
                    delivery.item = self._swept(delivery.item)
                    count += 1
        in_memory, first = self.in_memory, max(0, seq - self.left)
        in_memory.rotate(-first)  # a thousandth of the time that it takes to walk there
        looked = islice(in_memory, min(look_max, len(in_memory) - first))
        found = [at for at, item in enumerate(looked) if _is_sweepable(item, is_over)]
        for at in found[: count_max - count]:
            in_memory[at] = self._swept(in_memory[at])
        in_memory.rotate(first)
        left_over = len(found) - (count_max - count)
        if left_over > 0:
            return count_max, self.left + first + found[-left_over]
        is_through = first + look_max >= len(in_memory)
        return count + len(found), 0 if is_through else self.left + first + look_max

    def _swept(self, item: Item) -> Item:
        self._gone(item)
        self.expiring += 1
        self.remnants += 1
        return remnant_of(item)

    # what the two kinds do in their own way

    def weight_bytes(self) -> int:
        """Return the real cost of the items in memory."""
        raise NotImplementedError

    def append(self, item: Item) -> int:
        """Append `item` as the last. Returns its size in bytes."""
        raise NotImplementedError

    def pop(self) -> Delivery:
        """Take the head off, delivered once more. Raises IndexError unless `head` has found one."""
        raise NotImplementedError

    def drop(self) -> int:
        """Take the head off for good and return its id. A head that only the journal holds is not read for that. Raises
        IndexError on an empty line.
        """
        raise NotImplementedError

    def expire(self, now_ms: int, oldest_ms: int, count_max: int) -> int:
        """Drop items from the head that expired before `now_ms` or were added before `oldest_ms`, at most `count_max`.
        Returns how many went.
        """
        raise NotImplementedError

    def expire_those(self, is_expired: IsOver, count_max: int) -> int:
        """Drop items as `expire` does, where no comparison of two numbers tells which have expired."""
        raise NotImplementedError

    def clear(self) -> int:
        """Drop every item. Returns how many there were. A short step if all of them are counted."""
        raise NotImplementedError

    def count(self, count_max: int, since_max: int = 0) -> bool:
        """Work out which ids the next fresh items will get, `count_max` more of them at most, and of those that have
        come since the last time `since_max`; whether it is known for all. Clearing a long line takes most of its time
        for that.
        """
        raise NotImplementedError

    def walk(self) -> Iterator[Item]:
        """Iterate over all items, head first; of those that only the journal holds some are read at a time, and stay
        there. The line must not change meanwhile. Raises OSError.
        """
        raise NotImplementedError

    def load(self, size_max: int = LOAD_BYTES) -> None:
        """Read the next items from the journal, now. If that fails nothing comes, and there is `read_error`."""
        raise NotImplementedError

    def load_all(self) -> bool:
        """Hold everything in memory, whatever the bound says; False if it cannot be read."""
        raise NotImplementedError

    def take_in(self, items: list[Item]) -> None:
        """Take the next items, read from the journal, into memory."""
        raise NotImplementedError

    def measure_dropped(self) -> None:
        """Count the bytes of what was dropped unread, and the ids that it took along. Raises OSError, and then they are
        still to be counted.
        """
        raise NotImplementedError

    def _id_after(self, item: Item) -> int:
        """Return the id of the fresh item `item`, which is the head."""
        raise NotImplementedError


class PlainLine(Line):
    """The line of a queue with items of its own.

    An item's id is made when it leaves the line for the first time: its add time in ms, shifted, or one more than the
    id before it. So ids rise along a queue, cost no memory while an item waits, and come out the same after a replay
    of the same records. Its seq is how many items had left before it.
    """

    __slots__ = (
        "_counted_end",
        "_counted_id",
        "_counted_seq",
        "_unmeasured",
        "_unmeasured_seq",
        "bytes",
        "on_disk",
        "on_disk_bytes",
    )

    def __init__(self, tail: Tail | None = None, memory_bytes: int = UNBOUNDED) -> None:
        super().__init__(memory_bytes, tail)
        self.bytes = 0
        self.on_disk = 0
        self.on_disk_bytes = 0
        self._unmeasured = 0  # items dropped unread, whose bytes are still counted,
        self._unmeasured_seq = 0  # from this one on
        self._counted_id = 0  # what the fresh item before this seq will get, if there is one
        self._counted_seq = 0
        self._counted_end = 0  # the seq behind the fresh items when they were counted last

    def reaches(self, items: int, size_bytes: int) -> bool:
        # In each put to a queue that has a limit: fields, as is said above.
        there = len(self.in_memory) + len(self.returned) + self.on_disk - self.remnants
        return self.bytes >= size_bytes or there >= items

    def weight_bytes(self) -> int:
        return self.bytes - self.on_disk_bytes + ITEM_COST_BYTES * (len(self.in_memory) + len(self.returned))

    def append(self, item: Item) -> int:
        size = len(item.data)
        if self.on_disk or self.bytes >= self.full_bytes or (len(self.in_memory) >= self.look_items and self.is_full):
            self.on_disk += 1
            self.on_disk_bytes += size
        else:
            append(self.in_memory, item)
            if item.expires_ms:
                self.remnants += is_remnant(item)
        self.bytes += size
        self.added_bytes += size
        if item.expires_ms:
            self.expiring += 1
            self.added_expiring += 1
        return size

    def pop(self) -> Delivery:
        if self.returned:
            return self._pop_returned()
        item = popleft(self.in_memory)
        self.bytes -= len(item.data)
        if item.expires_ms:
            self.expiring -= 1
            self.remnants -= is_remnant(item)
        self.last_id = item_id = id_after(item.added_ms, self.last_id)
        seq = self.left
        self.left = seq + 1
        return new_delivery(item, item_id, 1, 0, 0, seq)

    def drop(self) -> int:
        if self.returned:
            return self._drop_returned()
        if not self.in_memory and self.on_disk:
            self.drop_unread(1)
            return self.last_id
        item = self.in_memory.popleft()
        self._gone(item)
        self.left += 1
        self.last_id = item_id = self._id_after(item)
        return item_id

    def drop_unread(self, count: int) -> int:
        """Take up to `count` heads off for good that only the journal holds, or one that was handed back; at least one,
        and how many.
        """
        if self.returned:
            self._gone(self.returned.pop().item)
            return 1
        if self._unmeasured_seq + self._unmeasured != self.left:
            self.measure_dropped()
            self._unmeasured_seq = self.left
        count = min(count, self.on_disk)
        self.on_disk -= count
        self._unmeasured += count
        self.last_id += count
        self.left += count
        if not self.on_disk:
            # Nothing is left: no need to read how large it was.
            self._keep_ids_rising()
            self._unmeasured = self.on_disk_bytes = self.bytes = self.expiring = 0
        return count

    def expire(self, now_ms: int, oldest_ms: int, count_max: int) -> int:
        count = 0
        while count < count_max and (head := self.head()) is not None:
            if not (head.expires_ms and head.expires_ms < now_ms) and head.added_ms >= oldest_ms:
                break
            self.drop()
            count += 1
        return count

    def expire_those(self, is_expired: IsOver, count_max: int) -> int:
        count = 0
        while count < count_max and (head := self.head()) is not None and is_expired(head):
            self.drop()
            count += 1
        return count

    def clear(self) -> int:
        count = len(self)
        self.count(len(self.in_memory))
        self.last_id = (self._counted_id if self.in_memory else self.last_id) + self.on_disk
        self.left = self.end
        self.abandon()
        self.bytes = self.expiring = self.remnants = self.on_disk = self.on_disk_bytes = self._unmeasured = 0
        return count

    def count(self, count_max: int, since_max: int = 0) -> bool:
        in_memory = self.in_memory
        end = self.left + len(in_memory)
        known = self._counted_seq - self.left
        if known <= 0:
            known, self._counted_id = 0, self.last_id
        else:
            count_max += max(0, min(since_max, end - self._counted_end))
        count = min(count_max, len(in_memory) - known)
        newest_id = self._counted_id
        in_memory.rotate(-known)  # a thousandth of the time that it takes to walk there
        for item in islice(in_memory, count):
            by_clock = item.added_ms << ID_SHIFT
            newest_id = by_clock if by_clock > newest_id else newest_id + 1
        in_memory.rotate(known)
        self._counted_id, self._counted_seq, self._counted_end = newest_id, self.left + known + count, end
        return known + count == len(in_memory)

    def walk(self) -> Iterator[Item]:
        yield from [delivery.item for delivery in reversed(self.returned)]
        yield from list(self.in_memory)
        seq = self.left + len(self.in_memory)
        while self.tail is not None and seq < self.end:
            more = self.tail.load(seq, LOAD_BYTES)[: self.end - seq]
            yield from more
            seq += len(more)

    # read-behind

    def place(self, checkpoint: Checkpoint, heads: list[Delivery], tail_bytes: int, tail_expiring: int) -> None:
        """Place the line as it stood at `checkpoint`, with nothing in memory but `heads`, which stand before the fresh
        items, the head first. `tail_bytes`, `tail_expiring`: of the items that only the journal holds.
        """
        self.in_memory.clear()
        self.returned[:] = reversed(heads)
        self.left, self.on_disk, self._unmeasured = checkpoint.left, checkpoint.end - checkpoint.left, 0
        self._counted_seq = 0
        self.last_id, self.added_bytes, self.added_expiring = (
            checkpoint.last_id,
            checkpoint.added_bytes,
            checkpoint.added_expiring,
        )
        self.on_disk_bytes = tail_bytes
        self.bytes = tail_bytes + sum([len(delivery.item.data) for delivery in heads])
        self.expiring = tail_expiring + sum([delivery.item.expires_ms != 0 for delivery in heads])
        self.remnants = sum([is_remnant(delivery.item) for delivery in heads])

    def append_on_disk(self, count: int, size: int, expiring: int) -> None:
        """Add so many items more, of `size` bytes together, to the end; only the journal holds them."""
        self.on_disk += count
        self.on_disk_bytes += size
        self.bytes += size
        self.added_bytes += size
        self.expiring += expiring
        self.added_expiring += expiring

    def load(self, size_max: int = LOAD_BYTES) -> None:
        if self.read_error is not None:
            return
        assert self.tail is not None
        try:
            self.measure_dropped()
            self.take_in(self.tail.load(self.left + len(self.in_memory), max(1, min(size_max, self.full_bytes))))
        except OSError as error:
            self.read_error = error
            self.on_read_error()

    def load_all(self) -> bool:
        while self.on_disk and self.read_error is None:
            self.load()
        return not self.on_disk

    def take_in(self, items: list[Item]) -> None:
        del items[self.on_disk :]
        self.in_memory.extend(items)
        self.on_disk -= len(items)
        size = lost = 0
        for item in items:
            size += len(item.data)
            if item.expires_ms == LOST_MS:
                lost += 1
            elif item.expires_ms:
                self.remnants += is_remnant(item)
        self.on_disk_bytes -= size
        self.expiring += lost
        if not self.on_disk:
            # The size of a lost item is not known.
            self.bytes -= self.on_disk_bytes
            self.on_disk_bytes = 0

    def measure_dropped(self) -> None:
        if self._unmeasured:
            assert self.tail is not None
            self._keep_ids_rising()
            self._counted_seq = 0
            size, expiring = self.tail.measure(self._unmeasured_seq, self._unmeasured)
            self._unmeasured = 0
            self.bytes -= size
            self.on_disk_bytes -= size
            self.expiring -= expiring

    def _keep_ids_rising(self) -> None:
        assert self.tail is not None
        newest = self.tail.newest_id(self._unmeasured_seq, self._unmeasured)
        self.last_id = max(self.last_id, newest)

    def _id_after(self, item: Item) -> int:
        return id_after(item.added_ms, self.last_id)


def _is_sweepable(item: Item, is_over: IsOver) -> bool:
    """Tell whether `item` has expired, and has a payload that can go."""
    return item.expires_ms > 0 and is_over(item) and not is_remnant(item)
