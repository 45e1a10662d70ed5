"""Reading items over the memcache protocol: take, wait, peek, open, close, abort.

Source: the memcache protocol of Kestrel 2.4. For some mistakes Kestrel disconnects the client; a client of the
memcached dialect gets an error instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from staniel.broker import access
from staniel.broker.events import Level
from staniel.broker.session import ITEMS_AT_ONCE, OUT_BYTES_PER_TURN, Reads, Session
from staniel.protocol.limits import LONG_ITEM_BYTES
from staniel.protocol.memcache.commands import KEYS_AT_ONCE, key_of_many
from staniel.protocol.memcache.item_requests import Get, without_ends
from staniel.protocol.memcache.keys import fetches
from staniel.protocol.memcache.requests import GetKeys, GetMany, GetSome
from staniel.protocol.requests import Invalid
from staniel.queues.deques import append, popleft
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

ERROR = b"ERROR\r\n"
KEYS_PER_TURN = KEYS_AT_ONCE  # of one line in one turn, so that other clients are served


def get(session: Session, request: Get, now_ms: int) -> None:
    """Reply to a get of one key. The common case is short: a plain get from a queue that exists and has an item."""
    if (
        (request.close or request.open or request.abort or request.peek or session.reads)
        or (queue := session.by_name.get(request.queue)) is None
        or (queue.needs_check or session.needs_check)
    ):
        get_with_care(session, request, now_ms)
        return
    taken = queue.remove_head(now_ms)
    if taken is None:
        miss(session, request, queue, now_ms)
        return
    batch = queue.journal.reply_batch()
    if batch > session.batch:
        session.batch = batch
    counters = session.counters
    counters.cmd_get += 1
    counters.get_hits += 1
    queue.counters.get_items_hit += 1
    item = taken.item
    session.replies.append_item(session.out, request, item.data, item.flags, taken.id)
    session.shown = request
    session.out_bytes += len(item.data)


def get_with_care(session: Session, request: Get, now_ms: int) -> None:
    """Reply to a get of one key that may need more than one step: end the oldest open read if asked to, check what the
    client may read, then take the item. A reply that shows an item waits for the change that made it visible.
    """
    left: Reads | None = None
    if request.close:
        left = close_oldest(session, request.queue, request.open)
    elif request.abort:
        abort_oldest(session, request.queue, now_ms)
    if not request.open and (request.close or request.abort):  # keys.fetches, spelled out where each close comes by
        session.out.append(session.replies.end)
        return
    try:
        if (request.open or session.reads) and not may_read(session, request):
            return
        queue = session.by_name.get(request.queue)
        if queue is None or queue.needs_check or session.needs_check:
            if request.queue in session.broker.queues.aliases:
                session.out.append(session.replies.end)
                return
            queue = queue_for(session, request.queue, now_ms, peeks=request.peek)
            if queue is None:
                return
        if request.open and len(queue.open_reads) >= queue.max_open_reads:
            is_crowded(session, queue, now_ms, opens=True)
            return
        taken = fetch(session, request, queue, now_ms)
        if taken is not None:
            answer(session, request, queue, taken)
        else:
            miss(session, request, queue, now_ms)
    finally:
        if left is not None and not left:
            del session.reads[request.queue]  # nothing was opened


def miss(session: Session, request: Get, queue: Queue, now_ms: int) -> None:
    """Handle a get that found no item: wait for the expired items at the head to be removed and look again, wait for an
    item, or reply that there is none.
    """
    if queue.line.read_error is not None:
        session.refuse(access.trouble(queue))
        return
    if queue.is_unsettled:
        session.retry_after_sweep(queue, partial(get_with_care, session, without_ends(request)))
        return
    if request.wait_ms <= 0:
        answer(session, request, queue, None)
        return
    if is_crowded(session, queue, now_ms, waits=True):
        return

    def on_delivery(taken: Delivery | None, now_ms: int) -> None:
        queue_now = session.waited_at
        if taken is not None and request.open:
            hold(session, queue_now, taken)
        elif taken is not None and not request.peek:
            session.add_unsent(queue_now, taken)
        answer(session, request, queue_now, taken)

    session.park(queue, now_ms + request.wait_ms, on_delivery, opens=request.open, peeks=request.peek)


def get_many(session: Session, request: GetMany, now_ms: int) -> None:
    """Reply to a get of several keys: one item from each queue that has one, then one END. The get does not wait for
    items.
    """
    MultiKeyGet(session, request.gets).check_keys(now_ms)


def get_keys(session: Session, request: GetKeys, now_ms: int) -> None:
    """Reply to a get of many keys, over several turns."""
    MultiKeyGet(session, request.keys, request.with_id).check_keys(now_ms)


class MultiKeyGet:
    """A running get of several keys. All checks come first, because an error reply after items were taken would lose
    those items. A key that is refused later finds nothing.
    """

    def __init__(self, session: Session, keys: Sequence[Get | bytes], with_id: bool = False) -> None:
        self.session = session
        self.keys = keys
        self.with_id = with_id
        self.gets: list[Get] = []  # the keys that have been checked
        self.taken = 0  # how many of them have been read
        self.held: dict[str, int] = {}  # by queue: open reads of this connection after these keys

    def check_keys(self, now_ms: int) -> None:
        """Check some keys, then continue in the next turn or take the items. Raises TryNextTurn to continue after the
        checked keys.
        """
        at = len(self.gets)
        for key in self.keys[at : at + KEYS_PER_TURN]:
            single = key if isinstance(key, Get) else key_of_many(key, self.with_id)
            if isinstance(single, Invalid):
                self.session.out.append(single.reply)
                return
            if may_bring_item(self.session, single) and not self._may_fetch(single, now_ms):
                return
            self._expect(single)
            self.gets.append(single)
        if len(self.gets) < len(self.keys):
            self.session.yield_turn(self.check_keys)
        elif len(self.keys) > KEYS_PER_TURN:
            self.session.yield_turn(self.read_keys)
        else:
            if len(self.keys) > ITEMS_AT_ONCE:
                self.session.yield_turn()
            self.read_keys(now_ms)

    def read_keys(self, now_ms: int) -> None:
        """Read some of the keys, then continue in the next turn or end."""
        last = min(self.taken + KEYS_PER_TURN, len(self.gets))
        while self.taken < last and self.session.out_bytes <= OUT_BYTES_PER_TURN:
            single = self.gets[self.taken]
            if not take_one_of_many(self.session, single, now_ms):
                self.gets[self.taken] = without_ends(single)
                self.session.retry_after_sweep(self.session.broker.queues.by_name[single.queue], self.read_keys)
                return
            self.taken += 1
        if self.taken < len(self.gets):
            self.session.yield_turn(self.read_keys)
        else:
            self.session.out.append(self.session.replies.end)

    def _held_before(self, single: Get) -> int:
        count = self.held.get(single.queue, len(self.session.reads.get(single.queue, ())))
        return max(0, count - (single.abort or single.close))

    def _may_fetch(self, single: Get, now_ms: int) -> bool:
        """Tell whether this key may be read. If not, the client has been sent an error. Raises TryNextTurn."""
        if single.open:
            if not single.close and not may_read(self.session, single):
                return False
        elif self._held_before(single) and not single.peek:
            reply_open_read(self.session, single.queue)
            return False
        queue = queue_for(self.session, single.queue, now_ms, peeks=single.peek)
        return queue is not None and not is_crowded(self.session, queue, now_ms, opens=single.open)

    def _expect(self, single: Get) -> None:
        opens = single.open and may_bring_item(self.session, single)
        self.held[single.queue] = self._held_before(single) + opens


def may_bring_item(session: Session, single: Get) -> bool:
    """Tell whether this key of a get of many can bring an item at all. An alias has none."""
    is_read = fetches(open=single.open, close=single.close, abort=single.abort)
    return is_read and single.queue not in session.broker.queues.aliases


def take_one_of_many(session: Session, single: Get, now_ms: int) -> bool:
    """Reply with the item of one key of many. Return False if expired items are still in the way."""
    if single.abort:
        abort_oldest(session, single.queue, now_ms)
    if single.close:
        close_oldest(session, single.queue)
    held = session.reads.get(single.queue, ())
    full = single.open and len(held) >= session.max_open_reads
    if full or not may_bring_item(session, single):
        return True
    queue = session.broker.queues.by_name.get(single.queue)
    if queue is None or (
        (queue.needs_check or session.needs_check) and access.read_refusal(session, queue) and not single.peek
    ):
        count(session, single, queue, None)
        return True
    taken = fetch(session, single, queue, now_ms)
    if taken is None and queue.is_unsettled:
        return False
    count(session, single, queue, taken)
    session.depend_on(queue)
    if taken is not None:
        if not (single.open or single.peek):
            session.add_unsent(queue, taken)
        show_value(session, single, taken)
    return True


def get_some(session: Session, request: GetSome, now_ms: int) -> None:
    """Reply to a get of up to `count` items of one queue, then one END."""

    def finish() -> None:
        session.out.append(session.replies.end)

    queue = approach(session, request.get, now_ms, finish)
    if queue is not None:
        MultiItemGet(session, request, queue, finish).read_first(now_ms)


class MultiItemGet:
    """A running get of several items. The number is limited by the present items, by the open reads allowed and by the
    bytes of a turn.
    """

    def __init__(self, session: Session, request: GetSome, queue: Queue, finish: Callable[[], None]) -> None:
        self.session = session
        self.get = request.get
        self.queue = queue
        self.left = self.get_count = request.count
        self.finish = finish

    def read_first(self, now_ms: int) -> None:
        taken = fetch(self.session, self.get, self.queue, now_ms)
        if taken is None and self.queue.is_unsettled:
            again = GetSome(without_ends(self.get), self.get_count)
            self.session.retry_after_sweep(self.queue, partial(get_some, self.session, again))
        elif taken is None and self.get.wait_ms > 0:
            until_ms = now_ms + self.get.wait_ms
            self.session.park(self.queue, until_ms, self._on_delivery, opens=self.get.open, peeks=False)
        else:
            self._continue(taken, now_ms)

    def _on_delivery(self, taken: Delivery | None, now_ms: int) -> None:
        self.queue = self.session.waited_at
        if taken is not None and self.get.open:
            hold(self.session, self.queue, taken)
        self._continue(taken, now_ms)

    def _continue(self, taken: Delivery | None, now_ms: int) -> None:
        if taken is None and self.queue.line.read_error is not None:
            self.session.refuse(access.trouble(self.queue))
            return
        count(self.session, self.get, self.queue, taken)
        while taken is not None:
            self._show(taken)
            taken = fetch(self.session, self.get, self.queue, now_ms) if self._may_take() else None
            if taken is not None:
                count(self.session, self.get, self.queue, taken)
        self.session.depend_on(self.queue)
        if self.get_count - self.left > ITEMS_AT_ONCE:
            self.session.yield_turn()
        self.finish()

    def _may_take(self) -> bool:
        session, get = self.session, self.get
        if not self.left or session.out_bytes > OUT_BYTES_PER_TURN:
            return False
        if session.needs_check and access.read_refusal(session, self.queue):
            return False  # a check refused it since the wait for the first item
        if not get.open:
            return True
        is_full = len(self.queue.open_reads) >= self.queue.max_open_reads
        return not is_full and len(session.reads.get(get.queue, ())) < session.max_open_reads

    def _show(self, taken: Delivery) -> None:
        self.left -= 1
        if not (self.get.open or self.get.peek):
            self.session.add_unsent(self.queue, taken)
        show_value(self.session, self.get, taken)


def approach(session: Session, request: Get, now_ms: int, nothing: Callable[[], None]) -> Queue | None:
    """Prepare a get: end the oldest open read if asked to, find the queue.

    Return None if the get ends here: `nothing` was called because there is nothing to read, or the client was sent a
    refusal.
    """
    if request.abort:
        abort_oldest(session, request.queue, now_ms)
    if request.close:
        close_oldest(session, request.queue)
    is_read = fetches(open=request.open, close=request.close, abort=request.abort)
    if is_read and not may_read(session, request):
        return None
    if not is_read or request.queue in session.broker.queues.aliases:
        nothing()
        return None
    queue = queue_for(session, request.queue, now_ms, peeks=request.peek)
    if queue is None or is_crowded(session, queue, now_ms, opens=request.open, waits=request.wait_ms > 0):
        return None
    return queue


def is_crowded(session: Session, queue: Queue, now_ms: int, *, opens: bool = False, waits: bool = False) -> bool:
    """Tell whether no more items may be open, or no more clients may wait. If so, the client has been sent an error."""
    why = access.crowd_refusal(session.broker.limits, session.address, queue, now_ms, opens=opens, waits=waits)
    if why:
        session.refuse(why)
    return bool(why)


def may_read(session: Session, request: Get) -> bool:
    """Tell whether this connection's open reads allow the get. If not, the client has been sent an error."""
    held = session.reads.get(request.queue)
    if request.open:
        limit = session.max_open_reads
        if (len(held) if held is not None else 0) >= limit:
            session.broker.limits.count("max_open_transactions")
            session.client_error(
                f"{limit} reads of {request.queue} are open on this connection, close one first", ERROR
            )
            return False
    elif held and not request.peek:
        reply_open_read(session, request.queue)
        return False
    return True


