"""memcached's meta commands: the same puts, reads and deletes, with meta codes in the replies. A quiet client gets only
the replies that memcached sends to quiet clients.
"""

from __future__ import annotations

import binascii
from functools import partial

import msgspec
from msgspec import structs

from staniel.broker import access
from staniel.broker.admin.browse import past_view
from staniel.broker.commands import changes, delayed_puts, gets, keyed_puts, puts, rules
from staniel.broker.commands import memcache as commands
from staniel.broker.commands.by_id import ReadSearch
from staniel.broker.commands.puts import PutResult
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.rights import Role
from staniel.broker.session import Session
from staniel.protocol.limits import LONG_ITEM_BYTES
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import without_ends
from staniel.protocol.memcache.meta_fields import Meta
from staniel.protocol.memcache.replies import MetaValues
from staniel.queues.delays import expiry_of
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

DONE = b"HD"
NOT_STORED = b"NS"
EXISTS = b"EX"
NOT_FOUND = b"NF"
VALUE = b"VA"
UNLIMITED = -1
NO_PAST = b"-"
NO_CAS = 0  # as memcached without CAS: an item has no id before it leaves the line for the first time


def put(session: Session, request: memcache.MetaSet, now_ms: int) -> None:
    """Store an item, as `set` does. A quiet client gets replies to failures only."""
    asked, meta = request.set, request.meta
    counters = session.broker.counters
    expires_ms = asked.expires_ms if asked.ttl_ms is None else session.calendar.end_of_life(now_ms, asked.ttl_ms)
    item = Item(asked.data, now_ms, expires_ms, asked.flags)
    verdict: PutResult | None
    try:
        if meta.delay_ms:
            item = delayed_puts.with_delay(session, asked.queue, item, meta.delay_ms, now_ms, meta.put_key)
        if meta.put_key:
            again = partial(put, session, request)
            verdict = keyed_puts.store_once(session, asked.queue, meta.put_key, item, now_ms, again)
        else:
            verdict = puts.store(session, asked.queue, item, now_ms)
    except QueueRefused as refused:
        counters.cmd_set += 1
        puts.reply_refusal(session, refused)
        return
    if verdict is None:
        return
    counters.cmd_set += 1
    if verdict is PutResult.TOO_LARGE:
        puts.reply_too_large(session, asked)
    elif verdict is PutResult.FULL:
        session.out.append(session.replies.meta(NOT_STORED, meta))
    elif verdict is PutResult.ALREADY_STORED:
        session.out.append(session.replies.meta(EXISTS, meta))
    elif not meta.quiet:
        session.out.append(session.replies.meta(DONE, meta, {b"s": len(asked.data), b"c": NO_CAS}))


def get(session: Session, request: memcache.MetaGet, now_ms: int) -> None:
    """Read an item, as `get` does. A quiet client gets items only."""
    queue = gets.approach(session, request.get, now_ms, partial(miss, session, request.meta))
    if queue is not None:
        look(session, request, queue, now_ms)


def look(session: Session, request: memcache.MetaGet, queue: Queue, now_ms: int) -> None:
    taken = gets.fetch(session, request.get, queue, now_ms)
    if taken is None and queue.is_unsettled:
        again = structs.replace(request, get=without_ends(request.get))
        session.retry_after_sweep(queue, partial(get, session, again))
    elif taken is None and request.get.wait_ms > 0:
        wait(session, request, queue, now_ms)
    else:
        answer(session, request, queue, taken, now_ms)


def wait(session: Session, request: memcache.MetaGet, queue: Queue, now_ms: int) -> None:
    asked = request.get

    def on_delivery(taken: Delivery | None, now_ms: int) -> None:
        queue_now = session.waited_at
        if taken is not None and asked.open:
            gets.hold(session, queue_now, taken)
        elif taken is not None and not asked.peek:
            session.add_unsent(queue_now, taken)
        answer(session, request, queue_now, taken, now_ms)

    session.park(queue, now_ms + asked.wait_ms, on_delivery, opens=asked.open, peeks=asked.peek)


