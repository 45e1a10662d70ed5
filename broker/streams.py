"""Queues in libkestrel's format: recovery at startup, creation, and the work after each batch."""

from __future__ import annotations

from collections.abc import Container, Iterable

from staniel.broker.access import why_unreadable
from staniel.broker.config.load import Config
from staniel.broker.config.queue_settings import stream_name_error
from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.maintenance.damage_events import report_damages, report_left
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.group_commit import GroupMember
from staniel.journal.kestrel.files import Files
from staniel.journal.libkestrel.appender import Appender
from staniel.journal.libkestrel.files import StreamFiles, parse, queue_of_reader
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.records import ID_MAX
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.spool_listing import SpoolListing
from staniel.queues.config import Format, QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.names import family_of, parent_of
from staniel.queues.registry import QueueRefused, Queues

RECLAIMED_BYTES_MIN = 4 << 10  # a block of the file system
RECLAIMED_AT_ONCE = 64  # families in one turn
STUCK_AT_ONCE = 64  # families retried each second
IDS_LEFT_MIN = 1 << 32  # a queue whose ids are nearly used up is blocked


class StreamQueues:
    """All queues of this format. A queue and its fan-out children share one set of files."""

    def __init__(
        self,
        spool: Spool,
        queues: Queues,
        maintenance: MaintenanceScheduler,
        report: EventSink,
        rate_limited: RateLimitedSink,
    ) -> None:
        self._spool, self._queues, self._memory = spool, queues, maintenance.memory
        self._report, self._rate_limited = report, rate_limited
        self.store = spool.streams
        self.store.tasks = maintenance.tasks
        self.store.on_stuck = self._report_stuck
        self._stuck: dict[str, None] = {}  # families with segments that may be stuck
        self._blocked: dict[str, str] = {}  # by parent: the reason why no queue may be created in these files

    def recover(self, listing: SpoolListing, config: Config, now_ms: int) -> None:
        """Bring every queue of this format into service. Damage is reported and does not stop other queues. Raises
        SpoolError.
        """
        self._prepare_archives(config)
        for name, why in sorted(listing.mixed.items()):
            self.block_mixed(name, why)
        for name, files in sorted(listing.streams.items()):
            self.recover_one(name, files, now_ms)

    def block_mixed(self, name: str, why: str) -> None:
        """Block a queue with files of both formats, until a reload finds only one."""
        self._blocked[family_of(name)] = why
        self._queues.block(name, why)
        self._queues.unreadable.add(name)
        self._report(Level.ERROR, "journal.mixed", queue=name, hint=why)

    def recover_one(self, name: str, files: StreamFiles, now_ms: int) -> None:
        """Bring a queue with its readers into service, or block their names."""
        try:
            self._set_aside(name, files, now_ms)
            if files.segments or files.readers:
                self._recover(name, files, now_ms)
        except OSError as error:
            self._block(name, files, why_unreadable(error))
            self._queues.unreadable.add(name)
            hint = "not served; make its files readable and writable for this user, then reload or restart"
            self._report(Level.ERROR, "journal.unreadable", queue=name, why=str(error), hint=hint)

    def _set_aside(self, name: str, files: StreamFiles, now_ms: int) -> None:
        """Move away the files of readers that keep no journal; all files, if no reader keeps one. Raises OSError."""
        queues = {reader: queue_of_reader(name, reader) for reader in files.readers}
        lapsed = {queue for queue in queues.values() or [name] if not self._queues.config_of(queue).keep_journal}
        if lapsed >= {*(queues.values() or [name])}:
            set_aside(
                self._spool, self._report, name, StreamFiles(name, files.segments, files.readers, files.temps), now_ms
            )
            files.segments, files.readers, files.temps = {}, {}, []
            return
        for reader, queue in queues.items():
            if queue in lapsed:
                set_aside(
                    self._spool,
                    self._report,
                    queue,
                    StreamFiles(name, {}, {reader: files.readers.pop(reader)}, []),
                    now_ms,
                )

    def _recover(self, name: str, files: StreamFiles, now_ms: int) -> None:
        """Bring a queue with its readers into service. Raises OSError."""
        recovered, readers = self.store.recover(files, self._queues.config_of, now_ms)
        report_damages(self._report, name, recovered.damages)
        report_left(self._report, name, recovered.refused)
        for file_name in recovered.ignored:
            self._report(Level.WARNING, "spool.foreign", file=file_name, hint="not a segment: left alone")
        if recovered.segments.last_id > ID_MAX - IDS_LEFT_MIN:
            self._block(name, files, "its ids are nearly used up; convert it to the other format")
            return
        self.compare_format(name, Format.LIBKESTREL)
        for queue_name, journal in readers:
            queue = self._queues.adopt(queue_name, journal, now_ms)
            self._memory.weigh(queue)
            if not self._is_reachable(queue_name):
                hint = "no client can name this reader, so its items stay; remove its file if they are not needed"
                self._report(Level.WARNING, "reader.unreachable", queue=queue_name, hint=hint)

    def _block(self, name: str, files: StreamFiles, why: str) -> None:
        self.store.families.pop(name, None)
        self._blocked[name] = why
        names = {name} | {queue_of_reader(name, reader) for reader in files.readers}
        for queue_name in names:
            self._queues.block(queue_name, why)

    def block_deleted(self, name: str, why: str) -> None:
        """Block the name of a deleted queue with files that are still to be removed: no queue may be created in these
        files.
        """
        self._blocked[family_of(name)] = why
        self._queues.block(name, why)

    def unblock_deleted(self, name: str, others: Iterable[str]) -> None:
        """Unblock the name after those files have been removed. `others` are the deleted queues that still have
        files.
        """
        del self._queues.blocked[name]
        family = family_of(name)
        if family not in {family_of(other) for other in others}:
            self._blocked.pop(family, None)

    def unblock(self, name: str) -> None:
        """Unblock `name`, and its readers if it is in this format."""
        blocked = self._queues.blocked
        is_family = self._blocked.pop(name, None) is not None
        for member in [member for member in blocked if member == name or (is_family and parent_of(member) == name)]:
            del blocked[member]

    def _is_reachable(self, queue_name: str) -> bool:
        return not any(sign <= " " or sign in "/\x7f" for sign in queue_name)

    def compare_format(self, name: str, present: Format) -> None:
        """Warn if a queue's files are in another format than its settings ask for: they are served as they are."""
        wanted = self._queues.config_of(name).journal_format
        if wanted is not present:
            hint = f"served as {present.value}; stop the server and run: staniel journal convert SPOOL"
            hint = f"{hint} --queue {family_of(name)} --to {wanted.value}"
            self._report(Level.WARNING, "journal.format", queue=name, found=present.value, hint=hint)

    def check(self, name: str) -> None:
        """Check that `name` may be used. Raises QueueRefused if it belongs to a queue that cannot be served, because
        its files must stay as they are.
        """
        parent = family_of(name)
        if parent in self._blocked:
            raise QueueRefused(f"queue {parent} is not available: {self._blocked[parent]}", client=False)

    def create(self, name: str, config: QueueConfig, now_ms: int) -> Journal:
        """Create the journal of a new queue. Raises QueueRefused or OSError."""
        if why := stream_name_error(name):
            raise QueueRefused(why, client=True)
        return self.store.create(name, config, self._queues.config_of, now_ms)

    def look_after(self, member: GroupMember, now_ms: int) -> None:
        """Trim files after a batch of changes of this queue has been written. Raises JournalFailure."""
        assert isinstance(member, Appender)
        try:
            if isinstance(member, ReaderLog):
                member.start_over_if_large(now_ms)
            family = self.store.families[member.queue]
            family.trim()
        except OSError as error:
            raise self.store.group.failure(f"cannot trim {member.path}", error) from error
        memory = self._memory
        queue = self._queues.find(member.queue_name) if isinstance(member, ReaderLog) else None
        if queue is not None:
            memory.weigh(queue)
        elif family.stream.members:
            memory.weigh_stream(family.stream)

    def reclaim(self, room: int, now_ms: int) -> None:
        """Shrink the segments with the most items that were read, because the disk is full, if the rest of each fits
        into `room` bytes. Called each second.
        """
        self.reclaim_of(list(self.store.families), room, now_ms)

    def reclaim_of(self, names: list[str], room: int, now_ms: int) -> None:
        """Shrink segments of these families, as `reclaim` does."""
        families = self.store.families
        candidates = [(*families[name].reclaimable(), name) for name in names if name in families]
        worth = [candidate for candidate in candidates if candidate[0] >= max(RECLAIMED_BYTES_MIN, candidate[1])]
        for _, kept_bytes, name in sorted(worth, reverse=True)[:RECLAIMED_AT_ONCE]:
            if kept_bytes <= room:
                room -= kept_bytes
                self.store.families[name].reclaim(now_ms)

    def configure(self, config: Config) -> None:
        """Apply changed settings of whole queues. `RunningReload` applies the settings of readers."""
        try:
            self._prepare_archives(config)
        except SpoolError as error:
            hint = "old segments stay in the spool until the next start"
            self._report(Level.ERROR, "archive.unusable", why=str(error), hint=hint)
        for name, family in self.store.families.items():
            family.configure(self._queues.config_of(name))

    def _prepare_archives(self, config: Config) -> None:
        """Check that segments can be moved to their archive folders. Raises SpoolError."""
        fs, own = self._spool.fs, self._spool.own
        for path in sorted({settings.archive_path for settings in config.resolved.values()} - {""}):
            try:
                fs.make_folder(path)
                replace_file(fs, f"{own}/trial", b"")
                fs.rename(f"{own}/trial", f"{path}/staniel~trial")
                fs.remove(f"{path}/staniel~trial")
            except OSError as error:
                why = f"archive_path {path} cannot take segments: {error.strerror}"
                raise SpoolError(
                    f"{why}; give a folder that this user may write, on the same file system as the spool"
                ) from error

    def _report_stuck(self, name: str, error: OSError, now_ms: int) -> None:
        self._stuck[parse(name).queue] = None
        todo = remedy_in_service(error, "make it removable for this user")
        hint = f"no item in it is needed, and it stays until removed; {todo}; the server tries again each second"
        why = described(error, name)
        kind = parse(name).queue, error.errno  # `why` names the file, and there may be thousands of them
        self._rate_limited.of_kind(kind, Level.WARNING, "segment.stuck", now_ms, file=name, why=why, hint=hint)

    @property
    def stuck_segments(self) -> int:
        """The number of segments that have been read, but stay because the system refuses to remove them."""
        families = [self.store.families.get(name) for name in self._stuck]
        return sum(len(family.stuck) for family in families if family is not None)

    def remove_stuck(self) -> None:
        """Try again to remove stuck segments of a few families, in turns. Called each second."""
        for name in list(self._stuck)[:STUCK_AT_ONCE]:
            del self._stuck[name]
            family = self.store.families.get(name)
            if family is not None and family.stuck:
                self._stuck[name] = None  # retried after the others
                family.remove_stuck()

    def trim(self, searched: Container[str]) -> None:
        """Remove the segments that all readers had passed before the start: otherwise they would stay until the next
        put or get. Call this when transfers and undo operations have been recovered. Segments of `searched` stay,
        because operations that could not be recovered may still have to find a copy in them.
        """
        for name, family in self.store.families.items():
            if name not in searched:
                family.trim()

    def close(self) -> None:
        """Close all files. Everything must have been written and synced."""
        for family in self.store.families.values():
            family.close()


def set_aside(spool: Spool, report: EventSink, name: str, files: Files | StreamFiles, now_ms: int) -> None:
    """Move away the files of a queue that keeps no journal. Raises OSError."""
    folder = spool.set_aside(files, now_ms)
    hint = "keep_journal is false: the queue starts empty, its old files are kept there"
    report(Level.WARNING, "journal.set_aside", queue=name, folder=folder, hint=hint)
