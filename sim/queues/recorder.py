"""The recorder of every change that the queues of a broker record. It wraps `Journal.record`; for queues that share a
stream it also reports where an item enters the stream, and where ids are dropped.
"""

from __future__ import annotations

from typing import Any, Protocol

from staniel.broker.broker import Broker
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.queues.changes import Added, Change, Cleared
from staniel.queues.interfaces import NoJournal
from staniel.queues.item import Item, Numbered
from staniel.queues.queue import Queue
from staniel.queues.stream.queue import StreamQueue
from staniel.queues.stream.stream import Stream


class Listener(Protocol):
    """A listener that gets every change in the step of the queue that makes it, before any client learns of it."""

    def begins(self, queue: Queue) -> None:
        """Note that `queue` is served from now on, with its present content."""

    def states(self, queue: Queue, change: Change) -> None: ...

    def passes(self, queue: Queue, item: Item) -> None:
        """Note that `queue` follows a stream to which `item` was put, and that `item` is not meant for it."""

    def ends(self, queue: Queue) -> None:
        """Note that `queue` is deleted. Changes that its journal may still record do not count."""

    def removes(self, queue: Queue, *, is_under_way: bool) -> None:
        """Note that the files of `queue` are about to be removed, or that the attempt has ended."""


def watch(broker: Broker, listener: Listener) -> None:
    """Report every queue of `broker` and each of its changes to `listener` from now on."""
    queues = broker.queues
    enter, remove = queues._enter, queues.remove

    def entered(queue: Queue) -> Queue:
        _observe(queue, listener)
        return enter(queue)

    def left(queue: Queue) -> None:
        remove(queue)
        listener.ends(queue)

    erase = broker.spool.erase

    def erased(log: Log | ReaderLog, now_ms: int) -> Any:
        removed = [queue for queue in queues.all() if queue.journal is log]
        for queue in removed:
            listener.removes(queue, is_under_way=True)
        try:
            return erase(log, now_ms)
        except OSError:
            raise  # the system refused, and nothing has changed
        except BaseException:  # an accident during the removal of its files: the queue exists, or is removed
            for queue in removed:
                listener.ends(queue)
            raise
        finally:
            for queue in removed:
                listener.removes(queue, is_under_way=False)

    queues._enter = entered  # type: ignore[method-assign]
    queues.remove = left  # type: ignore[method-assign]
    broker.spool.erase = erased  # type: ignore[method-assign]
    for queue in [*queues, *queues.hidden_by_alias.values()]:
        _observe(queue, listener)


def _observe(queue: Queue, listener: Listener) -> None:
    journal = queue.journal
    record = journal.record

    def recorded(change: Change) -> None:
        listener.states(queue, change)
        record(change)

    if isinstance(journal, Log | NoJournal):
        journal.listener = lambda change: listener.states(queue, change)
    else:
        journal.record = recorded  # type: ignore[method-assign]
    if isinstance(queue, StreamQueue):
        _observe_stream(queue, listener)
    listener.begins(queue)


class _ObservedAppend:
    """A wrapper of `Stream.append`. `takers`: the readers of the next item; None: the stream decides."""

    def __init__(self, stream: Stream, listener: Listener) -> None:
        self.takers: tuple[StreamQueue, ...] | None = None
        self._stream = stream
        self._listener = listener
        self._append = stream.append

    def __call__(self, item: Item, now_ms: int) -> Numbered:
        takers = self._stream.takers if self.takers is None else self.takers
        for member in self._stream.members.values():
            if member in takers:
                self._listener.states(member, Added(item))
            else:
                self._listener.passes(member, item)
        return self._append(item, now_ms)


def _observe_stream(queue: StreamQueue, listener: Listener) -> None:
    stream, put, cleared = queue.stream, queue._put, queue.record_cleared
    if not isinstance(stream.append, _ObservedAppend):
        stream.append = _ObservedAppend(stream, listener)  # type: ignore[method-assign]
    observed = stream.append
    assert isinstance(observed, _ObservedAppend)

    def putting(item: Item, takers: tuple[StreamQueue, ...], now_ms: int) -> None:
        before, observed.takers = observed.takers, takers
        try:
            put(item, takers, now_ms)
        finally:
            observed.takers = before

    def clearing(count: int) -> None:
        if count:
            listener.states(queue, Cleared(count))
        cleared(count)

    queue._put = putting  # type: ignore[method-assign]
    queue.record_cleared = clearing  # type: ignore[method-assign]
