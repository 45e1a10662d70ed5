"""The broker: queues, journals and sessions of one spool, driven by server/ or sim/.

A turn calls `tick` (timers), `resume_woken` (sessions whose wait has ended) and `commit` (write records). The driver
passes the time, and runs the syncs and tasks that the broker hands out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from staniel.broker.access import puts_are_refused
from staniel.broker.admin.health import DiskReasons, HealthCheck, QueueReasons, ServerReasons
from staniel.broker.admin.health_log import HealthLog
from staniel.broker.admin.last_backup import LastBackup
from staniel.broker.admin.process import ProcessFigures, no_figures
from staniel.broker.admin.watch import Watch
from staniel.broker.config.addresses import TcpAddress
from staniel.broker.config.load import Config, ConfigError, ReloadError, check_admin
from staniel.broker.counters import ServerCounters
from staniel.broker.events import (
    CLIENT_EVENTS_MAX,
    LAST_TIME,
    DamageWatch,
    EventSink,
    Level,
    RateLimitedSink,
    dead_letter,
    discard,
)
from staniel.broker.latencies import Latencies
from staniel.broker.leases import Lease, Leases
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.broker.operations.audit import Audit
from staniel.broker.operations.deletions import DeletionRefused, Deletions
from staniel.broker.operations.holds import Holds
from staniel.broker.operations.pauses import Pauses
from staniel.broker.operations.running import ClientSide, Operations, OperationTools
from staniel.broker.operations.undo import Undos
from staniel.broker.put_keys import PutKeys
from staniel.broker.recovery import (
    KestrelQueues,
    RecoveryProgress,
    RecoverySummary,
    SpoolRecovery,
    no_progress,
    set_aliases,
)
from staniel.broker.reloads import RunningReload
from staniel.broker.rights import STRANGER, Rights
from staniel.broker.session import ProtocolSpec, Session
from staniel.broker.share import Share
from staniel.broker.status import ServerStatus, StatusControl, by_name
from staniel.broker.streams import StreamQueues
from staniel.broker.timers import Timers
from staniel.broker.transfers import Transfers
from staniel.broker.unsent_items import UnsentItems
from staniel.broker.users import UNIX, Logins, Users
from staniel.broker.wall_clock import WallClock
from staniel.journal.background import BackgroundTask
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.journal.disk.fs import SHORT_ERRNOS, Fs
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.appender import Appender
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.spool import Spool
from staniel.queues.calendar import Calendar
from staniel.queues.config import Format, QueueConfig
from staniel.queues.interfaces import Journal, NoJournal
from staniel.queues.item import Delivery, Item
from staniel.queues.journal_view import JournalView
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused, Queues
from staniel.queues.time_outs import Ended

if TYPE_CHECKING:
    from staniel.broker.admin.access import AdminAccess
    from staniel.broker.admin.sampler import Sampler
    from staniel.broker.jobs import JobService
    from staniel.broker.operations.backup import BackupHold
    from staniel.queues.jobs.job import Job

BALLAST_RETRY_MS = 1000
LOOK_MS = 1000  # between looks at the spool, which are made while clients are served: they do not wake an idle server
LOOK_AGAIN_MS = 10
EXPIRED_QUEUES_PER_TURN = 1000  # queues without expired items: 2 us each
# The cost in such queues: of a queue that drops expired items (a record is written) or is deleted; of one item sent to
# another queue.
CHANGED_COST = 50
SENT_COST = 10
SETTLED_PER_TURN = 256  # sessions whose wait has ended
REMOVAL_NS = 5_000_000  # each second, for files of deleted queues that could not be removed before
PACK_NS = 5_000_000  # for shrinking journals in one round of the watch
RECLAIM_NS = 100_000_000  # for compacting journals, in each second while the disk is full
SETTLE_NS = 1_000_000  # of each turn, for the replies and further requests of the woken sessions
QUEUES_PER_TURN = 16  # created by clients in a turn: creating a file takes up to half a millisecond


Load = Callable[[], Config]


class Broker:
    """The server of one spool. Takes the spool's lock; raises SpoolError, or AlreadyLocked if another process has it.
    `workq` is set if `serves_jobs`.
    """

    __slots__ = (  # more than thirty: without slots Python would find them slowly
        "__weakref__",
        "_ballast_due_ms",
        "_load",
        "_look_due_ms",
        "_sampler",
        "_started_with",
        "_starved",
        "_to_expire",
        "active_ms_of",
        "admin",
        "audit",
        "calendar",
        "check_reload",
        "client_events",
        "config",
        "counters",
        "damages",
        "deletions",
        "expire_due_ms",
        "file_holds",
        "fs",
        "group",
        "has_sent_all",
        "health",
        "health_log",
        "holds",
        "last_backup",
        "latencies",
        "leases",
        "limits",
        "logged_in",
        "logins",
        "maintenance",
        "operations",
        "pauses",
        "process",
        "put_keys",
        "queues",
        "rate_limited",
        "recovery",
        "reloaded",
        "report",
        "serves_jobs",
        "sessions",
        "spool",
        "status",
        "step_clock",
        "streams",
        "timers",
        "transfers",
        "undos",
        "unsent",
        "users",
        "wall",
        "watch",
        "woken",
        "workq",
    )

    def __init__(
        self, config: Config, fs: Fs, report: EventSink = discard, load: Load | None = None, known: Logins | None = None
    ) -> None:
        self.config = config
        self.damages = self.report = report = DamageWatch(report)
        self.rate_limited = RateLimitedSink(report)
        self.client_events = RateLimitedSink(report, CLIENT_EVENTS_MAX)
        self.spool = Spool(fs, config.server.spool, config.server.redo_log_bytes, is_member=bool(config.cluster.name))
        self.fs = fs = self.spool.fs
        self.group = self.spool.group
        self.timers = Timers()
        self.step_clock = self.timers.clock
        self._load, self._started_with = load, config
        # The driver's parts of a reload: a check that may raise ConfigError, and a step that applies the file.
        self.check_reload: Callable[[Config], None] = lambda config: None
        self.reloaded: Callable[[int], None] = lambda now_ms: None
        self.process: Callable[[], ProcessFigures | None] = no_figures  # set by the driver
        self.logged_in: Callable[[Session], None] = lambda session: None  # set by the driver: its part of a login
        # Set by the driver: tells whether every reply to a client has been given to its socket.
        self.has_sent_all: Callable[[Session], bool] = lambda session: True
        self.queues = Queues(config.queue, self._new_journal)
        self.calendar = self.queues.calendar = Calendar()
        self.wall = WallClock(fs, self.spool.own, self.calendar, report, self._wall_stepped)
        self.transfers = transfers = Transfers(self.queues, self.spool, report, self.wall)
        self.queues.transfer_sink, self.queues.timer = transfers, self.timers
        total_bytes, is_kept = min(config.server.max_memory_bytes, fs.memory_bytes() // 2), transfers.recovery.keeps
        self.maintenance = MaintenanceScheduler(self.queues, self.group, total_bytes, report, is_kept)
        self.queues.on_adopt, self.queues.on_timed_out = self.maintenance.adopt, self._log_timed_out
        self.queues.on_read_error = self._report_unreadable
        self._limit_queues()
        self.streams = StreamQueues(self.spool, self.queues, self.maintenance, report, self.rate_limited)
        self.pauses = Pauses(fs, f"{self.spool.own}/paused", report)
        self.audit = Audit(self.group, self.spool.own, config.admin.audit_log_bytes, report, self.calendar)
        self.last_backup = LastBackup(fs, self.spool.own, report, self.calendar)
        self.logins = known or Logins()
        self.status, self.admin = self._new_status(), admin_access(config, fs)
        self.counters, self.limits, self.latencies = ServerCounters(), LimitsReached(report), Latencies()
        self._join_operations()
        self.users = Users(config, fs, self.logins.own_uids)
        self.leases = Leases(self.timers)
        self.leases.timed_out = self._log_lease_timeout
        self.serves_jobs = bool(config.all_addresses("workq"))
        if self.serves_jobs:
            from staniel.broker.jobs import JobService  # a tenth of all modules, and most servers serve no jobs

            self.workq: JobService = JobService(config.workq, self.spool, report, self.calendar)
            self.workq.jobs.lease_over = self._log_job_timeout
        self.recovery = self._new_recovery()
        self.sessions: dict[Session, int] = {}  # when each client connected, the oldest first
        # Tells when a client last sent or took bytes; 0: unknown.
        self.active_ms_of: Callable[[Session], int] = lambda session: 0
        self.expire_due_ms = self._ballast_due_ms = self._look_due_ms = 0
        self.woken: deque[Session] = deque()  # sessions whose wait has ended
        self.unsent: UnsentItems[Session] = UnsentItems()
        self._to_expire: deque[Queue] = deque()  # queues still to be checked in this round
        self._starved: set[Queue] = set()  # queues that could not be read because descriptors or memory ran out
        self._sampler: Sampler | None = None
        self._join_watch()
        self.holds: list[BackupHold] = []  # backups in progress

    def _join_watch(self) -> None:
        """Create the parts that watch the server and report reasons to operators."""
        spool, queues, report, damages = self.spool, self.queues, self.report, self.damages
        syncs = self.latencies.syncs
        self.watch = watch = Watch(spool, self.maintenance, syncs, self.timers, report)
        workq = self.workq if self.serves_jobs else None
        server = ServerReasons(self.status, self.counters, self.limits, self.wall, workq)
        disk = DiskReasons(spool, watch, damages, self.last_backup, self.file_holds, lambda: self.refused_removals)
        of_queues = QueueReasons(queues, watch, self.pauses)
        self.health = HealthCheck(self.config, self.status, server, disk, of_queues)
        self.health_log = HealthLog(self.health, report)
        watch.after_round = self._end_round

    def _join_operations(self) -> None:
        """Create the parts that delete queues, and move, remove and restore many items."""
        transfers, maintenance, audit = self.transfers, self.maintenance, self.audit
        self.file_holds = Holds(self.spool, self.queues, maintenance.tasks, self.calendar, self.report)
        self.spool.kept.append(self.file_holds.kept)
        self.put_keys = PutKeys(transfers, self.limits, self.report)
        self.put_keys.configure(self.config.server.put_key_life_ms, self.config.server.max_put_keys)
        self.deletions = Deletions(transfers, maintenance, self.streams, self.pauses, audit, self.rate_limited)
        self.deletions.forget_keys = self.put_keys.forget
        self.undos = Undos(self.config.admin, self.spool, self.timers, self.calendar, self.report)
        self.queues.is_ending, self.queues.end_deletions = self.undos.is_ending, self.undos.end_deletions

        def rights_of(user: str) -> Rights | None:
            found = self.users.by_name.get(user)
            return None if found is None else found.rights

        tools = OperationTools(
            transfers=transfers,
            deletions=self.deletions,
            undos=self.undos,
            audit=audit,
            tasks=maintenance.tasks,
            timers=self.timers,
            clients=ClientSide(self.status, self.counters, self.client_events, rights_of),
        )
        self.operations = Operations(tools, self.commit_all)

    def _new_recovery(self) -> SpoolRecovery:
        kestrel = KestrelQueues(self.spool, self.maintenance, self.streams, self.transfers.recovery, self.report)
        jobs = self.workq if self.serves_jobs else None
        self.file_holds.cmdlog = jobs.log if jobs is not None else None
        return SpoolRecovery(kestrel, self.operations, self.put_keys, self.pauses, jobs, self.report)

    def recover(self, now_ms: int, on_progress: Callable[[RecoveryProgress], None] = no_progress) -> RecoverySummary:
        """Recover the spool, before any client is served. `on_progress` is called after each piece of a file. Raises
        SpoolError and JournalFailure.
        """
        self.expire_due_ms = now_ms
        return self.recovery.recover(self.config, now_ms, on_progress)

    def _retry_unreadable(self, now_ms: int) -> None:
        """Try again to read the queues and jobs that could not be read."""
        self.recovery.retry(now_ms, self.commit)
        if self.serves_jobs and self.workq.trouble:
            self.workq.retry(now_ms)
            self.allow_jobs()

    def sampler(self, now_ms: int) -> Sampler:
        """Return the sampler, which has the figures of all queues and of the last day for operators. Sampling begins at
        the first call.
        """
        if self._sampler is None:
            # A server without an admin listener needs no sampler.
            from staniel.broker.admin.sampler import Sampler, ServerStates

            states = ServerStates(self.spool, self.maintenance.memory, self.counters, self.health, self.file_holds)
            self._sampler = Sampler(self.queues, self.watch, states, self.timers, self.client_events)
            self._sampler.begin_rounds(now_ms)
        return self._sampler

    def connect(
        self, protocol: ProtocolSpec, address: str = "", certificate: tuple[str, ...] = (), now_ms: int = 0
    ) -> Session:
        """Register a new client at `address`, with the names in its `certificate`. Beyond the connection limits, its
        reads or writes are refused until it disconnects.
        """
        self.counters.curr_connections += 1
        self.counters.total_connections += 1
        session = Session(self, protocol, address)
        user, rights = self.users.identify(protocol.name, address, certificate)
        if rights is not None:
            self.authorize(session, user, rights)
        server, count = self.config.server, self.counters.curr_connections
        if self.serves_jobs and self.workq.trouble:
            session.block()
        session.refuse_writes = exceeds(count, server.connection_limit_refuse_writes)
        session.refuse_reads = exceeds(count, server.connection_limit_refuse_reads)
        self.sessions[session] = now_ms
        if server.enable_session_trace:
            self.report(Level.INFO, "session.start", session=session.number)
        self._guard(session)
        return session

    def allow_jobs(self) -> None:
        """Serve workq clients again, if the command log can be read now."""
        if not self.workq.trouble:
            for session in self.sessions:
                session.unblock()

    def new_backup(self, session: Session) -> BackupHold:
        """Return a new holder of a backup's files; it holds them until `session` ends."""
        from staniel.broker.operations.backup import BackupHold, HeldSpool  # few servers are asked for a backup

        jobs = self.workq if self.serves_jobs else None
        server = HeldSpool(self.spool, self.maintenance, self.status, jobs, self.commit)
        return BackupHold(session, self.holds, server)

    def forget(self, session: Session) -> None:
        """Remove `session` after its client has disconnected."""
        self.sessions.pop(session, None)
        self.audit.asks(session, "")
        for hold in [hold for hold in self.holds if hold.owner is session]:
            hold.release()
        if self.config.server.enable_session_trace:
            self.report(Level.INFO, "session.end", session=session.number)

    def shutdown(self, now_ms: int) -> None:
        """Reply to all waiting clients, and leave every journal synced and closed. No sync may be running."""
        if self.serves_jobs:
            self.workq.cleaner.stop()
        self.status.is_stopping = self.group.is_stopping = True
        for session in self.sessions:
            session.backlog.clear()  # a request that has not been executed gets no reply
        if self.operations.running:
            self.operations.stop(now_ms)
        self.maintenance.close(now_ms)
        self.deletions.carry_out(now_ms)
        self._end_what_waits(now_ms)
        self.queues.waiters_by_name.dismiss_all()
        for queue in self.queues.all():
            if not self.status.enforced.writes and not len(queue.line):
                self.maintenance.rewrite(queue, now_ms)
            queue.close()
        for session in self.sessions:
            session.stop_waiting(now_ms)
        while self.woken:
            self.resume_woken(now_ms)
        if (cause := self.status.stop_cause) and "client" not in cause:
            self.audit.note_signal("stop", str(cause["why"]), now_ms)
        self._end_what_waits(now_ms)
        for task in list(self.group.redo.running):
            if not self.maintenance.tasks.drop(task):
                self.maintenance.tasks.complete(task, now_ms)
        self._end_files(now_ms)
        self.audit.close()
        self.transfers.transfer_log.close()
        self.put_keys.log.close()
        if self.serves_jobs:
            self.workq.close()
        for queue in self.queues.all():
            if isinstance(queue.journal, Log):
                queue.journal.close()
        self.streams.close()

    def _end_what_waits(self, now_ms: int) -> None:
        """Commit until nothing waits for a sync, as transfers do. The remaining records need one more sync."""
        self.commit(now_ms)
        while self.group.has_followers and (sync := self.group.start_hurried_sync(now_ms)) is not None:
            sync.run()
            self.group.finish_sync(sync, now_ms)
            self.commit(now_ms)

    def _end_files(self, now_ms: int) -> None:
        """Sync all files, then the renamed ones: two syncs in a row. Nothing may be recorded afterwards. Raises
        JournalFailure, OSError.
        """
        clock, version, refused = self.wall.end(now_ms), None, None
        try:
            version = self.spool.end_of_log()
        except OSError as error:
            refused = error
        self.group.sync_for_shutdown(now_ms)
        if clock is not None:
            try:
                clock.install()
            except OSError as error:
                self.wall.report_unwritten(error)
        try:
            if version is not None:
                version.install()
        except OSError as error:
            refused = error
        if refused is not None:
            self.group.redo.stay_in_use()
            raise refused
        if clock is not None or version is not None:
            self.fs.sync_folder(self.spool.own)
        self.group.redo.forget_files()

    def commit_all(self, now_ms: int) -> None:
        """Commit until no transfer between two queues is running. No sync may be running."""
        self.commit(now_ms)
        while (sync := self.group.start_hurried_sync(now_ms)) is not None:
            sync.run()
            self.group.finish_sync(sync, now_ms)
            self.commit(now_ms)

    def take_back(self, handed: list[tuple[Queue, Delivery]], now_ms: int) -> None:
        """Put back items that were removed for a client that disconnected before any byte of their replies was sent. On
        a full disk they cannot be put back, and are lost.
        """
        by_queue: dict[Queue, list[Item]] = {}
        for queue, taken in handed:
            by_queue.setdefault(queue, []).append(taken.item)
        for queue, items in by_queue.items():
            if isinstance(queue.journal, ReaderLog):
                # The added item and the removal are recorded in two files. A power cut that keeps only the first must
                # not leave both the item and its copy.
                self.group.call_when_durable(queue.journal, partial(self._put_back, queue, items))
            else:
                self._put_back(queue, items, now_ms)

    def _put_back(self, queue: Queue, items: list[Item], now_ms: int) -> None:
        size = sum([len(item.data) + RECORD_OVERHEAD_BYTES for item in items])
        if isinstance(queue.journal, NoJournal) or (not self.group.is_full and self.group.admits(size)):
            queue.put_back(items, now_ms)

    @property
    def unsettled(self) -> bool:
        """True if something has happened since the last tick settled and committed, or if work is due now."""
        group = self.group
        return bool(self.woken) or group.pending_bytes > 0 or self.maintenance.is_busy or group.is_asked

    def resume_woken(self, now_ms: int) -> list[Session]:
        """Run the woken sessions, and those that they wake, until none is left or the turn's share is used up; two
        sessions with long pipelines can wake each other a thousand times. Return all of them. Every wait gets its reply
        before any request behind a wait is executed. Requests that do not fit into the turn stay in the backlogs.
        """
        resumed: list[Session] = []
        until_ns = self.step_clock.now_ns() + SETTLE_NS  # no Share, which is slower: every wait that ends passes here
        while self.woken and len(resumed) < SETTLED_PER_TURN:
            first = len(resumed)
            for _ in range(min(len(self.woken), SETTLED_PER_TURN - len(resumed))):
                session = self.woken.popleft()
                session.resume(now_ms)
                resumed.append(session)
                if self.step_clock.now_ns() >= until_ns:
                    return resumed
            for session in resumed[first:]:
                if session.backlog:
                    session.run_backlog(now_ms)
                    if self.step_clock.now_ns() >= until_ns:
                        return resumed
        return resumed

    def tick(self, now_ms: int) -> None:
        """Do the work that is due: end waits, drop expired items, try to restore the ballast. Raises JournalFailure."""
        if now_ms >= self._look_due_ms:
            self._look_due_ms = now_ms + (LOOK_MS if self.spool.check_files_in_place() else LOOK_AGAIN_MS)
            self._remake_lost_files(now_ms)
            self.wall.check_clock(now_ms)
            if self._starved:
                self._read_on()
            if self.deletions.unremoved:
                self.deletions.retry_removals(Share(self.step_clock, REMOVAL_NS), now_ms)
            if not self.status.is_stopping:
                self.streams.remove_stuck()
                self.file_holds.check_limits(now_ms)
                if self.put_keys.is_used:
                    self.put_keys.drop_old(now_ms)
        self.queues.allowance = QUEUES_PER_TURN
        self.watch.may_look = True
        if now_ms >= self.timers.due_ms:
            self.timers.fire(now_ms)
        maintenance = self.maintenance
        to_read, to_free, to_seal = maintenance.waiting
        if to_read or to_free or to_seal or not maintenance.packs.is_quiet:
            maintenance.run_slices(now_ms)
        if self.serves_jobs:
            self.workq.tick(now_ms)
        if now_ms >= self.expire_due_ms and (every_ms := self.config.server.expiration_timer_ms):
            self.expire_due_ms = now_ms + every_ms
            if not self._to_expire:
                self._to_expire.extend(self.queues)
        if self._to_expire:
            self._expire_some(now_ms)
        if now_ms >= self.transfers.next_ms:
            self.transfers.tick(now_ms)
        if now_ms >= self.status.due_ms:
            self.status.on_timer(now_ms)
            self._guard_all()
        if self.group.budget_bytes < 0 and now_ms >= self._ballast_due_ms:
            self._ballast_due_ms = now_ms + BALLAST_RETRY_MS
            if self.group.restore_ballast():
                self.report(Level.WARNING, "disk.space", spool=self.spool.folder, hint="puts are accepted again")
            else:
                self._reclaim(now_ms)

    def _reclaim(self, now_ms: int) -> None:
        """Free the disk space of items that were read, because the disk is full. Leave an eighth of the free space for
        the records of gets and closes. Raises JournalFailure.
        """
        room = self.fs.free_bytes(self.spool.folder)[0] * 7 // 8
        room = self.maintenance.reclaim(room, Share(self.step_clock, RECLAIM_NS), now_ms)
        self.streams.reclaim(room, now_ms)
        if self.serves_jobs:
            self.workq.reclaim_in_spool(now_ms)

    def _end_round(self, now_ms: int) -> None:
        """Log which reasons have changed in a round of the watch. If items that were read take more space than the
        limit, pack some of their journals, the largest first, but keep four times the reserve free. Raises
        JournalFailure.
        """
        self.health_log.log_changes(now_ms)
        watch = self.watch
        if self.group.is_full or not 0 < watch.read_bytes_max < watch.read_bytes:
            return
        free = self.fs.free_bytes(self.spool.folder)[0]
        room = max(0, free - 4 * self.group.ballast.bytes) * 7 // 8
        queues = [queue for _, name in watch.most_read if (queue := self.queues.find(name)) is not None]
        room = self.maintenance.reclaim_of(queues, room, Share(self.step_clock, PACK_NS), now_ms)
        self.streams.reclaim_of([queue.name for queue in queues], room, now_ms)

    @property
    def refused_removals(self) -> int:
        """The number of packs, segments and deleted queues whose files the system refuses to remove."""
        segments = self.streams.stuck_segments + (self.workq.cleaner.refused_segments if self.serves_jobs else 0)
        return len(self.maintenance.packs.unfinished) + segments + len(self.deletions.unremoved)

    def _wall_stepped(self, now_ms: int) -> None:
        if self.serves_jobs:
            self.workq.follow_wall(now_ms)
        if self._sampler is not None:
            self._sampler.note_step()

    def _remake_lost_files(self, now_ms: int) -> None:
        """Write again the files without items that another program has removed. Raises JournalFailure."""
        redo = self.group.redo
        if not self.group.is_full and not self.group.ballast.has_room:
            self.group.release_ballast()
            self._ballast_due_ms = now_ms + BALLAST_RETRY_MS
            self.report(Level.ERROR, "disk.full", spool=self.spool.folder, hint=puts_are_refused(self.group))
        for kept in [kept for kept in self.spool.kept if kept.is_lost()]:
            try:
                kept.make()
            except OSError as error:
                hint = "another program has removed it; the server tries again each second"
                self.rate_limited(Level.ERROR, "spool.lost", now_ms, file=kept.path, why=str(error), hint=hint)
            else:
                why = "another program had removed it or cut it short"
                self.report(Level.WARNING, "spool.remade", file=kept.path, why=why)
        if not redo.takes_data and (path := redo.find_lost()):
            why = "another program has removed it"
            hint = "restart: until then a power cut may leave a part of an item in queues that are synced later"
            self.rate_limited(Level.WARNING, "redo.lost", now_ms, file=path, why=why, hint=hint)

    def next_ms(self) -> int:
        """Return when `tick` or `start_sync` next has something to do, if nothing else happens."""
        moments = [self.timers.next_ms(), self.group.next_due_ms(), self.transfers.next_ms, self.status.due_ms]
        if self.config.server.expiration_timer_ms:
            moments.append(0 if self._to_expire else self.expire_due_ms)
        if self.group.budget_bytes < 0:
            moments.append(self._ballast_due_ms)
        if self.serves_jobs:
            moments.append(self.workq.next_ms())
        return min(moments)

    def commit(self, now_ms: int) -> None:
        """Write the records of this tick, then do the maintenance of the journals that grew. Raises JournalFailure."""
        group, maintenance = self.group, self.maintenance
        had_space = group.budget_bytes >= 0
        if maintenance.memory.changed:
            maintenance.memory.weigh_changed()
        for member in group.write(now_ms):
            if isinstance(member, Log):
                maintenance.look_after(member, now_ms)
            elif isinstance(member, Appender):
                self.streams.look_after(member, now_ms)
        if group.redo.is_due:
            self._submit_redo_tasks()
        if had_space and group.budget_bytes < 0:
            self._note_full_disk(now_ms)
        if self.transfers.unblocked:
            self._run_deferred_steps(now_ms)
            self.commit(now_ms)  # transfers that began just now must be written before the next sync

    def _note_full_disk(self, now_ms: int) -> None:
        self._ballast_due_ms = now_ms + BALLAST_RETRY_MS
        self.undos.drop_all("the disk is full")
        self.report(Level.ERROR, "disk.full", spool=self.spool.folder, hint=puts_are_refused(self.group))

    def make_room(self, now_ms: int) -> bool:
        """Release the ballast for what another part must write. Return False if there is none."""
        has_made = self.group.make_room()
        if has_made:
            self._note_full_disk(now_ms)
        return has_made

    def _submit_redo_tasks(self) -> None:
        redo = self.group.redo
        for task in redo.tasks():
            self.maintenance.tasks.submit(task, urgent=True)
        if redo.why_off:
            hint = "replies wait for the queues' own files, as without it; restart the server to try again"
            self.report(Level.WARNING, "redo.off", spool=self.spool.folder, why=redo.why_off, hint=hint)
            redo.why_off = ""

    def _run_deferred_steps(self, now_ms: int) -> None:
        """Run the deferred steps of the journals that blocked transfers, then begin transfers again. None of those
        journals has a transfer in progress.
        """
        logs, self.transfers.unblocked = self.transfers.unblocked, []
        for log in logs:
            log.blocks_transfers = False
            if log.is_erased:
                continue
            if isinstance(log, Log):
                self.maintenance.run_deferred_step(log, now_ms)
            else:
                self.streams.look_after(log, now_ms)
        self.transfers.begin_again(now_ms)

    def finish_task(self, task: BackgroundTask, now_ms: int) -> None:
        """Finish `task`, which has run. Raises JournalFailure or OSError, which must end the process."""
        self.maintenance.tasks.finish_task(task, now_ms)
        if self.deletions.postponed:
            self.deletions.carry_out(now_ms)

    def set_status(self, wanted: ServerStatus, now_ms: int) -> bool:
        """Change the server's status. Return False if another change has to finish first. Raises OSError."""
        changed = self.status.change(wanted, now_ms)
        self._guard_all()
        return changed

    def reload(self, now_ms: int) -> RunningReload:
        """Apply queues' settings, aliases and limits from the configuration file, and try again to read unreadable
        queues. Open reads and waits are not disturbed. The file is checked at once; with many queues their settings are
        applied over many turns.

        Raises ReloadError; no setting has changed then.
        """
        if self._load is None:
            self._retry_unreadable(now_ms)
            raise ReloadError("the server runs without a configuration file")
        try:
            given = self._load()
            # The listeners stay as they are until the restart. They decide who can connect, and so which checks are
            # needed.
            config = given.listening_as(self._started_with)
            admin = admin_access(config, self.fs)
            if self.admin is not None and self.admin.has_token and admin is not None and not admin.has_token:
                admin = self.admin.kept_for(config)  # the admin listener stays too, with its guard
            else:
                check_admin(config)
            users = Users(config, self.fs, self.users.own_uids)
            self.check_reload(config)
        except ConfigError as error:
            self.report(Level.ERROR, "config.refused", why=str(error), hint="nothing has changed")
            raise ReloadError(str(error)) from error
        has_lost = admin is not None and self.admin is not None and not admin.lets_in(self.admin)
        self.config = self.health.config = config
        self.admin = admin
        self._take_over(users, has_lost, now_ms)
        self.queues.config_of = config.queue
        later = given.later_keys(self._started_with)
        self._limit_queues()
        self.put_keys.configure(config.server.put_key_life_ms, config.server.max_put_keys)
        for session in self.sessions:
            session.max_open_reads = config.server.max_open_transactions
        for name, _ in self.queues.waiters_by_name:
            if config.queue(name).client_id_for_dequeue:
                self.queues.waiters_by_name.dismiss(name)
        self.expire_due_ms = min(self.expire_due_ms, now_ms + config.server.expiration_timer_ms)
        self.status.grace_ms = config.server.status_change_grace_ms
        self.streams.configure(config)
        set_aliases(self.queues, config.aliases, self.report)
        self.reloaded(now_ms)
        running = RunningReload(self.maintenance.memory, self.timers, later, self._end_reload)
        running.on_timer(now_ms)
        return running

    def _end_reload(self, later: str, now_ms: int) -> None:
        """Try to read unreadable queues, which have the newest settings now. `later`: the keys that only a restart
        applies.
        """
        self._retry_unreadable(now_ms)
        config = self.config
        self.report(Level.INFO, "config.reloaded", queues=len(config.queues), aliases=len(config.aliases))
        if later:
            self.report(Level.WARNING, "config.later", keys=later, hint="only a restart takes these over")

    def authorize(self, session: Session, user: str, rights: Rights) -> None:
        """Give the user's rights to `session`, from its next request on."""
        was_stranger = session.rights is STRANGER
        session.user = user
        session.limit_to(rights)
        session.handlers = session.spec.handlers_for(session.handlers, rights)
        if was_stranger:
            self.logged_in(session)

    def _take_over(self, users: Users, has_lost: bool, now_ms: int) -> None:
        """Disconnect each client whose user was removed, has other secrets or has lost a right. This also ends its
        wait, and returns its open reads. A client whose user has gained rights has them at once. If any token has
        become invalid or weaker (`has_lost`: the listener's own token has), disconnect every client of the admin
        listener that may have used one: it may have begun a stream of events with that token, and it can connect again.
        """
        before, self.users = self.users, users
        has_lost = has_lost or not users.replace(before)
        for session in list(self.sessions):
            known, found = before.by_name.get(session.user), users.by_name.get(session.user)
            is_by_token = session.rights is not None or not session.address.startswith(UNIX)
            if session.user and known is not None:
                stays = found is not None and found.replaces(known)
                if found is not None and stays:
                    session.limit_to(found.rights)
            else:
                stays = session.rights is users.strangers or users.knows_all(session.protocol, session.address)
            if stays and not (has_lost and session.protocol == "admin" and is_by_token):
                continue
            self.client_events(Level.INFO, "client.expelled", now_ms, client=session.address, user=session.user)
            session.hang_up(b"")

    def _limit_queues(self) -> None:
        server = self.config.server
        self.queues.on_limit = lambda limit, name, now_ms: self.limits.log_limit(limit, now_ms, queue=name)
        self.queues.allowance = QUEUES_PER_TURN
        self.queues.max_queues, self.queues.max_children = server.max_queues, server.max_fanout_children

    def _report_unreadable(self, queue: Queue) -> None:
        """Report that a queue's next items cannot be read. Open reads and puts continue, gets are refused."""
        error = queue.line.read_error
        if error is not None and error.errno in SHORT_ERRNOS:
            if queue not in self._starved:
                self._starved.add(queue)
                hint = "the machine is short of open files or memory; the server tries again each second"
                self.report(Level.ERROR, "journal.starved", queue=queue.name, why=str(error), hint=hint)
            return
        hint = "nothing is read from this queue; make the file readable, or remove it, then reload"
        self.report(Level.ERROR, "journal.unreadable", queue=queue.name, why=str(error), hint=hint)

    def _read_on(self) -> None:
        """Try again to read queues that could not be read because descriptors or memory ran out. Skip a queue that has
        been read since.
        """
        for queue in list(self._starved):
            error = queue.line.read_error
            if error is None or error.errno not in SHORT_ERRNOS:
                self._starved.discard(queue)
            else:
                queue.read_again()
                self.maintenance.read_ahead.retry(queue)

    def _log_timed_out(self, queue: Queue, reads: list[tuple[Delivery, Ended]], now_ms: int) -> None:
        """Log the open reads that have reached open_transaction_timeout. The client is looked up only if the line is
        logged, because that is slow.
        """
        for taken, ended in reads:
            if not self.client_events.is_wanted("read.timed_out", now_ms):
                continue
            client = self._holder(queue, taken)
            self.client_events(Level.INFO, "read.timed_out", now_ms, client=client, queue=queue.name, item=taken.id)
            if ended in LAST_TIME:
                self.client_events(Level.INFO, LAST_TIME[ended], now_ms, client=client, **dead_letter(queue, taken))

    def _holder(self, queue: Queue, taken: Delivery) -> str:
        """Return the address of the client that has this read open; "" if it is not found."""
        lease = self.leases.find(taken)
        if lease is not None:
            return lease.address
        return next((session.address for session in self.sessions if session.holds(queue, taken)), "")

    def _log_lease_timeout(self, lease: Lease, ended: Ended, now_ms: int) -> None:
        """Log an open read of a thrift client that has timed out."""
        queue, taken = lease.queue, lease.taken
        self.client_events(Level.INFO, "read.timed_out", now_ms, client=lease.address, queue=queue.name, item=taken.id)
        if ended in LAST_TIME:
            self.client_events(Level.INFO, LAST_TIME[ended], now_ms, client=lease.address, **dead_letter(queue, taken))

    def _log_job_timeout(self, job: Job, now_ms: int) -> None:
        """Log that a worker has not finished a job in time."""
        from staniel.protocol.workq.fields import show_id  # needed only for jobs

        name, id, attempts = job.terms.queue.name.decode("latin-1"), show_id(job.id).decode(), job.attempts
        self.client_events(Level.INFO, "job.timed_out", now_ms, client=job.holder, name=name, job=id, attempts=attempts)

    def _new_status(self) -> StatusControl:
        server = self.config.server
        default = by_name(server.default_status)
        assert default is not None
        path = server.status_file or f"{self.spool.own}/status"
        status = StatusControl(self.fs, path, default, server.status_change_grace_ms)
        if status.trouble:
            self.report(Level.WARNING, "status.unknown", why=status.trouble, hint=f"starting as {default.value}")
        self.spool.kept += [self.pauses.kept, self.last_backup.kept, status.kept, self.wall.kept]
        return status

    def _guard(self, session: Session) -> None:
        enforced = self.status.enforced
        is_open = enforced.reads and enforced.writes and not self.status.refusal
        session.needs_check = session.refuse_reads or session.refuse_writes or not is_open

    def refuse_writes(self, why: str) -> None:
        """Refuse all clients' writes with this reason; "": refuse them no more."""
        self.status.refusal = why
        self._guard_all()

    def _guard_all(self) -> None:
        for session in self.sessions:
            self._guard(session)
        if not self.status.enforced.reads:  # waiters would still get items that other clients give back
            for queue in self.queues.all():
                queue.dismiss_waiters()
            self.queues.waiters_by_name.dismiss_all()
            if self.serves_jobs:
                self.workq.jobs.dismiss_leasers()

    def _expire_some(self, now_ms: int) -> None:
        """Check as many queues as one turn allows; the next turns continue."""
        left = EXPIRED_QUEUES_PER_TURN
        while self._to_expire and left > 0:
            queue = self._to_expire.popleft()
            left -= self._expire(queue, now_ms) if self.queues.find(queue.name) is queue else 1

    def _expire(self, queue: Queue, now_ms: int) -> int:
        """Drop the expired items at the head of a queue, and the queue itself if it is empty and past max_queue_age.
        Return the cost, in queues without expired items.
        """
        config = queue.config
        count = queue.expire(now_ms, config.max_expire_sweep)
        took = 1
        if count:
            took = CHANGED_COST + (count * SENT_COST if config.expire_to_queue else count // 2)
        if not config.max_queue_age_ms or now_ms <= queue.created_ms + config.max_queue_age_ms:
            return took
        is_searched = not self.transfers.recovery.pinned(queue)
        is_bare = is_searched and JournalView(queue).is_bare
        if is_bare and not self.deletions.must_wait(queue) and not self.put_keys.has_keys(queue.name):
            took += CHANGED_COST
            with suppress(DeletionRefused):  # tried again in the next round
                self.deletions.delete(queue, now_ms)
                self.queues.expired += 1
        return took

    def _new_journal(self, name: str, config: QueueConfig, now_ms: int) -> Journal:
        self.streams.check(name)
        if why := self.spool.name_error(name):
            raise QueueRefused(why, client=True)
        is_stream = self.spool.format_of(name, config) is Format.LIBKESTREL
        journal: Journal = (self.streams if is_stream else self.spool).create(name, config, now_ms)
        # A get on the new queue may reply that it is empty only when the erasure of its predecessor is durable.
        journal.batch = max(journal.batch, self.queues.erased.pop(name, 0))  # type: ignore[misc]
        return journal


def admin_access(config: Config, fs: Fs) -> AdminAccess | None:
    """Return the guard of the admin listener over TCP; None if there is no such address. Raises ConfigError."""
    if not any(isinstance(address, TcpAddress) for address in config.all_addresses("admin")):
        return None
    from staniel.broker.admin.access import AdminAccess  # loads OpenSSL

    return AdminAccess(config, fs)


def exceeds(count: int, limit: int | None) -> bool:
    return limit is not None and count > limit
