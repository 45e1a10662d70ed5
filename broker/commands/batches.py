"""Commands that visit many queues, some in each turn, so that other clients need not wait; and the replies of such
commands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from staniel.broker.commands.guarded import refuse_failed
from staniel.broker.failures import report_failure
from staniel.broker.session import OUT_BYTES_PER_TURN, Session
from staniel.broker.share import Share
from staniel.queues.queue import Queue

T = TypeVar("T")
QUEUES_PER_TURN = 20
PIECE_BYTES = 64 << 10


class BatchCommand(Generic[T]):
    """A command that visits many queues. `visit(queue, now_ms)` returns whether it is done with that queue; if not, it
    is called again. `finish` is called after the last queue.
    """

    def __init__(
        self,
        session: Session,
        queues: Iterable[T],
        visit: Callable[[T, int], bool],
        finish: Callable[[], None],
        most: int = QUEUES_PER_TURN,
        fail: Callable[[Exception, int], None] | None = None,
    ) -> None:
        """Take the queues. `fail` replies instead if `visit` or `finish` raises. With `fail` None the exception ends
        the process.
        """
        self._session = session
        self._left = deque(queues)
        self._visit = visit
        self._finish = finish
        self._most = most
        self._fail = fail

    def visit_some(self, now_ms: int) -> None:
        """Visit as many queues as one turn allows."""
        if self._fail is None:
            self._visit_some(now_ms)
            return
        try:
            self._visit_some(now_ms)
        except Exception as error:
            self._fail(error, now_ms)

    def _visit_some(self, now_ms: int) -> None:
        share = Share(self._session.broker.step_clock)
        for done in range(self._most):
            if not self._left or self._session.out_bytes > OUT_BYTES_PER_TURN or (done and share.is_spent):
                break
            at = self._left[0]
            if not self._visit(at, now_ms):  # the visit has used up the turn's share
                if isinstance(at, Queue) and at.is_unsettled:
                    self._session.retry_after_sweep(at, self.visit_some)
                else:
                    self._session.yield_turn(self.visit_some)
                return
            self._left.popleft()
        if self._left:
            self._session.yield_turn(self.visit_some)
        else:
            self._finish()


class PieceCommand:
    """A command whose work is an iterator of pieces, of which each turn makes as many as it has time for. `finish` is
    called after the last one. `fail` replies instead if a piece raises. With `fail` None the exception ends the
    process.
    """

    def __init__(
        self,
        session: Session,
        pieces: Iterator[object],
        finish: Callable[[int], None],
        fail: Callable[[Exception, int], None] | None = None,
    ) -> None:
        self._session = session
        self._pieces = pieces
        self._finish = finish
        self._fail = fail

    def make_some(self, now_ms: int) -> None:
        """Make as many pieces as one turn allows."""
        if self._fail is None:
            self._make_some(now_ms)
            return
        try:
            self._make_some(now_ms)
        except Exception as error:
            self._fail(error, now_ms)

    def _make_some(self, now_ms: int) -> None:
        session = self._session
        share = Share(session.broker.step_clock)
        for _ in self._pieces:
            if share.is_spent or session.out_bytes > OUT_BYTES_PER_TURN:
                session.yield_turn(self.make_some)
                return
        self._finish(now_ms)


class ChunkedReply:
    """The reply of a command that takes many turns. A short reply leaves in one piece, because some clients take a
    first packet that ends in CR LF for the whole reply (emcache, for `stats`). A long one leaves in pieces of about
    PIECE_BYTES.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._has_begun = False

    def fail(self, error: Exception, now_ms: int) -> None:
        """Reply that the command raised `error`; disconnect if a part of a long reply has been sent."""
        if self._has_begun:
            report_failure(self._session.broker.client_events, "a long reply", self._session.address, error, now_ms)
            self._session.hang_up(b"")
        else:
            refuse_failed(self._session, "statistics", error, now_ms)

    def add(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= PIECE_BYTES:
            self._flush()

    def end(self, data: bytes) -> None:
        """Add the last bytes and send the reply."""
        self._held.append(data)
        self._flush()

    def _flush(self) -> None:
        self._has_begun = True
        self._session.out += self._held
        self._session.out_bytes += self._held_bytes
        self._held = []
        self._held_bytes = 0


class ExpireBatch:
    """A command that drops and counts expired items of queues, at the head and behind it, at most max_expire_sweep in
    each queue.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._of_this = 0
        self.total = 0

    def visit(self, queue: Queue, now_ms: int) -> bool:
        """Drop as many expired items of one queue as fit into a short time. Return whether the queue is done."""
        left = queue.config.max_expire_sweep - self._of_this
        count = queue.expire(now_ms, left)
        self._session.depend_on(queue)
        self._of_this += count
        self.total += count
        if queue.is_unsettled and count < left:
            return False
        swept, is_through = queue.sweep(now_ms, left - count)
        self._of_this += swept
        self.total += swept
        if not is_through and swept < left - count:
            return False
        self._of_this = 0
        return True
