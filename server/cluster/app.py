"""The start of a server that is a member of a cluster: what a server that stands alone checks, then its lock, its
sockets, and the process of the member.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.broker.config.load import Config
from staniel.broker.events import EventSink, Level
from staniel.broker.recovery import RecoveryProgress, RecoverySummary
from staniel.broker.users import Logins
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.file_system import FileSystemFlaw
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.spool import LOCK, lock_spool
from staniel.server.clock import ServerClock, steady_ms
from staniel.server.cluster.driver import Driver, MemberStopped, MustBeginAnew
from staniel.server.cluster.leading import LeaderService
from staniel.server.cluster.member_process import MemberProcess, Parts, begin_anew
from staniel.server.file_systems import check_file_systems, flaws, report_flaws
from staniel.server.gc_policy import GcPolicy
from staniel.server.log import ServerLog
from staniel.server.machine import SystemMachine, own_name
from staniel.server.outlet import say
from staniel.server.process import ProcessReader
from staniel.server.progress import Display
from staniel.server.reopening import ReopenWait
from staniel.server.sockets import BoundSockets, StartError
from staniel.server.spool_socket import allowed_clients
from staniel.server.start_checks import allow_files, check_again, check_file_size, check_network
from staniel.server.start_notice import StartFs, StartNotice
from staniel.server.supervisor import Supervisor
from staniel.server.sync_thread import close_apart


class LeaderMaker(Struct):
    """The maker of a leader's broker and hub, once its member takes over. `journals` and `clients`: how many files of
    each may be open.
    """

    config: Config
    load: Callable[[], Config]
    report: EventSink
    clock: ServerClock
    notice: StartNotice
    flaws: dict[str, FileSystemFlaw]
    journals: int
    clients: int
    is_file_size_limited: bool

    def make_broker(self, fs: Fs) -> tuple[Broker, RecoverySummary]:
        """Recover the spool. Raises SpoolError, JournalFailure, OSError."""
        report = self.report
        broker = Broker(self.config, fs, report, self.load, Logins(os.urandom(32), allowed_clients()))
        broker.spool.is_file_size_limited = self.is_file_size_limited
        broker.group.open_files.allow(self.journals)
        broker.group.open_files.wait = ReopenWait(report, time.sleep)
        broker.health.disk.file_systems = self.flaws
        broker.process = ProcessReader()
        broker.check_reload = partial(check_again, self.flaws)
        broker.wall.read_notes(self.clock.read, self.clock.now_ms())
        display = Display(report, steady_ms, sys.stderr)

        def show(progress: RecoveryProgress) -> None:
            display(progress)
            self.notice(progress)

        return broker, broker.recover(self.clock.now_ms(), show)

    def make_service(self, driver: Driver, broker: Broker, summary: RecoverySummary) -> LeaderService:
        """Make the hub of a recovered spool."""
        broker.watch.begin_rounds(self.clock.now_ms())
        if self.config.all_addresses("admin"):
            broker.sampler(self.clock.now_ms())
        gc_policy = GcPolicy()
        gc_policy.enable()
        self.notice.end()
        self.report(Level.INFO, "cluster.leads", queues=summary.queues, items=summary.items)
        return LeaderService(driver, broker, SystemMachine(self.clock), self.clients, gc_policy)


async def serve_member(load: Callable[[], Config], log: ServerLog) -> None:
    """Run until a signal or `shutdown`, or begin anew. Raises what `staniel.server.app.serve` does."""
    config = load()
    log.open(config.server.log_level, config.server.log_format)
    journals, clients = allow_files()
    is_limited = check_file_size(config)
    check_network(config, log.report)
    fs_flaws = flaws(config, OsFs(), os.environ)
    check_file_systems(config, fs_flaws)
    report_flaws(fs_flaws, log.report)
    supervisor = Supervisor(os.environ, os.getpid())
    notice = StartNotice(steady_ms, lambda text: supervisor.notify(f"STATUS={text}"))
    fs = StartFs(close_apart, notice, f"/{OWN_FOLDER}/{LOCK}")
    folder = config.server.spool
    paths = SpoolPaths(folder, config.workq.cmdlog_path)
    lock_spool(fs, folder)
    maker = LeaderMaker(
        config, load, log.report, ServerClock(), notice, fs_flaws, journals, clients, is_file_size_limited=is_limited
    )
    with BoundSockets(config) as bound:
        if config.admin.socket and (error := bound.open_for_spool(paths.own)) is not None:
            hint = "staniel's commands cannot reach this server over the spool; use [admin] listen"
            log.report(Level.WARNING, "admin.no_socket", why=error.strerror, hint=hint)
        tasks = supervisor.stay_alive, log.keep_writing
        parts = Parts(config, fs, bound, maker.clock, log.report, maker.make_broker, maker.make_service, tasks)
        process = MemberProcess(parts, paths, admin_token(config, fs))
        notice.end()
        cluster = config.cluster
        where = ", ".join(own_name(sock) for sock, _ in bound.sockets)
        hello = f"staniel member {cluster.member} of {cluster.name} listens on {where}, for members on {cluster.listen}"
        say(hello)
        supervisor.notify("READY=1", f"STATUS={hello}")
        await process.run()
    ending = process.ending
    if isinstance(ending, MustBeginAnew):
        log.report(Level.INFO, "cluster.begins_anew")
        begin_anew()
    if isinstance(ending, MemberStopped):
        raise StartError(f"this member stops: {ending}; see docs/replication.md")
    if ending is not None:
        raise ending
    log.report(Level.INFO, "server.stopped", why=process.stop_cause)


def admin_token(config: Config, fs: OsFs) -> bytes | None:
    """Return the token that operators' requests over TCP carry, b"" if there is none; None if users must log in."""
    if config.users:
        return None
    if not config.admin.token_file:
        return b""
    lines = fs.read(config.admin.token_file, 0, 1 << 10).splitlines()
    if not lines:
        raise StartError(f"{config.admin.token_file} has no token ([admin] token_file)")
    return lines[0].strip()
