"""Group commit: what has been recorded, written and made durable, counted in batches.

A batch is everything recorded between two writes. `gathering` is the number of the batch that changes join now,
`durable` the last batch that is synced. A queue with `sync_journal = "always"` gives its journal the number of the
batch (`Journal.batch`). A session keeps the highest number of the queues that it touched, and its replies leave when
`durable` has reached it. The file of a queue with a sync interval is put on a list of files that are due. With `"os"` a
file is synced only for a rotation, a transfer or a stop.

One `Sync` takes all files that are due, and the folder if a name in it changed. No second sync starts while one is
running, so it serves every reply that was gathered during the sync before it. `call_when_durable(log, then)` calls
`then` once everything that a log has recorded is synced, whatever its policy is: transfers wait with it.

An operation of an operator records many changes that no client waits for. While clients are served it calls
`call_when_durable` with `patiently`, and its records for a queue with "always" are `deferred`: they are synced when the
operation asks for it, or when a reply depends on them, which the journal reports (`sync_with_batch`). So most replies
wait only for a sync of their own files.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Protocol, TypeVar

from msgspec import Struct

from staniel.journal.disk.ballast import Ballast, Space
from staniel.journal.disk.failed_sync import FailedSyncMarker
from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, File, JournalFailure
from staniel.journal.disk.open_files import OpenFiles
from staniel.journal.disk.refusals import described
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.redo.log import Binding, LogState, Piece, RedoLog

__all__ = ["GroupCommit", "GroupMember", "JournalFailure", "SeparateDevice", "Sync", "is_stricter"]

NEVER_MS = 2**63 - 1
T = TypeVar("T")
IN_USE, DORMANT = LogState.IN_USE, LogState.DORMANT  # Python finds a global ten times as fast as a member of an Enum

# With more dirty files than this, one sync of the whole file system is cheaper than one sync for each file (10 files:
# 0.24 against 1.4 ms), although it also waits for the writes of other programs there. See docs/decisions/0010.
FILES_ONE_BY_ONE_MAX = 8


# Checksums of files that are synced later, or never, wait this long for a sync that happens anyway.
EXTENTS_MS = 1000
PATIENCE_MS = 4  # between two syncs that an operation asks for, so that another client's put fits in between
DEFERRED_MS = 100  # deferred records are synced after this at the latest
READ_BACK_BYTES_MAX = 4 << 20  # for checksums, in one sync, of files that it does not sync: others may wait for it


def is_stricter(sync_ms: int, other_ms: int) -> bool:
    """Tell whether the first of two policies promises more."""
    return sync_ms != other_ms and sync_ms >= 0 and (other_ms < 0 or sync_ms < other_ms)


class SeparateDevice:
    """A file that may lie outside the spool's file system, so that a sync of that file system does not cover it.
    `named`: the file of the Fs once its name is durable; None before that.
    """

    size: int

    @property
    def named(self) -> NamedFile | None:
        return None

    def is_on(self, folder: str) -> bool:
        """Tell whether the file is known to lie on the file system of `folder`."""
        return False

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def read(self, at: int, count: int) -> bytes:
        """Refuse: callers read `named` instead."""
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def is_at(self, path: str) -> bool:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def named_file(file: File) -> NamedFile | None:
    """Return the file that a redo log may know."""
    if type(file) is NamedFile:
        return file
    return file.named if isinstance(file, SeparateDevice) else None


class GroupMember(Protocol):
    """The journal as GroupCommit needs it."""

    batch: int
    path: str
    sync_ms: int
    is_erased: bool

    @property
    def file(self) -> File: ...

    def write(self) -> File:
        """Put pending bytes into the page cache, and return the file that has the last of them. After an OSError a
        second call continues where the first one failed.
        """

    def synced(self, now_ms: int) -> None:
        """Note that the sync that the journal had asked for is done."""


class Deferrable(GroupMember, Protocol):
    """A journal that calls `sync_with_batch` when a reply depends on it while it `is_deferred`."""

    is_deferred: bool


class Sync(Struct):
    """A sync of the disk. `run` is the only code of the journal that runs in another thread. It only syncs, and writes
    what the redo log needs.
    """

    batch: int
    files: tuple[File, ...]
    folder: str
    spool: str
    fs: UnsyncedNames
    asked: tuple[GroupMember, ...]
    then: tuple[Callable[[int], None], ...]
    is_plain: bool  # all files belong to journals whose clients wait for them
    redo: RedoLog | None = None
    unstaged: list[tuple[bytes, int]] = []  # batches still to be written to the redo log
    pieces: list[Piece] = []  # parts of files whose checksums go to the redo log
    is_whole: bool = False  # sync the whole file system, however few files there are
    is_cut_short: bool = False  # the server stops: files whose sync has not begun are left to the last sync
    is_done: bool = True  # unless it was cut short
    deferred: tuple[Deferrable, ...] = ()  # journals whose deferred records it makes durable, all of them
    is_patient: bool = False  # an operation has asked for it with `patiently`

    def run(self) -> None:
        """Run the sync. Raises JournalFailure. A failed sync is never tried again, because the kernel may have dropped
        the pages.
        """
        files = self.files
        try:
            if self.redo is not None:
                batches, self.unstaged = self.unstaged, []
                self.redo.carry_out(batches, self.pieces)
            is_whole = self.is_whole or len(files) > FILES_ONE_BY_ONE_MAX
            if is_whole:
                self.fs.sync_all_with(self.spool, files)
                plain_files = [file for file in files if type(file) is not NamedFile]
                files = tuple([file for file in plain_files if isinstance(file, SeparateDevice)])
            for file in files:
                if self.is_cut_short:
                    self.is_done = False
                    return
                if not (self.is_whole and isinstance(file, SeparateDevice) and file.is_on(self.spool)):
                    file.sync()
            if self.folder and not is_whole:
                if self.is_cut_short:
                    self.is_done = False
                    return
                self.fs.sync_folder(self.folder)
        except OSError as error:  # a call before the sync failed
            raise JournalFailure(f"cannot sync {self.spool}: {error}") from error


class GroupCommit:
    """All journals of a spool, committed together."""

    def __init__(
        self,
        fs: UnsyncedNames,
        folder: str,
        ballast: Ballast,
        failed_sync: FailedSyncMarker,
        redo: RedoLog | None = None,
    ) -> None:
        self.fs = fs
        self.failed_sync = failed_sync
        self.folder = folder
        self.redo = redo = redo or RedoLog(fs, folder, "", 0)
        self.wait_for: Callable[[Sync], None] = lambda sync: None
        """A function that returns once this running sync has run; set by the server or the simulator."""
        redo.wait_for_sync = self._wait_for_sync
        self.ballast = ballast
        self.on_refused: Callable[[str, OSError, int], None] = lambda path, error, now_ms: None
        """A function that the broker sets. Called when the system refuses a rotation of the journal at this path, whose
        file stays as it is.
        """
        self.open_files = OpenFiles()
        self.before_write: Callable[[], None] | None = None  # set only while there is something to do
        """A function that makes durable what must be on the disk before any later record. It may raise
        JournalFailure.
        """
        self.after_sync: Callable[[int], None] | None = None  # set only while there is something to do
        """A function that is called when a sync has ended, after everything else. It may raise JournalFailure."""
        self.gathering = 1  # the batch that changes join now
        self.durable = 0  # every batch up to this one is durable
        self.synced_ms = 0  # when the last sync ended
        self.pending_bytes = 0
        self.budget_bytes = ballast.budget_bytes
        self.commit_above_bytes = 0  # with more pending bytes than this, commit before executing anything else
        self._touched: list[GroupMember] = []
        self._waited_for = False  # a reply waits for the batch being gathered
        self._started = 0
        self._running: Sync | None = None
        self._syncing: dict[File, None] = {}  # the files of the running sync
        self._now: dict[File, None] = {}
        self._later: dict[File, int] = {}
        self._next_due_ms = NEVER_MS  # at most the earliest of _later, of the folder and of _unchecked
        self._unchecked: dict[File, None] = {}  # files with new bytes whose checksums the redo log still needs
        self._checks_due_ms = NEVER_MS
        self._folder_changed = False
        self._asked: dict[GroupMember, None] = {}
        self._then: list[Callable[[int], None]] = []
        self._patiently_asked: dict[GroupMember, None] = {}
        self._patiently_then: list[Callable[[int], None]] = []
        self._patient_until_ms = 0
        self.defers: dict[Deferrable, None] = {}  # these record changes of an operation now
        self._deferred: dict[Deferrable, File | None] = {}  # the file with the last of them; None: not written
        self._closing: list[File] = []
        self._sealed: dict[File, None] = {}
        self.is_stopping = False
        """True while the server stops: each sync is one of the whole file system, and no journal is rotated
        after it.
        """
        self._is_last = False  # no write follows this sync

    def failure(self, failed: str, error: OSError) -> JournalFailure:
        """Return the error that ends a process which has tried to change files and cannot know how far that came. No
        sync has failed, so the next process sees the files as they are.
        """
        return JournalFailure(f"{failed}: {described(error)}")

    def mark_dirty(self, member: GroupMember) -> None:
        """Note that `member` has its first pending bytes of this batch."""
        self._touched.append(member)
        if member.sync_ms == 0:
            if self.defers and member in self.defers and not self.redo.takes_data:
                member.is_deferred = True
                self._deferred.setdefault(member, None)
                return
            member.batch = self.gathering
            self._waited_for = True

    def sync_with_batch(self, member: Deferrable) -> None:
        """Sync the deferred records of `member` with the current batch, because a reply depends on them."""
        member.is_deferred = False
        self._deferred.pop(member, None)
        if not member.is_erased:
            self._now[member.file] = None
            member.batch = self.gathering
            self._waited_for = True

    def change_folder(self, sync_ms: int, now_ms: int) -> int:
        """Note that a file was created, renamed or removed under a sync policy. Return the batch that a reply about it
        waits for, or 0.
        """
        self._folder_changed = True
        if sync_ms == 0:
            self._waited_for = True
            return self.gathering
        if sync_ms > 0:
            self._next_due_ms = min(self._next_due_ms, now_ms + sync_ms)
        return 0

    def admits(self, size: int) -> bool:
        """Tell whether `size` more bytes can be promised a place on the disk, by the ballast or by other room."""
        if self.pending_bytes + size <= self.budget_bytes:
            return True
        return self.ballast.has_room_for(self.pending_bytes + size)

    @property
    def is_full(self) -> bool:
        """True if nothing may be added to the spool because the disk is full."""
        return self.budget_bytes < 0

    def write(self, now_ms: int) -> list[GroupMember]:
        """Close the batch: everything recorded goes to the page cache. Return the journals that had pending records.

        Raises JournalFailure.
        """
        if self.before_write is not None:
            self.before_write()
        touched, self._touched = self._touched, []
        redo = self.redo
        is_logged, is_dormant = redo.state is IN_USE, redo.state is DORMANT
        takes_data, deferred = redo.takes_data, self._deferred
        takes_now = is_logged and (takes_data or bool(redo.bindings))  # also for journals that replies wait for
        for member in touched:
            try:
                file = member.write()
            except OSError as error:
                file = self._release_ballast_and_retry(error, member.write, member.path)
            if deferred and member in deferred:
                deferred[member] = file
                if member.batch != self.gathering:
                    self._sync_later(file, DEFERRED_MS, now_ms)
                    continue
            if member.sync_ms == 0 or member.batch == self.gathering:  # promised under an earlier policy
                self._now[file] = None
                if takes_now and (named := file if type(file) is NamedFile else named_file(file)) is not None:
                    binding = named.binding
                    # Most files are in the right state already. A call for each would cost more than the rest of this
                    # loop.
                    is_known = isinstance(binding, Binding) and binding.has_data is takes_data
                    if not is_known and (takes_data or binding is not None):
                        self._adopt_now(named, file, has_data=takes_data)
            else:
                self._sync_later(file, member.sync_ms, now_ms)
                if is_logged and file not in self._unchecked:
                    self._check(file, now_ms)
                elif is_dormant:
                    is_dormant = False
                    redo.schedule_creation()
        self.pending_bytes = 0
        if self._waited_for:
            self._waited_for = False
            self.gathering += 1
        return touched

    def _adopt_now(self, named: NamedFile, file: File, *, has_data: bool) -> None:
        """Tell the redo log about `file`, which clients wait for. A file in the running sync is left to the next one:
        otherwise batches with its present bytes would follow that sync, and a power cut between two of them would cut
        the file off where the first one ends.
        """
        if named.binding is not None or file not in self._syncing:
            self.redo.adopt(named, has_data=has_data)

    def write_or_release_ballast(self, write: Callable[[], T], path: str) -> T:
        """Write what has been admitted; release the ballast if necessary. Raises JournalFailure."""
        try:
            return write()
        except OSError as error:
            return self._release_ballast_and_retry(error, write, path)

    def try_or_release_ballast(self, write: Callable[[], None]) -> None:
        """Write something optional; release the ballast if necessary. Raises OSError."""
        try:
            write()
        except OSError as error:
            if error.errno not in FULL_ERRNOS or not self.make_room():
                raise
            write()

    def _release_ballast_and_retry(self, error: OSError, write: Callable[[], T], path: str) -> T:
        if error.errno not in FULL_ERRNOS or not self.make_room():
            raise JournalFailure(f"cannot write {path}: {described(error)}") from error
        return self.write_or_release_ballast(write, path)

    def _check(self, file: File, now_ms: int) -> None:
        """Let the redo log take checksums of what is written to `file`. If the log did not know the file, do it at
        once, because the log could not tell that something is missing in it.
        """
        named = named_file(file)
        if named is not None:
            if named.binding is None and file in self._syncing:
                # The running sync does not tell the log about this file. If the log knew the file before that sync
                # ends, recovery would cut the file off where its records begin, although replies depend on this sync.
                due_ms = now_ms
            else:
                due_ms = now_ms if self.redo.adopt(named, has_data=False) else now_ms + EXTENTS_MS
            self._unchecked[file] = None
            self._checks_due_ms = min(self._checks_due_ms, due_ms)
            self._next_due_ms = min(self._next_due_ms, due_ms)

    def _sync_later(self, file: File, sync_ms: int, now_ms: int) -> None:
        due_ms = now_ms + sync_ms if sync_ms > 0 else NEVER_MS
        # The policy may have been changed since the file became dirty.
        if due_ms < self._later.get(file, NEVER_MS) or file not in self._later:
            self._later[file] = due_ms
            self._next_due_ms = min(self._next_due_ms, due_ms)

    def make_room(self) -> bool:
        """Release the ballast on a full disk. Return False if there is none."""
        if self.ballast.space is not Space.AMPLE:
            return False
        self.release_ballast()
        return True

    def release_ballast(self) -> None:
        """Release the ballast, because the disk is full. Nothing that grows the spool is admitted from now on."""
        self.ballast.release()
        self._take_budget()

    def restore_ballast(self) -> bool:
        """Try to restore the ballast. Return True if puts are accepted now."""
        self.failed_sync.set_room_aside()
        standing = self.ballast.create()
        self._take_budget()
        return standing

    def _take_budget(self) -> None:
        self.budget_bytes = self.ballast.budget_bytes
        self.commit_above_bytes = max(0, self.budget_bytes) >> 1

    def ask_for_sync(self, member: GroupMember) -> None:
        """Include `member` in the next sync, whatever its policy is; then call its `synced`."""
        self._asked[member] = None

    def call_when_durable(self, member: GroupMember, then: Callable[[int], None], *, patiently: bool = False) -> None:
        """Call `then(now_ms)` once everything that `member` has recorded so far is durable, whatever its policy is.
        `patiently`: no sync begins for it within PATIENCE_MS of the last such sync.

        If the journal has been erased meanwhile, the call waits for the erasure.
        """
        asked, thens = (self._patiently_asked, self._patiently_then) if patiently else (self._asked, self._then)
        if member.is_erased:
            self._folder_changed = True
        else:
            asked[member] = None
        thens.append(then)

    def include_patient(self) -> None:
        """Let the next sync begin for patient callers, too."""
        self._patient_until_ms = 0

    def _merge_patient(self) -> None:
        self._asked |= self._patiently_asked
        self._then += self._patiently_then
        self._patiently_asked.clear()
        self._patiently_then.clear()

    @property
    def is_syncing(self) -> bool:
        """True while a sync runs."""
        return self._running is not None

    @property
    def is_asked(self) -> bool:
        """True if a sync is requested that is to begin at once."""
        return self._running is None and bool(self._then or self._asked)

    def next_due_ms(self) -> int:
        """Return when the next sync is due that no batch waits for. Return NEVER_MS if none is due, or while one is
        running: its end begins the next.
        """
        if self._running is not None:
            return NEVER_MS
        return min(self._next_due_ms, self._patient_until_ms) if self._patiently_then else self._next_due_ms

    def start_sync(self, now_ms: int) -> Sync | None:
        """Return the sync that must run now; None if none must, or another one is running."""
        if self._running is not None:
            return None
        last = self.gathering - 1
        is_patient = False
        # An impatient caller may wait for something that a patient caller does after its sync.
        if self._patiently_then and (self._patient_until_ms <= now_ms or self._asked or self._then):
            is_patient = True
            self._merge_patient()
        is_plain = not (self._asked or self._then or self._folder_changed or self._next_due_ms <= now_ms)
        if is_plain:
            if last == self._started:
                return None
            files, self._now = self._now, {}
            sync = Sync(last, tuple(files), "", self.folder, self.fs, (), (), True)
            redo = self.redo
            if redo.state is IN_USE and (redo.takes_data or redo.bindings or redo.has_pending):
                self._log_plain(sync)
        elif last == self._started and self._next_due_ms > now_ms and not self._then and not self._asked:
            return None
        else:
            files, sync = self._gather(last, now_ms)
        self._started = last
        self._running, self._syncing = sync, files
        if is_patient:
            sync.is_patient = True
        if self._deferred:
            self._take_deferred(sync, files)
        return sync

    def start_hurried_sync(self, now_ms: int) -> Sync | None:
        """Return what `start_sync` does, also for patient callers."""
        self._patient_until_ms = 0
        return self.start_sync(now_ms)

    def _take_deferred(self, sync: Sync, files: dict[File, None]) -> None:
        """Note whose deferred records `sync` makes durable. All records are written."""
        sync.deferred = tuple([member for member, file in self._deferred.items() if file in files])
        for member in sync.deferred:
            self._later.pop(self._deferred.pop(member), None)  # type: ignore[arg-type]

    def _log_plain(self, sync: Sync) -> None:
        """Let the redo log replace the file syncs of a sync that clients wait for, as far as it can."""
        redo = self.redo
        if redo.takes_data:
            uncovered = redo.uncovered_files(sync.files)
            for file in uncovered:
                if (named := named_file(file)) is not None and named.binding is None:
                    redo.adopt(named, has_data=True)
            sync.files = tuple([file for file in uncovered if (f := named_file(file)) is None or not redo.covers(f)])
        sync.pieces = self._pieces(sync.files)
        # Pending records without a piece: a file was synced and closed, or renamed, before this sync began.
        if redo.takes_data or sync.pieces or redo.has_pending:
            sync.redo, sync.unstaged = redo, [] if redo.stage() else redo.take_sealed()

    def _pieces(self, files: Iterable[File]) -> list[Piece]:
        """Return the pieces whose checksums the redo log must have before these files count as synced."""
        pieces = []
        for file in files:
            named = named_file(file)
            if named is not None and (piece := self.redo.piece_of(named, named.size)) is not None:
                pieces.append(piece)
                self._unchecked.pop(file, None)
        return pieces

    def _pieces_due(self, now_ms: int, synced: Container[File]) -> tuple[list[Piece], list[File]]:
        """Return the pieces whose checksums the redo log must take although their files are not synced, and these
        files. A file that the log did not know may be one of those that are `synced`: the log gets all of it.
        """
        pieces: list[Piece] = []
        files = []
        left_bytes = READ_BACK_BYTES_MAX
        while self._checks_due_ms <= now_ms and self._unchecked and left_bytes > 0:
            file = next(iter(self._unchecked))
            named = named_file(file)
            assert named is not None
            if named.binding is None:
                self.redo.adopt(named, has_data=False)
            piece = self.redo.piece_of(named, named.size if file in synced else left_bytes)
            if piece is None or piece.end == named.size:
                del self._unchecked[file]
            if piece is not None:
                left_bytes -= piece.end - piece.at
                pieces.append(piece)
                files.append(file)
        if not self._unchecked:
            self._checks_due_ms = NEVER_MS
        self._next_due_ms = min(self._next_due_ms, self._checks_due_ms)
        return pieces, files

    def _gather(self, last: int, now_ms: int) -> tuple[dict[File, None], Sync]:
        """Gather a sync that also takes files that no client waits for."""
        asked, then = tuple(self._asked), tuple(self._then)
        for member in asked:
            self._now[member.file] = None  # opening a file may close another, which is synced then
        files = {**self._now}
        if self._next_due_ms <= now_ms:
            for file in [file for file, due_ms in self._later.items() if due_ms <= now_ms]:
                del self._later[file]
                files[file] = None
            self._next_due_ms = min(self._later.values(), default=NEVER_MS)
        self._asked.clear()
        self._then.clear()
        self._now = {}
        folder = self.folder if self._folder_changed else ""
        self._folder_changed = False
        sync = Sync(last, tuple(files), folder, self.folder, self.fs, asked, then, False, is_whole=self.is_stopping)
        redo = self.redo
        if redo.state is IN_USE and not self._is_last:
            sync.pieces = self._pieces(files)
            pieces, read_back = self._pieces_due(now_ms, files)
            sync.pieces += pieces
            sync.redo, sync.unstaged = redo, [] if redo.stage() else redo.take_sealed()
            files |= dict.fromkeys(read_back)
        return files, sync

    def _wait_for_sync(self) -> None:
        if self._running is not None:
            self.wait_for(self._running)

    def finish_sync(self, sync: Sync, now_ms: int) -> None:
        """Finish `sync`, which has run without an error. Its batch is durable."""
        assert sync is self._running
        self._running = None
        self._syncing = {}
        if not sync.is_done:
            self._take_back(sync)
            return
        self.durable = sync.batch
        self.synced_ms = now_ms
        if sync.deferred:
            for deferred in sync.deferred:
                if deferred not in self._deferred:
                    deferred.is_deferred = False
        if sync.is_patient:
            self._patient_until_ms = now_ms + PATIENCE_MS
        if sync.redo is not None:
            sync.redo.free_retired()
        if self._closing:
            for file in self._closing:
                file.close()
            self._closing.clear()
        if self._sealed:
            self._close_sealed(sync)
        for member in sync.asked:
            self._call_synced(member, now_ms)
        for then in sync.then:
            then(now_ms)
        if self.after_sync is not None:
            self.after_sync(now_ms)

    def cut_short(self) -> None:
        """Let the running sync leave its remaining files to the one that ends the server. Do nothing if something else
        must be done when it has ended, which would need a sync of its own.
        """
        if self._running is not None and not self._running.then:
            self._running.is_cut_short = True

    def _take_back(self, sync: Sync) -> None:
        """Undo the start of `sync`, which was cut short. The next sync does all of it."""
        self._started = self.durable
        self._now = {**dict.fromkeys(sync.files), **self._now}
        for file in self._closing:  # the file needs no sync any more
            self._now.pop(file, None)
            file.close()
        self._closing.clear()
        self._asked = {**dict.fromkeys(member for member in sync.asked if not member.is_erased), **self._asked}
        self._folder_changed = self._folder_changed or bool(sync.folder)
        self._next_due_ms = 0

    def _call_synced(self, member: GroupMember, now_ms: int) -> None:
        try:
            member.synced(now_ms)
        except OSError as error:
            if error.errno in BROKEN_ERRNOS:
                raise self.failure(f"cannot rotate {member.path}", error) from error
            # No room for another file, no descriptor, or no permission. Try again when the journal has grown.
            self.on_refused(member.path, error, now_ms)

    @property
    def has_followers(self) -> bool:
        """True if something must be done when the next sync has ended."""
        return bool(self._then or self._patiently_then)

    def sync_for_shutdown(self, now_ms: int) -> None:
        """Write everything and make all of the spool durable with one sync. The server stops, and records nothing any
        more.

        The redo log does not learn of this sync. Until `version` says that the log is not in use any more, a power cut
        may undo what is written here, as if it had come before this sync: nothing may depend on the sync until then.
        Raises JournalFailure.
        """
        assert self._running is None and not self.has_followers
        self.write(now_ms)
        self._is_last = True
        self._unchecked.clear()
        self._checks_due_ms = NEVER_MS
        self._later = dict.fromkeys(self._later, now_ms)
        self._next_due_ms = now_ms
        sync = self.start_sync(now_ms)
        assert sync is not None
        sync.run()
        self.finish_sync(sync, now_ms)

    def sync_all(self, now_ms: int) -> None:
        """Write and sync everything at once. Used at start and stop, when no client is served."""
        assert self._running is None
        self.write(now_ms)
        self._next_due_ms = now_ms
        self._later = dict.fromkeys(self._later, now_ms)
        while (sync := self.start_hurried_sync(now_ms)) is not None:
            sync.run()
            self.finish_sync(sync, now_ms)
            self.write(now_ms)

    def is_waiting_for(self, file: File) -> bool:
        """Tell whether `file` is still to be synced. A journal with the policy "os" never is."""
        return file in self._syncing or file in self._now or self._later.get(file, NEVER_MS) != NEVER_MS

    def sync_at_once(self, member: GroupMember, now_ms: int) -> None:
        """Write all records and sync those of `member` at once, because something that is written elsewhere next
        depends on them. Raises JournalFailure.
        """
        self.write(now_ms)
        self._wait_for_sync()
        member.file.sync()

    def sync_now(self, file: File) -> bool:
        """Sync `file` at once if that is due, so that it can be closed. Return False while a running sync uses it.

        Raises JournalFailure.
        """
        if file in self._syncing:
            return False
        if self.is_waiting_for(file):
            file.sync()
        return True

    def try_close(self, file: File, is_busy: bool, force: bool) -> bool:
        """Close a member's file unless it `is_busy` or a sync is due. `force`: make that sync at once. Return whether
        it is closed. Raises JournalFailure.
        """
        if (is_busy or self.is_waiting_for(file)) and not (force and self.sync_now(file)):
            return False
        self.close_after_sync(file)
        return True

    def forget(self, member: GroupMember) -> None:
        """Forget `member`, which is removed with its pending records."""
        if member in self._touched:
            self._touched.remove(member)
        self._asked.pop(member, None)
        self._patiently_asked.pop(member, None)
        self._deferred.pop(member, None)  # type: ignore[call-overload]

    def include(self, file: File, sync_ms: int, now_ms: int) -> None:
        """Sync `file`, which has bytes that belong to no batch, with the next sync, or when its policy says."""
        if sync_ms == 0:
            self._now[file] = None
        elif sync_ms > 0:
            self._later[file] = now_ms + sync_ms
            self._next_due_ms = min(self._next_due_ms, now_ms + sync_ms)
        if sync_ms != 0 and (named := named_file(file)) is not None and named.binding is not None:
            self._check(file, now_ms)

    def tighten(self, member: GroupMember) -> None:
        """Tighten the policy of `member` from now on. Its earlier records become as safe as the later ones: at once, or
        with the next of them if the system refuses to open the file.
        """
        try:
            file = member.file
        except OSError as error:
            self.on_refused(member.path, error, self.synced_ms)
            return
        if member.sync_ms == 0:
            self._now[file] = None
            member.batch = self.gathering
            self._waited_for = True
        else:
            self._later[file] = self._next_due_ms = 0

    def complete(self, file: File) -> None:
        """Complete `file`, which has been synced. Nothing more is written to it, and later records in other files may
        depend on it.
        """
        named = named_file(file)
        # A binding in `released` may cover fewer bytes than have been written since.
        if named is not None and (named.binding is not None or named.path in self.redo.released):
            self.redo.complete(named)

    def seal(self, file: File, now_ms: int) -> None:
        """Seal `file`, to which nothing more is written. Sync it next, then close it."""
        self._sealed[file] = None
        self._later[file] = self._next_due_ms = min(now_ms, self._next_due_ms)

    def is_sealing(self, path: str) -> bool:
        """Tell whether the file at `path` is sealed but not synced yet."""
        return any((named := named_file(file)) is not None and named.path == path for file in self._sealed)

    def _close_sealed(self, sync: Sync) -> None:
        for file in [file for file in sync.files if file in self._sealed]:
            if file not in self._now and file not in self._later:
                del self._sealed[file]
                self._unchecked.pop(file, None)
                file.close()

    def close_after_sync(self, file: File) -> None:
        """Close `file`, which needs no further sync; after the running sync, if that may use it."""
        self._now.pop(file, None)
        self._later.pop(file, None)
        self._unchecked.pop(file, None)
        if file in self._syncing:
            self._closing.append(file)
        else:
            file.close()
