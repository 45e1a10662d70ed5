"""Ending or extending one open read, named by the id of its item: `delete q/id=5` confirms it, `touch q/id=5 0` extends
it, `touch q/id=5/abort 0` hands its item back. meta.py looks at one with `mg q/id=5`.

Only the connection that opened an item can name it. Otherwise a program that confused two connections would end the
work of another client without noticing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from staniel.broker.commands import gets
from staniel.broker.commands.batches import PieceCommand
from staniel.broker.session import Session
from staniel.protocol.memcache.requests import AbortItem, ConfirmItem, ExtendItem, MetaOpenItem
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

LOOKED_AT_ONCE = 64  # open reads; max_open_transactions may be any number

Act = Callable[[Queue, Delivery, int], bool]
"""An act on an open read, at a moment. Returns whether the read was open."""


def confirm_item(session: Session, request: ConfirmItem, now_ms: int) -> None:
    """Close the read of one item for good."""

    def confirm(queue: Queue, taken: Delivery, now_ms: int) -> bool:
        if queue.traces:
            gets.trace(session, "read.close", queue, taken)
        return queue.confirm(taken)

    replies = session.replies
    ReadSearch(session, request, confirm, replies.deleted, replies.not_found).begin_search(now_ms)


def abort_item(session: Session, request: AbortItem, now_ms: int) -> None:
    """Hand one item back to its queue."""

    def abort(queue: Queue, taken: Delivery, now_ms: int) -> bool:
        if queue.traces:
            gets.trace(session, "read.abort", queue, taken)
        return session.give_back(queue, taken, now_ms)

    replies = session.replies
    ReadSearch(session, request, abort, replies.touched, replies.not_found).begin_search(now_ms)


def extend_item(session: Session, request: ExtendItem, now_ms: int) -> None:
    """Let the time-out of one item's read begin again."""

    def extend(queue: Queue, taken: Delivery, now_ms: int) -> bool:
        return bool(queue.extend(taken, now_ms))

    replies = session.replies
    ReadSearch(session, request, extend, replies.touched, replies.not_found).begin_search(now_ms)


class ReadSearch:
    """A search for the reads of one item: first among those that this connection has open, then among those of the
    others. An item that timed out and was opened again has two entries, of which one is open.
    """

    def __init__(
        self,
        session: Session,
        request: ConfirmItem | AbortItem | ExtendItem | MetaOpenItem,
        act: Act,
        done_reply: bytes,
        missing_reply: bytes,
    ) -> None:
        """Prepare a search. `done_reply` b"": `act` has replied."""
        self._session = session
        self._request = request
        self._act = act
        self._done_reply, self._missing_reply = done_reply, missing_reply
        self._found: list[int] = []  # places among the connection's reads of the queue
        self._is_anothers = False

    def begin_search(self, now_ms: int) -> None:
        held = self._session.reads.get(self._request.queue)
        if held and held[0][1].id == self._request.id and len(held) == 1:  # most clients have one open read
            self._found = [0]
            self._end_found(now_ms)
        else:
            PieceCommand(self._session, self._search_reads(), self._end_found).make_some(now_ms)

    def _search_reads(self) -> Iterator[None]:
        wanted = self._request.id
        for at, (_, taken) in enumerate(list(self._session.reads.get(self._request.queue, ()))):
            if taken.id == wanted:
                self._found.append(at)
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                yield
        queue = self._session.broker.queues.by_name.get(self._request.queue)
        if self._found or queue is None:
            return
        for at, taken in enumerate(list(queue.open_reads.values())):
            if taken.id == wanted:
                self._is_anothers = True
                return
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                yield

    def _end_found(self, now_ms: int) -> None:
        session, request = self._session, self._request
        is_silent = not isinstance(request, MetaOpenItem) and request.noreply
        if self._is_anothers:
            why = f"item {request.id} of {request.queue} is open on another connection, only that one can end its read"
            if isinstance(request, MetaOpenItem):
                why = f"item {request.id} of {request.queue} is open on another connection, only that one can see it"
            session.client_error(why, noreply=is_silent)
            return
        was_open = False
        held = session.reads.get(request.queue, ())
        for queue, taken in [held[at] for at in self._found]:
            was_open |= self._act(queue, taken, now_ms)
            session.depend_on(queue)
        if isinstance(request, ConfirmItem | AbortItem):
            self._forget()
        reply = self._done_reply if was_open else self._missing_reply
        if reply and not is_silent:
            session.out.append(reply)

    def _forget(self) -> None:
        if not self._found:
            return
        held = self._session.reads[self._request.queue]
        for at in reversed(self._found):
            del held[at]
        if not held:
            del self._session.reads[self._request.queue]
