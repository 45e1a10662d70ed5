"""The start and the stop of the server, and the joining of its parts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

import trio

from staniel.broker.broker import Broker
from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import Level
from staniel.broker.recovery import RecoverySummary
from staniel.broker.status import ServerStatus
from staniel.broker.version import VERSION
from staniel.compiled import BUILD
from staniel.journal.disk.fs import AlreadyLocked, FilesMisplaced
from staniel.journal.disk.refusals import described, remedy
from staniel.journal.group_commit import JournalFailure
from staniel.journal.spool import SpoolError
from staniel.server import heap, signals
from staniel.server.clock import ServerClock, steady_ms
from staniel.server.connection_limits import Reserve
from staniel.server.file_systems import report_flaws
from staniel.server.gc_policy import GcPolicy
from staniel.server.hub import Hub
from staniel.server.keepalive import spare_slow_readers
from staniel.server.listener import Endpoint
from staniel.server.listener_tls import secure
from staniel.server.log import ServerLog
from staniel.server.loop import Loop
from staniel.server.machine import ListeningSocket, SystemMachine, own_name
from staniel.server.outlet import Outlet, OutletStream, say
from staniel.server.progress import megabytes
from staniel.server.secret_files import watch_secrets
from staniel.server.sockets import PORT_HINT, BoundSockets, StartError
from staniel.server.spool_socket import allowed_clients
from staniel.server.start import Start, prepare
from staniel.server.supervisor import Supervisor

BACKLOG = 1024
LOOKS = 48  # checks of the open files, some at a time, after a failure
MISPLACED = 3  # exit code: a supervisor that restarts the server would make a new spool in place of the old one


def greeting(bound: BoundSockets, config: Config, summary: RecoverySummary, took_ms: int) -> str:
    """Return the line that a start prints."""
    where = ", ".join(("tls:" if sock in bound.secure else "") + own_name(sock) for sock, _ in bound.sockets)
    jobs = f", {summary.jobs} job{'s' * (summary.jobs != 1)}" if config.all_addresses("workq") else ""
    recovered = f"{summary.queues} queue{'s' * (summary.queues != 1)}, {summary.items} item{'s' * (summary.items != 1)}"
    recovered += f"{jobs} recovered in {took_ms} ms"
    recovered += f", {megabytes(summary.read_bytes)} MB read"
    if summary.spared_bytes:
        recovered += f", {megabytes(summary.spared_bytes)} MB spared by summaries"
    if summary.status is not ServerStatus.UP:
        recovered += f", status {summary.status.value.lower()}"
    if summary.paused:
        recovered += f", {summary.paused} paused queue{'s' * (summary.paused > 1)}"
    if summary.unreadable:
        recovered += f", {summary.unreadable} unreadable queue{'s' * (summary.unreadable > 1)}"
    if summary.jobs_unreadable:
        recovered += ", an unreadable command log"
    return f"staniel {VERSION} listens on {where}, spool {os.path.abspath(config.server.spool)}: {recovered} ({BUILD})"


async def serve(load: Callable[[], Config], log: ServerLog) -> None:
    """Run until a signal or `shutdown`. Raises StartError, SpoolError, AlreadyLocked, JournalFailure."""
    config = load()
    if config.cluster.name:
        from staniel.server.cluster.app import serve_member  # a server that stands alone loads nothing of it

        await serve_member(load, log)
        return
    start = prepare(config, load, log)
    broker = start.make_broker(start.fs)
    report_flaws(start.flaws, log.report)
    with BoundSockets(config) as bound:
        start.open_for_spool(bound, broker.spool.own)
        await open_service(start, broker, bound, log)
    log.report(Level.INFO, "server.stopped", **broker.status.stop_cause)


async def open_service(start: Start, broker: Broker, bound: BoundSockets, log: ServerLog) -> None:
    """Recover the spool, then serve until a signal or `shutdown`."""
    config = start.config
    clock = ServerClock()
    broker.wall.read_notes(clock.read, clock.now_ms())
    began_ms = steady_ms()
    gc_policy = GcPolicy()
    gc_policy.disable()
    start.notice.read_from_now_on()
    summary = start.recover(broker, clock.now_ms())
    gc_policy.enable()
    broker.watch.begin_rounds(clock.now_ms())
    if config.all_addresses("admin"):  # a page may be opened; without one a history begins when it is asked for
        broker.sampler(clock.now_ms())
    machine = SystemMachine(clock)
    hub = Hub(broker, machine, start.clients)
    security = secure(broker) if bound.secure else None
    watch_secrets(broker)
    for sock, wire in bound.all():
        try:
            sock.listen(config.server.connection_backlog or BACKLOG)
        except OSError as error:
            raise StartError(f"cannot listen on {own_name(sock)}: {error.strerror}; {PORT_HINT}") from error
        is_of_spool = bound.of_spool is not None and sock is bound.of_spool[0]
        acceptor = ListeningSocket(sock, allowed_clients() if is_of_spool else None)
        reserve = Reserve.SPOOL if is_of_spool else Reserve.OPERATORS if wire.name == "admin" else Reserve.NONE
        hub.listen(Endpoint(acceptor, wire, security if sock in bound.secure else None, reserve))
    start.notice.end()
    hello = greeting(bound, config, summary, steady_ms() - began_ms)
    failure = await run_until_stopped(Loop(hub, machine, gc_policy), hello, log, start.supervisor)
    if failure is not None:
        raise failure
    hub.close()


async def run_until_stopped(loop: Loop, hello: str, log: ServerLog, supervisor: Supervisor) -> Exception | None:
    """Print `hello` once signals are handled, then serve. Return the failure of the disk, or of memory, that ended the
    service, if one did; a nursery would wrap it if it were raised.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(stop_on_signal, loop)
        if signals.begin_service():
            loop.reload()
        say(hello)
        supervisor.notify("READY=1", f"STATUS={hello}")
        nursery.start_soon(supervisor.stay_alive)
        nursery.start_soon(log.keep_writing)
        nursery.start_soon(spare_slow_readers, loop.hub.sockets, loop.hub.broker.config.server.tcp_user_timeout_ms)
        try:
            await loop.run()
        except (JournalFailure, OSError, MemoryError) as error:
            failure = cause(loop.hub.broker, error)
        supervisor.notify("STOPPING=1")
        nursery.cancel_scope.cancel()
    return failure


