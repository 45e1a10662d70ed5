"""The service behind the workq protocol: all jobs, their command log, its cleaning and its reserve on the disk."""

from __future__ import annotations

from staniel.broker.access import why_unreadable
from staniel.broker.config.schema import WorkqSettings
from staniel.broker.events import EventSink, Level
from staniel.journal.disk.ballast import Ballast
from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.refusals import described
from staniel.journal.errors import Damage
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.spool_listing import JOBS_HELD
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.cleaning import Cleaner, CleaningResult
from staniel.journal.workq.log import CmdLog
from staniel.journal.workq.recovery import CmdLogRecovery
from staniel.protocol.workq.job_terms import JobTerms
from staniel.queues.calendar import Calendar
from staniel.queues.config import SYNC_ALWAYS, SYNC_OS
from staniel.queues.jobs.job import Terms
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.jobs.states import LEASED
from staniel.queues.jobs.times import NS_A_MS

JOBS_PER_TICK = 250  # jobs whose time-out or schedule is due, in one tick: about a millisecond
TERMS_MAX = 4096
RECLAIMED_BYTES_MIN = 64 << 10  # segments below this size are not ended early to remove dead jobs
BALLAST_RETRY_MS = 1000

SyncMs = int


def sync_ms_of(settings: WorkqSettings) -> SyncMs:
    """Return the sync policy in the form of the commit group."""
    if settings.cmdlog_sync == "interval":
        return settings.cmdlog_sync_int_ms
    return SYNC_OS if settings.cmdlog_sync == "os" else SYNC_ALWAYS


