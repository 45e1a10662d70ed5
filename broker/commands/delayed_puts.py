"""Puts with a delay, for all protocols: no client gets the item before it is due (queues/delays.py).

The due time is stored with the item, in a note that Kestrel's format has room for and libkestrel's has not.
"""

from __future__ import annotations

from functools import partial

from staniel.broker import access
from staniel.broker.commands import keyed_puts, puts, rules
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.session import Session
from staniel.protocol.memcache import requests as memcache
from staniel.queues.delays import delayed_item
from staniel.queues.item import Item, new_item
from staniel.queues.registry import QueueRefused
from staniel.queues.stream.queue import StreamQueue


def set_delayed(session: Session, request: memcache.DelayedSet, now_ms: int) -> None:
    """Append an item that is handed out when its delay has passed."""
    asked = request.set
    expires_ms = asked.expires_ms
    if asked.ttl_ms is not None:
        expires_ms = session.calendar.end_of_life(now_ms, asked.ttl_ms)
    item = new_item(asked.data, now_ms, expires_ms, asked.flags)
    try:
        item = with_delay(session, asked.queue, item, request.delay_ms, now_ms, request.key)
        if not request.key:
            keyed_puts.reply(session, asked, puts.store(session, asked.queue, item, now_ms), now_ms)
            return
        again = partial(set_delayed, session, request)
        result = keyed_puts.store_once(session, asked.queue, request.key, item, now_ms, again)
    except QueueRefused as refused:
        puts.refuse_set(session, asked, refused, now_ms)
        return
    if result is not None:
        keyed_puts.reply(session, asked, result, now_ms)


def with_delay(session: Session, name: str, item: Item, delay_ms: int, now_ms: int, key: str = "") -> Item:
    """Return `item` with a delay, to be put to `name` now. Raises QueueRefused if a queue that `name` stands for cannot
    keep a delay, and TryNextTurn.
    """
    if not delay_ms:
        return item
    if key and name in session.by_name and session.broker.put_keys.is_known(name, key, now_ms):
        return item  # it is not stored again
    if session.needs_check and (why := access.write_refusal(session, None)):
        raise QueueRefused(why, client=False)
    for target in session.broker.queues.targets(name, now_ms):
        queue = target.queue
        if isinstance(queue, StreamQueue):
            raise QueueRefused(
                f"delay= is not possible in libkestrel's format, which {queue.name} has: put without a delay, or set "
                "journal_format to kestrel for a new queue",
                client=True,
            )
        if queue.is_resting_full:
            raise QueueRefused(
                f"items with a delay fill the memory of {queue.name} (max_memory_size): put again when some are due",
                client=False,
            )
    return delayed_item(session.calendar, item, delay_ms, now_ms)


COMMANDS: Commands = {
    memcache.DelayedSet: (set_delayed, rules.WRITE),  # set <queue>/delay=<ms> <flags> <expiry> <length> [noreply]
}
"""The function, the right and the line of the request, as in commands/memcache.py."""
HANDLERS = handlers_of(COMMANDS)
