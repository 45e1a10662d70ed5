"""Changes of a queue in place by an operator: emptying it, pausing it, giving back open reads.

Each is logged with the client that asked, and the reply depends on it. The caller checks whether the client may do it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from staniel.broker.figures import pause_name
from staniel.broker.operations.pauses import QueuePause
from staniel.broker.session import ITEMS_AT_ONCE, Session
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

ABORTS_PER_TURN = 64


def empty(
    session: Session, queue: Queue, now_ms: int, again: Callable[[int], None], operation: str = "flush"
) -> int | None:
    """Remove every item that waits; return their number. None if nothing has been done yet because there are many:
    `again` is called in the next turn.
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


def pause(session: Session, queue: Queue, now_ms: int, *, gets: bool, puts: bool, is_paused: bool) -> None:
    """Pause `gets` or `puts` or both, or resume them. Raises OSError if that cannot be stored: nothing has changed."""
    gets_paused = is_paused if gets else queue.gets_paused
    puts_paused = is_paused if puts else queue.puts_paused
    began_ns = session.broker.step_clock.now_ns()
    try:
        session.broker.pauses.change(queue, QueuePause(gets_paused, puts_paused), now_ms)
    finally:
        session.rest_since(began_ns)  # a file has been written and synced
    event = "queue.paused" if is_paused else "queue.resumed"
    session.log_event(event, now_ms, queue=queue.name, paused=pause_name(queue))
    operation = "pause" if is_paused else "resume"
    session.broker.audit.record_operation(session, operation, now_ms, queue=queue.name, target=pause_name(queue))


class RunningAbort:
    """A running abort: it gives open reads of any client back, in the order of `left` and some a turn. `finish(count)`
    is called after the last one, with how many were still open. `queue` and `client`, an address: whose reads they are,
    for the audit log.
    """

    def __init__(
        self,
        session: Session,
        left: deque[tuple[Queue, Delivery]],
        finish: Callable[[int], None],
        queue: str = "",
        client: str = "",
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
