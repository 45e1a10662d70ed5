"""Hears every fact that the queues of a broker state, at the one door they have: `Journal.record`.

Knows how to stand in that door. Refuses to know what the facts mean.
"""

from __future__ import annotations

from typing import Protocol

from broker.broker import Broker
from queues.changes import Change
from queues.queue import Queue


class Listener(Protocol):
    """Who is told. All of it happens inside the step of the queue, before anybody else learns of it."""

    def begins(self, queue: Queue) -> None:
        """`queue` is served from now on, with what it holds."""

    def states(self, queue: Queue, change: Change) -> None: ...

    def ends(self, queue: Queue) -> None:
        """`queue` is deleted; nothing that its journal may still record counts."""


def watch(broker: Broker, listener: Listener) -> None:
    """Tell `listener` of every queue of `broker` and of each of its changes from now on."""
    queues = broker.queues
    enter, remove = queues._enter, queues.remove

    def entered(queue: Queue) -> Queue:
        _stand_in_the_door(queue, listener)
        return enter(queue)

    def removed(queue: Queue) -> None:
        remove(queue)
        listener.ends(queue)

    queues._enter = entered  # type: ignore[method-assign]
    queues.remove = removed  # type: ignore[method-assign]
    for queue in [*queues, *queues.masked.values()]:
        _stand_in_the_door(queue, listener)


def _stand_in_the_door(queue: Queue, listener: Listener) -> None:
    journal = queue.journal
    record = journal.record

    def recorded(change: Change) -> None:
        listener.states(queue, change)
        record(change)

    journal.record = recorded  # type: ignore[method-assign]
    listener.begins(queue)
