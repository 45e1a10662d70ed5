"""The line of one queue: the ready items in delivery order, their bytes and ids, and the number of the last ones that
are only in the journal (read-behind). Queues and replay use the same class, so that both give an item the same id.
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

# The cost of an item in addition to its payload: the Item, the header of its bytes, its place in the line, the
# allocator's rounding. Measured with a million items of 10, 100 and 1000 bytes: 104 to 131.
ITEM_COST_BYTES = 128
# Read-behind counts payload, as Kestrel does, unless small items make up much more memory than that.
SMALL_ITEMS_SHARE = 0.4
SMALL_ITEMS_BYTES = 64 << 10
LOAD_BYTES = 128 << 10  # read in one step while a client waits, if nothing was read ahead
UNBOUNDED = 2**62


IsOver = Callable[[Item], bool]


class Tail(Protocol):
    """The items of a line that are only in the journal, by their seq. The first item ever added has seq 0."""

    def load(self, seq: int, size_max: int) -> list[Item]:
        """Read the items from `seq` on, about `size_max` bytes of them, at least one. An unreadable item is replaced by
        a `lost` one.
        """

    def measure(self, seq: int, count: int) -> tuple[int, int]:
        """Return (payload bytes, number with an expiry) of `count` items from `seq` on."""

    def newest_id(self, seq: int, count: int) -> int:
        """Return the id that the last of `count` items from `seq` on would get if they left now, one by one."""


class Line:
    """The interface of every line: returned items first (the last returned is the head), then fresh ones in the order
    of adding, then those that are only in the journal. `PlainLine` keeps its numbers in fields. `StreamLine` (stream/)
    computes them in properties of the same names.
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

    # Payload, in memory and on disk; how many items are only in the journal; their payload. Subclasses declare these:
    # compiled fields of this class could not be overridden by the properties of a StreamLine.
    bytes = on_disk = on_disk_bytes = 0

    def __init__(self, memory_bytes: int = UNBOUNDED, tail: Tail | None = None) -> None:
        self.in_memory: deque[Item] = deque()
        self.returned: list[Delivery] = []
        self.expiring = 0  # how many of the items have an expiry of their own
        self.remnants = 0  # of these: expired items without payload, see sweeping.py
        self.added_bytes = 0  # payload bytes, and items with an expiry, of all items ever added
        self.added_expiring = 0
        self.last_id = 0
        self.left = 0  # how many fresh items have left, which is the seq of the next one
        self.tail = tail
        self.read_error: OSError | None = None
        """The reason why the next items cannot be read from the journal. While it is set, nothing is read."""
        self.on_read_error: Callable[[], object] = int  # called when `read_error` is set
        self.deferred_free: DeferredFree | None = None  # takes cleared items; without it they are freed at once
        self.bound(memory_bytes)

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        """Keep at most about `memory_bytes` of payload in memory, and at most 1.4 times that plus `spare_bytes` of real
        memory.
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
        """Tell whether the line has that many items, or that many bytes of payload."""
        return self.present >= items or self.bytes >= size_bytes

    @property
    def head_seq(self) -> int:
        """The seq of the head. The line must not be empty."""
        return self.returned[-1].seq if self.returned else self.left

    @property
    def present(self) -> int:
        """The number of items for people and for limits. Remnants are not counted."""
        return len(self) - self.remnants

    @property
    def end(self) -> int:
        """The seq of the next item to be added."""
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
        """Tell whether memory has all the items that it may."""
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
        """Return the head as `pop` would return it, without removing it."""
        head = self.head()
        if self.returned:
            delivery = self.returned[-1]
            return Delivery(
                delivery.item, delivery.id, delivery.deliveries + 1, seq=delivery.seq, client=delivery.client
            )
        return Delivery(head, self._id_after(head), seq=self.left) if head is not None else None

    def abandon(self) -> None:
        """Free the items in memory. After that the line is empty, or is never used again."""
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
        """Return all items in memory, head first."""
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
        """Turn items in memory that have passed their own expiry into remnants, at most `count_max`, from the fresh one
        with `seq` on; 0: from the head on. Return (how many, the seq from which to continue, 0 at the end).
        """
        count = 0
        if not seq:
            for delivery in self.returned[-look_max:]:
                if count < count_max and _is_sweepable(delivery.item, is_over):
                    delivery.item = self._swept(delivery.item)
                    count += 1
        in_memory, first = self.in_memory, max(0, seq - self.left)
        in_memory.rotate(-first)  # a thousandth of the time of walking to that item
        looked = islice(in_memory, min(look_max, len(in_memory) - first))
        expired = [at for at, item in enumerate(looked) if _is_sweepable(item, is_over)]
        for at in expired[: count_max - count]:
            in_memory[at] = self._swept(in_memory[at])
        in_memory.rotate(first)
        left_over = len(expired) - (count_max - count)
        if left_over > 0:
            return count_max, self.left + first + expired[-left_over]
        is_through = first + look_max >= len(in_memory)
        return count + len(expired), 0 if is_through else self.left + first + look_max

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
        """Append `item` as the last one. Return its size in bytes."""
        raise NotImplementedError

    def pop(self) -> Delivery:
        """Remove and return the head, with one more delivery. Raises IndexError unless `head` has found one."""
        raise NotImplementedError

    def drop(self) -> int:
        """Remove the head for good and return its id. If it is only in the journal, it is not read for that. Raises
        IndexError on an empty line.
        """
        raise NotImplementedError

    def expire(self, now_ms: int, oldest_ms: int, count_max: int) -> int:
        """Drop items from the head that expired before `now_ms` or were added before `oldest_ms`, at most `count_max`.
        Return how many were dropped.
        """
        raise NotImplementedError

    def expire_those(self, is_expired: IsOver, count_max: int) -> int:
        """Drop items as `expire` does, where two comparisons of numbers do not tell which have expired."""
        raise NotImplementedError

    def clear(self) -> int:
        """Drop every item. Return how many there were. Takes little time if all of them are counted."""
        raise NotImplementedError

    def count(self, count_max: int, since_max: int = 0) -> bool:
        """Compute the ids of up to `count_max` more fresh items, and of up to `since_max` items added since the last
        call. Return True if all are known. This is most of the work of clearing a long line.
        """
        raise NotImplementedError

    def walk(self) -> Iterator[Item]:
        """Iterate over all items, head first. Items that are only in the journal are read in pieces, and stay there.
        The line must not change meanwhile. Raises OSError.
        """
        raise NotImplementedError

    def load(self, size_max: int = LOAD_BYTES) -> None:
        """Read the next items from the journal, now. If that fails, set `read_error`."""
        raise NotImplementedError

    def load_all(self) -> bool:
        """Read everything into memory, whatever the bound is. Return False if that fails."""
        raise NotImplementedError

    def take_in(self, items: list[Item]) -> None:
        """Add the next items, which were read from the journal, to those in memory."""
        raise NotImplementedError

    def measure_dropped(self) -> None:
        """Read from the journal how large the dropped items were, subtract that, and compute the ids that they used up.
        Raises OSError; they are still to be measured then.
        """
        raise NotImplementedError

    def _id_after(self, item: Item) -> int:
        """Return the id of the fresh item `item`, which is the head."""
        raise NotImplementedError


class PlainLine(Line):
    """The line of a queue with items of its own.

    An item's id is made when it leaves the line for the first time: its add time in ms, shifted, or one more than the
    id before it. So ids rise along a queue, cost no memory while an item waits, and are the same after a replay of the
    same records. An item's seq is how many items had left before it.
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
        self._unmeasured = 0  # items that were dropped unread, whose bytes are still counted,
        self._unmeasured_seq = 0  # and the seq of the first of them
        self._counted_id = 0  # the id that the fresh item before this seq will get, if there is one
        self._counted_seq = 0
        self._counted_end = 0  # the seq after the fresh items when they were last counted

    def reaches(self, items: int, size_bytes: int) -> bool:
        # Every put to a queue with a limit calls this, so it uses the fields.
        present = len(self.in_memory) + len(self.returned) + self.on_disk - self.remnants
        return self.bytes >= size_bytes or present >= items

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
        """Remove up to `count` heads for good that are only in the journal, or one returned item. Return how many; at
        least one.
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
            # The line is empty: the sizes of the dropped items need not be read.
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
        in_memory.rotate(-known)  # a thousandth of the time of walking to that item
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
        """Set the line to its state at `checkpoint`, with only `heads` in memory, which stand before the fresh items,
        the head first. `tail_bytes`, `tail_expiring`: figures of the items that are only in the journal.
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
        """Append `count` items of `size` bytes together, which are only in the journal."""
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
            # The size of a lost item is unknown.
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
    """Tell whether `item` has expired, and has a payload to remove."""
    return item.expires_ms > 0 and is_over(item) and not is_remnant(item)
