"""Deletions of queues for clients.

While a thread is working on a queue's files, or the queue has transfers under way, its deletion is postponed, and its
clients get their replies after it: a transfer that a crash leaves unfinished must not be finished in another queue of
the same name.

If the system refuses to remove the first file, the request is refused and the queue stays in service. If it refuses to
remove a later file, the queue is deleted, because recovery would find none of its items. Those files are tried again
each second, as many as a turn has time for, and until they are removed no other queue may have the name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from staniel.broker.events import Level, RateLimitedSink
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.broker.operations.audit import Asker, Audit, Result
from staniel.broker.operations.pauses import Pauses
from staniel.broker.share import Share
from staniel.broker.streams import StreamQueues
from staniel.broker.transfers import Transfers
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.queues.queue import Queue
from staniel.queues.stream.queue import StreamQueue

if TYPE_CHECKING:
    from staniel.journal.disk.removal import FileRemoval, Unremoved


class DeletionRefused(Exception):
    """The refusal of the system to remove the files of a queue; nothing has changed. `why`: the text for the client."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Postponed(NamedTuple):
    """A client that waits for a deletion, which must not remove more than `items_max` items; None: no limit. `tell`
    gets the batch that the reply waits for, whether the queue existed, and why it still exists; "" if it does not.
    """

    asker: Asker
    items_max: int | None
    tell: Callable[[int, bool, str], None]


