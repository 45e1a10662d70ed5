"""Deletions of queues for clients. A queue on whose files a thread is at work, or that has transfers under way, is
deleted when that has ended, and its clients get their replies then: transfers that a crash leaves unfinished must not
be finished in another queue of the same name.

If the system refuses to remove the first file, the request is refused and the queue stays in service. If the system
refuses to remove a later file, the queue is deleted: recovery would find none of its items. The files that are left are
tried again each second, as many as a turn has time for, and until they are removed no other queue may have the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from staniel.broker.events import Level
from staniel.broker.operations.audit import Result
from staniel.broker.session import SUSPENDED, Session
from staniel.broker.share import Share
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.queues.queue import Queue

if TYPE_CHECKING:
    from staniel.broker.broker import Broker
    from staniel.journal.disk.removal import FileRemoval, Unremoved

Then = Callable[[bool, str], None]
"""The type of a callback that replies to the client. It gets whether the queue existed, and why it is still there: ""
if it is not.
"""


REMOVAL_NS = 5_000_000  # each second, for files that could not be removed before


class Undeleted(Exception):
    """The refusal of the system to remove the files of a queue; nothing has changed. `why`: for the client."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Postponed(NamedTuple):
    """A client that waits for a deletion, which must not remove more than `items_max` items; None: as many as there
    are.
    """

    session: Session
    items_max: int | None


class Deletions:
    """Deletions that were requested and are not finished. `carry_out` is called when a task or a sync has ended. A
    deletion is carried out even if its client has disconnected meanwhile.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.postponed: dict[Queue, list[Postponed]] = {}
        self.unremoved: dict[str, FileRemoval] = {}
        """Files of deleted queues that are left, by the queue's name."""

    def delete(self, session: Session, name: str, now_ms: int, then: Then, items_max: int | None = None) -> None:
        """Delete a queue for `session`, and call `then`: at once, or when a later turn lets the session go on. A queue
        that has more than `items_max` items then stays. Raises JournalFailure.
        """
        broker = self._broker
        queue = broker.queues.find(name)
        if queue is None:
            session.batch = max(session.batch, broker.queues.erased.get(name, 0))  # the deletion may not be durable yet
            then(broker.queues.waiters_by_name.dismiss(name), "")  # readers may wait for it
            return
        self.search(queue, now_ms)
        if why := too_many(queue, items_max):
            self._audit_refusal(session, queue, why, now_ms)
            then(True, why)
            return
        if self.must_wait(queue):
            self._audit_deletion(session, name, queue.line.present, now_ms)
            self.postponed.setdefault(queue, []).append(Postponed(session, items_max))
            broker.group.after_sync = self.carry_out
            broker.transfers.hold(queue)
            session.suspend(lambda told, now_ms: then(*told))
            return
        items = queue.line.present
        session.yield_turn()  # files are removed
        try:
            batch = broker.delete(queue, now_ms)
        except Undeleted as refused:
            self._audit_refusal(session, queue, refused.why, now_ms)
            then(True, refused.why)
        else:
            self._audit_deletion(session, name, items, now_ms)
            session.batch = max(session.batch, batch)
            then(True, "")

    def _audit_deletion(self, session: Session, name: str, items: int, now_ms: int) -> None:
        session.log_event("queue.deleted", now_ms, queue=name, items=items)
        self._broker.audit.record_operation(session, "delete", now_ms, queue=name, items=items)

    def _audit_refusal(self, session: Session, queue: Queue, why: str, now_ms: int) -> None:
        self._broker.audit.record_operation(
            session, "delete", now_ms, queue=queue.name, items=queue.line.present, result=Result.REFUSED, why=why
        )

    def must_wait(self, queue: Queue) -> bool:
        """Tell whether `queue` and its files must stay for now."""
        return self._broker.maintenance.is_at_work(queue) or self._broker.transfers.has_under_way(queue)

    def search(self, queue: Queue, now_ms: int) -> None:
        """Search the files of `queue` for copies once more, before it is deleted, if a start could not: an item whose
        copy has come, and may be done by now, must not go back to the queue that it left. Call it before `must_wait`.
        """
        recovery = self._broker.transfers.recovery
        if recovery.pinned(queue):
            recovery.retry(now_ms)

    def is_postponed(self, queue: Queue) -> bool:
        """Tell whether the deletion of `queue` is pending: nothing is sent from it or to it any more."""
        return queue in self.postponed

    def carry_out(self, now_ms: int) -> None:
        """Carry out the deletions that need not wait any more. Raises JournalFailure."""
        broker = self._broker
        due = [queue for queue in self.postponed if not self.must_wait(queue)]
        if not due:
            return
        for queue in due:
            asked = self.postponed.pop(queue)
            refusals = [too_many(queue, each.items_max) for each in asked]
            # "" is the least: one client whose limit is kept is enough for the queue to go.
            sessions, batch, why = [each.session for each in asked], 0, min(refusals, default="")
            try:
                if not why:
                    batch = broker.delete(queue, now_ms)
            except Undeleted as refused:
                why = refused.why
            if why:
                self._audit_refusal(sessions[0], queue, why, now_ms)
            for number, session in enumerate(sessions):
                session.batch = max(session.batch, batch)
                if session.state is SUSPENDED:
                    session.deliver((number == 0 or bool(why), why))  # the other clients find no queue
        if not self.postponed:
            broker.group.after_sync = None
        broker.transfers.resume(due, now_ms)

    def refused(self, name: str, error: OSError, now_ms: int) -> Undeleted:
        """Log that the system refuses to remove the first file of queue `name`, which stays in service. Returns the
        error for the client.
        """
        why = described(error)
        hint = f"nothing has changed; {_remedy(error)}, then delete it again"
        self._broker.rate_limited(Level.WARNING, "queue.undeleted", now_ms, queue=name, why=why, hint=hint)
        return Undeleted(f"queue {name} is not deleted: {why}")

    def leave(self, name: str, left: Unremoved, now_ms: int) -> None:
        """Note that queue `name` is deleted, and `left` of its files could not be removed."""
        self.unremoved[name] = left.removal
        self._block(name, left.error, now_ms)

    def retry_removals(self, now_ms: int) -> None:
        """Try again to remove files of deleted queues, as many as a turn has time for. Raises JournalFailure."""
        broker = self._broker
        share = Share(broker.step_clock, REMOVAL_NS)
        for name in list(self.unremoved):
            removal = self.unremoved.pop(name)
            try:
                removal.carry_out()
            except OSError as error:
                self.unremoved[name] = removal  # behind those that wait for their turn
                self._block(name, error, now_ms)
            else:
                broker.streams.unblock_deleted(name, self.unremoved)
                broker.queues.erased[name] = broker.group.change_folder(0, now_ms)
            if share.is_spent:
                return

    def _block(self, name: str, error: OSError, now_ms: int) -> None:
        why = described(error)
        self._broker.streams.block_deleted(name, f"its files cannot be removed: {why}")
        hint = f"its items are gone; {_remedy(error)}; it is tried again each second"
        self._broker.rate_limited(Level.WARNING, "queue.unremoved", now_ms, queue=name, why=why, hint=hint)


def too_many(queue: Queue, items_max: int | None) -> str:
    """Return why a deletion that may remove `items_max` items is refused; "" if it is not."""
    items = queue.line.present
    if items_max is None or items <= items_max:
        return ""
    return f"{queue.name} has {items} items now, not {items_max}: nothing was deleted"


def _remedy(error: OSError) -> str:
    return remedy_in_service(error, "see to it that its file can be removed")
