"""Storing an item: memcache's `set`, and `store` for all protocols, in one queue, its fan-out children, or the queues
of an alias; access, limits and disk space are checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

from staniel.broker import access
from staniel.broker.session import Session
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.protocol.memcache.item_requests import Set
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.item import Item, copy_of, new_item
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused, Queues, Target, TryNextTurn
from staniel.queues.stream.queue import recipients

ITEMS_PER_TURN = 64
BYTES_PER_TURN = 1 << 20
WIDE_PER_TURN = 4  # items of one request that go to more than TARGETS_AT_ONCE queues each
_OVERHEAD_BYTES = RECORD_OVERHEAD_BYTES  # a C number in the compiled build
TARGETS_AT_ONCE = 8  # queues that get a copy within one turn


class PutResult(Enum):
    STORED = "stored"
    FULL = "full"
    TOO_LARGE = "too large"
    ALREADY_STORED = "already stored"  # of a put with a key (keyed_puts.py)


STORED = PutResult.STORED  # Python finds a global ten times as fast as a member of an Enum
WHY_NOT = {PutResult.FULL: "the queue is full", PutResult.TOO_LARGE: "the item is larger than max_item_size"}


def set_item(session: Session, request: Set, now_ms: int) -> None:
    """Serve memcache's `set`: put an item, and reply whether it is stored."""
    expires_ms, ttl_ms = request.expires_ms, request.ttl_ms
    if ttl_ms is not None:
        expires_ms = session.calendar.end_of_life(now_ms, ttl_ms)
    try:
        verdict = store(session, request.queue, new_item(request.data, now_ms, expires_ms, request.flags), now_ms)
    except QueueRefused as refused:
        refuse_set(session, request, refused, now_ms)
        return
    session.counters.cmd_set += 1
    if verdict is not STORED:
        reply_unstored(session, request, verdict, now_ms)
    elif not request.noreply:
        session.out.append(session.stored)


def refuse_set(session: Session, request: Set, refused: QueueRefused, now_ms: int) -> None:
    """Reply to a set that is refused."""
    session.counters.cmd_set += 1
    if request.noreply:
        session.note_unheard(request.queue, refused.why, now_ms)
    reply_refusal(session, refused, request.noreply)


def reply_unstored(session: Session, request: Set, verdict: PutResult, now_ms: int) -> None:
    """Reply to a set whose item has found no room."""
    if request.noreply:
        session.note_unheard(request.queue, WHY_NOT[verdict], now_ms)
    elif verdict is PutResult.TOO_LARGE and session.dialect is Dialect.MEMCACHED:
        reply_too_large(session, request)
    else:
        session.out.append(session.replies.not_stored)


def reply_too_large(session: Session, request: Set) -> None:
    limit = session.broker.config.queue(request.queue).max_item_bytes
    session.client_error(f"object too large: {len(request.data)} bytes, max_item_size of {request.queue} is {limit}")


def reply_refusal(session: Session, refused: QueueRefused, noreply: bool = False) -> None:
    if refused.client:
        session.client_error(refused.why, noreply=noreply)
    else:
        session.refuse(refused.why, noreply)


def store(session: Session, name: str, item: Item, now_ms: int) -> PutResult:
    """Put `item` into all queues that `name` stands for. Raises QueueRefused and TryNextTurn; nothing has been stored
    then.

    The room on the disk is checked before anything changes. With fan-out or an alias the reply waits for the strictest
    policy of these queues.
    """
    size = len(item.data) + _OVERHEAD_BYTES
    group = session.group
    if group.pending_bytes + size > group.budget_bytes and not group.admits(size):
        raise QueueRefused(access.disk_full(group), client=False)
    if session.calendar.ahead_ms:
        item.added_ms += session.calendar.ahead_ms
    queue = session.by_name.get(name)
    if queue is None or queue.needs_check or session.needs_check:
        return _store_with_care(session, name, item, now_ms)
    if (queue.children or queue.fanout_only) and not queue.puts_once:
        return _store_with_care(session, name, item, now_ms)
    if not queue.add(item, now_ms):
        return _why_not(session, queue, item)
    batch = queue.journal.reply_batch()
    if batch > session.batch:
        session.batch = batch
    session.counters.total_items += queue.copies
    return STORED


