"""The start of a server that is a member of a cluster: what a server that stands alone checks, then its lock, its
sockets, and the process of the member.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.broker.config.load import Config
from staniel.broker.events import Level
from staniel.broker.recovery import RecoverySummary
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import lock_spool
from staniel.server.clock import ServerClock
from staniel.server.cluster.disk_calls import NotingFs
from staniel.server.cluster.driver import Driver, MemberStopped, MustBeginAnew
from staniel.server.cluster.leading import LeaderService
from staniel.server.cluster.member_process import MemberProcess, Parts, begin_anew
from staniel.server.file_systems import report_flaws
from staniel.server.gc_policy import GcPolicy
from staniel.server.log import ServerLog
from staniel.server.machine import SystemMachine, own_name
from staniel.server.outlet import say
from staniel.server.sockets import BoundSockets, StartError
from staniel.server.start import Start, prepare


class LeaderMaker(Struct, frozen=True):
    """The maker of a leader's broker and hub, once its member takes over."""

    start: Start
    clock: ServerClock

    def make_broker(self, fs: Fs) -> tuple[Broker, RecoverySummary]:
        """Recover the spool. Raises SpoolError, JournalFailure, OSError."""
        broker = self.start.make_broker(fs)
        broker.wall.read_notes(self.clock.read, self.clock.now_ms())
        return broker, self.start.recover(broker, self.clock.now_ms())

    def make_service(self, driver: Driver, broker: Broker, summary: RecoverySummary) -> LeaderService:
        """Make the hub of a recovered spool."""
        broker.watch.begin_rounds(self.clock.now_ms())
        if self.start.config.all_addresses("admin"):
            broker.sampler(self.clock.now_ms())
        gc_policy = GcPolicy()
        gc_policy.enable()
        self.start.notice.end()
        self.start.report(Level.INFO, "cluster.leads", queues=summary.queues, items=summary.items)
        return LeaderService(driver, broker, SystemMachine(self.clock), self.start.clients, gc_policy)


async def serve_member(load: Callable[[], Config], log: ServerLog) -> None:
    """Run until a signal or `shutdown`, or begin anew. Raises what `staniel.server.app.serve` does."""
    config = load()
    start = prepare(config, load, log, NotingFs)
    assert isinstance(start.fs, NotingFs)
    report_flaws(start.flaws, log.report)
    folder = config.server.spool
    paths = SpoolPaths(folder, config.workq.cmdlog_path)
    lock_spool(start.fs, folder)
    maker = LeaderMaker(start, ServerClock())
    with BoundSockets(config) as bound:
        start.open_for_spool(bound, paths.own)
        tasks = start.supervisor.stay_alive, log.keep_writing
        parts = Parts(config, start.fs, bound, maker.clock, log.report, maker.make_broker, maker.make_service, tasks)
        process = MemberProcess(parts, paths, admin_token(config, start.fs))
        start.notice.end()
        cluster = config.cluster
        where = ", ".join(own_name(sock) for sock, _ in bound.sockets)
        hello = f"staniel member {cluster.member} of {cluster.name} listens on {where}, for members on {cluster.listen}"
        say(hello)
        start.supervisor.notify("READY=1", f"STATUS={hello}")
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
