"""Puts with an idempotency key, for all protocols: one whose key is known is refused as already stored.

The reply to a repeated put waits for the same batch as that to the first one, which may be in the same turn: so it
never says that an item is stored which a power cut could still take.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from staniel.broker import access
from staniel.broker.commands import puts, rules
from staniel.broker.commands.puts import STORED, PutResult, store
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.session import Session
from staniel.journal.journals import append_log, next_write_position
from staniel.journal.put_key_log import LINE_BYTES_MAX
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Set
from staniel.queues.item import Item, new_item
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

ALREADY_STORED = PutResult.ALREADY_STORED
NOT_IN_USE = "key= is not in use on this server: put_key_life is none, or max_put_keys is 0"


def set_once(session: Session, request: memcache.KeyedSet, now_ms: int) -> None:
    """Append an item, unless one was put with this key."""
    asked = request.set
    expires_ms = asked.expires_ms
    if asked.ttl_ms is not None:
        expires_ms = session.calendar.end_of_life(now_ms, asked.ttl_ms)
    item = new_item(asked.data, now_ms, expires_ms, asked.flags)
    try:
        result = store_once(session, asked.queue, request.key, item, now_ms, partial(set_once, session, request))
    except QueueRefused as refused:
        puts.refuse_set(session, asked, refused, now_ms)
        return
    if result is not None:
        reply(session, asked, result, now_ms)


def reply(session: Session, asked: Set, result: PutResult, now_ms: int) -> None:
    """Reply to a set with options."""
    session.counters.cmd_set += 1
    if result is not STORED and result is not ALREADY_STORED:
        puts.reply_unstored(session, asked, result, now_ms)
    elif not asked.noreply:
        session.out.append(session.stored if result is STORED else session.replies.exists)


def store_once(
    session: Session, name: str, key: str, item: Item, now_ms: int, again: Callable[[int], None]
) -> PutResult | None:
    """Put `item` to the queue `name`, unless an item was put to it with `key`. None: its journal is about to be
    rewritten, and `again` is called after that. Raises QueueRefused and TryNextTurn; then nothing has been stored.
    """
    broker = session.broker
    keys, queue = broker.put_keys, session.by_name.get(name)
    if queue is not None and keys.is_known(name, key, now_ms):
        return _already_stored(session, queue)
    if not keys.is_on:
        raise QueueRefused(NOT_IN_USE, client=True)
    if session.needs_check and (why := access.write_refusal(session, None)):
        raise QueueRefused(why, client=False)
    if name in broker.queues.aliases:
        raise QueueRefused(f"key= needs one queue, and {name} is an alias", client=True)
    queue = broker.queues.make_for_client(name, now_ms)
    if queue.children or queue.fanout_only:
        raise QueueRefused(f"key= needs one queue, and {name} has fan-out children", client=True)
    if why := keys.why_unclear(name, key):
        raise QueueRefused(why, client=False)
    if (log := keys.must_wait(queue)) is not None:
        session.retry_after_sync(log, again)
        return None
    if not session.group.admits(len(item.data) + LINE_BYTES_MAX):
        raise QueueRefused(access.disk_full(session.group), client=False)
    try:
        keys.log.prepare()
    except OSError as error:
        raise QueueRefused(
            f"the keys of puts cannot be written: {keys.log.path}: {error.strerror}", client=False
        ) from error
    came_by = append_log(queue.journal)
    position = (0, 0) if came_by is None else next_write_position(came_by)
    result = store(session, name, item, now_ms)
    if result is STORED:
        keys.add(queue, key, position, item, now_ms)
    return result


def _already_stored(session: Session, queue: Queue) -> PutResult:
    session.broker.put_keys.repeated += 1
    session.depend_on(queue)
    return ALREADY_STORED


COMMANDS: Commands = {
    memcache.KeyedSet: (set_once, rules.WRITE),  # set <queue>/key=<key> <flags> <expiry> <length> [noreply]
}
"""The function, the right and the line of the request, as in commands/memcache.py."""
HANDLERS = handlers_of(COMMANDS)
