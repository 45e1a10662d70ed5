"""The start of a server that is a member of a cluster: what a server that stands alone checks, then its lock, its
sockets, and the process of the member.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress

from staniel.broker.admin.reasons import HealthReason
from staniel.broker.broker import Broker
from staniel.broker.config.addresses import TcpAddress, is_loopback, parse_address
from staniel.broker.config.load import Config
from staniel.broker.config.schema import ClusterSettings
from staniel.broker.events import EventSink, Level
from staniel.broker.recovery import RecoverySummary
from staniel.broker.version import VERSION
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.status import MemberStatus
from staniel.compiled import BUILD
from staniel.journal.disk.fs import Fs, JournalFailure
from staniel.journal.spool import lock_spool
from staniel.server.clock import ServerClock, steady_ms
from staniel.server.cluster.disk_calls import NotingFs
from staniel.server.cluster.driver import DiskIsFull, Driver, MemberStopped, MustBeginAnew
from staniel.server.cluster.leading import LeaderService
from staniel.server.cluster.member_config import MemberConfiguration, policy_of
from staniel.server.cluster.member_metrics import metrics_of, metrics_of_follower, reasons_of
from staniel.server.cluster.member_process import MemberProcess, Parts, begin_anew
from staniel.server.cluster.member_tls import member_security
from staniel.server.file_systems import report_flaws
from staniel.server.gc_policy import GcPolicy
from staniel.server.listener_tls import secure
from staniel.server.log import ServerLog
from staniel.server.machine import SystemMachine, own_name
from staniel.server.outlet import say
from staniel.server.process import ProcessReader
from staniel.server.sockets import BoundSockets, StartError
from staniel.server.start import prepare


class MemberView:
    """The MemberFigures of a leader's broker (broker/admin/membership.py)."""

    def __init__(self, status: Callable[[], MemberStatus]) -> None:
        self.status = status

    def reasons(self) -> list[HealthReason]:
        return reasons_of(self.status())

    def metrics(self) -> str:
        return metrics_of(self.status())


class LeaderMaker:
    """The maker of a leader's broker and hub, once its member takes over. `process` is set before that. `has_tls`: the
    server has listeners with TLS.
    """

    def __init__(self, configuration: MemberConfiguration, clock: ServerClock, *, has_tls: bool) -> None:
        self._configuration = configuration
        self._has_tls = has_tls
        self._clock = clock
        self.process: MemberProcess | None = None

    def make_broker(self, fs: Fs) -> tuple[Broker, RecoverySummary]:
        """Recover the spool. Raises SpoolError, JournalFailure, OSError."""
        start, clock = self._configuration.start, self._clock
        broker = start.make_broker(fs)
        broker.wall.read_notes(clock.read, clock.now_ms())
        return broker, start.recover(broker, clock.now_ms())

    def make_service(self, driver: Driver, broker: Broker, summary: RecoverySummary) -> LeaderService:
        """Make the hub of a recovered spool."""
        start, clock = self._configuration.start, self._clock
        broker.watch.begin_rounds(clock.now_ms())
        if start.config.all_addresses("admin"):
            broker.sampler(clock.now_ms())
        gc_policy = GcPolicy()
        gc_policy.enable()
        start.notice.end()
        start.report(Level.INFO, "cluster.leads", queues=summary.queues, items=summary.items)
        service = LeaderService(driver, broker, SystemMachine(clock), start.clients, gc_policy)
        process = self.process
        assert process is not None
        broker.health.membership = MemberView(process.status)
        service.hub.etcd_restored = lambda: process.etcd.restored
        service.security = secure(broker) if self._has_tls else None
        self._join_reloads(broker)
        if start.config is not broker.config:
            service.loop.reload()  # the member has taken a reload while its spool was recovered
        return service

    def _join_reloads(self, broker: Broker) -> None:
        """Have what a reload of the leader applies apply to the member, too."""
        check_others, reloaded = broker.check_reload, broker.reloaded

        def check(config: Config) -> None:
            check_others(config)
            self._configuration.prepare(config)

        def take_over(now_ms: int) -> None:
            self._configuration.take_over()
            reloaded(now_ms)

        broker.check_reload, broker.reloaded = check, take_over


def member_greeting(cluster: ClusterSettings, addresses: list[str]) -> str:
    """Return the line that a start of a member prints."""
    who = f"staniel {VERSION}, member {cluster.member} of {cluster.name}"
    return f"{who}, listens on {', '.join(addresses)}, for members on {cluster.listen} ({BUILD})"


