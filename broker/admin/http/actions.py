"""Requests that change something: POST and DELETE, with a body of JSON. Each reply says how many items it was about.

A reply leaves when the change is as durable as the queue's policy says, as for every other client.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from staniel.broker import access
from staniel.broker.admin import payloads
from staniel.broker.admin.browse import as_text
from staniel.broker.admin.http.choosing import choose, chosen_count, under_way
from staniel.broker.admin.http.exchange import BadBody, Exchange
from staniel.broker.admin.http.queries import find, find_operation
from staniel.broker.commands import changes, delayed_puts, keyed_puts, puts
from staniel.broker.commands.admin import change_status, reload_for
from staniel.broker.commands.gets import hold
from staniel.broker.commands.monitor import confirm
from staniel.broker.config.load import ReloadError
from staniel.broker.operations.deletions import too_many
from staniel.broker.operations.move import RunningMove, move_error
from staniel.broker.operations.purge import RunningDrop, RunningPurge
from staniel.broker.operations.redrive import RunningRedrive
from staniel.broker.operations.resumption import begin_undo
from staniel.broker.operations.running import Operation, OperationRequest
from staniel.broker.operations.undo import UndoRecord
from staniel.broker.selection.chosen import Chosen
from staniel.broker.selection.search import ItemSearch
from staniel.broker.session import Session
from staniel.broker.status import by_name
from staniel.journal.undo_file import DELETE
from staniel.protocol.http import replies
from staniel.protocol.http.requests import RAW
from staniel.protocol.memcache.keys import DELAY_MS_MAX, PUT_KEY_BYTES_MAX
from staniel.queues.item import Delivery, Item
from staniel.queues.names import name_error
from staniel.queues.queue import Queue, QueueState
from staniel.queues.registry import QueueRefused

TAKEN_MAX = 64
TAKEN_BYTES_MAX = 1 << 20
EXPIRES_IN_MS_MAX = 1 << 53  # an expiry is a signed number of 64 bits in every journal


class PutBody(Struct, forbid_unknown_fields=True):
    """An item to put. `encoding`: "text" (UTF-8) or "base64"; `expires_in_ms` 0: it does not expire. `delay_ms`: no
    client gets it before.
    """

    data: str
    encoding: str = "text"
    expires_in_ms: int = 0
    flags: int = 0
    delay_ms: int = 0


class TakeBody(Struct, forbid_unknown_fields=True):
    """A request to take items, at most TAKEN_MAX. `open`: they become open reads of this connection until a later
    request on it confirms them; if the connection ends before, they return to the queue. `confirm`: first confirm this
    many of the oldest open reads; `count` may be 0 then.
    """

    count: int = 1
    open: bool = False
    confirm: int = 0


class PurgeBody(Struct, forbid_unknown_fields=True):
    """A purge. `expected`: the number of items that the operator was shown. At most that many are removed, from the
    head on, and later ones stay; null: all items. `no_undo`: remove them at once and for good, which only a purge of
    the whole queue may ask for. `where`: only items that meet all of these terms (as in /find), anywhere in the queue.
    """

    expected: int | None = None
    no_undo: bool = False
    where: list[str] = []


class MoveBody(Struct, forbid_unknown_fields=True):
    """A move to the queue `to`. `count` null: all present items. `expected`, `where`: as in a purge."""

    to: str
    count: int | None = None
    expected: int | None = None
    where: list[str] = []


class RedriveBody(Struct, forbid_unknown_fields=True):
    """A redrive of dead letters. `to` "": the queue that they left, or each its own queue if they left several.
    `expected`, `where`: as in a purge.
    """

    to: str = ""
    count: int | None = None
    expected: int | None = None
    where: list[str] = []


class PauseBody(Struct, forbid_unknown_fields=True):
    gets: bool = True
    puts: bool = True


class AbortBody(Struct, forbid_unknown_fields=True):
    """An abort of open reads. `expected`: refuse if more reads are open than the operator was shown; null: abort
    all.
    """

    expected: int | None = None


class StatusBody(Struct, forbid_unknown_fields=True):
    """A server status: up, writeavoid, readonly or quiescent."""

    status: str


class Purged(Struct, frozen=True):
    """The result of a purge: `purged` items were removed. `POST /api/undo/UNDO` returns them until `undo_until_at_ms`;
    `undo` 0: it cannot be undone. `why`: the reason why it ended early; "" if it did not.
    """

    purged: int
    undo: int = 0
    undo_until_at_ms: int = 0
    why: str = ""


class DeleteBody(Struct, forbid_unknown_fields=True):
    """A delete. `no_undo`: at once and for good. `expected`: the number of items that the operator was shown; a delete
    that cannot be undone is refused if there are more. A delete that can be undone also keeps items that come until its
    end.
    """

    no_undo: bool = False
    expected: int | None = None


class Deleted(Struct, frozen=True):
    """The result of a delete: the queue had `deleted` items. `POST /api/undo/UNDO` creates it again with them, until
    `undo_until_at_ms`; `undo` 0: it cannot be undone.
    """

    deleted: int
    undo: int = 0
    undo_until_at_ms: int = 0


class MoveResult(Struct, frozen=True):
    """The result of a move: `moved` items were moved. `POST /api/undo/UNDO` moves back those that are still in the
    target, until `undo_until_at_ms`; `undo` 0: it cannot be undone. `why`: the reason why it ended early.
    """

    moved: int
    to: str
    why: str
    undo: int = 0
    undo_until_at_ms: int = 0


class Undone(Struct, frozen=True):
    """The result of an undo: `returned` items are back in `queue`. `why`: the reason why it ended early; the others can
    still be returned. After a move, `open` items are with clients of the other queue, and `gone` items have left it.
    """

    returned: int
    queue: str
    why: str = ""
    open: int = 0
    gone: int = 0


class Taken(Struct, frozen=True):
    """An item that has been taken for good."""

    encoding: str
    data: str
    flags: int
    added_at_ms: int


def put(exchange: Exchange, now_ms: int) -> None:
    """Store one item, with fan-out and aliases, as any client's put. The body is JSON, or the item byte by byte with
    the rest in the query. With the header Idempotency-Key: unless an item was put to the queue with that key.
    """
    name, session = exchange.names[0], exchange.session
    if exchange.request.content_type == RAW:
        data = exchange.request.body
        expires_in_ms = exchange.number("expires_in_ms", 0, EXPIRES_IN_MS_MAX + 1)
        flags = exchange.number("flags", 0, 1 << 32)
        delay_ms = exchange.number("delay_ms", 0, DELAY_MS_MAX + 1)
    else:
        body = exchange.body(PutBody)
        data, expires_in_ms, flags, delay_ms = _data(body), body.expires_in_ms, body.flags, body.delay_ms
    queues = exchange.broker.queues
    if name not in queues.aliases and queues.find(name) is None and (why := name_error(name)):
        exchange.error(400, why)
        return
    if not 0 <= flags < 1 << 32:
        raise BadBody("flags are a number of 32 bits")
    if not 0 <= expires_in_ms <= EXPIRES_IN_MS_MAX:
        raise BadBody(f"expires_in_ms is a number from 0 to {EXPIRES_IN_MS_MAX}")
    if not 0 <= delay_ms <= DELAY_MS_MAX:
        raise BadBody(f"delay_ms is a number from 0 to {DELAY_MS_MAX}")
    expires_ms = exchange.session.calendar.end_of_life(now_ms, expires_in_ms) if expires_in_ms else 0
    counters = exchange.broker.counters
    item, key = Item(data, now_ms, expires_ms, flags), exchange.request.headers.get("idempotency-key")
    result: puts.PutResult | None
    try:
        item = delayed_puts.with_delay(session, name, item, delay_ms, now_ms, key or "")
        if key is None:
            result = puts.store(session, name, item, now_ms)
        else:
            if not 1 <= len(key) <= PUT_KEY_BYTES_MAX:
                raise QueueRefused(f"an Idempotency-Key has 1 to {PUT_KEY_BYTES_MAX} bytes", client=True)
            result = keyed_puts.store_once(session, name, key, item, now_ms, partial(put, exchange))
    except QueueRefused as refused:
        counters.cmd_set += 1
        exchange.error(400 if refused.client else 503, _with_mend(exchange, refused.why))
        return
    if result is None:
        return
    counters.cmd_set += 1
    if result is puts.STORED:
        exchange.json({"stored": 1})
    elif result is puts.PutResult.ALREADY_STORED:
        exchange.json({"stored": 0, "already_stored": 1})
    elif result is puts.PutResult.TOO_LARGE:
        exchange.error(413, f"the item has {len(data)} bytes, max_item_size of {name} is less")
    else:
        exchange.error(409, f"{name} is full (max_items or max_size)")


def _with_mend(exchange: Exchange, why: str) -> str:
    """Return a refusal with the command that ends it, for operators. Other protocols send it without the command."""
    name = next((name for name in exchange.broker.pauses if why == access.puts_paused(name)), None)
    return why if name is None else f"{why}; `staniel resume {name} --puts` ends that"


def _data(body: PutBody) -> bytes:
    if body.encoding == "text":
        return body.data.encode("utf-8", "surrogatepass")
    if body.encoding != "base64":
        raise BadBody('encoding is "text" or "base64"')
    try:
        return b64decode(body.data, validate=True)
    except (Base64Error, ValueError):
        raise BadBody("data is not base64") from None


def take(exchange: Exchange, now_ms: int) -> None:
    """Take items off the head, for good or as open reads, about TAKEN_BYTES_MAX of them. The request does not wait for
    items.
    """
    body = exchange.body(TakeBody)

    def go_on() -> None:
        if body.confirm and body.count == 0:
            exchange.json({"items": []})
        else:
            _take_items(exchange, body, now_ms)

    if not body.confirm:
        go_on()
    elif not confirm(exchange.session, exchange.names[0], body.confirm, now_ms, go_on):
        exchange.error(409, f"this connection has fewer than {body.confirm} items open")


def _take_items(exchange: Exchange, body: TakeBody, now_ms: int) -> None:
    count = max(1, min(body.count, TAKEN_MAX))
    queue = find(exchange)
    if queue is None:
        return
    session, counters = exchange.session, exchange.broker.counters
    if body.open:
        left = session.max_open_reads - len(session.reads.get(queue.name, ()))
        count = min(count, left, queue.max_open_reads - len(queue.open_reads))
        if count <= 0:
            exchange.error(409, f"no more items of {queue.name} may be open (max_open_reads)")
            return
    if why := access.read_refusal(session, queue):
        exchange.error(503, why)
        return
    taken: list[Delivery] = []
    size = 0
    take_one = queue.open if body.open else queue.remove_head
    while len(taken) < count and size < TAKEN_BYTES_MAX and (next_one := take_one(now_ms)) is not None:
        taken.append(next_one)
        size += len(next_one.item.data)
    if not taken and queue.is_unsettled:
        session.retry_after_sweep(queue, partial(_take_items, exchange, body))
        return
    counters.cmd_get += 1
    counters.get_hits += bool(taken)
    counters.get_misses += not taken
    queue.counters.get_items_hit += len(taken)
    for delivery in taken:
        if body.open:
            hold(session, queue, delivery)
        else:
            session.add_unsent(queue, delivery)
    session.depend_on(queue)
    if size <= payloads.LONG_BYTES:
        exchange.json({"items": [taken_view(delivery.item) for delivery in taken]})
        return
    exchange.begin_pieces(replies.JSON)
    exchange.add(b'{"items":[')
    exchange.flush()  # at once: these items are delivered now
    exchange.add_each(_taken_in_pieces([delivery.item for delivery in taken]))


def _taken_in_pieces(items: list[Item]) -> Iterator[bytes]:
    """Yield `items` as JSON, and the end of the reply."""
    for at, item in enumerate(items):
        yield b",{" if at else b"{"
        yield from taken_members(item)
        yield b"}"
    yield b"]}\n"


def taken_members(item: Item) -> Iterator[bytes]:
    """Yield the members of a Taken as JSON, in pieces."""
    yield from payloads.members(item.data)
    yield b',"flags":%d,"added_at_ms":%d' % (item.flags, item.added_ms)


def taken_view(item: Item) -> Taken:
    """Return the item as it is shown to the client that has taken it."""
    text = as_text(item.data, is_cut=False)
    encoding = "base64" if text is None else "text"
    shown = b64encode(item.data).decode("ascii") if text is None else text
    return Taken(encoding, shown, item.flags, item.added_ms)


def purge(exchange: Exchange, now_ms: int) -> None:
    """Remove every waiting item. Open reads are not touched."""
    body = exchange.body(PurgeBody)
    queue = find(exchange)
    if queue is None:
        return
    if why := access.flush_refusal(exchange.session, [queue]):
        exchange.error(503, why)
        return
    if body.where:
        if body.no_undo:
            raise BadBody("no_undo goes with whole queues: a purge by `where` can always be undone")
        choose(exchange, queue, body.where, partial(_purge_chosen, exchange, body), now_ms)
        return
    count = _wanted(body.expected, queue.waiting_items)
    undos = exchange.broker.undos
    if not undos.is_on or body.no_undo or not count:
        _purge_for_good(exchange, queue, count, now_ms)
        return
    if why := undos.refusal(queue, count):
        exchange.error(409, why)
        return
    try:
        running = RunningPurge(exchange.broker.operations, _request(exchange, "purge", count), queue, now_ms)
    except OSError as error:
        exchange.error(503, f"nothing was purged, the undo file cannot be made: {error.strerror}")
        return

    _answer_later(exchange, running, partial(_purged, exchange, queue, running), now_ms)


def _purge_chosen(exchange: Exchange, body: PurgeBody, search: ItemSearch, now_ms: int) -> None:
    queue, undos = search.queue, exchange.broker.undos
    if why := access.flush_refusal(exchange.session, [queue]):
        exchange.error(503, why)
        return
    count = chosen_count(search, _wanted(body.expected, search.found))
    if not count:
        exchange.json(Purged(0))
        return
    if not undos.is_on:
        exchange.error(409, "[admin] undo_time is 0, and a purge by `where` needs it: set it, or purge the whole queue")
        return
    if why := undos.refusal(queue, count, search.chosen.bytes):
        exchange.error(409, why)
        return
    try:
        request = _request(exchange, "purge", count, search.chosen)
        running = RunningPurge(exchange.broker.operations, request, queue, now_ms)
    except OSError as error:
        exchange.error(503, f"nothing was purged, the undo file cannot be made: {error.strerror}")
        return
    _answer_later(exchange, running, partial(_purged, exchange, queue, running), now_ms)


def _purged(exchange: Exchange, queue: Queue, running: Operation, now_ms: int) -> None:
    exchange.operation = ""  # it is in the audit log already
    exchange.session.depend_on(queue)
    if running.why and not running.done:
        exchange.error(503, f"nothing was purged: {running.why}")
    else:
        exchange.json(Purged(running.done, running.undo, running.undo_until_at_ms, running.why))


def _wanted(expected: int | None, present: int) -> int:
    """Return how many of the `present` items an operation affects: at most those that were shown. Raises BadBody."""
    if expected is not None and expected < 0:
        raise BadBody("expected is negative")
    return present if expected is None else min(expected, present)


def _meant(body: MoveBody | RedriveBody, source: Queue, search: ItemSearch | None) -> tuple[int, Chosen | None]:
    """Return (how many items a move affects, which ones); None: the first ones. Raises BadBody."""
    present = source.line.present if search is None else search.found
    count = _wanted(body.expected, present if body.count is None else min(body.count, present))
    return (count, None) if search is None else (chosen_count(search, count), search.chosen)


def _request(exchange: Exchange, name: str, count: int, chosen: Chosen | None = None) -> OperationRequest:
    return OperationRequest(exchange.broker.audit.requester(exchange.session), name, count, chosen)


def _answer_later(exchange: Exchange, running: Operation, answer: Callable[[int], None], now_ms: int) -> None:
    """Reply when the operation has ended. If the client prefers an asynchronous reply, send the operation's id
    at once.
    """
    if exchange.request.headers.get("prefer", "").lower() == "respond-async":
        exchange.operation = ""
        exchange.json(running.view(now_ms), 202)
    else:
        changes.answer_at_end(exchange.session, running, answer)


def _purge_for_good(exchange: Exchange, queue: Queue, count: int, now_ms: int) -> None:
    session = exchange.session
    if queue.state is QueueState.CLOSED:
        exchange.error(404, f"{queue.name} is deleted")
        return
    if count < queue.waiting_items:
        running = RunningDrop(
            exchange.broker.operations, exchange.broker.audit.requester(session), queue, count, now_ms
        )
        _answer_later(exchange, running, partial(_purged, exchange, queue, running), now_ms)
        return
    # If the purge needs another turn, it begins again with the same count, so that items that are put meanwhile stay.
    again = partial(_purge_for_good, exchange, queue, count)
    if (purged := changes.empty(session, queue, now_ms, again, "purge")) is not None:
        exchange.json(Purged(purged, why=exchange.broker.operations.left_aside(queue.name)))


def undo(exchange: Exchange, now_ms: int) -> None:
    """Return what an operation has removed to the end of its queue."""
    record = _undo_record(exchange)
    if record is None:
        return
    session, name, broker = exchange.session, record.queue, exchange.broker
    if name in broker.queues.aliases:
        exchange.error(409, f"{name} is an alias now")
        return
    if why := access.write_refusal(session, None) or broker.queues.why_blocked(name):
        exchange.error(503, why)
        return
    try:
        running = begin_undo(broker.operations, exchange.broker.audit.requester(session), record, now_ms)
    except QueueRefused as refused:
        exchange.error(503, refused.why)
        return
    except OSError as error:
        exchange.error(503, f"nothing was returned, the undo file cannot be opened: {error.strerror}")
        return
    if running is None:
        gone, _ = record.content.counts()
        broker.undos.drop(record, "")
        broker.audit.record_operation(session, "undo", now_ms, queue=name, target=str(record.id))
        exchange.json(Undone(0, name, gone=gone))
        return

    def answer(now_ms: int) -> None:
        exchange.operation = ""  # it is in the audit log already
        for queue in map(broker.queues.find, record.content.queues):
            if queue is not None:
                session.depend_on(queue)
        if running.why and not running.done:
            exchange.error(503, f"nothing was returned: {running.why}")
        else:
            exchange.json(Undone(running.done, name, running.why, running.open, running.gone))

    _answer_later(exchange, running, answer, now_ms)


def forget_undo(exchange: Exchange, now_ms: int) -> None:
    """Drop the undo file of an operation: the removed items cannot be returned any more."""
    record = _undo_record(exchange)
    if record is not None:
        items, _ = record.content.counts()
        exchange.broker.undos.drop(record, "an operator wished it")
        exchange.broker.audit.record_operation(
            exchange.session, "forget", now_ms, queue=record.queue, target=str(record.id), items=items
        )
        exchange.json({"forgotten": items})


def _undo_record(exchange: Exchange) -> UndoRecord | None:
    """Return the undo record that the path names. Return None after an error, or if an operation uses the record."""
    text = exchange.names[0]
    record = (
        exchange.broker.undos.by_id.get(int(text)) if text.isascii() and text.isdigit() and len(text) < 19 else None
    )
    if record is None:
        exchange.error(404, f"there is nothing to undo under {text}: it expired, or it was undone")
    elif record.is_in_use:
        exchange.error(409, f"{text} is under way, or is being undone")
    else:
        return record
    return None


def cancel(exchange: Exchange, now_ms: int) -> None:
    """End an operation early, between two items: what was done stays done, and can be undone."""
    operation = find_operation(exchange)
    if operation is None:
        return
    if operation.ended_ms:
        exchange.error(409, f"operation {operation.id} has ended: {operation.state.value}")
        return
    operation.cancel()
    exchange.broker.audit.record_operation(
        exchange.session, "cancel", now_ms, queue=operation.queue_name, target=str(operation.id)
    )
    exchange.json(operation.view(now_ms))


def move(exchange: Exchange, now_ms: int) -> None:
    body = exchange.body(MoveBody)
    source = find(exchange)
    if source is not None:
        _move(exchange, source, body.to, body, now_ms, "move")


def redrive(exchange: Exchange, now_ms: int) -> None:
    """Move dead letters back to the queues that they left."""
    body = exchange.body(RedriveBody)
    source = find(exchange)
    if source is None:
        return
    target = body.to
    if not target:
        origins = _origins(exchange, source.name)
        if len(origins) != 1:
            _redrive_home(exchange, source, body, now_ms)
            return
        target = origins[0]
    _move(exchange, source, target, body, now_ms, "redrive")


def _redrive_home(exchange: Exchange, source: Queue, body: RedriveBody, now_ms: int) -> None:
    """Redrive each item to the queue that it left: several queues share this dead-letter queue, or none names it."""
    if body.count is not None and body.count < 0:
        raise BadBody("count is negative")
    if body.where:
        choose(exchange, source, body.where, partial(_send_home, exchange, source, body), now_ms)
    else:
        _send_home(exchange, source, body, None, now_ms)


def _send_home(exchange: Exchange, source: Queue, body: RedriveBody, search: ItemSearch | None, now_ms: int) -> None:
    request = _request(exchange, "redrive", *_meant(body, source, search))
    running = RunningRedrive(exchange.broker.operations, request, source, now_ms)

    def answer(now_ms: int) -> None:
        exchange.operation = ""  # it is in the audit log already
        exchange.session.depend_on(source)
        if running.why and not running.done:
            exchange.error(409, _with_mend(exchange, running.why))
        else:
            exchange.json(MoveResult(running.done, "", running.why, running.undo, running.undo_until_at_ms))

    _answer_later(exchange, running, answer, now_ms)


def _origins(exchange: Exchange, name: str) -> list[str]:
    """Return the queues whose dead letters go to `name`: existing ones, and those that the configuration names."""
    origins = [queue.name for queue in exchange.broker.queues if queue.config.dead_letter_queue == name]
    resolved = exchange.broker.config.resolved
    named = [queue_name for queue_name in resolved if queue_name and resolved[queue_name].dead_letter_queue == name]
    return list(dict.fromkeys([*origins, *named]))


def _move(
    exchange: Exchange,
    source: Queue,
    target: str,
    body: MoveBody | RedriveBody,
    now_ms: int,
    operation: str,
) -> None:
    queues, rights = exchange.broker.queues, exchange.rights
    if rights is not None and (why := access.target_refusal(rights, queues, target)):
        exchange.forbid(why)
        return
    if why := move_error(queues, source.name, target):
        exchange.error(400, why)
        return
    if why := queues.why_blocked(target):
        exchange.error(503, why)
        return
    if body.count is not None and body.count < 0:
        raise BadBody("count is negative")
    if body.where:
        choose(exchange, source, body.where, partial(_begin_move, exchange, source, target, body, operation), now_ms)
    else:
        _begin_move(exchange, source, target, body, operation, None, now_ms)


def _begin_move(
    exchange: Exchange,
    source: Queue,
    target: str,
    body: MoveBody | RedriveBody,
    operation: str,
    search: ItemSearch | None,
    now_ms: int,
) -> None:
    queues = exchange.broker.queues
    request = _request(exchange, operation, *_meant(body, source, search))
    running = RunningMove(exchange.broker.operations, request, source, target, now_ms)

    def answer(now_ms: int) -> None:
        exchange.operation = ""  # it is in the audit log already
        for queue in (source, queues.find(target)):
            if queue is not None:
                exchange.session.depend_on(queue)
        if running.why and not running.done:
            exchange.error(409 if running.is_target_full else 503, _with_mend(exchange, running.why))
        else:
            exchange.json(MoveResult(running.done, target, running.why, running.undo, running.undo_until_at_ms))

    _answer_later(exchange, running, answer, now_ms)


def pause(exchange: Exchange, now_ms: int) -> None:
    body = exchange.body(PauseBody)
    _pause(exchange, now_ms, body, is_paused=True)


def resume(exchange: Exchange, now_ms: int) -> None:
    body = exchange.body(PauseBody)
    _pause(exchange, now_ms, body, is_paused=False)


def _pause(exchange: Exchange, now_ms: int, body: PauseBody, *, is_paused: bool) -> None:
    queue = find(exchange)
    if queue is None:
        return
    try:
        changes.pause(exchange.session, queue, now_ms, gets=body.gets, puts=body.puts, is_paused=is_paused)
    except OSError as error:
        exchange.error(503, f"the pause cannot be kept: {error.strerror}")
        return
    exchange.json({"gets_paused": queue.gets_paused, "puts_paused": queue.puts_paused})


def abort(exchange: Exchange, now_ms: int) -> None:
    """Give one open read back: its item returns to the head of the queue. The client is not notified, and may still
    work on it.
    """
    queue = find(exchange)
    if queue is None:
        return
    xid = exchange.names[1]
    taken = queue.open_reads.get(int(xid)) if xid.isascii() and xid.isdigit() and len(xid) < 19 else None
    if taken is None:
        exchange.error(404, f"{queue.name} has no open read {xid}")
        return
    _abort_each(exchange, deque([(queue, taken)]), now_ms, queue=queue.name)


def abort_all(exchange: Exchange, now_ms: int) -> None:
    """Give back every open read of a queue, the newest first, which restores their order."""
    expected = exchange.body(AbortBody).expected
    queue = find(exchange)
    if queue is None:
        return
    if expected is not None and len(queue.open_reads) > expected:
        exchange.error(
            409, f"{queue.name} has {len(queue.open_reads)} open reads now, not {expected}: none was given back"
        )
        return
    left = deque((queue, taken) for taken in reversed(queue.open_reads.values()))
    _abort_each(exchange, left, now_ms, queue=queue.name)


def abort_client(exchange: Exchange, now_ms: int) -> None:
    """Give back every open read of one client."""
    number = exchange.names[0]
    holder = next((session for session in exchange.broker.sessions if str(session.number) == number), None)
    if holder is None:
        exchange.error(404, f"there is no client {number}")
        return
    _abort_each(exchange, _reads_of(holder), now_ms, client=holder.address)


def _reads_of(session: Session) -> deque[tuple[Queue, Delivery]]:
    return deque(held for reads in session.reads.values() for held in reversed(reads))


def _abort_each(
    exchange: Exchange, left: deque[tuple[Queue, Delivery]], now_ms: int, queue: str = "", client: str = ""
) -> None:
    def finish(count: int) -> None:
        exchange.json({"aborted": count})

    changes.RunningAbort(exchange.session, left, finish, queue, client).abort_some(now_ms)


def delete(exchange: Exchange, now_ms: int) -> None:
    """Delete a queue and its files. Its waiting items are written to an undo file first, unless undo is off or the
    request does not want it.
    """
    body, session, name = exchange.body(DeleteBody), exchange.session, exchange.names[0]
    if why := access.write_refusal(session, None) or exchange.broker.queues.why_blocked(name):
        exchange.error(503, why)
        return
    queue = find(exchange)
    if queue is None:
        return
    if why := under_way(exchange, queue):
        exchange.error(409, why)  # items that an operation has set aside would be deleted without an undo
        return
    undos, deletions, items = exchange.broker.undos, exchange.broker.deletions, queue.waiting_items
    deletions.search(queue, now_ms)
    # A queue whose deletion must wait may get items until then, from an undo or expired ones of another queue.
    if not undos.is_on or body.no_undo or not (items or deletions.must_wait(queue)):
        _delete(exchange, queue, Deleted(items), body.expected, now_ms)
        return
    if why := undos.refusal(queue, items):
        exchange.error(409, why)
        return
    try:
        running = RunningPurge(exchange.broker.operations, _request(exchange, DELETE, items), queue, now_ms)
    except OSError as error:
        exchange.error(503, f"nothing was deleted, the undo file cannot be made: {error.strerror}")
        return

    def answer(now_ms: int) -> None:
        exchange.operation = ""  # it is in the audit log already
        session.batch = max(session.batch, running.batch)
        back = f"; staniel undo {running.undo} brings back what it had" if running.undo else ""
        if running.why:
            exchange.error(503, f"{name} was not deleted: {running.why}{back}")
        else:
            exchange.json(Deleted(running.done, running.undo, running.undo_until_at_ms))

    _answer_later(exchange, running, answer, now_ms)


def _delete(exchange: Exchange, queue: Queue, told: Deleted, items_max: int | None, now_ms: int) -> None:
    """Delete `queue` without an undo. Refuse if it has more than `items_max` items at that moment: the operator must
    not destroy more than was shown.
    """

    def then(was_there: bool, why: str) -> None:
        if why:
            exchange.error(409 if too_many(queue, items_max) else 503, why)
        else:
            exchange.json(told)

    changes.delete(exchange.session, exchange.names[0], now_ms, then, items_max)


def status(exchange: Exchange, now_ms: int) -> None:
    wanted = by_name(exchange.body(StatusBody).status)
    if wanted is None:
        exchange.error(400, "expected up, writeavoid, readonly or quiescent")
        return
    try:
        change_status(exchange.session, wanted, now_ms)
    except OSError as error:
        exchange.error(503, f"the status cannot be kept: {error.strerror}")
        return
    exchange.json({"status": exchange.broker.status.reported.value.lower()})


def reload(exchange: Exchange, now_ms: int) -> None:
    """Read the configuration again."""

    def answer(later: str) -> None:
        exchange.json({"reloaded": True, "only_after_restart": later})

    try:
        reload_for(exchange.session, now_ms, answer)
    except ReloadError as error:
        exchange.error(409, str(error))


def stop(exchange: Exchange, now_ms: int) -> None:
    """Stop the server as SIGTERM does."""
    exchange.broker.audit.record_operation(exchange.session, "stop", now_ms)
    exchange.broker.status.stop("admin", exchange.session.address)
    exchange.json({"stopping": True})