class JobService:
    """All jobs of a server. Locks the command log; raises SpoolError."""

    def __init__(self, settings: WorkqSettings, spool: Spool, report: EventSink, calendar: Calendar) -> None:
        self.settings = settings
        self.report = report
        self.calendar = calendar
        self.folder = settings.cmdlog_path or f"{spool.own}/{workq_files.OWN_FOLDER}"
        self.started_ms = 0
        self.trouble = ""  # why jobs cannot be served; "" if they can
        self.cleanings = 0
        self.terms: dict[JobTerms, Terms] = {}
        self._equal: dict[tuple[object, ...], Terms] = {}
        self._spool = spool
        self.group = spool.group
        self._ballast_due_ms = 0
        self._prepare()
        ballast = None
        if settings.cmdlog_path:
            ballast = Ballast(spool.fs, self.folder, f"{self.folder}/.staniel-ballast")
        self.log = CmdLog(spool.fs, self.folder, spool.group, sync_ms_of(settings), settings.cmdlog_seg_bytes, ballast)
        self.jobs = Jobs(self.log, honours_max_fails=settings.honour_max_fails)
        self.cleaner = Cleaner(self.log, self.jobs, settings.cmdlog_clean_int_ms, self._report_cleaning)

    def _prepare(self) -> None:
        fs = self._spool.fs
        try:
            fs.make_folder(self.folder)
            self._spool.clear_way(self.folder, [workq_files.APPEND_LOCK, workq_files.READ_LOCK])
            fs.lock(f"{self.folder}/{workq_files.APPEND_LOCK}")
            self._spool.clear_held(f"{self.folder}/{JOBS_HELD}")
            self._spool.keeper.load_jobs(self.folder)
            fs.sync_folder(self.folder)
        except AlreadyLocked as locked:
            why = f"the command log {self.folder} is in use by {locked.holder or 'another server'}"
            raise SpoolError(f"{why}; stop it, or give another folder with --cmdlog-path") from None
        except OSError as error:
            why = f"cannot use the command log {self.folder}: {error.strerror}"
            raise SpoolError(f"{why}; give a folder that this user may write, with --cmdlog-path") from error

    def recover(self, now_ms: int) -> int:
        """Replay the log and return the number of jobs. If its files cannot be read, set `trouble` to the reason; no
        jobs are served then. Raises SpoolError.
        """
        self.started_ms = now_ms
        self.trouble = ""
        self.follow_wall(now_ms)
        replay = JobReplay(self.jobs, now_ms, self.calendar)
        recovery = CmdLogRecovery(self._spool.fs, self.folder, f"{self._spool.own}/damaged")
        try:
            release = self._spool.fs.hold(f"{self.folder}/{workq_files.READ_LOCK}", shared=True)
            try:
                try:
                    recovered = recovery.recover(replay)
                except OSError as error:
                    self._report_unreadable(error)
                    return 0
                # Jobs that a killed server wrote without a sync are served again, so a power cut must not lose them any
                # more.
                self._spool.fs.sync_all(self.folder)
            finally:
                release()
            self.log.resume(recovered.segments, replay.early, replay.latest_ns)
            for id in replay.strays:
                self.log.forget(id, now_ms)
            for job in replay.unended():
                if job.state is LEASED:
                    self.log.timed_out(job, now_ms)
        except AlreadyLocked:
            why = f"the command log {self.folder} is being cleaned by another program ({workq_files.READ_LOCK})"
            raise SpoolError(f"{why}; wait for it") from None
        except OSError as error:
            why = f"cannot use the command log: {error.filename}: {error.strerror}"
            raise SpoolError(f"{why}; make its files readable and writable for this user") from error
        for damage in recovered.damages:
            self._report_damage(damage)
        for refused in recovered.refused:
            hint = "the segment is empty, and the next records go into it"
            self.report(Level.WARNING, "cmdlog.not_cleaned", why=described(refused), hint=hint)
        for first, last in recovered.missing:
            hint = "cleaning leaves such holes; if the log was never cleaned, files are missing"
            self.report(Level.INFO, "cmdlog.hole", first=first, last=last, hint=hint)
        self._take_reserve()
        self.cleaner.begin_service(now_ms)
        return len(self.jobs.by_id)

    def retry(self, now_ms: int) -> None:
        """Try again to read the log, as `recover` does. If it cannot be read, `trouble` says why."""
        try:
            self.recover(now_ms)
        except SpoolError as error:
            self.trouble = str(error)

    def _report_unreadable(self, error: OSError) -> None:
        self.trouble = f"the command log is not available: {why_unreadable(error)}"
        hint = (
            "no jobs are served; make its files readable and writable for this user, with room on their disk, "
            "then reload or restart"
        )
        self.report(Level.ERROR, "cmdlog.unreadable", folder=self.folder, why=str(error), hint=hint)

    def _report_damage(self, damage: Damage) -> None:
        self.report(
            Level.WARNING if damage.is_torn else Level.ERROR,
            "cmdlog.torn" if damage.is_torn else "cmdlog.damaged",
            file=damage.file,
            at=damage.at,
            unread_bytes=damage.lost_bytes,
            why=damage.why,
            saved_as=damage.saved_as,
        )

    def follow_wall(self, now_ms: int) -> None:
        """Adapt to a change of the calendar: new records belong to its present era, and schedules follow the wall
        clock.
        """
        calendar, log = self.calendar, self.log
        aheads_ns = [era.ahead_ms * NS_A_MS for era in calendar.eras]
        self.jobs.mark = calendar.eras[-1].mark - 1
        self.jobs.shift_schedules(log.ahead_ns - aheads_ns[-1], now_ms)
        log.follow(aheads_ns)

    def shown_ns(self, then_ns: int) -> int:
        """Return the wall clock's time at a moment of server time, in the past or future."""
        then_ms = then_ns // NS_A_MS
        return then_ns + (self.calendar.shown_ms(then_ms) - then_ms) * NS_A_MS

    def learn(self, given: JobTerms) -> Terms:
        """Return the terms that a line gives. Equal lines share one object, under which the terms are stored."""
        terms = self.intern(given)
        if len(self.terms) >= TERMS_MAX:
            self.terms.clear()
        self.terms[given] = terms
        return terms

    def intern(self, given: JobTerms) -> Terms:
        """Return one object for all jobs of the same terms."""
        key = (given.name, given.ttr_ms, given.ttl_ms, given.priority, given.max_attempts, given.max_fails)
        terms = self._equal.get(key)
        if terms is None:
            if len(self._equal) >= TERMS_MAX:
                self._equal.clear()
            terms = self._equal[key] = Terms(self.jobs.queue(given.name), *key[1:])
        return terms

    def tick(self, now_ms: int) -> None:
        """Do a slice of the work that is due."""
        if self.jobs.next_ms() <= now_ms:
            self.jobs.ring(now_ms, JOBS_PER_TICK)
        if self.cleaner.next_ms() <= now_ms:
            self.cleaner.run_slice(now_ms)
        ballast = self.log.ballast
        if ballast is not None and ballast.budget_bytes < 0 and now_ms >= self._ballast_due_ms:
            self._ballast_due_ms = now_ms + BALLAST_RETRY_MS
            if ballast.create():
                self.report(Level.WARNING, "cmdlog.space", folder=self.folder, hint="jobs are accepted again")
            else:
                self._reclaim(now_ms)

    def reclaim_in_spool(self, now_ms: int) -> None:
        """Shrink the command log if it is on the spool's disk and that disk is full. Called each second."""
        if self.log.ballast is None and not self.trouble:
            self._reclaim(now_ms)

    def _reclaim(self, now_ms: int) -> None:
        """Rewrite the segments with the most dead jobs, if there is room for the live ones. End the current segment if
        that allows the next call to rewrite it.
        """
        if not self.cleaner.every_ms or not self.cleaner.is_idle:
            return
        room = self._spool.fs.free_bytes(self.folder)[0] * 7 // 8
        if self.log.end_segment_if_dead(RECLAIMED_BYTES_MIN):
            return
        self.cleaner.start_round_now(now_ms, room)

    def next_ms(self) -> int:
        """Return when `tick` next has something to do, if nothing else happens."""
        moment_ms = min(self.jobs.next_ms(), self.cleaner.next_ms())
        ballast = self.log.ballast
        if ballast is not None and ballast.budget_bytes < 0:
            moment_ms = min(moment_ms, self._ballast_due_ms)
        return moment_ms

    def close(self) -> None:
        """Close the log. Everything must have been written and synced."""
        self.log.close()

    def _take_reserve(self) -> None:
        ballast = self.log.ballast
        if ballast is not None and not ballast.create():
            hint = "jobs are refused until there is space"
            self.report(Level.ERROR, "cmdlog.full", folder=self.folder, hint=hint)

    def _report_cleaning(self, outcome: CleaningResult) -> None:
        self.cleanings += 1
        if outcome.why:
            hint = "the next round tries again"
            self.report(Level.WARNING, "cmdlog.not_cleaned", folder=self.folder, why=outcome.why, hint=hint)
        elif outcome.freed_bytes:
            self.report(
                Level.INFO,
                "cmdlog.cleaned",
                rewritten=outcome.cleaned,
                removed=outcome.removed,
                freed_bytes=outcome.freed_bytes,
            )