class Deletions:
    """Deletions that were requested and are not finished. `carry_out` is called when a task or a sync has ended. A
    deletion is carried out even if its client has disconnected meanwhile.
    """

    def __init__(
        self,
        transfers: Transfers,
        maintenance: MaintenanceScheduler,
        streams: StreamQueues,
        pauses: Pauses,
        audit: Audit,
        report: RateLimitedSink,
    ) -> None:
        self._transfers = transfers
        self._spool, self._group, self._queues = transfers.spool, transfers.group, transfers.queues
        self._maintenance, self._streams, self._pauses = maintenance, streams, pauses
        self._audit, self._report = audit, report
        self.forget_keys: Callable[[Queue], Callable[[], None]] = lambda queue: lambda: None  # set by the broker
        self.postponed: dict[Queue, list[Postponed]] = {}
        self.unremoved: dict[str, FileRemoval] = {}
        """The files of deleted queues that are not removed yet, by the queue's name."""

    def delete(self, queue: Queue, now_ms: int) -> int:
        """Delete a queue that need not stay (see `must_wait`), and its files. Return the batch that the reply waits
        for. Raises DeletionRefused if the system refuses to remove a file; nothing has changed then. Raises
        JournalFailure.
        """
        queues, batch, left = self._queues, 0, None
        remember_keys = self.forget_keys(queue)
        self._maintenance.forget(queue)
        if isinstance(queue.journal, Log | ReaderLog):
            try:
                if isinstance(queue, StreamQueue):
                    # It must be possible to delete a queue even on a full disk.
                    self._group.try_or_release_ballast(partial(queue.leave_to_parent, now_ms))
                batch, left = self._spool.erase(queue.journal, now_ms)
            except OSError as error:
                self._maintenance.adopt(queue)
                remember_keys()
                raise self._refused(queue.name, error, now_ms) from error
        queues.remove(queue)
        self._pauses.forget(queue.name)
        self._transfers.recovery.deleted(queue)
        if left is not None:
            self._leave(queue.name, left, now_ms)
        queues.erased = {name: until for name, until in queues.erased.items() if until > self._group.durable}
        queues.erased[queue.name] = batch
        # The confirmation of an open read depends on the deletion: if a power cut undoes the deletion, the item is
        # there again.
        queue.journal.batch = max(queue.journal.batch, batch)  # type: ignore[misc]
        return batch

    def postpone(self, queue: Queue, waiting: Postponed) -> None:
        """Delete `queue` for a client when it need not wait any more (see `must_wait`)."""
        self.postponed.setdefault(queue, []).append(waiting)
        self._group.after_sync = self.carry_out
        self._transfers.hold(queue)

    def audit_refusal(self, asker: Asker, queue: Queue, why: str, now_ms: int) -> None:
        """Note in the audit log that a deletion is refused."""
        self._audit.record_operation(
            asker, "delete", now_ms, queue=queue.name, items=queue.waiting_items, result=Result.REFUSED, why=why
        )

    def must_wait(self, queue: Queue) -> bool:
        """Tell whether `queue` and its files must stay for now."""
        return self._maintenance.is_at_work(queue) or self._transfers.has_under_way(queue)

    def search(self, queue: Queue, now_ms: int) -> None:
        """Search the files of `queue` for copies once more before it is deleted, if recovery could not. An item whose
        copy has arrived here, and may have been taken since, must not return to the queue that it left. Call this
        before `must_wait`.
        """
        recovery = self._transfers.recovery
        if recovery.pinned(queue):
            recovery.retry(now_ms)

    def is_postponed(self, queue: Queue) -> bool:
        """Tell whether the deletion of `queue` is pending. No transfer from it or to it begins then."""
        return queue in self.postponed

    def carry_out(self, now_ms: int) -> None:
        """Carry out the deletions that need not wait any more. Raises JournalFailure."""
        due = [queue for queue in self.postponed if not self.must_wait(queue)]
        if not due:
            return
        for queue in due:
            asked = self.postponed.pop(queue)
            refusals = [too_many(queue, deletion.items_max) for deletion in asked]
            # "" is the least: the queue is deleted if at least one client's limit allows it.
            batch, why = 0, min(refusals, default="")
            try:
                if not why:
                    batch = self.delete(queue, now_ms)
            except DeletionRefused as refused:
                why = refused.why
            if why:
                self.audit_refusal(asked[0].asker, queue, why, now_ms)
            for number, deletion in enumerate(asked):
                deletion.tell(batch, number == 0 or bool(why), why)  # the other clients find no queue
        if not self.postponed:
            self._group.after_sync = None
        self._transfers.resume(due, now_ms)

    def _refused(self, name: str, error: OSError, now_ms: int) -> DeletionRefused:
        """Log that the system refuses to remove the first file of queue `name`, which stays in service. Return the
        error for the client.
        """
        why = described(error)
        hint = f"nothing has changed; {_remedy(error)}, then delete it again"
        self._report(Level.WARNING, "queue.undeleted", now_ms, queue=name, why=why, hint=hint)
        return DeletionRefused(f"queue {name} is not deleted: {why}")

    def _leave(self, name: str, left: Unremoved, now_ms: int) -> None:
        """Note that queue `name` is deleted, but `left` of its files could not be removed."""
        self.unremoved[name] = left.removal
        self._block(name, left.error, now_ms)

    def retry_removals(self, share: Share, now_ms: int) -> None:
        """Try again to remove files of deleted queues, for a share of a turn. Raises JournalFailure."""
        for name in list(self.unremoved):
            removal = self.unremoved.pop(name)
            try:
                removal.carry_out()
            except OSError as error:
                self.unremoved[name] = removal  # after the others, which also wait
                self._block(name, error, now_ms)
            else:
                self._streams.unblock_deleted(name, self.unremoved)
                self._queues.erased[name] = self._group.change_folder(0, now_ms)
            if share.is_spent:
                return

    def _block(self, name: str, error: OSError, now_ms: int) -> None:
        why = described(error)
        self._streams.block_deleted(name, f"its files cannot be removed: {why}")
        hint = f"its items are gone; {_remedy(error)}; the server tries again each second"
        self._report(Level.WARNING, "queue.unremoved", now_ms, queue=name, why=why, hint=hint)


def too_many(queue: Queue, items_max: int | None) -> str:
    """Return why a deletion that may remove `items_max` items is refused; "" if it is not."""
    items = queue.waiting_items
    if items_max is None or items <= items_max:
        return ""
    return f"{queue.name} has {items} items now, not {items_max}: nothing was deleted"


def _remedy(error: OSError) -> str:
    return remedy_in_service(error, "make its files removable for this user")