def _store_with_care(session: Session, name: str, item: Item, now_ms: int) -> PutResult:
    queues = session.broker.queues
    if session.needs_check and (why := access.write_refusal(session, None)):
        raise QueueRefused(why, client=False)
    if name not in queues.aliases:
        _check_access(session, queues.make_for_client(name, now_ms))
    targets = queues.targets(name, now_ms)
    if name in queues.aliases:
        _count_by_alias(queues, name, item)
    if len(targets) > 1:
        _check_room(session, targets, item)
    if session.dialect is Dialect.KESTREL:
        return _store_each(session, targets, item, now_ms)
    if len(targets) > 1:
        for target in targets:  # items that expire in one target may move to another and fill it
            target.queue.expire(now_ms, target.queue.config.max_expire_sweep)
    for target in targets:
        for queue in recipients(target.queue):
            _check_access(session, queue)
        if not (target.queue.has_room(item, now_ms) if target.stores else _fits(target.queue, item)):
            return _why_not(session, target.queue, item)
    return _store_each(session, targets, item, now_ms)


class PutBatch:
    """A running put of several items, some a turn. The put ends at the first item that is not stored, so that the
    client can put the rest again. `finish(stored, refused)` is called at the end; `refused` is the error of an item
    that was refused.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        items: Sequence[bytes],
        expires_ms: int,
        finish: Callable[[int, QueueRefused | None], None],
    ) -> None:
        self.session = session
        self.name = name
        self.items = items
        self.expires_ms = expires_ms
        self.finish = finish
        self.stored = 0

    def store_some(self, now_ms: int) -> None:
        """Store a turn's share of the items. Never raises TryNextTurn: the stored items must not be stored again."""
        counters, items = self.session.broker.counters, self.items
        last, size, wide = min(self.stored + ITEMS_PER_TURN, len(items)), 0, 0
        refusal: TryNextTurn | None = None
        while self.stored < last and size <= BYTES_PER_TURN and wide < WIDE_PER_TURN:
            item = Item(items[self.stored], now_ms, self.expires_ms)
            try:
                verdict = store(self.session, self.name, item, now_ms)
            except TryNextTurn as refused:
                refusal = refused
                break
            except QueueRefused as refused:
                counters.cmd_set += 1
                self.finish(self.stored, refused)
                return
            counters.cmd_set += 1
            if verdict is not STORED:
                self.finish(self.stored, None)
                return
            self.stored += 1
            size += len(item.data)
            if self.stored < len(items) and self.session.cancel_yield():
                wide += 1  # the item went to many queues, and each writes its copy this turn
        if self.stored < len(items):
            self.session.yield_turn(self.store_some)
            if refusal is not None:
                self.session.pause_after(refusal, now_ms)
        else:
            self.finish(self.stored, None)


def _count_by_alias(queues: Queues, name: str, item: Item) -> None:
    """Count the item for the alias `name` and for each alias that it leads to."""
    for alias_name in queues.reached(name)[0]:
        alias = queues.aliases[alias_name]
        alias.put_items += 1
        alias.put_bytes += len(item.data)


def _store_each(session: Session, targets: list[Target], item: Item, now_ms: int) -> PutResult:
    """Store a copy in each target. If one refuses it, the others keep theirs. Children come first, as in Kestrel."""
    verdict = STORED
    if len(targets) > TARGETS_AT_ONCE:
        session.yield_turn()
    for target in targets:
        is_plain = type(item) is Item
        copy = Item(item.data, item.added_ms, item.expires_ms, item.flags) if is_plain else copy_of(item)
        if target.counts:
            _check_access(session, target.queue)
        if target.queue.add(copy, now_ms) if target.stores else _fits(target.queue, item):
            session.broker.counters.total_items += target.queue.copies
        elif target.counts:
            verdict = _why_not(session, target.queue, item)
        session.depend_on(target.queue)
    return verdict


def _check_access(session: Session, queue: Queue) -> None:
    if queue.needs_check and (why := access.write_refusal(session, queue)):
        raise QueueRefused(why, client=False)


def _check_room(session: Session, targets: list[Target], item: Item) -> None:
    if not session.broker.group.admits(len(targets) * (len(item.data) + RECORD_OVERHEAD_BYTES)):
        raise QueueRefused(access.disk_full(session.broker.group), client=False)


def _why_not(session: Session, queue: Queue, item: Item) -> PutResult:
    fits = _fits(queue, item)
    session.broker.limits.count("queue_full" if fits else "max_item_size")
    return PutResult.FULL if fits else PutResult.TOO_LARGE


def _fits(queue: Queue, item: Item) -> bool:
    return len(item.data) <= queue.config.max_item_bytes
