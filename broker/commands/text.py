"""Commands of Kestrel's text protocol, one function for each request type.

A get confirms the open reads that the connection has on the queue, so reads are reliable without a command to confirm.
Source: the text protocol of Kestrel 2.4.
"""

from __future__ import annotations

from functools import partial

from staniel.broker import access
from staniel.broker.commands import changes, gets, puts, rules
from staniel.broker.commands.admin import change_status
from staniel.broker.commands.guarded import guarded
from staniel.broker.commands.memcache import invalid, more, quit_session
from staniel.broker.commands.monitor import MonitorCommand, confirm
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.session import Session
from staniel.broker.status import by_name
from staniel.broker.version import WIRE_VERSION
from staniel.protocol.limits import LONG_ITEM_BYTES
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.requests import Invalid, More
from staniel.protocol.text import requests as text
from staniel.protocol.text.replies import TextReplies
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused

replies = TextReplies


def put(session: Session, request: text.TextPut, now_ms: int) -> None:
    """Store items until one is refused; reply with the number stored. These are the first ones, so the client can put
    the others again.
    """

    def finish(stored: int, refused: QueueRefused | None) -> None:
        if refused is None or stored:
            session.out.append(replies.number(stored))
        elif not refused.client and access.write_refusal(session, None):
            session.out.append(replies.not_available("setItem"))  # Kestrel's words for a status
        else:
            session.out.append(replies.error(refused.why))

    expires_ms = 0 if request.ttl_ms is None else session.calendar.end_of_life(now_ms, request.ttl_ms)
    puts.PutBatch(session, request.queue, request.items, expires_ms, finish).store_some(now_ms)


def get(session: Session, request: text.TextGet, now_ms: int) -> None:
    """Confirm the open reads, then open the next item."""
    confirm_all(session, request.queue)
    limit = session.max_open_reads
    if limit <= 0:
        session.out.append(replies.too_many_open(limit))
        return
    read(session, request.queue, request.wait_ms, now_ms, opens=True)


def peek(session: Session, request: text.TextPeek, now_ms: int) -> None:
    """Confirm the open reads, then show the head."""
    confirm_all(session, request.queue)
    read(session, request.queue, request.wait_ms, now_ms, opens=False)


def read(session: Session, name: str, wait_ms: int, now_ms: int, *, opens: bool) -> None:
    queue = queue_to_read(session, name, "getItem", now_ms, peeks=not opens)
    if queue is None:
        return
    if why := access.crowd_refusal(
        session.broker.limits, session.address, queue, now_ms, opens=opens, waits=wait_ms > 0
    ):
        session.out.append(replies.error(why))
        return
    kind = memcache.Get(b"", name, open=opens, peek=not opens)
    until_ms = now_ms + wait_ms

    def answer(queue: Queue, taken: Delivery | None) -> None:
        if taken is None and queue.line.read_error is not None:
            session.out.append(replies.error(access.trouble(queue)))
            return
        if taken is not None and opens:
            gets.hold(session, queue, taken)
        gets.count(session, kind, queue, taken)
        session.depend_on(queue)
        show(session, taken)

    def on_delivery(taken: Delivery | None, now_ms: int) -> None:
        answer(session.waited_at, taken)

    def again(now_ms: int) -> None:
        read(session, name, max(0, until_ms - now_ms), now_ms, opens=opens)

    taken = queue.open(now_ms) if opens else queue.peek(now_ms)
    if taken is None and queue.is_unsettled:
        session.retry_after_sweep(queue, again)
    elif taken is None and wait_ms > 0:
        session.park(queue, until_ms, on_delivery, opens=opens, peeks=not opens)
    else:
        answer(queue, taken)


def show(session: Session, taken: Delivery | None) -> None:
    if taken is None:
        session.out.append(replies.none)
    else:
        data = taken.item.data
        if len(data) > LONG_ITEM_BYTES:
            session.out += replies.item_in_pieces(data)
        else:
            session.out.append(replies.item(data))
        session.out_bytes += len(data)


