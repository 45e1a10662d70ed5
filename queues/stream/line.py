"""The line of a queue that follows a stream: nothing is appended to it, its items are those that it has not read.

Knows which item it reads next, and which ids it leaves out. Refuses to know who else reads. What has come since is
counted when somebody asks, so a put costs the same however many queues follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from staniel.queues.counters import QueueCounters
from staniel.queues.item import LOST_MS, Delivery, Item, Numbered
from staniel.queues.line import ITEM_COST_BYTES, LOAD_BYTES, SMALL_ITEMS_BYTES, Line
from staniel.queues.stream.stream import Stream


class Progress(Protocol):
    """What a reader has confirmed: every id up to `head`, and those that are `in done`."""

    head: int

    @property
    def done(self) -> Done: ...


class Done(Protocol):
    def __bool__(self) -> bool: ...

    def __contains__(self, item_id: int) -> bool: ...


class StreamLine(Line):
    """Its items from `next_id` on are the stream's; those before it are in memory, as in any line. What is confirmed
    and was not read yet is not for this queue.

    `gone`: (first, last) of ids that were dropped and not yet told to the journal.
    """

    __slots__ = (
        "_behind",
        "_behind_bytes",
        "_bytes",
        "_expiring",
        "_next_id",
        "_seen_bytes",
        "_seen_expiring",
        "_seen_id",
        "changed",
        "counters",
        "follows",
        "gone",
        "progress",
        "stream",
    )

    def __init__(self, stream: Stream, progress: Progress) -> None:
        self.stream = stream
        self.progress = progress
        self._next_id = progress.head + 1
        self.counters = QueueCounters()
        self.changed: Callable[[], object] = int  # told when it has read items into memory
        self.follows = True  # an entrance that takes nothing itself does not
        self.gone: list[tuple[int, int]] = []
        self._behind = self._behind_bytes = self._bytes = self._expiring = 0
        self._seen_id, self._seen_bytes, self._seen_expiring = stream.last_id, stream.bytes, stream.expiring
        super().__init__()
        self.last_id = progress.head

    def expect(self, items: int, size: int, expiring: int) -> None:
        """So many items of the stream's past are still to be read."""
        self._behind += items
        self._behind_bytes += size
        self._bytes += size
        self._expiring += expiring

    def skip_to_end(self) -> None:
        """What the stream has had so far is not for this queue."""
        stream = self.stream
        self._seen_id, self._seen_bytes, self._seen_expiring = stream.last_id, stream.bytes, stream.expiring
        self._next_id = stream.last_id + 1
        self.follows = True

    def pass_over(self, item: Numbered) -> None:
        """The newest item of the stream is not for this queue."""
        self._flow()
        size = len(item.data)
        self.expect(-1, -size, -1 if item.expires_ms else 0)
        self.counters.total_items -= 1
        self.counters.put_bytes -= size

    @property
    def next_id(self) -> int:
        """Items from this one on have not been read."""
        return max(self._next_id, self.progress.head + 1)

    # numbers: the stream's news first

    def _flow(self) -> None:
        stream = self.stream
        count = stream.last_id - self._seen_id
        if not self.follows:
            return
        size = stream.bytes - self._seen_bytes
        self._behind += count
        self._behind_bytes += size
        self._bytes += size
        self._expiring += stream.expiring - self._seen_expiring
        self._seen_id, self._seen_bytes, self._seen_expiring = stream.last_id, stream.bytes, stream.expiring
        self.counters.total_items += count
        self.counters.put_bytes += size

    @property
    def behind(self) -> int:
        if self._seen_id != self.stream.last_id:
            self._flow()
        return self._behind

    @behind.setter
    def behind(self, value: int) -> None:
        self._behind = value

    @property
    def behind_bytes(self) -> int:
        if self._seen_id != self.stream.last_id:
            self._flow()
        return self._behind_bytes

    @behind_bytes.setter
    def behind_bytes(self, value: int) -> None:
        self._behind_bytes = value

    @property
    def bytes(self) -> int:
        if self._seen_id != self.stream.last_id:
            self._flow()
        return self._bytes

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._bytes = value

    @property
    def expiring(self) -> int:
        if self._seen_id != self.stream.last_id:
            self._flow()
        return self._expiring

    @expiring.setter
    def expiring(self, value: int) -> None:
        self._expiring = value

    @property
    def weight_bytes(self) -> int:
        """What it alone keeps in memory, beside what the stream keeps for all."""
        return self._bytes - self._behind_bytes + ITEM_COST_BYTES * (len(self.fresh) + len(self.returned))

    def bound(self, memory_bytes: int, spare_bytes: int = SMALL_ITEMS_BYTES) -> None:
        super().bound(memory_bytes, spare_bytes)
        self.stream.bound(memory_bytes, spare_bytes)

    @property
    def memory_items(self) -> int:
        """How many items this line could hand out without reading a file."""
        if self.next_id >= self.stream.window_id:
            return len(self)
        return len(self.fresh) + len(self.returned) + min(self.stream.window_items, self.behind)

    @property
    def memory_bytes(self) -> int:
        if self.next_id >= self.stream.window_id:
            return self.bytes
        return self.bytes - self.behind_bytes + min(self.stream.window_bytes, self.behind_bytes)

    # the line

    def append(self, item: Item) -> int:
        raise NotImplementedError("items come from the stream")

    def pop(self) -> Delivery:
        if self.returned:
            return super().pop()
        item = self.fresh.popleft()
        self._bytes -= len(item.data)
        if item.expires_ms:
            self._expiring -= 1
        item_id: int = item.id  # type: ignore[attr-defined]
        self.last_id = item_id
        seq = self.left
        self.left = seq + 1
        return Delivery(item, item_id, 1 + item.errors, 0, 0, seq)  # type: ignore[attr-defined]

    def drop(self) -> int:
        if not self.returned and not self.fresh:
            self.load()
            if not self.fresh:
                return self.last_id
        return super().drop()

    def expire(self, now_ms: int, oldest_ms: int, count_max: int) -> int:
        count = 0
        while count < count_max and (head := self.head()) is not None:
            if not (head.expires_ms and head.expires_ms < now_ms) and head.added_ms >= oldest_ms:
                break
            item_id = self.drop()
            self.gone.append((item_id, item_id))
            count += 1
        return count

    def clear(self) -> int:
        count = len(self)
        self.gone += [(taken.id, taken.id) for taken in self.returned]
        first_id = self._id_after(self.fresh[0]) if self.fresh else self.next_id
        if first_id <= self.stream.last_id:
            self.gone.append((first_id, self.stream.last_id))
        self.left += count - len(self.returned)
        self.abandon()
        self._behind = self._behind_bytes = self._bytes = self._expiring = 0
        self.last_id = self.stream.last_id
        self._next_id = self.last_id + 1
        return count

    def count(self, count_max: int, since_max: int = 0) -> bool:
        """Its items have ids already."""
        return True

    def walk(self) -> Iterator[Item]:
        yield from [taken.item for taken in reversed(self.returned)]
        yield from list(self.fresh)
        left, next_id = self.behind, self.next_id
        while left > 0 and (more := self.stream.read(next_id)):
            own = self._own(more)
            yield from own
            left -= len(own)
            next_id = more[-1].id + 1

    # read-behind

    def load(self, size_max: int = LOAD_BYTES) -> None:
        before = len(self.fresh)
        while len(self.fresh) == before and self.behind and self.read_error is None:
            try:
                found = self.stream.read(self.next_id)
            except OSError as error:
                self.read_error = error
                self.on_read_error()
                return
            if not found:
                self._lose_the_rest()
                return
            self._next_id = found[-1].id + 1
            self.take_in(self._own(found))
            self.changed()

    def load_all(self) -> bool:
        """Everything is in memory that can be: the stream sees to that."""
        return True

    def settle(self) -> None:
        """Nothing is dropped unread."""

    def take_in(self, items: list[Item]) -> None:
        self.fresh.extend(items)
        self._behind -= len(items)
        self._behind_bytes -= sum([len(item.data) for item in items])
        lost = [item for item in items if item.expires_ms == LOST_MS]
        self._expiring += len(lost)
        if not self._behind:
            # Nobody knows how large a lost item was.
            self._bytes -= self._behind_bytes
            self._behind_bytes = 0

    def _own(self, items: list[Numbered]) -> list[Item]:
        done = self.progress.done
        return [item for item in items if item.id not in done] if done else list[Item](items)

    def _lose_the_rest(self) -> None:
        """Items that were counted are nowhere: their files are gone."""
        self._bytes -= self._behind_bytes
        self._behind = self._behind_bytes = 0

    def _id_after(self, item: Item) -> int:
        assert isinstance(item, Numbered)
        return item.id
