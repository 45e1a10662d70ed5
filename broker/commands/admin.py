"""The operator's commands in the memcache protocol: statistics, status, configuration, sweeping, pausing, moving items,
stopping.

A move is not a put: it has no fan-out, and the target is one queue, never an alias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from staniel.broker import access, stats
from staniel.broker.commands import changes
from staniel.broker.commands.batches import BatchCommand, ChunkedReply, ExpireBatch, PieceCommand
from staniel.broker.config.load import ReloadError
from staniel.broker.operations.move import RunningMove, move_error
from staniel.broker.operations.running import OperationRequest
from staniel.broker.session import Session
from staniel.broker.status import ServerStatus, by_name
from staniel.protocol.memcache import requests as memcache
from staniel.protocol.memcache.requests import Dialect
from staniel.queues.queue import Queue

SERVER_TOPIC = "server"  # of `stats`
CLIENT_ERROR = b"CLIENT_ERROR\r\n"
QUEUES_ADDED_UP_PER_TURN = 2000
BLOCKS_PER_TURN = 16


def show_stats(session: Session, request: memcache.Stats, now_ms: int) -> None:
    """Reply to the plain `stats`, or with the server's part of it alone. memcached's own topics have no statistics
    here: the reply is END alone, because clients expect one.
    """
    broker, replies = session.broker, session.replies
    if request.topic not in ("", SERVER_TOPIC):
        session.out.append(replies.end)
        return
    totals = stats.QueueTotals()
    answer = ChunkedReply(session)

    def tell(facts: Iterable[tuple[str, object]]) -> None:
        answer.add(b"".join([replies.stat(name, value) for name, value in facts]))

    def add_up(queue: Queue, now_ms: int) -> bool:
        totals.add(queue)
        return True

    def show(queue: Queue, now_ms: int) -> bool:
        tell(stats.named_stats(queue, broker.spool, now_ms, session.dialect))
        return True

    def show_all() -> None:
        tell(server_stats(session, totals, now_ms))
        if request.topic:
            answer.end(replies.end)
            return
        session.yield_turn(BatchCommand(session, broker.queues, show, show_others, fail=answer.fail).visit_some)

    def show_others() -> None:
        pieces = map(tell, stats.other_stats(broker.queues, broker.workq if broker.serves_jobs else None))
        PieceCommand(session, pieces, lambda now_ms: answer.end(replies.end), answer.fail).make_some(now_ms)

    BatchCommand(session, broker.queues, add_up, show_all, QUEUES_ADDED_UP_PER_TURN, answer.fail).visit_some(now_ms)


def server_stats(session: Session, totals: stats.QueueTotals, now_ms: int) -> Iterator[tuple[str, object]]:
    """Yield all statistics of the server itself, in the order of `stats`."""
    broker, counters = session.broker, session.counters
    yield from stats.server_stats(broker.queues, broker.spool, broker.status, counters, totals, now_ms)
    unreadable = len(broker.queues.blocked) + totals.unreadable
    keys, limits = broker.put_keys, broker.limits
    yield from stats.refusal_stats(len(broker.pauses), unreadable, broker.logins, counters, keys, limits)
    yield from stats.hold_stats(broker.file_holds, now_ms)
    if broker.serves_jobs:
        yield "unreadable_command_logs", int(bool(broker.workq.trouble))


def dump_stats(session: Session, request: memcache.DumpStats, now_ms: int) -> None:
    """Reply with statistics by queue, as blocks."""
    broker = session.broker
    names = request.queues or [queue.name for queue in broker.queues]

    def facts(name: str, now_ms: int) -> Iterator[tuple[str, object]]:
        return stats.by_name(broker.queues, broker.spool, name, now_ms, session.dialect)

    write_blocks(session, names, facts, now_ms)


def dump_config(session: Session, request: memcache.DumpConfig, now_ms: int) -> None:
    """Reply with the resolved settings of queues, as blocks."""
    broker = session.broker
    names = request.queues or [queue.name for queue in broker.queues]
    write_blocks(session, names, lambda name, now_ms: broker.config.describe(name), now_ms)


def write_blocks(
    session: Session, names: Sequence[str], facts: Callable[[str, int], Iterable[tuple[str, object]]], now_ms: int
) -> None:
    """Write a block for each name, then END. Kestrel writes an empty line if there are no names."""
    answer = ChunkedReply(session)

    def show(name: str, now_ms: int) -> bool:
        answer.add(session.replies.block(name, list(facts(name, now_ms))))
        return True

    def finish() -> None:
        answer.end(session.replies.end)

    if not names:
        answer.add(b"\r\n")
    BatchCommand(session, names, show, finish, BLOCKS_PER_TURN, answer.fail).visit_some(now_ms)


def flush_expired(session: Session, request: memcache.FlushExpired, now_ms: int) -> None:
    """Drop the expired items at the head of one queue; reply with their count."""
    queue = session.broker.queues.find(request.queue)
    if session.needs_check and (why := access.write_refusal(session, queue)):
        session.refuse(why, noreply=session.dialect is Dialect.KESTREL)  # Kestrel disconnects without a reply
        return
    if why := session.broker.queues.why_blocked(request.queue):
        session.refuse(why)
        return
    sweep_out(session, [] if queue is None else [queue], now_ms)


def flush_all_expired(session: Session, request: memcache.FlushAllExpired, now_ms: int) -> None:
    sweep_out(session, session.broker.queues, now_ms)


def sweep_out(session: Session, queues: Iterable[Queue], now_ms: int) -> None:
    """Drop the expired items of `queues`, then reply with their count."""
    sweeping = ExpireBatch(session)
    BatchCommand(
        session, queues, sweeping.visit, lambda: session.out.append(session.replies.number(sweeping.total))
    ).visit_some(now_ms)


def status(session: Session, request: memcache.Status, now_ms: int) -> None:
    """Show or change the server's status. A change that would have to wait for another is ignored, as in Kestrel."""
    broker = session.broker
    if request.name is None:
        session.out.append(broker.status.reported.value.upper().encode() + b"\r\n")
        return
    wanted = by_name(request.name)
    if wanted is None:
        session.client_error(f"no status {request.name}: up, writeavoid, readonly or quiescent", CLIENT_ERROR)
        return
    try:
        change_status(session, wanted, now_ms)
    except OSError as error:
        session.refuse(f"the status cannot be kept: {error.strerror}")
        return
    session.out.append(session.replies.end)


