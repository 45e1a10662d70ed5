"""A spool folder: its lock, its version, its journals in both formats, and the creation of new ones.

All files that are not journals are in the sub-folder `.staniel/`, so that an older server still starts on the same
spool.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress

from staniel.journal.convert_plan import FOLDER as CONVERT_FOLDER
from staniel.journal.convert_plan import UNREADABLE, UnreadablePlan, carry_out, remove_plan
from staniel.journal.copy_mark import UNFINISHED
from staniel.journal.disk.ballast import Ballast
from staniel.journal.disk.failed_sync import ROOM_SUFFIX, FailedSyncMarker
from staniel.journal.disk.fs import (
    MISSING,
    AlreadyLocked,
    FilesMisplaced,
    Fs,
    JournalFailure,
    is_missing,
    remove_each,
    sync_name,
)
from staniel.journal.disk.quarantine import quarantine, quarantine_entry
from staniel.journal.disk.refusals import described, remedy
from staniel.journal.disk.removal import RemovalList, Unremoved
from staniel.journal.disk.replace_file import Replacement, replace_empty_folder, replace_file
from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.group_commit import GroupCommit
from staniel.journal.holds import KEPT
from staniel.journal.holds import NAME as HOLDS
from staniel.journal.kept_files import FileKeeper
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import OWN_FOLDER, Files
from staniel.journal.kestrel.install import remove_sidecars
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.recovery import Recovered, Recovery
from staniel.journal.kestrel.sidecar import names_in
from staniel.journal.libkestrel.family import StreamJournals
from staniel.journal.libkestrel.files import StreamFiles
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.membership import membership
from staniel.journal.own_files import LOSSES, KeptFile, Loss
from staniel.journal.put_key_log import FOLDER as KEYS_FOLDER
from staniel.journal.redo import log as redo_log
from staniel.journal.redo.log import IN_USE, UNUSED, LogState, RedoLog
from staniel.journal.redo.replay import (
    FileChange,
    Legibility,
    LogContent,
    find_log_id,
    read_log,
    replay_file,
    to_replay,
)
from staniel.journal.renewal import Renewal, Renewed
from staniel.journal.spool_listing import HELD, SpoolListing, list_spool
from staniel.journal.undo_file import FOLDER as UNDO_FOLDER
from staniel.journal.workq import files as workq_files
from staniel.queues.config import Format, QueueConfig
from staniel.queues.names import NAME_BYTES_MAX, family_of

FORMAT_VERSION = UNUSED
LATER = re.compile(r"staniel-spool ([0-9]{1,9})( .*)?")
FORMATS_MAX = 2  # UNUSED and IN_USE
MARK = "failed_sync"
ASIDE_LIST = "set aside"  # a blank follows, which no queue's name has
NEW_SUFFIX = ".new"  # of a folder that is to replace another one
IN_PLACE_ERRNOS = (errno.ENOTDIR, errno.EBUSY, errno.ENOTEMPTY)  # of renames to a link, a mount, a folder in use
LOCK = "lock"
OWN_FILES = (
    MARK,
    f"{MARK}{ROOM_SUFFIX}",
    "ballast",
    "intents",
    "paused",
    "status",
    "last_backup",
    "audit",
    "audit.1",
    HOLDS,
    *redo_log.NAMES,
)


OWN_FOLDERS = (UNDO_FOLDER, KEYS_FOLDER, KEPT)  # in the own folder, of files that a start reads
SUFFIX_BYTES = 55  # the longest suffix of a queue's name in a file name
HINT = "give a folder that this user may write, with --spool"


class SpoolError(Exception):
    """The error for a spool that cannot be used; the text says why and what to do."""


def refused_start(error: OSError, path: str) -> SpoolError:
    """Return the error that refuses a start after the system refuses a file. Without that file the server would serve
    something else than what the last server left. The error may pass, and does not mean that the file is damaged.
    """
    return SpoolError(f"{described(error, path)}; {remedy(error, HINT)}")


def check_version(fs: Fs, folder: str) -> bytes | None:
    """Return the id of the redo log that the last server of a spool has left in use; empty if none is in use; None if
    no server has used the folder. Raises SpoolError if this version must not start on it; raises OSError.
    """
    path = f"{folder}/{OWN_FOLDER}/version"
    try:
        version = fs.read(path, 0, 100).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    if version.startswith(f"{IN_USE} ") and (number := _hex(version.removeprefix(f"{IN_USE} "))):
        return number
    if version == UNFINISHED:
        raise SpoolError(f"{folder} is not complete: it is an interrupted copy; remove it and copy it again")
    if (later := LATER.fullmatch(version)) and int(later[1]) > FORMATS_MAX:
        why = f"{path} says {version!r}, this program knows {FORMAT_VERSION!r}"
        raise SpoolError(f"{why}; use the version of staniel that wrote it")
    if version != FORMAT_VERSION:
        raise SpoolError(_damaged_version(fs, path, version))
    return b""


def _damaged_version(fs: Fs, path: str, version: str) -> str:
    """Return the text for a version file that no version of staniel has written, with the command that repairs it."""
    why = f"{path} is damaged: it says {version!r}"
    quoted_path = shlex.quote(path)
    mend = f"echo {FORMAT_VERSION} > {quoted_path}"
    own = path.rpartition("/")[0]
    number = find_log_id(fs, [f"{own}/{name}" for name in redo_log.NAMES])
    if not number:
        return f"{why}; repair it with: {mend}"
    used = f"echo {IN_USE} {number.hex()} > {quoted_path}"
    return f"{why}; repair it, if the last server was stopped cleanly, with: {mend}; else with: {used}"


def lock_spool(fs: Fs, folder: str) -> None:
    """Take the lock of a spool, making its own folder if that is missing. It is kept until `fs` is closed. A member of
    a cluster calls this when it starts, and gives the same `fs` to `Spool` when it is about to lead: it never lets go
    of the lock in between. Raises AlreadyLocked, OSError.
    """
    _make_own_folder(fs, folder)
    _lock(fs, folder)


def _make_own_folder(fs: Fs, folder: str) -> None:
    """Make the own folder, durably. In a new spool, one without files may have its name in the page cache alone,
    because a server was killed before it synced that, and is replaced. Raises OSError.
    """
    own = f"{folder}/{OWN_FOLDER}"
    try:
        fs.list(own)
    except MISSING:
        fs.make_folder(own)
        return
    if not any(regular for _, regular in fs.list(folder)):
        _replace_empty_folder(fs, own)


def _replace_empty_folder(fs: Fs, folder: str) -> None:
    """Replace a folder that has no files, unless an operator has placed it, or another process uses it now. Raises
    OSError.
    """
    try:
        if not fs.list(folder):
            replace_empty_folder(fs, folder)
    except OSError as error:
        if error.errno not in IN_PLACE_ERRNOS:
            raise


def _lock(fs: Fs, folder: str) -> None:
    try:
        fs.lock(f"{folder}/{OWN_FOLDER}/{LOCK}")
    except AlreadyLocked as locked:
        raise AlreadyLocked(f"{locked.holder or 'another process'} ({folder})") from None


class Spool:
    """The journals of one folder, in both formats."""

    def __init__(self, fs: Fs, folder: str, redo_log_bytes: int = 0, *, is_member: bool = False) -> None:
        """Take the lock and prepare the folder. Raises SpoolError, or staniel.journal.disk.fs.AlreadyLocked if another
        server has the lock.

        `redo_log_bytes`: the size of the redo log, which is created when there is something to write; 0: no log;
        CHECKSUMS_ONLY: a log of checksums. `is_member`: this process is the member of a cluster that is about to lead;
        it took the lock by `lock_spool` when it started, on this `fs`, and keeps it. Without it the spool of a
        member is refused.
        """
        self.fs = fs = UnsyncedNames(fs)
        self._is_member = is_member
        self.folder = folder
        self.own = f"{folder}/{OWN_FOLDER}"
        self.failed_sync = FailedSyncMarker(fs, f"{self.own}/{MARK}", f"{self.own}/ballast", folder)
        self.cleared: list[tuple[str, str]] = []  # entries that had the names of our files, and their new places
        self.name_bytes_max = NAME_BYTES_MAX  # of a queue's name
        self.is_file_size_limited = False  # set by the server: its process has a limit of file sizes
        self.stuck_plan: UnreadablePlan | None = None  # a conversion that is not finished
        self.used_log = b""  # the id of the redo log that the last server left in use
        self.keeper = FileKeeper(fs, folder, self.own)
        self._prepare()
        self.redo = RedoLog(fs, folder, self.own, redo_log_bytes)
        ballast = Ballast(fs, folder, f"{self.own}/ballast", copies=2 if is_member else 1)
        self.group = GroupCommit(fs, folder, ballast, self.failed_sync, self.redo)
        self.kept = [
            KeptFile(f"{self.own}/version", self._has_lost_version, self._write_version),
            KeptFile(f"{self.own}/{MARK}{ROOM_SUFFIX}", lambda: self.failed_sync.has_lost_room, self._remake_room),
            KeptFile(ballast.path, lambda: ballast.is_lost, self._remake_ballast),
        ]
        """Files that the server writes again when another program removes them. Other parts add theirs."""
        fs.unwatched = tuple(f"{self.own}/{name}" for name, loss in LOSSES.items() if loss is not Loss.ENDS)
        self.recovery = Recovery(fs, folder)
        self.streams = StreamJournals(fs, folder, f"{self.own}/damaged", self.group)
        self._kestrel: dict[str, set[str]] = {}  # queues with files in Kestrel's format, by fan-out parent

    def _prepare(self) -> None:
        try:
            self._take_lock()
            self._settle_names()
            if not self.fs.is_same_device(f"{self.own}/{LOCK}", self.folder):
                raise OSError(errno.EXDEV, "it is on another file system than the journals", self.own)
            self.clear_way(self.own, OWN_FILES)
            self.clear_held(f"{self.own}/{HELD}")
            self._replace_empty_folders()
            self._finish_renewal()
            self.stuck_plan = carry_out(self.fs, self.folder, self.own, keeps_plan=self.failed_sync.exists)
            self._read_version()
            self.keeper.load()
            self.fs.keeper = self.keeper
            self.name_bytes_max = min(NAME_BYTES_MAX, self.fs.name_bytes_max(self.folder) - SUFFIX_BYTES)
        except OSError as error:
            raise SpoolError(f"cannot use the spool {self.folder}: {refused_start(error, self.folder)}") from error

    def _replace_empty_folders(self) -> None:
        """Replace, after a failed sync, the own folders that have no files: each may have its name in the page cache
        alone, and with it all that is written into it. A folder with files was synced before them. On the disk, files
        that a conversion has moved out may still be in its folder.
        """
        if not self.failed_sync.exists:
            return
        is_converting = not is_missing(self.fs, kestrel_files.plan_path(self.own))
        for name, regular in self.fs.list(self.own):
            if not (regular or name.endswith(NEW_SUFFIX) or (name == CONVERT_FOLDER and is_converting)):
                _replace_empty_folder(self.fs, f"{self.own}/{name}")

    def _settle_names(self) -> None:
        """Sync the folders. Files that a killed server created, removed and renamed appear so, but perhaps only in the
        page cache. Before anything depends on them, no power cut may undo that.
        """
        sync_name(self.fs.beneath, self.folder)
        own_folders = [kestrel_files.sidecar_folder(self.folder), *(f"{self.own}/{name}" for name in OWN_FOLDERS)]
        for folder in (self.folder, self.own, *own_folders):
            with suppress(FileNotFoundError, NotADirectoryError):
                self.fs.sync_folder(folder)

    def clear_held(self, folder: str) -> None:
        """Remove the second names that a backup's files had when the last server was killed. Nothing depends on them;
        those that cannot be removed stay.
        """
        with suppress(OSError):
            remove_each(self.fs.beneath, folder, [name for name, regular in self.fs.list(folder) if regular])

    def _finish_renewal(self) -> None:
        """Finish an interrupted renewal, before recovery uses the files and before temporary files are removed. Raises
        SpoolError, and OSError if the disk cannot say whether there is a mark.
        """
        if not self.failed_sync.exists:
            return
        try:
            self.failed_sync.finish_renewal()
        except (OSError, JournalFailure) as error:
            raise self._unrenewed(error) from error

    def _unrenewed(self, error: OSError | JournalFailure) -> SpoolError:
        why = f"a sync failed in an earlier run, and the spool {self.folder} cannot be rewritten"
        reason = described(error) if isinstance(error, OSError) else error
        return SpoolError(f"{why}: {reason}; {remedy(error, 'check the disk, then start again')}")

    def clear_way(self, folder: str, names: Iterable[str]) -> None:
        """Move away entries that have the name of a file of ours, but are not files. Raises OSError."""
        folders = {name for name, regular in self.fs.list(folder) if not regular}
        for name in names:
            if name in folders:
                self.cleared.append(
                    (f"{folder}/{name}", quarantine_entry(self.fs, folder, name, f"{self.own}/damaged"))
                )

    def _take_lock(self) -> None:
        """Take the lock, or keep the one that this process has as a member. Raises SpoolError, OSError."""
        if self._is_member:
            if not self.fs.is_locked(f"{self.own}/{LOCK}"):
                why = "was removed or replaced while this member followed"
                raise SpoolError(f"{self.own}/{LOCK} {why}: see that no other server uses the spool, then start again")
            return
        _make_own_folder(self.fs.beneath, self.folder)  # a failed sync of its name must leave no mark in it
        self.clear_way(self.own, [LOCK])
        _lock(self.fs, self.folder)
        joined = membership(self.fs, self.folder)
        if not joined.is_alone:
            raise SpoolError(joined.refusal(self.folder))

    def check_files_in_place(self) -> bool:
        """Verify that the files are where this process has opened them. Return False if one should be checked again
        soon.

        Raises FilesMisplaced.
        """
        lock = f"{self.own}/{LOCK}"
        try:
            is_here = self.fs.is_locked(lock)
        except OSError:  # the disk cannot say
            return True
        if not is_here:
            raise FilesMisplaced(
                f"the spool {self.folder} was removed, moved, unmounted or mounted over: {lock} is another"
            )
        path = self.fs.find_misplaced()
        if not path and self.redo.takes_data:
            path = self.redo.find_lost()
        if path:
            raise FilesMisplaced(f"{path} was removed, moved or cut short by another program")
        return self.fs.suspect is None

    def name_error(self, name: str) -> str:
        """Return why the file system cannot store the files of a queue `name`, which is otherwise legal; "" if
        it can.
        """
        most = self.name_bytes_max
        if len(name.encode("utf-8", "surrogateescape")) <= most:
            return ""
        return f"a queue name cannot be longer than {most} bytes on the spool's file system"

    def _has_lost_version(self) -> bool:
        # While the log is being created or ended, the log's own task writes the file.
        is_settled = self.redo.state is not LogState.BEING_MADE
        return is_settled and is_missing(self.fs, f"{self.own}/version", 1)

    def _read_version(self) -> None:
        used = check_version(self.fs, self.folder)
        if used is None:
            replace_file(self.fs, f"{self.own}/version", f"{FORMAT_VERSION}\n".encode())
        self.used_log = used or b""

    def _write_version(self) -> None:
        """Write the version file. Raises OSError, JournalFailure."""
        number = self.redo.spool_id if self.redo.state is LogState.IN_USE else self.used_log
        line = f"{IN_USE} {number.hex()}" if number else FORMAT_VERSION
        replace_file(self.fs, f"{self.own}/version", f"{line}\n".encode())

    def _remake_room(self) -> None:
        self.failed_sync.set_room_aside()

    def _remake_ballast(self) -> None:
        """Create the ballast again. Raises OSError if the disk has no room for it; puts are refused then."""
        ballast = self.group.ballast
        ballast.release()
        if not self.group.restore_ballast():
            raise OSError(errno.ENOSPC, "there is no room for the reserve", ballast.path)

    def replay_log(self) -> tuple[LogContent, list[FileChange]]:
        """Bring the files up to date from the redo log that was in use, after a power cut. Return the content of the
        log, and what was done. A damaged log is copied to `damaged/`. Raises SpoolError.
        """
        paths = [f"{self.own}/{name}" for name in redo_log.NAMES]
        content = self._read_log(paths)
        try:
            if content.found is Legibility.NEWER:
                raise SpoolError(f"{paths[0]} is of a later version of staniel; use the one that wrote it")
            changes: list[FileChange] = []
            if content.found is not Legibility.WHOLE:
                self._save_log(paths)
            may_cut = content.found is Legibility.WHOLE
            for history in to_replay(self.fs, self.folder, content):
                change = replay_file(self.fs, self.folder, history, f"{self.own}/damaged", may_cut=may_cut)
                changes += [change] if change is not None else []
        except OSError as error:
            why = f"cannot use the redo log of {self.folder}: {error}"
            raise SpoolError(f"{why}; correct that, then start again: it has changes that journals may lack") from error
        return content, changes

    def _read_log(self, paths: list[str]) -> LogContent:
        """Read the redo log. Raises SpoolError."""
        try:
            return read_log(self.fs, paths, self.used_log)
        except OSError as error:
            why = f"cannot read the redo log of {self.folder}: {error}"
            file = f"{error.filename or 'that file'} away, which after a power cut loses the last acknowledged changes"
            raise SpoolError(f"{why}; correct that and start again, or move {file}") from error

    def finish_log(self) -> None:
        """Replay the redo log that the last server left in use, and end its use, because a tool is about to change
        journals. After a failed sync the log may be the only durable copy of what the caches show in the journals: that
        is refused, and a start does it. Raises SpoolError, OSError, JournalFailure.
        """
        if self.failed_sync.exists:
            why = f"a sync failed in an earlier run, and the disk may lack what the files of {self.folder} show"
            raise SpoolError(f"{why}; start a server on it once, which rewrites them, stop it, and try again")
        if self.used_log:
            self.replay_log()
            self.sync_recovered()
            self.end_log()

    def _save_log(self, paths: list[str]) -> None:
        for path in paths:
            try:
                size = self.fs.size(path)
            except OSError:
                continue
            if size:
                quarantine(self.fs, path, 0, size, f"{self.own}/damaged")

    def end_log(self) -> None:
        """End the use of the redo log. All journals are synced. Raises OSError, JournalFailure."""
        if self.used_log:
            replace_file(self.fs, f"{self.own}/version", f"{FORMAT_VERSION}\n".encode())
            self.used_log = b""
        self.redo.end_use()

    def end_of_log(self) -> Replacement | None:
        """Return a version file which says that no redo log is needed, to be installed after a sync of all journals.
        None: no log is in use. Raises OSError.
        """
        if self.redo.state is not LogState.IN_USE and not self.used_log:
            return None
        return Replacement(self.fs, f"{self.own}/version", f"{FORMAT_VERSION}\n".encode())

    def remove_unused_log(self) -> None:
        """Remove the files of an earlier run's redo log, if this run has none. Files that cannot be removed stay."""
        if self.redo.state is LogState.OFF and not self.used_log:
            with suppress(OSError):
                remove_each(self.fs.beneath, self.own, list(redo_log.NAMES))

    def listing(self) -> SpoolListing:
        """List the folder: the files of each queue, and the names of the files that are left alone. Raises OSError."""
        held = dict.fromkeys(self.stuck_plan.queues, UNREADABLE) if self.stuck_plan else {}
        listing = list_spool(self.fs, self.folder, held)
        listing.foreign.remove(OWN_FOLDER)
        for name in names_in(self.fs, self.folder):
            parsed = kestrel_files.parse(name)
            files = listing.kestrel.get(parsed.queue)
            if files is not None and parsed.kind is kestrel_files.Kind.ARCHIVE and name not in files.archives:
                files.gone = files.gone | {name: parsed.number}
        return listing

    def renew(self, listing: SpoolListing, jobs: str) -> Renewed:
        """Rewrite the files that this run depends on, after a failed sync of an earlier run. `jobs`: the folder of the
        command log that this process has locked; "" if it serves no jobs. Raises SpoolError.
        """
        folder = jobs or f"{self.own}/{workq_files.OWN_FOLDER}"
        renewal = Renewal(self.fs, self.folder, self.own, self.failed_sync, folder, serves_jobs=bool(jobs))
        try:
            for files in listing.kestrel.values():
                self.recovery.tidy(files)
            for stream in listing.streams.values():
                self.streams.recovery.tidy(stream)
            renewed = renewal.run(listing)
            if self.stuck_plan is None:
                remove_plan(self.fs, self.own)
            return renewed
        except (OSError, JournalFailure) as error:
            raise self._unrenewed(error) from error

    def size(self, files: Files) -> int:
        """Return how many bytes the files of a queue have; a file whose size cannot be read counts as empty."""
        total = 0
        for name in files.names():
            with suppress(OSError):
                total += self.fs.size(f"{self.folder}/{name}")
        return total

    def orphans(self, listing: SpoolListing) -> list[str]:
        """Return sealed files that are missing together with all other files of their queue, according to sidecars."""
        named = [(kestrel_files.parse(name), name) for name in names_in(self.fs, self.folder)]
        queues = {*listing.kestrel, *listing.streams, *listing.mixed}
        return [
            name for parsed, name in named if parsed.kind is kestrel_files.Kind.ARCHIVE and parsed.queue not in queues
        ]

    def prune(self, files: dict[str, Files]) -> None:
        """Remove the sidecars of missing files, unless they matter for existing ones. Raises OSError."""
        wanted = {name for queue in files.values() for name in [*queue.archives, *queue.gone]}
        stale = [name for name in names_in(self.fs, self.folder) if name not in wanted]
        sidecars = kestrel_files.sidecar_folder(self.folder)
        for name in stale:
            self.fs.remove(f"{sidecars}/{name}")
        if stale:
            self.fs.sync_folder(sidecars)

    def set_aside(self, files: Files | StreamFiles, now_ms: int) -> str:
        """Move a queue's files out of the spool without losing them. Return the folder where they are now."""
        aside = f"{self.own}/aside.{now_ms}"
        self.fs.make_folder(aside)
        names = files.names()
        remove_sidecars(self.fs, self.folder, names)
        removal_list = RemovalList(self.fs, self.folder, f"{ASIDE_LIST} {names[0]}")
        removal_list.write(names)
        for name in names:
            self.fs.rename(f"{self.folder}/{name}", f"{aside}/{name}")
        self.fs.sync_folder(aside)
        self.fs.sync_folder(self.folder)
        removal_list.drop()
        return aside

    def recover(
        self, name: str, files: Files, config: QueueConfig, now_ms: int, memory_bytes: int | None = None
    ) -> tuple[Recovered, Log]:
        """Replay one queue, with about `memory_bytes` of its items in memory (None: its own setting). The log continues
        where its files end. Raises OSError if the disk refuses.
        """
        if memory_bytes is None:
            memory_bytes = config.max_memory_bytes
        recovered = self.recovery.recover(name, files, now_ms, memory_bytes)
        self.recovery.drop_stand_ins(recovered)
        self.claim(name)
        log = Log(self.fs, self.folder, name, self.group, config)
        log.encoder.counter = recovered.replay.counter
        log.encoder.open.update(recovered.replay.open)
        log.segments = recovered.segments
        log.segments.writer = log
        log.newest_number = max(files.newest_number(), self.keeper.last_number(name))
        log.unfinished, log.stuck = recovered.unfinished, files.stuck
        if files.current:
            self.fs.append(log.path).close()  # find out before the first request whether the file can be written
            log.resume(self.fs.size(log.path))
        else:
            assert log.file.size == 0
            self.group.change_folder(log.sync_ms, now_ms)
        if recovered.replay.restores_counter:
            log.restore_counter()
        return recovered, log

    def sync_recovered(self) -> None:
        """Sync everything that a killed server had written but not synced. Clients see it again, so a power cut must
        not lose it any more.
        """
        self.fs.sync_all(self.folder)
        self.keeper.are_files_synced = True

    def format_of(self, name: str, config: QueueConfig) -> Format:
        """Return the format in which queue `name` is stored, or would be: that of its fan-out relatives, whatever its
        settings say.
        """
        family = family_of(name)
        if family in self.streams.families:
            return Format.LIBKESTREL
        return Format.KESTREL if self._kestrel.get(family) else config.journal_format

    def create(self, name: str, config: QueueConfig, now_ms: int) -> Log:
        """Create the journal of a new queue: an empty file, immediately. Raises OSError."""
        self.claim(name)
        log = Log(self.fs, self.folder, name, self.group, config)
        log.newest_number = self.keeper.last_number(name)
        assert log.file.size == 0
        self.group.change_folder(log.sync_ms, now_ms)
        return log

    def claim(self, name: str) -> None:
        """Claim `name` for Kestrel's format, because it has files in that format, served or not. Its fan-out relatives
        get no other format.
        """
        self._kestrel.setdefault(family_of(name), set()).add(name)

    def erase(self, log: Log | ReaderLog, now_ms: int) -> tuple[int, Unremoved | None]:
        """Remove a queue's files. Return the batch that a reply about it waits for, and the files that could not be
        removed; its items are lost all the same. Raises OSError, and nothing has changed then; raises JournalFailure.
        """
        if isinstance(log, ReaderLog):
            left = self.streams.erase(log, now_ms)
        else:
            left = log.erase(now_ms)
            family = family_of(log.name)
            self._kestrel[family].discard(log.name)
            if not self._kestrel[family]:
                del self._kestrel[family]
        return self.group.change_folder(log.sync_ms, now_ms), left


def _hex(text: str) -> bytes:
    """Return the bytes that `text` represents; b"" if it is not hexadecimal."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
