"""Starting a broker: recover every queue of the spool, finish transfers, sync the result.

Queues whose files could not be read are blocked, and tried again at a reload (`retry_unreadable`): the files may have
been repaired or removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.access import puts_are_refused, why_unreadable
from staniel.broker.events import Level
from staniel.broker.operations.undo_recovery import UndoRecovery
from staniel.broker.session import LAST_TIME, dead_letter
from staniel.broker.status import ServerStatus
from staniel.journal.disk.fs import UNKNOWN_BYTES
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.errors import Damage
from staniel.journal.kestrel.files import Files
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.libkestrel.files import StreamFiles
from staniel.journal.redo.replay import Legibility
from staniel.journal.spool import SpoolError, refused_start
from staniel.journal.spool_listing import SpoolListing
from staniel.queues.config import Format
from staniel.queues.item import Delivery
from staniel.queues.queue import Ended, Queue

if TYPE_CHECKING:
    from staniel.broker.broker import Broker

GONE = "so many of its items are lost; put the file back and restart, or go on without them"
SHORTENED = f"the file has lost its end, and with it so many items; {GONE.partition('; ')[2]}"
STAND_INS = "they stand for items removed before, and what removed them is lost; not handed out"


class RecoveryProgress(Struct):
    """The progress of recovery. Bytes are those of journal files, whether they had to be read or not."""

    queues: int = 0
    bytes: int = 0
    all_queues: int = 0
    all_bytes: int = 0
    read_bytes: int = 0
    spared_bytes: int = 0


class RecoverySummary(Struct, frozen=True):
    """The findings of recovery: the amount that was read, and the queues that are paused or cannot be read."""

    queues: int
    items: int
    bytes: int
    jobs: int = 0
    read_bytes: int = 0  # bytes of journals that were read
    spared_bytes: int = 0  # bytes of journals that needed no reading, thanks to their sidecars
    status: ServerStatus = ServerStatus.UP
    paused: int = 0  # queues
    unreadable: int = 0  # queues that are not served
    jobs_unreadable: bool = False


def no_progress(progress: RecoveryProgress) -> None:
    """Do nothing with the progress of recovery."""


def recover(
    broker: Broker, now_ms: int, on_progress: Callable[[RecoveryProgress], None] = no_progress
) -> RecoverySummary:
    """Replay the spool, put open reads back, and make that durable. Damage is reported, never fatal to other queues.
    `on_progress` is called after each piece of a file. Raises SpoolError and JournalFailure.
    """
    spool, group, queues, report = broker.spool, broker.group, broker.queues, broker.report
    broker.status.started_ms = now_ms
    group.ballast.release()  # repairs may need its space; it is restored below
    spool.failed_sync.set_room_aside()
    _report_spool_damage(broker)
    _replay_log(broker)
    found = _renew(broker, spool.listing())
    if spool.used_log:  # before anything else gets a name that the log knows
        spool.sync_recovered()
        spool.end_log()
    spool.remove_unused_log()
    for name in spool.orphans(found):
        hint = "with all other files of its queue; not told again"
        report(Level.ERROR, "journal.gone", queue=name.rpartition(".")[0], file=name, items="unknown", hint=hint)
    _prune_sidecars(broker, found)
    for name in found.foreign:
        report(Level.WARNING, "spool.foreign", file=name, hint="not a journal: left alone")
    broker.streams.recover(found, now_ms)
    progress, ambiguous = _recover_queues(broker, found.kestrel, now_ms, on_progress)
    spool.sync_recovered()
    undo = UndoRecovery(broker)
    undo.read(now_ms)
    undo.classify()
    kept = broker.transfers.recovery.recover(undo.intents)
    undo.find_copies(now_ms)
    for queue in list(queues):
        queue.return_open_reads(now_ms, partial(_report_ended, broker, queue))
        queues.create_expiry_target(queue, now_ms)
    broker.pauses.restore(queues, now_ms)
    _restore_ballast(broker)
    group.sync_all(now_ms)
    broker.transfers.transfer_log.restart(kept)
    undo.apply_fates(broker.transfers.recovery.fates)
    _rewrite_ambiguous(broker, ambiguous, now_ms)
    broker.set_aliases(broker.config)
    jobs = broker.workq.recover(now_ms) if broker.serves_jobs else 0
    spool.failed_sync.is_complete = True
    broker.expire_due_ms = now_ms
    undo.resume(now_ms)
    broker.streams.trim()
    return RecoverySummary(
        queues=len(queues),
        items=sum(len(queue.line) + len(queue.open_reads) for queue in queues),
        bytes=sum(
            queue.line.bytes + sum(len(taken.item.data) for taken in queue.open_reads.values()) for queue in queues
        ),
        jobs=jobs,
        read_bytes=progress.read_bytes,
        spared_bytes=progress.spared_bytes,
        status=broker.status.reported,
        paused=len(broker.pauses),
        unreadable=len(queues.blocked),
        jobs_unreadable=broker.serves_jobs and bool(broker.workq.trouble),
    )


def _restore_ballast(broker: Broker) -> None:
    spool, group, report = broker.spool, broker.group, broker.report
    if not group.restore_ballast():
        report(Level.ERROR, "disk.full", spool=spool.folder, hint=puts_are_refused(group))
    if group.ballast.trouble:
        hint = "there is room, so puts are accepted; a disk that fills up within a second may end the server"
        report(Level.WARNING, "spool.no_reserve", file=group.ballast.path, why=group.ballast.trouble, hint=hint)
    if spool.fs.free_bytes(spool.folder)[1] == UNKNOWN_BYTES:
        hint = "whether the disk fills up is not known before a write fails; allow statfs"
        report(Level.WARNING, "spool.space_unknown", spool=spool.folder, hint=hint)


def _prune_sidecars(broker: Broker, found: SpoolListing) -> None:
    try:
        broker.spool.prune(found.kestrel)
    except OSError as error:
        hint = "they are left where they are, and nothing rests on them"
        broker.report(Level.WARNING, "journal.sidecar_failed", file=error.filename, why=described(error), hint=hint)


def _report_spool_damage(broker: Broker) -> None:
    """Report damage of the spool's own folder that was found when it was opened."""
    for path, saved_as in broker.spool.cleared:
        broker.report(Level.ERROR, "spool.cleared", file=path, why="not a file", saved_as=saved_as)
    if (plan := broker.spool.stuck_plan) is not None:
        held = ", ".join(sorted(plan.queues)) or "none"
        broker.report(
            Level.ERROR, "convert.plan_damaged", file=plan.path, why=plan.why, saved_as=plan.saved_as, held=held
        )


