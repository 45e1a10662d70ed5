"""Starting a broker: recover every queue of the spool, finish transfers, sync the result.

Queues whose files cannot be read are blocked. A reload tries them again (`SpoolRecovery.retry`), because the files may
have been repaired or removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.access import puts_are_refused, why_unreadable
from staniel.broker.config.load import Config
from staniel.broker.events import LAST_TIME, EventSink, Level, dead_letter
from staniel.broker.maintenance.damage_events import report_damages, report_left
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.broker.operations.pauses import Pauses
from staniel.broker.operations.running import Operations
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.broker.put_keys import PutKeys
from staniel.broker.status import ServerStatus
from staniel.broker.streams import StreamQueues, set_aside
from staniel.broker.transfer_recovery import TransferRecovery
from staniel.journal.disk.fs import UNKNOWN_BYTES
from staniel.journal.disk.refusals import described
from staniel.journal.kestrel.files import Files
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.redo.replay import Legibility
from staniel.journal.spool import Spool, refused_start
from staniel.journal.spool_listing import SpoolListing
from staniel.queues.config import Format
from staniel.queues.item import Delivery
from staniel.queues.names import family_of
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues
from staniel.queues.time_outs import Ended

if TYPE_CHECKING:
    from staniel.broker.jobs import JobService

GONE = "this many of its items are lost; put the file back and restart, or go on without them"
SHORTENED = f"the file has lost its end, and with it this many items; {GONE.partition('; ')[2]}"
STAND_INS = "they stand for items that a later, lost record removed; they are not delivered"


class RecoveryProgress(Struct):
    """The progress of recovery. Bytes are those of journal files, whether they had to be read or not."""

    queues: int = 0
    bytes: int = 0
    all_queues: int = 0
    all_bytes: int = 0
    read_bytes: int = 0
    spared_bytes: int = 0


class RecoverySummary(Struct, frozen=True):
    """The findings of recovery: the bytes that were read, and the queues that are paused or cannot be read."""

    queues: int
    items: int
    bytes: int
    jobs: int = 0
    read_bytes: int = 0  # bytes of journals that were read
    spared_bytes: int = 0  # bytes of journals that need not be read, because they have sidecars
    status: ServerStatus = ServerStatus.UP
    paused: int = 0  # queues
    unreadable: int = 0  # queues that are not served
    jobs_unreadable: bool = False


def no_progress(progress: RecoveryProgress) -> None:
    """Do nothing with the progress of recovery."""


class SpoolRecovery:
    """The recovery of a spool. `jobs` None: the server serves none."""

    def __init__(
        self,
        kestrel: KestrelQueues,
        operations: Operations,
        put_keys: PutKeys,
        pauses: Pauses,
        jobs: JobService | None,
        report: EventSink,
    ) -> None:
        tools = operations.tools
        self._transfers, self._queues, self._spool = tools.transfers, tools.queues, tools.transfers.spool
        self._kestrel, self._streams, self._pauses, self._jobs = kestrel, kestrel.streams, pauses, jobs
        self._put_keys = put_keys
        self._status, self._client_events, self._report = tools.clients.status, tools.clients.report, report
        self._undo = UndoRecovery(operations, report)

    def recover(
        self, config: Config, now_ms: int, on_progress: Callable[[RecoveryProgress], None] = no_progress
    ) -> RecoverySummary:
        """Replay the spool, put open reads back, and make the result durable. Damage is reported and does not stop
        other queues. `on_progress` is called after each piece of a file. Raises SpoolError and JournalFailure.
        """
        spool, queues, transfers, undo, jobs = self._spool, self._queues, self._transfers, self._undo, self._jobs
        self._status.started_ms = now_ms
        listing = self._recover_spool()
        self._streams.recover(listing, config, now_ms)
        progress, ambiguous = self._kestrel.recover(listing.kestrel, now_ms, on_progress)
        spool.sync_recovered()
        undo.read(now_ms)
        undo.classify()
        kept = transfers.recovery.recover(undo.intents)
        puts = self._put_keys.search(now_ms)
        undo.find_copies(now_ms)
        for queue in list(queues):
            queue.return_open_reads(now_ms, partial(self._report_ended, queue))
            queues.create_expiry_target(queue, now_ms)
        self._pauses.restore(queues, now_ms)
        _restore_ballast(spool, self._report)
        spool.group.sync_all(now_ms)
        transfers.transfer_log.restart(kept)
        if puts:
            self._put_keys.write_found(puts)
        undo.apply_fates(transfers.recovery.fates)
        if ambiguous:
            self._kestrel.rewrite(ambiguous, now_ms)
        set_aliases(queues, config.aliases, self._report)
        job_count = 0 if jobs is None else jobs.recover(now_ms)
        spool.failed_sync.is_complete = True
        undo.resume(now_ms)
        if not undo.has_unresolved:
            self._streams.trim({family_of(intent.target) for intent in transfers.transfer_log.kept.values()})
        return RecoverySummary(
            queues=len(queues),
            items=sum(len(queue.line) + len(queue.resting) + len(queue.open_reads) for queue in queues),
            bytes=sum(
                queue.waiting_bytes + sum(len(taken.item.data) for taken in queue.open_reads.values())
                for queue in queues
            ),
            jobs=job_count,
            read_bytes=progress.read_bytes,
            spared_bytes=progress.spared_bytes,
            status=self._status.reported,
            paused=len(self._pauses),
            unreadable=len(queues.blocked),
            jobs_unreadable=jobs is not None and bool(jobs.trouble),
        )

    def _recover_spool(self) -> SpoolListing:
        """Repair what all queues share; return the listing of their files. Raises SpoolError."""
        spool, report = self._spool, self._report
        spool.group.ballast.release()  # repairs may need its space; it is restored below
        spool.failed_sync.set_room_aside()
        for path, saved_as in spool.cleared:
            report(Level.ERROR, "spool.cleared", file=path, why="not a file", saved_as=saved_as)
        if (plan := spool.stuck_plan) is not None:
            held = ", ".join(sorted(plan.queues)) or "none"
            report(Level.ERROR, "convert.plan_damaged", file=plan.path, why=plan.why, saved_as=plan.saved_as, held=held)
        _replay_log(spool, report)
        listing = spool.listing()
        try:
            is_in_doubt = spool.failed_sync.exists
        except OSError as error:
            raise refused_start(error, spool.own) from error
        if is_in_doubt:  # the disk may differ from the page cache since a sync failed in an earlier run
            renewed = spool.renew(listing, self._jobs.folder if self._jobs is not None else "")
            if renewed.files:
                report(Level.WARNING, "spool.renewed", files=renewed.files, why="a sync had failed before")
            for path in renewed.left:
                hint = "missing, or in use by another process; the next start that can reach it rewrites it"
                report(Level.ERROR, "spool.in_doubt", file=path, why="a sync had failed before", hint=hint)
            listing = spool.listing()
        if spool.used_log:  # before any other file gets a name that the log knows
            spool.sync_recovered()
            spool.end_log()
        spool.remove_unused_log()
        for name in spool.orphans(listing):
            hint = "with all other files of its queue, which are not reported one by one"
            report(Level.ERROR, "journal.gone", queue=name.rpartition(".")[0], file=name, items="unknown", hint=hint)
        try:
            spool.prune(listing.kestrel)
        except OSError as error:
            hint = "they stay where they are, and no change depends on them"
            report(Level.WARNING, "journal.sidecar_failed", file=error.filename, why=described(error), hint=hint)
        for name in listing.foreign:
            report(Level.WARNING, "spool.foreign", file=name, hint="not a journal: left alone")
        return listing

    def _report_ended(self, queue: Queue, ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
        """Report the items that were open, and in their last delivery, when the server ended."""
        for taken, fate in ended:
            if fate in LAST_TIME:
                self._client_events(Level.INFO, LAST_TIME[fate], now_ms, client="", **dead_letter(queue, taken))

    def retry(self, now_ms: int, commit: Callable[[int], None]) -> None:
        """Try again to read unreadable queues. A queue in service continues where it stopped. One that startup could
        not read is recovered as at startup, with its transfers. Queues that still cannot be read stay blocked and are
        reported again. `commit` is the broker's.
        """
        for queue in self._queues.all():
            if queue.line.read_error is not None:
                self._kestrel.read_again(queue)
        if self._queues.unreadable or self._transfers.transfer_log.kept or self._put_keys.has_unclear:
            self._recover_blocked(now_ms, commit)

    def _recover_blocked(self, now_ms: int, commit: Callable[[int], None]) -> None:
        tried = set(self._queues.unreadable)
        try:
            listing = self._spool.listing()
        except OSError:
            return
        queues = self._queues
        queues.unreadable.clear()
        known = set(queues.by_name)
        ambiguous = []
        for name in sorted(tried):
            self._streams.unblock(name)
            if name in listing.mixed:
                self._streams.block_mixed(name, listing.mixed[name])
            elif name in listing.streams:
                self._streams.recover_one(name, listing.streams[name], now_ms)
            elif name in listing.kestrel and self._kestrel.recover_or_block(
                name, listing.kestrel[name], now_ms, RecoveryProgress()
            ):
                ambiguous.append(name)
        recovered = [queue for queue in queues if queue.name not in known]
        undo = self._undo if self._undo.has_unresolved else None
        if undo is not None:
            undo.classify()
        self._put_keys.retry(now_ms)
        self._transfers.recovery.retry(now_ms)  # items that it moves may create a queue, and go to its waiters
        if undo is not None:
            undo.find_copies(now_ms)
        for queue in recovered:
            queue.return_open_reads(now_ms, partial(self._report_ended, queue))
            queues.create_expiry_target(queue, now_ms)
            self._pauses.apply_to(queue)
        if ambiguous:
            commit(now_ms)
            self._kestrel.rewrite(ambiguous, now_ms)
        if undo is not None:
            undo.resume(now_ms)


def set_aliases(queues: Queues, aliases: dict[str, tuple[str, ...]], report: EventSink) -> None:
    """Replace all aliases by these. If one has the name of a queue, it hides that queue, which is reported."""
    queues.set_aliases(aliases)
    for name in queues.hidden_by_alias:
        hint = "the alias hides the queue; its items stay where they are"
        report(Level.WARNING, "alias.hides", queue=name, hint=hint)


class KestrelQueues:
    """All queues of Kestrel's format, as recovery finds them. `streams` has those of the other format."""

    def __init__(
        self,
        spool: Spool,
        maintenance: MaintenanceScheduler,
        streams: StreamQueues,
        transfers: TransferRecovery,
        report: EventSink,
    ) -> None:
        self._spool, self._queues, self._maintenance = spool, maintenance.queues, maintenance
        self.streams, self._transfers, self._report = streams, transfers, report

    def recover(
        self, files: dict[str, Files], now_ms: int, on_progress: Callable[[RecoveryProgress], None]
    ) -> tuple[RecoveryProgress, list[str]]:
        """Recover the queues, the smallest first, so that a damaged one among many is reported early. Return the
        progress, and the names of queues whose journals must be rewritten.
        """
        sizes = {name: self._spool.size(file) for name, file in files.items()}
        progress = RecoveryProgress(all_queues=len(files), all_bytes=sum(sizes.values()))

        def advance(size: int) -> None:
            progress.bytes += size
            on_progress(progress)

        self._spool.recovery.progress = advance
        ambiguous = []
        for name in sorted(sorted(files), key=sizes.__getitem__):
            before = progress.bytes
            if self.recover_or_block(name, files[name], now_ms, progress):
                ambiguous.append(name)
            progress.bytes = before + sizes[name]
            progress.queues += 1
            on_progress(progress)
        by_name = self._queues.by_name
        for name in sorted(by_name):  # statistics list queues in this order
            by_name[name] = by_name.pop(name)
        return progress, sorted(ambiguous)

    def recover_or_block(self, name: str, files: Files, now_ms: int, progress: RecoveryProgress) -> bool:
        """Bring a queue into service, or block its name. Return True if its journal must be rewritten: items are open
        or delayed under numbers that differ from those that a reader of the journal would count.
        """
        memory = self._maintenance.memory
        try:
            if files.holds_nothing:
                report_left(self._report, name, self._spool.recovery.tidy(files))
                return False
            config = self._queues.config_of(name)
            if not config.keep_journal:
                set_aside(self._spool, self._report, name, files, now_ms)
                return False
            recovered, log = self._spool.recover(name, files, config, now_ms, memory.bytes_for(config))
            progress.read_bytes += recovered.replayed_bytes
            progress.spared_bytes += recovered.skipped_bytes
            report_damages(self._report, name, recovered.damages)
            report_left(self._report, name, recovered.refused)
            for missing in recovered.missing_items:
                event, hint = ("journal.gone", GONE) if missing.is_gone else ("journal.shortened", SHORTENED)
                items = missing.items if missing.items >= 0 else "unknown"
                self._report(Level.ERROR, event, queue=name, file=missing.file, items=items, hint=hint)
            if recovered.stand_ins:
                self._report(Level.ERROR, "journal.stand_ins", queue=name, items=recovered.stand_ins, hint=STAND_INS)
            for rejected in recovered.rejected_sidecars:
                level = Level.WARNING if rejected.is_serious else Level.DEBUG
                self._report(level, "journal.read_whole", queue=name, file=rejected.file, why=rejected.why)
            self.streams.compare_format(name, Format.KESTREL)
            queue = self._queues.adopt(name, log, now_ms)
            queue.load(recovered.replay.line, recovered.replay.open, recovered.replay.counter)
            memory.bound(queue)
            memory.weigh(queue)
            if self._spool.is_file_size_limited and log.written_bytes > log.config.max_memory_bytes:
                log.rotate(now_ms)  # an earlier server may have had larger files; writes to this one would be refused
            self._maintenance.read_ahead.queue_if_room(queue)
            return recovered.replay.has_items_with_xid()
        except OSError as error:
            self._spool.claim(name)
            self._queues.block(name, why_unreadable(error))
            self._queues.unreadable.add(name)
            hint = "not served; make its files readable and writable for this user, then reload or restart"
            self._report(Level.ERROR, "journal.unreadable", queue=name, why=str(error), hint=hint)
        return False

    def rewrite(self, names: Iterable[str], now_ms: int) -> None:
        """Rewrite the journals that a reader would read differently from what memory has. A queue whose journal cannot
        be rewritten is not served, because records added to it now would refer to other items.
        """
        maintenance, group = self._maintenance, self._spool.group
        queues = [self._queues.by_name[name] for name in names]
        unsearched = [queue for queue in queues if self._transfers.pinned(queue)]
        queues = [queue for queue in queues if queue not in unsearched]
        failed = [queue for queue in queues if not maintenance.rewrite(queue, now_ms)]
        if failed and not group.is_full:
            group.ballast.release()
            failed = [queue for queue in failed if not maintenance.rewrite(queue, now_ms)]
            group.restore_ballast()
        for queue in failed:
            self._withdraw(queue, "there is no room to rewrite its journal", "make room")
        for queue in unsearched:
            self._withdraw(queue, "it could not be searched for copies", "make its files readable")

    def _withdraw(self, queue: Queue, why: str, remedy: str) -> None:
        """Withdraw a queue before any client has used it; its files stay as they are."""
        trouble = queue.line.read_error
        why = str(trouble) if trouble else why
        self._maintenance.forget(queue)
        self._queues.withdraw(queue, why)
        self._transfers.withdraw(queue)
        self._queues.unreadable.add(queue.name)
        if isinstance(queue.journal, Log):
            queue.journal.close()
        hint = f"not served, and its files stay as they are; {remedy}, then reload or restart"
        self._report(Level.ERROR, "journal.unreadable", queue=queue.name, why=why, hint=hint)

    def read_again(self, queue: Queue) -> None:
        tail = queue.line.tail
        if isinstance(tail, ReadBehind):
            try:
                gone = tail.give_up_missing_files()
            except OSError:
                return
            for name in gone:
                hint = "its items are lost; the queue is served without them"
                self._report(Level.ERROR, "journal.gone", queue=queue.name, file=name, hint=hint)
        queue.read_again()
        self._maintenance.read_ahead.retry(queue)


