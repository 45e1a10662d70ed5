"""Reading one item of several queues, `get a/t=500/open/also=b,c`: that of the first queue which has one, in the order
in which the client names them, else of the one that gets one first.

The key of the reply is the name of the queue, so the read is confirmed as any other. All checks come first: what
refuses a read of one of the queues refuses the request, and nothing has been taken then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from staniel.broker import access
from staniel.broker.commands import gets, meta, rules
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.session import Session
from staniel.broker.several_queues import WaitAtSeveral, has_item_now
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Get
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

Show = Callable[[Get, Queue, Delivery, int], None]
"""Replies with an item, which is that of this get and this queue."""


def get_first(session: Session, request: memcache.GetFirst, now_ms: int) -> None:
    """Reply to a get of several queues with one item."""

    def show(get: Get, queue: Queue, taken: Delivery, now_ms: int) -> None:
        gets.answer(session, get, queue, taken)

    def miss() -> None:
        session.out.append(session.replies.end)

    FirstItemGet(session, request.gets, show, miss).read(now_ms)


def meta_get_first(session: Session, request: memcache.MetaGetFirst, now_ms: int) -> None:
    """Reply to a meta get of several queues. `k` shows the name of the queue."""

    def show(get: Get, queue: Queue, taken: Delivery, now_ms: int) -> None:
        named = memcache.MetaGet(get, meta.with_key(request.meta, get.key), request.value)
        meta.answer(session, named, queue, taken, now_ms)

    FirstItemGet(session, request.gets, show, partial(meta.miss, session, request.meta)).read(now_ms)


class FirstItemGet:
    """A running get of the first item of several queues."""

    def __init__(self, session: Session, asked: tuple[Get, ...], show: Show, miss: Callable[[], None]) -> None:
        self._session = session
        self._by_name = {get.queue: get for get in asked}
        self._show = show
        self._miss = miss

    def read(self, now_ms: int) -> None:
        """Reply with the item of the first queue that has one, or wait. Raises TryNextTurn; nothing has been done
        then.
        """
        session = self._session
        if not all(self._may_read(get, now_ms) for get in self._by_name.values()):
            return
        for get, queue in self._queues_to_read(now_ms):
            taken = gets.fetch(session, get, queue, now_ms)
            session.depend_on(queue)  # the reply shows that this queue has an item, or that it has none
            if taken is not None:
                self._reply(get, queue, taken, now_ms)
                return
            if queue.line.read_error is not None:
                session.refuse(access.trouble(queue))
                return
            if queue.is_unsettled:
                session.retry_after_sweep(queue, self.read)
                return
        if has_item_now((queue for _, queue in self._queues_to_read(now_ms)), now_ms):
            session.yield_turn(self.read)
            return
        self._wait(now_ms)

    def _may_read(self, get: Get, now_ms: int) -> bool:
        """Tell whether this queue may be read. If not, the client has been sent an error."""
        session = self._session
        if not gets.may_read(session, get):
            return False
        queue = gets.queue_for(session, get.queue, now_ms, peeks=get.peek)
        return queue is not None and not gets.is_crowded(session, queue, now_ms, opens=get.open)

    def _queues_to_read(self, now_ms: int) -> Iterator[tuple[Get, Queue]]:
        """Yield each queue when it is needed: one placeholder stands for all queues that do not exist."""
        for name, get in self._by_name.items():
            yield get, self._session.broker.queues.to_read(name, now_ms, creates=False)

    def _wait(self, now_ms: int) -> None:
        session = self._session
        first = next(iter(self._by_name.values()))
        if first.wait_ms <= 0:
            self._end_without([queue for _, queue in self._queues_to_read(now_ms)])
            return
        if any(gets.is_crowded(session, queue, now_ms, waits=True) for _, queue in self._queues_to_read(now_ms)):
            return
        queues = [(get.queue, queue) for get, queue in self._queues_to_read(now_ms)]
        wait = WaitAtSeveral(session, queues, opens=first.open, peeks=first.peek)

        def on_delivery(taken: Delivery | None, now_ms: int) -> None:
            if taken is None:
                self._end_without(wait.queues)
                return
            queue = session.waited_at
            get = self._by_name[queue.name]
            if get.open:
                gets.hold(session, queue, taken)
            self._reply(get, queue, taken, now_ms)

        session.park(wait, now_ms + first.wait_ms, on_delivery, opens=first.open, peeks=first.peek)

    def _reply(self, get: Get, queue: Queue, taken: Delivery, now_ms: int) -> None:
        if not (get.open or get.peek):
            self._session.add_unsent(queue, taken)
        self._show(get, queue, taken, now_ms)

    def _end_without(self, queues: list[Queue]) -> None:
        """Reply that no queue has an item: one miss of the client, and one of each queue."""
        session = self._session
        for queue in queues:
            if queue.line.read_error is not None:
                session.refuse(access.trouble(queue))
                return
            session.depend_on(queue)
            queue.counters.get_items_miss += 1
        gets.count(session, next(iter(self._by_name.values())), None, None)
        self._miss()


COMMANDS: Commands = {
    memcache.GetFirst: (get_first, rules.read_each_get),  # get <queue>/also=<queue>,<queue>…
    memcache.MetaGetFirst: (meta_get_first, rules.read_each_get),  # mg <queue>/also=<queue>,<queue>… <flags>*
}
HANDLERS = handlers_of(COMMANDS)
