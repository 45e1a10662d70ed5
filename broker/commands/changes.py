"""Changes of a queue for a client of any protocol: emptying it, deleting it, pausing it, giving back open reads.

Each change is logged with the client that asked for it, and the reply depends on the change. The caller checks the
client's rights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from staniel.broker.figures import pause_name
from staniel.broker.operations.deletions import DeletionRefused, Postponed, too_many
from staniel.broker.operations.pauses import QueuePause
from staniel.broker.operations.running import Operation
from staniel.broker.session import ITEMS_AT_ONCE, Session
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

ABORTS_PER_TURN = 64


def empty(
    session: Session, queue: Queue, now_ms: int, again: Callable[[int], None], operation: str = "flush"
) -> int | None:
    """Remove every waiting item and return their number. With many items nothing is done yet: return None, and call
    `again` in the next turn.
    """
    if not queue.prepare_flush():
        session.yield_turn(again)
        return None
    items = queue.flush()
    if items > ITEMS_AT_ONCE:
        session.yield_turn()
    session.depend_on(queue)
    session.log_event("queue.flushed", now_ms, queue=queue.name, items=items)
    session.broker.audit.record_operation(session, operation, now_ms, queue=queue.name, items=items)
    return items


Then = Callable[[bool, str], None]
"""The type of a callback that replies to the client. It gets whether the queue existed, and why it still exists; "" if
it does not.
"""


def delete(session: Session, name: str, now_ms: int, then: Then, items_max: int | None = None) -> None:
    """Delete a queue for `session` and call `then`, at once or in a later turn. The queue stays if it has more than
    `items_max` items. Raises JournalFailure.
    """
    queues, deletions = session.broker.queues, session.broker.deletions
    queue = queues.find(name)
    if queue is None:
        session.batch = max(session.batch, queues.erased.get(name, 0))  # the deletion may not be durable yet
        then(queues.waiters_by_name.dismiss(name), "")  # readers may wait for it
        return
    deletions.search(queue, now_ms)
    if why := too_many(queue, items_max):
        deletions.audit_refusal(session, queue, why, now_ms)
        then(True, why)
        return
    if deletions.must_wait(queue):
        _log_deletion(session, name, queue.waiting_items, now_ms)
        tell = session.suspend_until_told(lambda told, now_ms: then(*told))

        def depend_and_tell(batch: int, existed: bool, why: str) -> None:
            session.batch = max(session.batch, batch)
            tell((existed, why))

        deletions.postpone(queue, Postponed(session, items_max, depend_and_tell))
        return
    items = queue.waiting_items
    session.yield_turn()  # removing files has used up the turn's share
    try:
        batch = deletions.delete(queue, now_ms)
    except DeletionRefused as refused:
        deletions.audit_refusal(session, queue, refused.why, now_ms)
        then(True, refused.why)
    else:
        _log_deletion(session, name, items, now_ms)
        session.batch = max(session.batch, batch)
        then(True, "")


def _log_deletion(session: Session, name: str, items: int, now_ms: int) -> None:
    session.log_event("queue.deleted", now_ms, queue=name, items=items)
    session.broker.audit.record_operation(session, "delete", now_ms, queue=name, items=items)


def pause(session: Session, queue: Queue, now_ms: int, *, gets: bool, puts: bool, is_paused: bool) -> None:
    """Pause `gets` or `puts` or both, or resume them. Raises OSError if that cannot be stored; nothing has changed
    then.
    """
    gets_paused = is_paused if gets else queue.gets_paused
    puts_paused = is_paused if puts else queue.puts_paused
    began_ns = session.broker.step_clock.now_ns()
    try:
        session.broker.pauses.change(queue, QueuePause(gets_paused, puts_paused), now_ms)
    finally:
        session.rest_since(began_ns)  # a file was written and synced
    event = "queue.paused" if is_paused else "queue.resumed"
    session.log_event(event, now_ms, queue=queue.name, paused=pause_name(queue))
    operation = "pause" if is_paused else "resume"
    session.broker.audit.record_operation(session, operation, now_ms, queue=queue.name, target=pause_name(queue))


class RunningAbort:
    """An abort of many open reads of any clients, some a turn, in the order of `left`. `finish(count)` is called after
    the last one, with the number of reads that were still open. `queue`, or `client`, an address, says for the audit
    log whose reads they are.
    """

    def __init__(
        self,
        session: Session,
        left: deque[tuple[Queue, Delivery]],
        finish: Callable[[int], None],
        queue: str,
        client: str,
    ) -> None:
        self._session = session
        self._about = queue, client
        self._left = left
        self._finish = finish
        self._aborted = 0

    def abort_some(self, now_ms: int) -> None:
        """Give back a turn's share of the reads."""
        session, left = self._session, self._left
        by_queue: dict[Queue, list[Delivery]] = {}
        for _ in range(min(ABORTS_PER_TURN, len(left))):
            queue, taken = left.popleft()
            by_queue.setdefault(queue, []).append(taken)
        for queue, reads in by_queue.items():
            ended = queue.abort_together(reads[::-1], now_ms)
            self._aborted += len(ended)
            for taken, fate in ended:
                session.log_last_delivery(queue, taken, fate, now_ms)
            session.depend_on(queue)
        if left:
            session.yield_turn(self.abort_some)
            return
        session.log_event("reads.aborted", now_ms, reads=self._aborted)
        name, client = self._about
        session.broker.audit.record_operation(session, "abort", now_ms, queue=name, target=client, items=self._aborted)
        self._finish(self._aborted)


def answer_at_end(session: Session, running: Operation, answer: Callable[[int], None]) -> None:
    """Call `answer` when the operation has ended, as the reply of `session`. If the client has disconnected by then, do
    not call it.
    """
    if running.ended_ms:
        answer(running.ended_ms)
    else:
        running.on_end = partial(session.suspend_until_told(lambda _, now_ms: answer(now_ms)), True)