def answer(session: Session, request: memcache.MetaGet, queue: Queue, taken: Delivery | None, now_ms: int) -> None:
    if taken is None and queue.line.read_error is not None:
        session.refuse(access.trouble(queue))
        return
    session.depend_on(queue)
    gets.count(session, request.get, queue, taken)
    if taken is None:
        miss(session, request.meta)
        return
    item, replies = taken.item, session.replies
    facts = figures_of(queue, taken, request.meta, now_ms)
    if request.value:
        if len(item.data) > LONG_ITEM_BYTES:
            session.out += replies.meta_in_pieces(VALUE, request.meta, facts, item.data)
        else:
            session.out.append(replies.meta(VALUE, request.meta, facts, item.data))
        session.out_bytes += len(item.data)
    else:
        session.out.append(replies.meta(DONE, request.meta, facts))


def look_at_open(session: Session, request: memcache.MetaOpenItem, now_ms: int) -> None:
    """Show figures of an item that this client has open. `EN`: it is not open."""
    replies, meta = session.replies, request.meta

    def show(queue: Queue, taken: Delivery, now_ms: int) -> bool:
        if queue.open_reads.get(taken.xid) is not taken:
            return False
        session.out.append(replies.meta(DONE, meta, figures_of(queue, taken, meta, now_ms)))
        return True

    ReadSearch(session, request, show, b"", b"" if meta.quiet else replies.meta_miss).begin_search(now_ms)


def figures_of(queue: Queue, taken: Delivery, meta: Meta, now_ms: int) -> MetaValues:
    """Return the figures of an item by their flags."""
    item = taken.item
    figures: dict[bytes, int | bytes] = {
        b"f": item.flags,
        b"s": len(item.data),
        b"c": taken.id,
        b"d": taken.deliveries,
        b"t": ttl_s(queue, item, now_ms),
        b"h": int(taken.deliveries > 1),  # whether the item was delivered before this reply
        b"l": max(0, now_ms - queue.calendar.added_ms(item, now_ms)) // 1000,
    }
    if any(word[:1] == b"p" for word in meta.shown):
        figures[b"p"] = past_word(item)
    return figures


def past_word(item: Item) -> bytes:
    """Return the past of a dead letter as base64 of JSON, with the fields of the admin API; `-` without a past."""
    past = past_view(item)
    if past is None:
        return NO_PAST
    return binascii.b2a_base64(msgspec.json.encode(past), newline=False)


def with_key(meta: Meta, key: bytes) -> Meta:
    """Return the same contents of a reply with another key, which is written as the client wrote its own."""
    return structs.replace(meta, key=binascii.b2a_base64(key, newline=False) if meta.base64 else key)


def miss(session: Session, meta: Meta) -> None:
    if not meta.quiet:
        session.out.append(session.replies.meta_miss)


def ttl_s(queue: Queue, item: Item, now_ms: int) -> int:
    """Return the whole seconds until the item's own expiry; -1: it does not expire."""
    return max(0, queue.calendar.ends_ms(item, now_ms) - now_ms) // 1000 if expiry_of(item) else UNLIMITED


def delete(session: Session, request: memcache.MetaDelete, now_ms: int) -> None:
    """Delete a queue, as `delete` does. A quiet client gets a reply only if the queue did not exist."""
    if not commands.may_write(session, None) or commands.is_blocked(session, request.queue):
        return

    def then(existed: bool, why: str) -> None:
        if why:
            session.refuse(why)
        elif not existed:
            session.out.append(session.replies.meta(NOT_FOUND, request.meta))
        elif not request.meta.quiet:
            session.out.append(session.replies.meta(DONE, request.meta))

    changes.delete(session, request.queue, now_ms, then)


def noop(session: Session, request: memcache.MetaNoop, now_ms: int) -> None:
    session.out.append(session.replies.meta_noop)


def debug(session: Session, request: memcache.MetaDebug, now_ms: int) -> None:
    session.out.append(session.replies.meta_miss)


COMMANDS: Commands = {
    memcache.MetaSet: (put, rules.on_part(Role.WRITE, "set")),  # ms
    memcache.MetaGet: (get, rules.on_part(Role.READ, "get")),  # mg
    memcache.MetaOpenItem: (look_at_open, rules.READ),  # mg <queue>/id=<id> <flags>*
    memcache.MetaDelete: (delete, rules.OPERATE),  # md
    memcache.MetaNoop: (noop, rules.known),  # mn
    memcache.MetaDebug: (debug, rules.known),  # me
}
HANDLERS = handlers_of(COMMANDS)
