"""Deleting queues for clients. Nobody waits for a thread that is at work on a queue's files: the queue goes when it has
ended, and its clients hear of it then.

Knows which deletions are put off. Refuses to know what deleting is: the broker does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.session import HELD, Session
from queues.queue import Queue

if TYPE_CHECKING:
    from broker.broker import Broker

Then = Callable[[bool], None]
"""Called with whether there was such a queue; answers the client."""


class Deletions:
    """`look` is called when a chore has ended. What was asked for is done even if its client has gone meanwhile."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._put_off: dict[Queue, list[Session]] = {}

    def delete(self, session: Session, name: str, now_ms: int, then: Then) -> None:
        """Delete a queue for `session`, and call `then`: at once, or when a later turn lets the session go on. Raises
        JournalFailure.
        """
        broker = self._broker
        queue = broker.queues.find(name)
        if queue is None:
            then(broker.queues.awaited.dismiss(name))  # somebody may wait for it
            return
        session.note("queue.deleted", now_ms, queue=name, items=len(queue.line))
        if broker.upkeep.is_at_work(queue):
            self._put_off.setdefault(queue, []).append(session)
            session.hold_on(lambda found, now_ms: then(found))
        else:
            session.batch = max(session.batch, broker.delete(queue, now_ms))
            session.rest()  # files have been removed
            then(True)

    def look(self, now_ms: int) -> None:
        """Carry out what can be carried out now. Raises JournalFailure."""
        broker = self._broker
        for queue in [queue for queue in self._put_off if not broker.upkeep.is_at_work(queue)]:
            sessions = self._put_off.pop(queue)
            batch = broker.delete(queue, now_ms)
            for number, session in enumerate(sessions):
                session.batch = max(session.batch, batch)
                if session.state is HELD:
                    session.deliver(number == 0)  # the others come after it