def monitor(session: Session, request: text.TextMonitor, now_ms: int) -> None:
    """Send items as they arrive, as many as may be open; then a star."""
    confirm_all(session, request.queue)
    queue = queue_to_read(session, request.queue, "monitorUntil", now_ms)
    if queue is None:
        return
    if why := access.crowd_refusal(session.broker.limits, session.address, queue, now_ms, opens=True, waits=True):
        session.out.append(replies.error(why))
        return
    limit = session.max_open_reads

    def finish() -> None:
        session.out.append(replies.none)

    def show_one(taken: Delivery) -> None:
        show(session, taken)

    MonitorCommand(session, queue, now_ms + request.wait_ms, limit, show_one, finish).send_some(now_ms)


def confirm_some(session: Session, request: text.TextConfirm, now_ms: int) -> None:
    if not confirm(
        session, request.queue, request.count, now_ms, lambda: session.out.append(replies.number(request.count))
    ):
        session.out.append(replies.not_that_many)


def confirm_all(session: Session, name: str) -> None:
    while name in session.reads:
        gets.close_oldest(session, name)


def queue_to_read(session: Session, name: str, operation: str, now_ms: int, *, peeks: bool = False) -> Queue | None:
    """Return the queue, created if reading creates it. Return None after an error reply. Raises TryNextTurn."""
    if name in session.broker.queues.aliases:
        session.out.append(replies.none)
        return None
    if access.read_refusal(session, None):
        session.out.append(replies.not_available(operation))
        return None
    try:
        queue = session.broker.queues.to_read(name, now_ms, creates=session.creates)
    except QueueRefused as refused:
        session.out.append(replies.error(refused.why))
        return None
    if why := access.trouble(queue):
        session.out.append(replies.error(why))
        return None
    if not peeks and access.read_refusal(session, queue):
        session.out.append(replies.not_available(operation))
        return None
    return queue


def flush(session: Session, request: memcache.Flush, now_ms: int) -> None:
    queue = session.broker.queues.find(request.queue)
    if access.flush_refusal(session, [] if queue is None else [queue]):
        session.out.append(replies.not_available("flush"))
        return
    if why := session.broker.queues.why_blocked(request.queue):
        session.out.append(replies.error(why))
        return
    if queue is not None and changes.empty(session, queue, now_ms, partial(flush, session, request)) is None:
        return
    session.out.append(replies.done)


def delete(session: Session, request: memcache.Delete, now_ms: int) -> None:
    if access.write_refusal(session, None):
        session.out.append(replies.not_available("delete"))
        return
    broker = session.broker
    if why := broker.queues.why_blocked(request.queue):
        session.out.append(replies.error(why))
        return

    def then(existed: bool, why: str) -> None:
        session.out.append(replies.error(why) if why else replies.done)

    changes.delete(session, request.queue, now_ms, then)


def status(session: Session, request: memcache.Status, now_ms: int) -> None:
    """Show or change the server's status."""
    broker = session.broker
    if request.name is None:
        session.out.append(replies.show(broker.status.reported.value.upper()))
        return
    wanted = by_name(request.name)
    if wanted is None:
        forbidden = request.name.lower() == "down"
        session.out.append(replies.status_forbidden if forbidden else replies.unknown_status)
        return
    try:
        change_status(session, wanted, now_ms)
    except OSError as error:
        session.out.append(replies.error(f"the status cannot be kept: {error.strerror}"))
        return
    session.out.append(replies.done)


def version(session: Session, request: memcache.Version, now_ms: int) -> None:
    session.out.append(replies.show(WIRE_VERSION))


def shutdown(session: Session, request: memcache.Shutdown, now_ms: int) -> None:
    session.broker.status.stop("shutdown", session.address)
    session.hang_up(replies.done)


COMMANDS: Commands = {
    text.TextPut: (put, rules.WRITE),
    text.TextGet: (get, rules.READ),
    text.TextPeek: (peek, rules.READ),
    text.TextMonitor: (monitor, rules.READ),
    text.TextConfirm: (confirm_some, rules.READ),
    memcache.Flush: (flush, rules.OPERATE),
    memcache.Delete: (delete, rules.OPERATE),
    memcache.Status: (guarded(status), rules.known_or_admin),
    memcache.Version: (version, rules.known),
    memcache.Quit: (quit_session, rules.always),
    memcache.Shutdown: (shutdown, rules.ADMIN),
    Invalid: (invalid, rules.always),
    More: (more, rules.always),
}
HANDLERS = handlers_of(COMMANDS)