def reply_open_read(session: Session, name: str) -> None:
    session.client_error(f"a read of {name} is open on this connection, close or abort it first", ERROR)


def queue_for(session: Session, name: str, now_ms: int, *, peeks: bool = False, noreply: bool = False) -> Queue | None:
    """Return the queue to read from, created if reading creates it. Return None after an error reply. Raises
    TryNextTurn.
    """
    try:
        if session.needs_check and (why := access.read_refusal(session, None)):
            raise QueueRefused(why, client=False)
        queue = session.broker.queues.to_read(name, now_ms, creates=session.creates)
        if queue.needs_check and (why := access.trouble(queue) if peeks else access.read_refusal(session, queue)):
            raise QueueRefused(why, client=False)
        return queue
    except QueueRefused as refused:
        if refused.client:
            session.client_error(refused.why, noreply=noreply)
        else:
            session.refuse(refused.why, noreply)
        return None


def fetch(session: Session, request: Get, queue: Queue, now_ms: int) -> Delivery | None:
    """Take, open or peek, as the request asks."""
    if request.open:
        taken = queue.open(now_ms)
        if taken is not None:
            hold(session, queue, taken)
        return taken
    return queue.peek(now_ms) if request.peek else queue.remove_head(now_ms)


def hold(session: Session, queue: Queue, taken: Delivery) -> None:
    """Add this open read to the connection's reads, as the newest of its queue."""
    held = session.reads.get(queue.name)
    if held is None:
        held = session.reads[queue.name] = deque()
    append(held, (queue, taken))
    taken.client = session.address
    if queue.traces:
        trace(session, "read.open", queue, taken)