def change_status(session: Session, wanted: ServerStatus, now_ms: int) -> None:
    """Change the server's status, and note it in the audit log. Raises OSError if the status cannot be stored."""
    was, began_ns = session.broker.status.reported, session.broker.step_clock.now_ns()
    try:
        is_changed = session.broker.set_status(wanted, now_ms)
    finally:
        session.rest_since(began_ns)  # a file was written and synced
    if is_changed:
        session.log_event("status.changed", now_ms, was=was.value.lower(), now=wanted.value.lower())
        session.broker.audit.record_operation(session, "status", now_ms, target=wanted.value.lower())


def pause(session: Session, request: memcache.Pause, now_ms: int) -> None:
    """Hold back gets or puts of one queue, or let them go on."""
    queue = session.broker.queues.find(request.queue)
    if queue is None:
        if why := session.broker.queues.why_blocked(request.queue):
            session.refuse(why)
        else:
            session.out.append(session.replies.not_found)
        return
    try:
        changes.pause(session, queue, now_ms, gets=request.gets, puts=request.puts, is_paused=request.paused)
    except OSError as error:
        session.refuse(f"the pause cannot be kept: {error.strerror}")
        return
    session.out.append(session.replies.ok)


def reload(session: Session, request: memcache.Reload, now_ms: int) -> None:
    """Read the configuration again, and name the changes that need a restart. A file with errors changes nothing."""
    try:
        reload_for(session, now_ms, lambda later: session.out.append(session.replies.reloaded(later)))
    except ReloadError as error:
        session.refuse(str(error))


def reload_for(session: Session, now_ms: int, answer: Callable[[str], None]) -> None:
    """Reload the configuration, then call `answer` with the settings that need a restart. Raises ReloadError."""
    running = session.broker.reload(now_ms)
    session.broker.audit.record_operation(session, "reload", now_ms)
    if running.is_done:
        answer(running.later)
        session.yield_turn()  # the rest of the turn's share went into reading and checking a file
    else:
        running.on_end = session.suspend_until_told(lambda later, now_ms: answer(later))


def shutdown(session: Session, request: memcache.Shutdown, now_ms: int) -> None:
    session.broker.audit.record_operation(session, "stop", now_ms)
    session.broker.status.stop("shutdown", session.address)
    session.hang_up(b"")


def move(session: Session, request: memcache.Move, now_ms: int) -> None:
    """Move items. The reply has their count, and comes when all have been moved."""
    if why := move_error(session.broker.queues, request.source, request.target):
        session.client_error(why)
        return
    queues = session.broker.queues
    if why := queues.why_blocked(request.source) or queues.why_blocked(request.target):
        session.refuse(why)
        return
    source = queues.find(request.source)
    if source is None:
        session.out.append(session.replies.not_found)
        return

    operations, by = session.broker.operations, session.broker.audit.requester(session)
    asked = OperationRequest(by, "move", request.count, undoably=False)
    running = RunningMove(operations, asked, source, request.target, now_ms)

    def answer(now_ms: int) -> None:
        for queue in (source, queues.find(request.target)):
            if queue is not None:
                session.depend_on(queue)
        if running.why and not running.done:
            session.refuse(running.why)
        else:
            session.out.append(session.replies.moved(running.done))

    changes.answer_at_end(session, running, answer)