def _replay_log(broker: Broker) -> None:
    """Replay the redo log, which may have changes that the journals lack after a power cut. Raises SpoolError."""
    spool, report = broker.spool, broker.report
    if not spool.used_log:
        return
    content, changes = spool.replay_log()
    if content.found is not Legibility.WHOLE:
        hint = "copied to .staniel/damaged; after a power cut the last answered changes may be missing"
        report(Level.ERROR, "redo.damaged", spool=spool.folder, what=content.found.value, hint=hint)
    if changes:
        written, cut = sum(each.written_bytes for each in changes), sum(each.cut_bytes for each in changes)
        report(Level.WARNING, "redo.replayed", files=len(changes), written_bytes=written, cut_bytes=cut)
    for change in changes:
        if change.why:
            hint = "what the redo log has for it is not used"
            report(Level.ERROR, "redo.unusable", file=change.path, why=change.why, hint=hint)
        elif change.cut_bytes:
            why = "these bytes were not all on the disk, and no answer waited for them"
            report(
                Level.WARNING,
                "redo.cut",
                file=change.path,
                at=change.cut_at,
                bytes=change.cut_bytes,
                why=why,
                saved_as=change.saved_as,
            )


def _renew(broker: Broker, found: SpoolListing) -> SpoolListing:
    """Rewrite the files that may differ on the disk from the page cache since an earlier run's failed sync; return the
    listing after that. Raises SpoolError.
    """
    spool, report = broker.spool, broker.report
    try:
        if not spool.failed_sync.exists:
            return found
    except OSError as error:
        raise refused_start(error, spool.own) from error
    renewed = spool.renew(found, broker.workq.folder if broker.serves_jobs else "")
    if renewed.files:
        report(Level.WARNING, "spool.renewed", files=renewed.files, why="a sync had failed before")
    for path in renewed.left:
        hint = "not there, or in use by another process; the next start that can reach it writes it anew"
        report(Level.ERROR, "spool.in_doubt", file=path, why="a sync had failed before", hint=hint)
    return spool.listing()


def _report_ended(broker: Broker, queue: Queue, ended: list[tuple[Delivery, Ended]], now_ms: int) -> None:
    """Report the items that were open when the server ended, and that had been delivered for the last time."""
    for taken, fate in ended:
        if fate in LAST_TIME:
            broker.client_events(Level.INFO, LAST_TIME[fate], now_ms, client="", **dead_letter(queue, taken))


# queues in Kestrel's format