def close_oldest(session: Session, name: str, keeps_list: bool = False) -> Reads | None:
    """Confirm the oldest open read of a queue. If none is open, or it has timed out, nothing happens, as in Kestrel.
    Returns the list of the others, None: none was open. With `keeps_list` an empty one stays in its place for the read
    that the caller opens next: reliable readers ask for both all the time.
    """
    held = session.reads.get(name)
    if not held:
        return None
    queue, taken = popleft(held)
    queue.confirm(taken)
    if queue.traces:
        trace(session, "read.close", queue, taken)
    batch = queue.journal.reply_batch()
    if batch > session.batch:
        session.batch = batch
    if not held and not keeps_list:
        del session.reads[name]
    return held


def abort_oldest(session: Session, name: str, now_ms: int) -> None:
    """Give the oldest open read of a queue back."""
    held = session.reads.get(name)
    if held:
        queue, taken = held.popleft()
        session.give_back(queue, taken, now_ms)
        if queue.traces:
            trace(session, "read.abort", queue, taken)
        session.depend_on(queue)
        if not held:
            del session.reads[name]


def trace(session: Session, event: str, queue: Queue, taken: Delivery) -> None:
    session.broker.report(Level.INFO, event, queue=queue.name, xid=taken.xid, item=taken.id, session=session.number)


