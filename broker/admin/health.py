"""The health of the server: whether it is alive and ready, and if not, why, and which command helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from shlex import quote
from typing import TYPE_CHECKING

from staniel.broker.access import why_unreadable
from staniel.broker.admin.held_reads import held_files
from staniel.broker.admin.last_backup import LastBackup
from staniel.broker.admin.membership import MemberFigures
from staniel.broker.admin.reasons import Health, HealthReason, ReasonName, Severity
from staniel.broker.admin.watch import FILLING_PART, SLOW_SYNC_S, UNREAD_MS, Watch
from staniel.broker.config.load import Config
from staniel.broker.config.values import format_duration
from staniel.broker.counters import ServerCounters
from staniel.broker.events import DamageWatch
from staniel.broker.limits_reached import LimitsReached
from staniel.broker.operations.holds import Holds, HoldView, is_active
from staniel.broker.operations.pauses import Pauses
from staniel.broker.status import ServerStatus, StatusControl
from staniel.broker.users import is_unguarded
from staniel.broker.wall_clock import WallClock
from staniel.compiled import BUILD
from staniel.journal.disk.file_system import FileSystemFlaw
from staniel.journal.disk.fs import SHORT_ERRNOS
from staniel.journal.spool import Spool
from staniel.queues.registry import Queues

if TYPE_CHECKING:
    from staniel.broker.jobs import JobService

NAMES_MAX = 10  # of queues in one reason
DAY_MS = 24 * 3600 * 1000
UNLIMITED_SHARE = 4  # of the disk: a hold without a limit that keeps more than this part is told
LARGE_HOLD_SHARE = 20  # likewise, if the disk lacks room
WITHOUT_LIMIT = "without a limit, more than a quarter of the disk"
CERTIFICATE_WARNING_MS = 14 * DAY_MS  # authorities with automatic renewal renew a month before the end
ORDER = list(Severity)


class ServerReasons:
    """The reasons about the server itself. The driver sets `certificate_ends_ms`, of its TLS listeners, and
    `exposed_files`, files with secrets that every user of the machine can read. `workq` None: no jobs
    are served.
    """

    def __init__(
        self,
        status: StatusControl,
        counters: ServerCounters,
        limits: LimitsReached,
        wall: WallClock,
        workq: JobService | None,
    ) -> None:
        self.certificate_ends_ms: int | None = None
        self.exposed_files: list[str] = []
        self._status, self._counters, self._limits, self._wall = status, counters, limits, wall
        self._workq = workq

    def reasons(self, config: Config, now_ms: int) -> list[HealthReason]:
        return [*self._of_status(config), *self._of_secrets(now_ms), *self._of_clock()]

    def _of_status(self, config: Config) -> list[HealthReason]:
        reasons = []
        status = self._status.reported
        if self._status.is_stopping:
            reasons.append(
                HealthReason(ReasonName.STOPPING, Severity.NOT_READY, "the server is stopping", "start it again")
            )
        if not (status.reads and status.writes):
            refused, severity = (
                ("writes", Severity.REFUSES) if status.reads else ("reads and writes", Severity.NOT_READY)
            )
            text = f"the status is {status.value.lower()}: {refused} are refused"
            reasons.append(HealthReason(ReasonName.STATUS, severity, text, "staniel status up"))
        elif status is not ServerStatus.UP:
            text = f"the status is {status.value.lower()}: clients are asked to write elsewhere"
            reasons.append(HealthReason(ReasonName.STATUS, Severity.WARNING, text, "staniel status up"))
        if is_unguarded(config):
            text = "other machines reach this server, and clients need not authenticate"
            mend = "give [users] or [tls] client_certificates; see docs/security.md"
            reasons.append(HealthReason(ReasonName.NETWORK_OPEN, Severity.WARNING, text, mend))
        most = self._limits.max_connections
        if most and self._counters.curr_connections >= most:
            text = f"{self._counters.curr_connections} clients are connected, and no more are accepted"
            mend = "raise [server] max_connections, or the limit of open files, or look at: staniel clients"
            reasons.append(HealthReason(ReasonName.CONNECTIONS_FULL, Severity.WARNING, text, mend))
        if self._workq is not None and self._workq.trouble:
            text = f"the command log of jobs cannot be read: {self._workq.trouble}"
            reasons.append(
                HealthReason(ReasonName.JOBS_UNREADABLE, Severity.REFUSES, text, "mend the file, then: staniel reload")
            )
        return reasons

    def _of_secrets(self, now_ms: int) -> list[HealthReason]:
        reasons = self._of_certificate(now_ms)
        if exposed := self.exposed_files:
            text = f"every user of this machine can read {', '.join(exposed)}"
            mend = f"chmod o-r {' '.join(exposed)}, and have new secrets in there, then: staniel reload"
            reasons.append(HealthReason(ReasonName.SECRETS_READABLE, Severity.WARNING, text, mend))
        return reasons

    def _of_clock(self) -> list[HealthReason]:
        if not self._wall.is_apart:
            return []
        apart_s = self._wall.apart_ms // 1000
        text = f"the machine's clock was set {abs(apart_s):,} s {'ahead' if apart_s > 0 else 'back'} since startup"
        text += ": dates follow the clock; expiry and waits count the time that passed"
        mend = "look at the machine's NTP; the warning ends with a restart, or when the clock is set right again"
        return [HealthReason(ReasonName.CLOCK_APART, Severity.WARNING, text, mend)]

    def _of_certificate(self, now_ms: int) -> list[HealthReason]:
        ends_ms = self.certificate_ends_ms
        if ends_ms is not None:
            ends_ms -= self._wall.calendar.ahead_ms
        if ends_ms is None or ends_ms - now_ms >= CERTIFICATE_WARNING_MS:
            return []
        if ends_ms <= now_ms:
            text = "the certificate of [tls] has expired: clients that check it do not connect"
        else:
            text = f"the certificate of [tls] expires in {(ends_ms - now_ms) // DAY_MS} days"
        return [
            HealthReason(ReasonName.CERTIFICATE_EXPIRES, Severity.WARNING, text, "renew its file, then: staniel reload")
        ]


class DiskReasons:
    """The reasons about the spool and its disk. The driver sets `file_systems`: the flaws of each folder's file system.
    `refused_removals` counts the packs, segments and deleted queues whose files the system refuses to remove.
    """

    def __init__(
        self,
        spool: Spool,
        watch: Watch,
        damages: DamageWatch,
        last_backup: LastBackup,
        holds: Holds,
        refused_removals: Callable[[], int],
    ) -> None:
        self.file_systems: dict[str, FileSystemFlaw] = {}
        self._spool, self._watch, self._damages, self._last_backup = spool, watch, damages, last_backup
        self._holds = holds
        self._refused_removals = refused_removals

    def reasons(self, config: Config, now_ms: int) -> list[HealthReason]:
        return [
            *self._of_disk(config),
            *self._of_copies(now_ms),
            *self._of_backup(config, now_ms),
            *self._of_holds(now_ms),
        ]

    def _of_holds(self, now_ms: int) -> list[HealthReason]:
        """Return the reasons about retention holds that were dropped at their limits, or are near them."""
        holds = self._holds.views(now_ms) if len(self._holds) else []
        dropped = [hold for hold in holds if not is_active(hold)]
        total = self._spool.fs.free_bytes(self._spool.folder)[1] if holds else 0
        filling = [hold for hold in holds if is_active(hold) and hold.bytes > most_of(hold, total)]
        reasons = []
        if dropped:
            text = f"the hold {dropped[0].name} was dropped{_more(dropped)}: {dropped[0].why}"
            mend = "its holder has missed files: let it begin again, with a larger limit, or: "
            mend += f"staniel hold drop {quote(dropped[0].name)}"
            reasons.append(HealthReason(ReasonName.HOLD_DROPPED, Severity.WARNING, text, mend, len(dropped)))
        if filling:
            hold = filling[0]
            of_how_many = f"of at most {hold.max_bytes:,} bytes" if hold.max_bytes else f"bytes {WITHOUT_LIMIT}"
            text = f"the hold {hold.name} keeps {hold.bytes:,} {of_how_many}{_more(filling)}"
            text += f", and last moved {hold.age_ms // 60_000} minutes ago"
            mend = "start its holder, or raise its limit, before it is dropped: staniel hold list"
            if not hold.max_bytes:
                mend = f"start its holder, or: staniel hold drop {quote(hold.name)}"
            reasons.append(HealthReason(ReasonName.HOLD_FILLING, Severity.WARNING, text, mend, len(filling)))
        return reasons

    def _of_disk(self, config: Config) -> list[HealthReason]:
        spool, group, fs = self._spool, self._spool.group, self._spool.fs
        if fs.failure:
            text = f"{fs.failure}: nothing is acknowledged any more, and the process ends"
            return [
                HealthReason(
                    ReasonName.SYNC_FAILED, Severity.NOT_READY, text, "look at the disk, then start the server again"
                )
            ]
        if group.is_full:
            text = "the disk is full: puts are refused, gets go on"
            mend = f"make room on the disk of {spool.folder}; puts are accepted within a second of that"
            if group.ballast.lacks_inodes:
                text = "the disk has no inodes left: puts are refused, gets go on"
                mend = f"remove files from the disk of {spool.folder}; df -i counts them"
            return [HealthReason(ReasonName.DISK_FULL, Severity.REFUSES, text, self._with_holds(mend))]
        reasons = [*self._of_file_systems(config), *self._of_damage(), *self._of_watch()]
        free, total = fs.free_bytes(spool.folder)
        low = max(4 * group.ballast.bytes, total // 50)
        if free < low:
            text = f"{free >> 20} MB of {total >> 20} MB are free on the disk of the spool"
            mend = f"make room on the disk of {spool.folder} before puts are refused"
            reasons.append(HealthReason(ReasonName.DISK_LOW, Severity.WARNING, text, self._with_holds(mend)))
        return reasons

    def _with_holds(self, mend: str) -> str:
        """Return a remedy for a lack of room, with the hold that takes the most, if that is much of the disk."""
        total = self._spool.fs.free_bytes(self._spool.folder)[1]
        hold = max(self._holds.figures(), key=lambda hold: hold.bytes, default=None)
        if hold is None or hold.bytes < total // LARGE_HOLD_SHARE:
            return mend
        takes = f"the hold {hold.name} keeps {hold.bytes >> 20} MB there"
        return f"{mend}; {takes}: start its holder, or: staniel hold drop {quote(hold.name)}"

    def _of_watch(self) -> list[HealthReason]:
        watch, reasons = self._watch, []
        if watch.fills_in_ms:
            hours, minutes = divmod(watch.fills_in_ms // 60_000, 60)
            text = f"the disk is full in {hours} h {minutes} m at the rate of the last hour, then puts are refused"
            mend = "start more consumers, or set max_size for the queue that grows; staniel queues shows which"
            reasons.append(HealthReason(ReasonName.DISK_FILLING, Severity.WARNING, text, self._with_holds(mend)))
        if watch.is_read_kept:
            text = (
                f"{watch.read_bytes >> 20} MB of the journals have been read and stay, a quarter of the disk and more"
            )
            mend = "they are packed in the background if the disk has room: "
            mend += "journal.pack_failed in the log says what is wrong"
            reasons.append(HealthReason(ReasonName.READ_KEPT, Severity.WARNING, text, mend))
        if count := self._refused_removals():
            text = f"the system refuses to remove or rename files of {count:,} packs, segments or deleted queues"
            events = "journal.unremoved, segment.stuck, queue.unremoved and cmdlog.not_cleaned"
            mend = f"{events} in the log say which and what to do about each"
            reasons.append(HealthReason(ReasonName.REMOVALS_REFUSED, Severity.WARNING, text, mend))
        if watch.are_syncs_slow:
            text = f"{watch.slow_syncs:,} of the last {watch.syncs:,} syncs took more than {SLOW_SYNC_S} s each"
            if watch.sync_hangs_ms:
                text = (
                    f"a sync of the disk has not ended for {watch.sync_hangs_ms // 1000} s: replies that need it wait"
                )
            mend = 'look at the disk: iostat -x 5; a queue that may lose its last moments: sync_journal = "50ms"'
            reasons.append(HealthReason(ReasonName.SYNCS_SLOW, Severity.WARNING, text, mend))
        return reasons

    def _of_file_systems(self, config: Config) -> list[HealthReason]:
        if config.server.trust_file_system:
            return []
        mend = "give a folder on a local disk, or, if it is meant: [server] trust_file_system = true"
        return [
            HealthReason(ReasonName.FILE_SYSTEM, Severity.WARNING, f"{folder}: {flaw.text}", mend)
            for folder, flaw in self.file_systems.items()
        ]

    def _of_damage(self) -> list[HealthReason]:
        damages = self._damages
        if not damages.count:
            return []
        more = f", and {damages.count - 1} more" if damages.count > 1 else ""
        text = f"bytes of the spool could not be read since the start: {damages.first}{more}; the rest is served"
        mend = (
            f"the log says what is lost, and where in {self._spool.own}/damaged a copy of those bytes is; "
            "look at the disk; the next start that can read everything ends this warning"
        )
        return [HealthReason(ReasonName.DAMAGE, Severity.WARNING, text, mend)]

    def _of_copies(self, now_ms: int) -> list[HealthReason]:
        copies = self._watch.copies
        if not self._watch.are_copies_kept(now_ms):
            return []
        age_ms = copies.age_ms(now_ms)
        those, are = ("copies", "are") if copies.count > 1 else ("copy", "is")
        size = f"{copies.bytes >> 20} MB" if copies.bytes >> 20 else f"{copies.bytes:,} bytes"
        where = f"{copies.count:,} {those} of bytes that could not be read {are} in {copies.folder}"
        text = f"{where}: {size}, up to {age_ms // DAY_MS} days old"
        mend = f"look at them, then: staniel journal damaged {quote(self._spool.folder)} --remove"
        return [HealthReason(ReasonName.COPIES_KEPT, Severity.WARNING, text, mend)]

    def _of_backup(self, config: Config, now_ms: int) -> list[HealthReason]:
        last, age_ms_max = self._last_backup, config.server.backup_max_age_ms
        if not last.is_old(now_ms, age_ms_max):
            return []
        age_ms, most = last.age_ms(now_ms), f"backup_max_age is {format_duration(age_ms_max)}"
        if last.made is None or age_ms is None:
            text, where = f"no backup of this spool is known, and {most}", "DEST"
        else:
            days, hours = divmod(age_ms // 3_600_000, 24)
            text, where = f"the last backup is {days} d {hours} h old, and {most}", quote(last.made.where)
        return [HealthReason(ReasonName.BACKUP_OLD, Severity.WARNING, text, f"staniel backup {where}")]


class QueueReasons:
    """The reasons about queues that `watch` has looked at."""

    def __init__(self, queues: Queues, watch: Watch, pauses: Pauses) -> None:
        self._queues, self.watch, self._pauses = queues, watch, pauses

    def reasons(self, now_ms: int) -> list[HealthReason]:
        return [self.about(reason, names, now_ms) for reason, names in self.names_by_reason().items()]

    def names_by_reason(self, unreadable: Iterable[str] | None = None) -> dict[ReasonName, list[str]]:
        """Return the names of the queues that each reason is about. With `unreadable` None, look at each queue."""
        if unreadable is None:
            unreadable = [queue.name for queue in self._queues if queue.line.read_error is not None]
        by_reason = {
            ReasonName.QUEUES_BLOCKED: list(self._queues.blocked),
            ReasonName.QUEUES_UNREADABLE: list(unreadable),
            **{reason: list(names) for reason, names in self.watch.queues.items()},
            ReasonName.QUEUES_PAUSED: list(self._pauses),
        }
        return {reason: names for reason, names in by_reason.items() if names}

    def about(self, reason: ReasonName, names: list[str], now_ms: int) -> HealthReason:
        """Return `reason` with its text, its remedy and the names of these queues."""
        severity = Severity.WARNING
        mend = mend_of(reason, names[:NAMES_MAX])
        if reason is ReasonName.READS_HELD:
            return HealthReason(reason, severity, self._held(names, now_ms), mend, len(names), tuple(names[:NAMES_MAX]))
        if reason is ReasonName.QUEUES_BLOCKED:
            severity = Severity.REFUSES
            text = f"{_names(names)} cannot be served: {self._queues.blocked[names[0]]}"
        elif reason is ReasonName.QUEUES_UNREADABLE:
            severity = Severity.REFUSES
            queue = self._queues.find(names[0])
            error = queue.line.read_error if queue is not None else None
            text = f"{_names(names)} cannot be read: {why_unreadable(error) if error is not None else 'see the log'}"
            if error is not None and error.errno in SHORT_ERRNOS:
                mend = "close some open files or free some memory; the server tries again each second"
        else:
            text = self._text(reason, names)
        return HealthReason(reason, severity, text, mend, len(names), tuple(names[:NAMES_MAX]))

    def _text(self, reason: ReasonName, names: list[str]) -> str:
        """Return the text of `reason` for these queues."""
        is_one = len(names) == 1
        if reason is ReasonName.QUEUES_PAUSED:
            return f"{_names(names)} {'is' if is_one else 'are'} paused"
        if reason is ReasonName.QUEUE_FULL:
            return f"{_names(names)} {'is full: its' if is_one else 'are full: their'} puts are refused"
        if reason is ReasonName.QUEUE_FILLING:
            return f"{_names(names)} {'is' if is_one else 'are'} full to {FILLING_PART:.0%}, and puts will be refused"
        if reason is ReasonName.QUEUE_GROWS:
            return f"{_names(names)} {'grows' if is_one else 'grow'}: more is put than taken"
        items = sum(queue.line.present for name in names if (queue := self._queues.find(name)) is not None)
        if reason is ReasonName.DEAD_LETTERS:
            return f"{_names(names)} {'holds' if is_one else 'hold'} {items:,} dead letter{'s' * (items != 1)}"
        what = f"{items:,} item{'s' * (items != 1)} that nothing has read for {UNREAD_MS // 60_000} minutes"
        return f"{_names(names)} {'holds' if is_one else 'hold'} {what}"

    def _held(self, names: list[str], now_ms: int) -> str:
        """Return which open reads keep files, how much, and for how long."""
        queues = [queue for name in names if (queue := self._queues.find(name)) is not None]
        held = [held_files(queue, now_ms) for queue in queues]
        size, age_ms = sum(files.bytes for files in held), max((files.ms for files in held), default=0)
        what = f"{size >> 20} MB of files that are otherwise read, for up to {age_ms // 60_000} minutes"
        return f"open reads of {_names(names)} keep {what}"


class HealthCheck:
    """All reasons together. `config` is the configuration in force: a reload replaces it. `membership`: set by the
    driver of a cluster's member.
    """

    def __init__(
        self, config: Config, status: StatusControl, server: ServerReasons, disk: DiskReasons, queues: QueueReasons
    ) -> None:
        self.config = config
        self.server, self.disk, self.queues = server, disk, queues
        self.membership: MemberFigures | None = None
        self._status = status

    def check(self, now_ms: int) -> Health:
        """Return all reasons, the gravest first. Looks at each queue once, a microsecond each, if there are few."""
        self.queues.watch.check_now(now_ms)
        reasons = [*self.reasons_of_server(now_ms), *self.queues.reasons(now_ms)]
        reasons.sort(key=lambda reason: ORDER.index(reason.severity))
        severities = {reason.severity for reason in reasons}
        is_ready = Severity.NOT_READY not in severities
        status = self._status.reported.value.lower()
        return Health(is_ready, is_ready and Severity.REFUSES not in severities, status, reasons, BUILD)

    def reasons_of_server(self, now_ms: int) -> list[HealthReason]:
        """Return the reasons that are not about queues."""
        of_member = self.membership.reasons() if self.membership is not None else ()
        return [*of_member, *self.server.reasons(self.config, now_ms), *self.disk.reasons(self.config, now_ms)]


def for_strangers(health: Health) -> Health:
    """Return the part that an unauthenticated load balancer needs. The rest names queues, folders and files."""
    reasons = [
        HealthReason(
            reason.name, reason.severity, reason.name.value.replace("_", " "), "ask with the token for what mends it"
        )
        for reason in health.reasons
    ]
    return Health(health.ready, health.ready_for_puts, health.status, reasons)


def mend_of(reason: ReasonName, names: list[str]) -> str:
    """Return the remedy for `reason`. It ends with a command, which is about all of the queues `names` if it takes
    several.
    """
    word, words = quote(names[0]), " ".join(map(quote, names))
    if reason is ReasonName.QUEUES_BLOCKED:
        return "mend or remove the files that the log names, then: staniel reload"
    if reason is ReasonName.QUEUES_UNREADABLE:
        return "make the file readable, or remove it, then: staniel reload"
    if reason in (ReasonName.QUEUE_FULL, ReasonName.QUEUE_FILLING):
        return "start more consumers, or raise max_items or max_size in the configuration, then: staniel reload"
    if reason is ReasonName.QUEUE_GROWS:
        return f"start more consumers; staniel open {word} shows who holds its items"
    if reason is ReasonName.READS_HELD:
        return f"confirm them, close their clients or set open_transaction_timeout; see staniel open {word}"
    if reason is ReasonName.QUEUE_NOT_READ:
        return "start its consumers; staniel clients shows who is connected"
    if reason is ReasonName.DEAD_LETTERS:
        return f"mend the workers, then: staniel redrive {words}"
    return f"staniel resume {words}"


def most_of(hold: HoldView, total_bytes: int) -> float:
    """Return how many bytes a hold may keep before that is told. `total_bytes`: of the disk."""
    return FILLING_PART * hold.max_bytes if hold.max_bytes else total_bytes / UNLIMITED_SHARE


def _more(holds: list[HoldView]) -> str:
    return f" (and {len(holds) - 1} more)" if len(holds) > 1 else ""


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    are = "queues" if len(names) > 1 else "queue"
    return f"{are} {', '.join(names[:NAMES_MAX])}{more}"