def _recover_queues(
    broker: Broker, files: dict[str, Files], now_ms: int, on_progress: Callable[[RecoveryProgress], None]
) -> tuple[RecoveryProgress, list[str]]:
    """Recover the queues, the smallest first, so that a damaged one among many is reported early. Returns the progress,
    and the names of queues whose journals must be rewritten.
    """
    sizes = {name: broker.spool.size(each) for name, each in files.items()}
    progress = RecoveryProgress(all_queues=len(files), all_bytes=sum(sizes.values()))

    def advance(size: int) -> None:
        progress.bytes += size
        on_progress(progress)

    broker.spool.recovery.progress = advance
    ambiguous = []
    for name in sorted(files, key=lambda name: (sizes[name], name)):
        before = progress.bytes
        if _recover_or_block(broker, name, files[name], now_ms, progress):
            ambiguous.append(name)
        progress.bytes = before + sizes[name]
        progress.queues += 1
        on_progress(progress)
    by_name = broker.queues.by_name
    for name in sorted(by_name):  # statistics list queues in this order
        by_name[name] = by_name.pop(name)
    return progress, sorted(ambiguous)


def _recover_or_block(broker: Broker, name: str, files: Files, now_ms: int, progress: RecoveryProgress) -> bool:
    """Bring a queue into service, or block its name. True if its journal must be rewritten."""
    try:
        if files.holds_nothing:
            report_left(broker, name, broker.spool.recovery.tidy(files))
        elif broker.config.queue(name).keep_journal:
            return _recover_queue(broker, name, files, now_ms, progress)
        else:
            set_aside(broker, name, files, now_ms)
    except OSError as error:
        broker.spool.claim(name)
        broker.queues.block(name, why_unreadable(error))
        broker.unreadable.add(name)
        hint = "not served; make its files readable and writable for this user, then reload or restart"
        broker.report(Level.ERROR, "journal.unreadable", queue=name, why=str(error), hint=hint)
    return False


def _recover_queue(broker: Broker, name: str, files: Files, now_ms: int, progress: RecoveryProgress) -> bool:
    """Recover a queue; return True if items are open or delayed under numbers that a reader of the journal would count
    otherwise: it must be rewritten. Raises OSError.
    """
    memory, config = broker.maintenance.memory, broker.config.queue(name)
    recovered, log = broker.spool.recover(name, files, config, now_ms, memory.bytes_for(config))
    progress.read_bytes += recovered.replayed_bytes
    progress.spared_bytes += recovered.skipped_bytes
    report_damages(broker, name, recovered.damages)
    report_left(broker, name, recovered.refused)
    for missing in recovered.missing_items:
        event, hint = ("journal.gone", GONE) if missing.is_gone else ("journal.shortened", SHORTENED)
        items = missing.items if missing.items >= 0 else "unknown"
        broker.report(Level.ERROR, event, queue=name, file=missing.file, items=items, hint=hint)
    if recovered.stand_ins:
        broker.report(Level.ERROR, "journal.stand_ins", queue=name, items=recovered.stand_ins, hint=STAND_INS)
    for rejected in recovered.rejected_sidecars:
        level = Level.WARNING if rejected.is_serious else Level.DEBUG
        broker.report(level, "journal.read_whole", queue=name, file=rejected.file, why=rejected.why)
    broker.streams.compare_format(name, Format.KESTREL)
    queue = broker.queues.adopt(name, log, now_ms)
    queue.load(recovered.replay.line, recovered.replay.open, recovered.replay.counter)
    memory.bound(queue)
    memory.weigh(queue)
    if broker.spool.is_file_size_limited and log.written_bytes > log.config.max_memory_bytes:
        log.rotate(now_ms)  # an earlier server may have had larger files: a write to this one would be refused
    broker.maintenance.read_ahead.queue_if_room(queue)
    return recovered.replay.has_items_with_xid()


def _rewrite_ambiguous(broker: Broker, names: Iterable[str], now_ms: int) -> None:
    """Rewrite the journals that a reader would read otherwise than memory has them. A queue whose journal cannot be
    rewritten is not served: records added to it now would refer to other items.
    """
    maintenance, group = broker.maintenance, broker.group
    queues = [broker.queues.by_name[name] for name in names]
    unsearched = [queue for queue in queues if broker.transfers.recovery.pinned(queue)]
    queues = [queue for queue in queues if queue not in unsearched]
    failed = [queue for queue in queues if not maintenance.rewrite(queue, now_ms)]
    if failed and not group.is_full:
        group.ballast.release()
        failed = [queue for queue in failed if not maintenance.rewrite(queue, now_ms)]
        group.restore_ballast()
    for queue in failed:
        _withdraw(broker, queue, "there is no room to write its journal anew", "make room")
    for queue in unsearched:
        _withdraw(broker, queue, "it could not be searched for copies", "see to it that its files can be read")