def answer(session: Session, request: Get, queue: Queue, taken: Delivery | None) -> None:
    """Reply to a single get."""
    if taken is None and queue.line.read_error is not None:
        session.refuse(access.trouble(queue))
        return
    batch = queue.journal.reply_batch()
    if batch > session.batch:
        session.batch = batch
    count(session, request, queue, taken)
    if taken is None:
        session.out.append(session.replies.end)
        return
    item = taken.item
    session.replies.append_item(session.out, request, item.data, item.flags, taken.id)
    session.shown = request
    session.out_bytes += len(item.data)


def show_value(session: Session, get: Get, taken: Delivery) -> None:
    """Reply with one item of several, without END."""
    item = taken.item
    size = len(item.data)
    if size > LONG_ITEM_BYTES:
        session.out += session.replies.value_in_pieces(get, item.data, item.flags, taken.id)
    else:
        session.out.append(session.replies.value(get, item.data, item.flags, taken.id))
    session.out_bytes += size


def count(session: Session, request: Get, queue: Queue | None, taken: Delivery | None) -> None:
    """Count one reply, for the server and for the queue, if there is one."""
    counters = session.counters
    if request.peek:
        counters.cmd_peek += 1
    else:
        counters.cmd_get += 1
    if taken is None:
        counters.get_misses += 1
    else:
        counters.get_hits += 1
    if queue is None:
        return
    if taken is None:
        queue.counters.get_items_miss += 1
    else:
        queue.counters.get_items_hit += 1
