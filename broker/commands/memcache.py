"""Commands of the memcache protocol on queues, one function for each request type, and the table that finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from staniel.broker import access
from staniel.broker.commands import admin, by_id, changes, gets, rules
from staniel.broker.commands.batches import BatchCommand, PieceCommand
from staniel.broker.commands.gets import get
from staniel.broker.commands.guarded import guarded
from staniel.broker.commands.monitor import MonitorCommand, confirm
from staniel.broker.commands.puts import set_item
from staniel.broker.commands.rules import Commands, handlers_of
from staniel.broker.events import Level
from staniel.broker.operations.audit import Result
from staniel.broker.rights import Role
from staniel.broker.session import FrequentCommands, Session
from staniel.broker.version import WIRE_VERSION
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.item_requests import Get, Set
from staniel.protocol.memcache.requests import Dialect
from staniel.protocol.requests import Invalid, More
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

ERROR = b"ERROR\r\n"


def may_write(session: Session, queue: Queue | None, noreply: bool = False) -> bool:
    """Tell whether this session may change queues now. If not, the client has been sent an error."""
    if session.needs_check and (why := access.write_refusal(session, queue)):
        session.refuse(why, noreply)
        return False
    return True


def is_blocked(session: Session, name: str, noreply: bool = False) -> bool:
    """Tell whether the queue is not served because its files cannot be read; it is neither empty nor unknown then. If
    so, the client has been sent an error.
    """
    why = session.broker.queues.why_blocked(name)
    if why:
        session.refuse(why, noreply)
    return bool(why)


def delete(session: Session, request: memcache.Delete, now_ms: int) -> None:
    """Delete a queue and its files. Waiting readers get their replies at once."""
    if not may_write(session, None, request.noreply) or is_blocked(session, request.queue, request.noreply):
        return

    def then(existed: bool, why: str) -> None:
        if why:
            session.refuse(why, request.noreply)
        elif not request.noreply:
            session.out.append(session.replies.deleted if existed else session.replies.not_found)

    changes.delete(session, request.queue, now_ms, then)


def flush(session: Session, request: memcache.Flush, now_ms: int) -> None:
    """Remove every item of one queue. An unknown queue is already empty."""
    queue = session.broker.queues.find(request.queue)
    if why := access.flush_refusal(session, [] if queue is None else [queue]):
        session.refuse(why)
        return
    if is_blocked(session, request.queue):
        return
    if queue is not None and changes.empty(session, queue, now_ms, partial(flush, session, request)) is None:
        return
    session.out.append(session.replies.end)


def flush_all(session: Session, request: memcache.FlushAll, now_ms: int) -> None:
    if why := access.flush_refusal(session, session.broker.queues):
        session.refuse(why, request.noreply)
        return

    def finish() -> None:
        if why := access.blocked_queues(session.broker.queues):
            session.refuse(why, request.noreply)
        elif not request.noreply:
            session.out.append(session.replies.flushed_all)

    flush_each(session, now_ms, finish).visit_some(now_ms)


def flush_each(session: Session, now_ms: int, finish: Callable[[], None]) -> BatchCommand[Queue]:
    """Flush every queue, then call `finish`."""

    items = 0

    def visit(queue: Queue, now_ms: int) -> bool:
        nonlocal items
        if not queue.prepare_flush():
            return False
        items += queue.flush()
        session.depend_on(queue)
        return True

    def end() -> None:
        audit.record_operation(session, "flush_all", now_ms, items=items, number=number)
        finish()

    audit = session.broker.audit
    session.log_event("queues.flushed", now_ms, queues=len(session.broker.queues.by_name))
    number = audit.record_operation(session, "flush_all", now_ms, result=Result.BEGUN)
    return BatchCommand(session, session.broker.queues, visit, end)


def monitor(session: Session, request: memcache.Monitor, now_ms: int) -> None:
    """Open items as they arrive, each with a whole reply of its own; then END."""
    out, replies = session.out, session.replies
    get = memcache.Get(request.key, request.queue, open=True)
    queues = session.broker.queues

    def finish() -> None:
        out.append(replies.end)

    def show(taken: Delivery) -> None:
        item = taken.item
        replies.append_item(out, get, item.data, item.flags, taken.id)
        session.shown = get
        session.out_bytes += len(item.data)

    if request.queue in queues.aliases or request.wait_ms <= 0 or request.max_items == 0:
        finish()
        return
    # Kestrel refuses a monitor without a reply.
    queue = gets.queue_for(session, request.queue, now_ms, noreply=session.dialect is Dialect.KESTREL)
    if queue is None or gets.is_crowded(session, queue, now_ms, opens=True, waits=True):
        return
    limit = session.max_open_reads
    most = limit if request.max_items is None else request.max_items
    MonitorCommand(session, queue, now_ms + request.wait_ms, most, show, finish).send_some(now_ms)


def confirm_many(session: Session, request: memcache.Confirm, now_ms: int) -> None:
    """Confirm the oldest open reads of a queue, all of them or none."""
    if not confirm(session, request.queue, request.count, now_ms, lambda: session.out.append(session.replies.end)):
        session.out.append(ERROR)


def touch(session: Session, request: memcache.Touch, now_ms: int) -> None:
    """Let the time-outs of all reads that this connection has open on a queue begin again; many of them over several
    turns.
    """
    open_still = 0

    def pieces() -> Iterator[None]:
        nonlocal open_still
        for queue, taken in list(session.reads.get(request.queue, ())):
            open_still += queue.extend(taken, now_ms)
            yield

    def finish(now_ms: int) -> None:
        if not request.noreply:
            session.out.append(session.replies.touched if open_still else session.replies.not_found)

    PieceCommand(session, pieces(), finish).make_some(now_ms)


def version(session: Session, request: memcache.Version, now_ms: int) -> None:
    session.out.append(session.replies.version(WIRE_VERSION))


def verbosity(session: Session, request: memcache.Verbosity, now_ms: int) -> None:
    """Accept the command for clients that send it, without effect: the operator sets the log level."""
    if not request.noreply:
        session.out.append(session.replies.ok)


def client_name(session: Session, request: memcache.ClientName, now_ms: int) -> None:
    session.client_name = request.name
    session.out.append(session.replies.ok)


def more(session: Session, request: More, now_ms: int) -> None:
    """Parse another slice of the received bytes, in the next turn."""

    def step(now_ms: int) -> None:
        session.backlog.extendleft(reversed(request.resume()))

    session.yield_turn(step)


def quit_session(session: Session, request: memcache.Quit, now_ms: int) -> None:
    session.hang_up(b"")


def invalid(session: Session, request: Invalid, now_ms: int) -> None:
    """Reply to a request that the parser rejected."""
    session.broker.limits.count("invalid_requests")
    if request.hang_up:
        session.broker.rate_limited(Level.INFO, "session.refused", now_ms, client=session.address, why=request.why)
        session.hang_up(request.reply)
    elif request.reply:
        session.out.append(request.reply)
    else:
        session.note_unheard("", request.why, now_ms)


class MemcacheCommands(FrequentCommands):
    """The functions of HANDLERS for frequent requests. A request for a queue that is not yet known to be allowed goes
    through the session's table.
    """

    __slots__ = ()

    def serve(self, session: Session, request: Any, now_ms: int) -> None:
        kind = type(request)
        if kind is Get and (session.readable is None or session.knows(session.readable, request.queue)):
            get(session, request, now_ms)
        elif kind is Set and (session.writable is None or session.knows(session.writable, request.queue)):
            set_item(session, request, now_ms)
        else:
            session.handlers[kind](session, request, now_ms)


COMMANDS: Commands = {
    memcache.Set: (set_item, rules.WRITE),  # set <queue> <flags> <expiry> <length> [noreply]
    memcache.Get: (gets.get, rules.READ),  # get <key> [<key>…]
    memcache.GetMany: (gets.get_many, rules.read_each_get),  # get <key> [<key>…]
    memcache.GetKeys: (gets.get_keys, rules.read_each_key),  # get <key> [<key>…]
    memcache.GetSome: (gets.get_some, rules.on_part(Role.READ, "get")),  # get <queue>/n=<count>…
    memcache.Touch: (touch, rules.READ),  # touch <queue> <expiry> [noreply]
    memcache.ConfirmItem: (by_id.confirm_item, rules.READ),  # delete <queue>/id=<id> [noreply]
    memcache.AbortItem: (by_id.abort_item, rules.READ),  # touch <queue>/id=<id>/abort <expiry> [noreply]
    memcache.ExtendItem: (by_id.extend_item, rules.READ),  # touch <queue>/id=<id> <expiry> [noreply]
    memcache.Monitor: (monitor, rules.READ),  # monitor <key> <seconds> [<count>]
    memcache.Confirm: (confirm_many, rules.READ),  # confirm <queue> <count>
    memcache.Delete: (delete, rules.OPERATE),  # delete <queue> [0] [noreply]
    memcache.Flush: (flush, rules.OPERATE),  # flush <queue>
    memcache.FlushAll: (flush_all, rules.OPERATE_ALL),  # flush_all [0] [noreply]
    memcache.FlushExpired: (admin.flush_expired, rules.OPERATE),  # flush_expired <queue>
    memcache.FlushAllExpired: (admin.flush_all_expired, rules.OPERATE_ALL),  # flush_all_expired
    memcache.Move: (admin.move, rules.operate_both),  # move <from> <to> [<count>]
    memcache.Pause: (guarded(admin.pause), rules.OPERATE),  # pause <queue> [gets|puts|all]
    memcache.Stats: (guarded(admin.show_stats), rules.look_at_all),  # stats <topic>
    memcache.DumpStats: (guarded(admin.dump_stats), rules.read_named),  # dump_stats [<queue>…]
    memcache.DumpConfig: (guarded(admin.dump_config), rules.read_named),  # dump_config [<queue>…]
    memcache.Status: (guarded(admin.status), rules.known_or_admin),  # status <name>
    memcache.Reload: (guarded(admin.reload), rules.ADMIN),  # reload
    memcache.Version: (version, rules.known),  # version
    memcache.Verbosity: (verbosity, rules.known),  # verbosity <level> [noreply]
    memcache.ClientName: (client_name, rules.known),  # client_name <name>
    memcache.Quit: (quit_session, rules.always),  # quit
    memcache.Shutdown: (admin.shutdown, rules.ADMIN),  # shutdown
    Invalid: (invalid, rules.always),
    More: (more, rules.always),
}
"""The table of requests: by type the function that serves it, the right that it needs, and its line in
docs/protocol.md. The grammar is in protocol/memcache/commands.py.
"""
HANDLERS = handlers_of(COMMANDS)