def _restore_ballast(spool: Spool, report: EventSink) -> None:
    group = spool.group
    if not group.restore_ballast():
        report(Level.ERROR, "disk.full", spool=spool.folder, hint=puts_are_refused(group))
    if group.ballast.trouble:
        hint = "there is room, so puts are accepted; a disk that fills up within a second may end the server"
        report(Level.WARNING, "spool.no_reserve", file=group.ballast.path, why=group.ballast.trouble, hint=hint)
    if spool.fs.free_bytes(spool.folder)[1] == UNKNOWN_BYTES:
        hint = "whether the disk fills up is not known before a write fails; allow statfs"
        report(Level.WARNING, "spool.space_unknown", spool=spool.folder, hint=hint)


def _replay_log(spool: Spool, report: EventSink) -> None:
    """Replay the redo log. After a power cut it may have changes that the journals lack. Raises SpoolError."""
    if not spool.used_log:
        return
    content, changes = spool.replay_log()
    if content.found is not Legibility.WHOLE:
        hint = "copied to .staniel/damaged; after a power cut the last acknowledged changes may be missing"
        report(Level.ERROR, "redo.damaged", spool=spool.folder, what=content.found.value, hint=hint)
    if changes:
        written, cut = sum(change.written_bytes for change in changes), sum(change.cut_bytes for change in changes)
        report(Level.WARNING, "redo.replayed", files=len(changes), written_bytes=written, cut_bytes=cut)
    for change in changes:
        if change.why:
            hint = "the changes that the redo log has for it are not used"
            report(Level.ERROR, "redo.unusable", file=change.path, why=change.why, hint=hint)
        elif change.cut_bytes:
            why = "not all of these bytes were durable, and no reply waited for them"
            report(
                Level.WARNING,
                "redo.cut",
                file=change.path,
                at=change.cut_at,
                bytes=change.cut_bytes,
                why=why,
                saved_as=change.saved_as,
            )