async def serve_member(load: Callable[[], Config], log: ServerLog) -> None:
    """Run until a signal or `shutdown`, or begin anew. Raises what `staniel.server.app.serve` does."""
    thresholds = gc.get_threshold()
    while await _serve_once(load, log):
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        gc.collect()  # what the leader had in memory


async def _serve_once(load: Callable[[], Config], log: ServerLog) -> bool:
    """Run until a signal or `shutdown`. Return True to begin anew within this program."""
    config = load()
    start = prepare(config, load, log, NotingFs)
    assert isinstance(start.fs, NotingFs)
    check_members_network(config, log.report)
    report_flaws(start.flaws, log.report)
    folder = config.server.spool
    paths = SpoolPaths(folder, config.workq.cmdlog_path)
    lock_spool(start.fs, folder)
    configuration = MemberConfiguration(start)
    began_ms, figures = steady_ms(), ProcessReader()
    with BoundSockets(config) as bound:
        start.open_for_spool(bound, paths.own)
        maker = LeaderMaker(configuration, clock := ServerClock(), has_tls=bool(bound.secure))
        tasks = start.supervisor.stay_alive, log.keep_writing
        parts = Parts(config, start.fs, bound, clock, log.report, maker.make_broker, maker.make_service, tasks)
        maker.process = process = MemberProcess(parts, paths, configuration)
        join_parts(configuration, process, bound)
        process.admin.metrics = lambda: metrics_of_follower(process.status(), steady_ms() - began_ms, figures())
        start.notice.end()
        hello = member_greeting(config.cluster, [own_name(sock) for sock, _ in bound.sockets])
        say(hello)
        start.supervisor.notify("READY=1", f"STATUS={hello}")
        await process.run()
    return _ends(process, log)


def _ends(process: MemberProcess, log: ServerLog) -> bool:
    """End as the process did. Return True to begin anew within this program. Raises its ending."""
    ending = process.ending
    if isinstance(ending, DiskIsFull):
        log.report(Level.ERROR, "cluster.disk_full", why=str(ending), hint="make room: it follows by itself then")
    if isinstance(ending, MustBeginAnew):
        log.report(Level.INFO, "cluster.begins_anew")
        if process.can_begin_again:
            with suppress(OSError, JournalFailure):
                process.close()
                return True
        begin_anew()
    if isinstance(ending, MemberStopped):
        raise StartError(f"this member stops: {ending}; see docs/replication.md")
    if ending is not None:
        raise ending
    log.report(Level.INFO, "server.stopped", why=process.stop_cause)
    return False


def check_members_network(config: Config, report: EventSink) -> None:
    """Check that a member open to other machines authenticates them, unless the settings allow it without. Raises
    StartError.
    """
    cluster = config.cluster
    where = parse_address(cluster.listen)
    assert isinstance(where, TcpAddress)
    if cluster.certificate or is_loopback(where.host):
        return
    hint = "give [cluster] certificate and ca; see docs/security.md"
    if not config.server.open_network:
        allow = "or allow it with [server] open_network = true or --open-network"
        why = f"{cluster.listen} can be reached by other machines, and members need no certificate"
        raise StartError(f"{why}: {hint}, {allow}")
    report(Level.WARNING, "network.open", address=cluster.listen, hint=hint)


def join_parts(configuration: MemberConfiguration, process: MemberProcess, bound: BoundSockets) -> None:
    """Have reloads renew the certificates of the member, towards clients and towards members, and the log say that etcd
    was restored. Raises ConfigError.
    """
    links, refuser = process.driver.links, process.refuser
    prepared = links.security
    certificates = None
    if bound.secure:
        from staniel.server.certificates import Certificates  # loads OpenSSL

        start = configuration.start
        refuser.security = certificates = Certificates(start.config, start.report)
        refuser.secure = frozenset(bound.secure)

    def check(config: Config) -> None:
        nonlocal prepared
        prepared = member_security(config.cluster)
        if certificates is not None:
            certificates.prepare(config)

    def take_over() -> None:
        process.driver.use_policy(policy_of(configuration.start.config))
        links.security = prepared
        if certificates is not None:
            certificates.take_over()

    def report_restored(why: str) -> None:
        hint = "stop all servers of the cluster, then: staniel cluster restore-etcd"
        configuration.start.report(Level.ERROR, "cluster.etcd_restored", why=why, hint=hint)

    process.etcd.on_restored = report_restored
    configuration.check, configuration.taken = check, take_over