def _withdraw(broker: Broker, queue: Queue, why: str, remedy: str) -> None:
    """Withdraw a queue before any client has used it; its files stay as they are."""
    trouble = queue.line.read_error
    why = str(trouble) if trouble else why
    broker.maintenance.forget(queue)
    broker.queues.withdraw(queue, why)
    broker.transfers.recovery.withdraw(queue)
    broker.unreadable.add(queue.name)
    if isinstance(queue.journal, Log):
        queue.journal.close()
    hint = f"not served, and its files stay as they are; {remedy}, then reload or restart"
    broker.report(Level.ERROR, "journal.unreadable", queue=queue.name, why=why, hint=hint)


# both formats


def set_aside(broker: Broker, name: str, files: Files | StreamFiles, now_ms: int) -> None:
    """Move away the files of a queue that keeps no journal. Raises OSError."""
    folder = broker.spool.set_aside(files, now_ms)
    hint = "keep_journal is false: the queue starts empty, its old files are kept there"
    broker.report(Level.WARNING, "journal.set_aside", queue=name, folder=folder, hint=hint)


def report_damages(broker: Broker, name: str, damages: list[Damage]) -> None:
    """Report damages of a queue's journal. A torn end of the file that was written to is left by a killed server, and
    only a warning.
    """
    for damage in damages:
        broker.report(
            Level.WARNING if damage.is_torn else Level.ERROR,
            "journal.torn" if damage.is_torn else "journal.damaged",
            queue=name,
            file=damage.file,
            at=damage.at,
            unread_bytes=damage.lost_bytes,
            why=damage.why,
            saved_as=damage.saved_as,
        )


def report_left(broker: Broker, name: str, refused: list[OSError]) -> None:
    """Report temporary files and empty packs that the system refuses to remove."""
    for error in refused:
        todo = remedy_in_service(error, "see to it that it can be removed")
        hint = f"the file is left over, and nothing depends on it; {todo}; each start tries to remove it"
        broker.report(Level.WARNING, "journal.unremoved", queue=name, why=described(error), hint=hint)


# at a reload


def retry_unreadable(broker: Broker, now_ms: int) -> None:
    """Try again to read unreadable queues. A queue in service continues where it stopped; one that startup could not
    read is recovered as at startup, with its transfers. Queues that still cannot be read stay as they are and are
    reported again.
    """
    for queue in broker.queues.all():
        if queue.line.read_error is not None:
            _read_again(broker, queue)
    if broker.unreadable or broker.transfers.transfer_log.kept:
        _recover_blocked(broker, now_ms)
    if broker.serves_jobs and broker.workq.trouble:
        try:
            broker.workq.recover(now_ms)
        except SpoolError as error:
            broker.workq.trouble = str(error)
        broker.allow_jobs()


def _read_again(broker: Broker, queue: Queue) -> None:
    tail = queue.line.tail
    if isinstance(tail, ReadBehind):
        try:
            gone = tail.give_up_missing_files()
        except OSError:
            return
        for name in gone:
            hint = "its items are lost; the queue is served without them"
            broker.report(Level.ERROR, "journal.gone", queue=queue.name, file=name, hint=hint)
    queue.read_again()
    broker.maintenance.read_ahead.retry(queue)


def _recover_blocked(broker: Broker, now_ms: int) -> None:
    tried, broker.unreadable = broker.unreadable, set()
    try:
        found = broker.spool.listing()
    except OSError:
        broker.unreadable = tried
        return
    known = set(broker.queues.by_name)
    ambiguous = []
    for name in sorted(tried):
        broker.streams.unblock(name)
        if name in found.mixed:
            broker.streams.block_mixed(name, found.mixed[name])
        elif name in found.streams:
            broker.streams.recover_one(name, found.streams[name], now_ms)
        elif name in found.kestrel and _recover_or_block(broker, name, found.kestrel[name], now_ms, RecoveryProgress()):
            ambiguous.append(name)
    recovered = [queue for queue in broker.queues if queue.name not in known]
    undo = broker.undos.unresolved
    if undo is not None:
        undo.classify()
    broker.transfers.recovery.retry(now_ms)  # what it puts elsewhere may make a queue, and serve its waiters
    if undo is not None:
        undo.find_copies(now_ms)
    for queue in recovered:
        queue.return_open_reads(now_ms, partial(_report_ended, broker, queue))
        broker.queues.create_expiry_target(queue, now_ms)
        broker.pauses.apply_to(queue)
    if ambiguous:
        broker.commit(now_ms)
        _rewrite_ambiguous(broker, ambiguous, now_ms)
    if undo is not None:
        undo.resume(now_ms)