def cause(broker: Broker, error: Exception) -> Exception:
    """Return the cause of the `error` that ends the server: files that another program has moved away, if it has, else
    `error`.
    """
    try:
        for _ in range(LOOKS):
            broker.spool.check_files_in_place()
    except FilesMisplaced as found:
        return found
    return error


async def stop_on_signal(loop: Loop, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Stop the server cleanly at SIGTERM and SIGINT; reload the configuration at SIGHUP. server/signals.py handles
    earlier signals.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP:
                loop.reload()
            else:
                loop.hub.broker.status.stop(f"signal {signal.Signals(number).name}")
                loop.stop()


def run(load: Callable[[], Config], log_format: str = "") -> int:
    """Serve the configuration of `load`, called now and at each reload. Return the exit code. Every failure is one line
    that says what to do. `log_format` is the format of lines before the configuration is known.
    """
    heap.set_thresholds()
    outlet = Outlet(2)
    sys.stderr = OutletStream(outlet, 2)
    try:
        return serve_until_end(load, ServerLog(outlet, log_format))
    finally:
        outlet.close()


def serve_until_end(load: Callable[[], Config], log: ServerLog) -> int:
    """Serve, and return the exit code once the reason for the end is in the log."""
    try:
        trio.run(serve, load, log)
    except (ConfigError, StartError, SpoolError, AlreadyLocked, JournalFailure, OSError, MemoryError) as error:
        log.complain(last_line(error))
        return MISPLACED if isinstance(error, FilesMisplaced) else 1
    return 0


def last_line(error: Exception) -> str:
    """Return the line about the error that has ended the server, and what to do about it."""
    match error:
        case AlreadyLocked():
            return f"the spool is in use by {error}; stop it, or give another with --spool"
        case FilesMisplaced():
            hint = "put the files back, then start again: the server then serves their items"
            return f"{error}; no more requests are served; {hint}"
        case JournalFailure():
            mend = remedy(error.__cause__, "mend the disk, then start again")
            return f"{error}; nothing was acknowledged since; {mend}; recovery does the rest"
        case OSError():
            mend = remedy(error, "start again once that is mended")
            return f"{described(error)}; nothing was acknowledged since; {mend}"
        case MemoryError():
            hint = "give it more, or less to max_memory_size_total and max_pending_size_total, then start again"
            return f"out of memory; nothing was acknowledged since; {hint}"
    return str(error)
