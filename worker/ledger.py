"""The ledger of a worker: which items run, which are done although their confirm has no reply yet, how often each has
failed, and until when it rests. All lanes share one ledger, because after a lost connection an item may be delivered to
another lane.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from enum import Enum

from msgspec import Struct

from staniel.protocol.client.replies import Item

KEYS_MAX = 100_000
Key = tuple[int | None, int, bytes]


class Standing(Enum):
    """The standing of a delivered item."""

    NEW = "new"
    RUNNING = "running"  # on another lane, whose connection was lost meanwhile
    RESTING = "resting"  # it has failed, and is to be tried later
    DONE = "done"  # its confirm was lost


class Failure(Struct):
    """The failures of an item: their number, and when it is tried again."""

    attempts: int = 0
    due_s: float = 0.0


def key_of(item: Item) -> Key:
    """Return what names an item: its id, which is the same at each delivery, a hash of its data, should a server give
    an id twice, and its queue, because two queues give the same ids.
    """
    return item.id, hash(item.data), item.key.partition(b"/")[0]


class Ledger:
    """A record of items. All methods may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[Key] = set()
        self._done: OrderedDict[Key, None] = OrderedDict()
        self._failures: OrderedDict[Key, Failure] = OrderedDict()

    def begin_item(self, item: Item, now_s: float) -> Standing:
        """Note that an item runs, if it may."""
        key = key_of(item)
        with self._lock:
            if key in self._done:
                return Standing.DONE
            if key in self._running:
                return Standing.RUNNING
            if self._failures and (failure := self._failures.get(key)) is not None and failure.due_s > now_s:
                return Standing.RESTING
            self._running.add(key)
            return Standing.NEW

    def succeed(self, item: Item) -> None:
        """Note that a running item is done. `forget_confirmed` forgets it when the server has confirmed it."""
        key = key_of(item)
        with self._lock:
            self._running.discard(key)
            self._done[key] = None
            if self._failures:
                self._failures.pop(key, None)
            if len(self._done) > KEYS_MAX:
                self._done.popitem(last=False)

    def fail(self, item: Item) -> int:
        """Note that a running item has failed, and return how often it has."""
        key = key_of(item)
        with self._lock:
            self._running.discard(key)
            failure = self._failures.setdefault(key, Failure())
            failure.attempts += 1
            if len(self._failures) > KEYS_MAX:
                self._failures.popitem(last=False)
            return failure.attempts

    def schedule_retry(self, item: Item, due_s: float) -> None:
        """Note when a failed item is tried again."""
        with self._lock:
            if (failure := self._failures.get(key_of(item))) is not None:
                failure.due_s = due_s

    def due_s(self, item: Item, default_s: float) -> float:
        """Return when a failed item is tried again."""
        with self._lock:
            failure = self._failures.get(key_of(item))
            return default_s if failure is None else failure.due_s

    def cut_off(self, item: Item) -> None:
        """Note that a running item has been handed back, neither done nor failed."""
        with self._lock:
            self._running.discard(key_of(item))

    def forget_confirmed(self, items: list[Item]) -> None:
        """Forget items that the server has confirmed."""
        with self._lock:
            for item in items:
                self._done.pop(key_of(item), None)
