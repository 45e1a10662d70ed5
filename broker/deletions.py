"""Deleting queues for clients. A queue on whose files a thread is at work, or that has transfers under way, is deleted
when that has ended, and its clients are answered then: transfers that a crash leaves unfinished must not be finished in
another queue of the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.broker.session import SUSPENDED, Session
from staniel.queues.queue import Queue

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

Then = Callable[[bool], None]
"""Called with whether there was such a queue; answers the client."""


class Deletions:
    """`carry_out` is called when a task or a sync has ended. What was asked for is done even if its client has gone
    meanwhile.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.postponed: dict[Queue, list[Session]] = {}

    def delete(self, session: Session, name: str, now_ms: int, then: Then) -> None:
        """Delete a queue for `session`, and call `then`: at once, or when a later turn lets the session go on. Raises
        JournalFailure.
        """
        broker = self._broker
        queue = broker.queues.find(name)
        if queue is None:
            session.batch = max(session.batch, broker.queues.erased.get(name, 0))  # a power cut may bring it back
            then(broker.queues.waiters_by_name.dismiss(name))  # readers may wait for it
            return
        session.log_event("queue.deleted", now_ms, queue=name, items=queue.line.present)
        broker.audit.note(session, "delete", now_ms, queue=name, items=queue.line.present)
        if self.must_wait(queue):
            self.postponed.setdefault(queue, []).append(session)
            broker.group.after_sync = self.carry_out
            broker.transfers.hold(queue)
            session.suspend(lambda found, now_ms: then(found))
        else:
            session.batch = max(session.batch, broker.delete(queue, now_ms))
            session.yield_turn()  # files have been removed
            then(True)

    def must_wait(self, queue: Queue) -> bool:
        """Whether `queue` and its files must stay for now."""
        return self._broker.maintenance.is_at_work(queue) or self._broker.transfers.has_under_way(queue)

    def is_postponed(self, queue: Queue) -> bool:
        """Whether `queue` is about to go: nothing is sent from it or to it any more."""
        return queue in self.postponed

    def carry_out(self, now_ms: int) -> None:
        """Carry out what can be carried out now. Raises JournalFailure."""
        broker = self._broker
        due = [queue for queue in self.postponed if not self.must_wait(queue)]
        if not due:
            return
        for queue in due:
            sessions = self.postponed.pop(queue)
            batch = broker.delete(queue, now_ms)
            for number, session in enumerate(sessions):
                session.batch = max(session.batch, batch)
                if session.state is SUSPENDED:
                    session.deliver(number == 0)  # the others come after it
        if not self.postponed:
            broker.group.after_sync = None
        broker.transfers.resume(due, now_ms)
