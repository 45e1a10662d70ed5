"""The making of a new spool from the folder of another server: Kestrel's, libkestrel's or workq's. The folder is only
read.

First a survey reads every record. Then the files are copied unchanged, and a recovery, the one of a server's start,
reads the copies. It must find as many items in each queue as the survey did.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

from msgspec import Struct, field

from staniel.broker.broker import Broker
from staniel.broker.config.load import parse
from staniel.broker.config.values import quoted
from staniel.broker.events import Level
from staniel.journal.copy_mark import VERSION, has_mark
from staniel.journal.disk.fs import AlreadyLocked, JournalFailure
from staniel.journal.disk.os_fs import OsFs, is_folder, is_named
from staniel.journal.disk.refusals import failure_line
from staniel.journal.errors import Flaw
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.membership import membership
from staniel.journal.spool import FORMAT_VERSION, SpoolError
from staniel.journal.spool_listing import CMDLOG, is_journal_file
from staniel.journal.tools.source import JOBS, ReadSource
from staniel.journal.tools.stats import stats
from staniel.journal.tools.unfinished import Work, unfinished_work
from staniel.journal.workq import files as workq_files
from staniel.server.backup.manifest import BackupError
from staniel.server.backup.restore import NewSpool, failure, removed_if_refused
from staniel.server.backup.source import is_spool
from staniel.server.backup.store import Progress

PIECE_BYTES = 1 << 20
T = TypeVar("T")
UNSEEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
"""Errors that say that this user may not see what a process has open, or that it has ended."""
TROUBLES = ("journal.unreadable", "cmdlog.unreadable", "queue.blocked")


class OldQueue(Struct, frozen=True):
    """A queue, or all jobs of one name. `open_items` of its `items` were open reads of clients; they are ready
    again.
    """

    name: str
    items: int
    open_items: int


class OldFlaw(Struct, frozen=True):
    file: str
    flaw: Flaw


class OldJournal(Struct, frozen=True):
    """The files under one name: of a queue in Kestrel's format, of a queue and its children in libkestrel's, or a
    command log, whose `queues` are names of jobs. `why_not`: no server can serve them; they are copied anyway.
    """

    name: str
    format: str
    files: int = 0
    bytes: int = 0
    queues: list[OldQueue] = []
    flaws: list[OldFlaw] = []
    notes: list[str] = []
    why_not: str = ""

    @property
    def items(self) -> int:
        return sum(queue.items for queue in self.queues)

    @property
    def has_losses(self) -> bool:
        return bool(self.why_not) or not all(one_flaw.flaw.is_torn for one_flaw in self.flaws)


class Survey(Struct):
    """The contents of a folder. `left_alone` has names that are no journals. `files` maps the copied files to their
    names in the new spool; `marks` has the size and time of each, by which a change is detected.
    """

    folder: str
    journals: list[OldJournal] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    bytes: int = 0

    @property
    def has_losses(self) -> bool:
        return any(journal.has_losses for journal in self.journals)


def survey(folder: str, now_ms: int, progress: Progress) -> Survey:
    """Read the whole folder. Raises BackupError: it is no such folder, or a server uses it."""
    fs = OsFs()
    try:
        if not is_folder(folder):
            raise BackupError(f"{folder} is not a folder: name the one in which the old server kept its journals")
        if has_mark(fs, f"{folder}/{OWN_FOLDER}"):
            raise BackupError(f"{folder} is not complete: {Work.COPY.value}; name the old server's own folder")
        joined = membership(fs, folder)
        if not joined.is_alone:
            raise BackupError(joined.refusal(folder))
        if is_spool(folder):
            raise BackupError(f"{folder} is a spool of Staniel already: copy it with `staniel backup` and `restore`")
        _refuse_unfinished(fs, folder)
        _refuse_used(fs, folder)
        result = Survey(folder)
        for name, is_file in fs.list(folder):
            is_segment = bool(workq_files.segment_numbers([(name, is_file)]))
            if is_file and (is_segment or is_journal_file(name)):
                result.files[name] = f"{CMDLOG}/{name}" if is_segment else name
            elif not (is_file and (_is_temporary(name) or name in (workq_files.APPEND_LOCK, workq_files.READ_LOCK))):
                result.left_alone.append(name)
        result.marks = _stat_files(folder, result.files)
        result.bytes = sum(size for size, _ in result.marks.values())
        source = ReadSource(fs, folder, progress)
        result.journals = list(_journals(source, now_ms))
    except OSError as error:
        raise failure(error, folder) from error
    finally:
        fs.close()
    if not result.journals:
        raise BackupError(f"{folder} has no journals of Kestrel's, libkestrel's or workq's")
    return result


def _journals(source: ReadSource, now_ms: int) -> Iterator[OldJournal]:
    listing = source.listing
    for name, why in sorted(listing.mixed.items()):
        yield OldJournal(name, "mixed", why_not=why)
    for line_stats in stats(source, now_ms):
        queues = [
            OldQueue(name, sum(line.states.values()), line.states.get("open", 0))
            for name, line in line_stats.lines.items()
        ]
        flaws = [OldFlaw(flaw.file, flaw.flaw) for flaw in line_stats.flaws]
        notes = list[str]()
        if line_stats.name in listing.kestrel:
            notes = _notes_on_files(listing.kestrel[line_stats.name])
        elif line_stats.name in listing.streams:
            notes = [f"{name} is unfinished, and left out" for name in listing.streams[line_stats.name].temps]
        yield OldJournal(line_stats.name, line_stats.format, line_stats.files, line_stats.bytes, queues, flaws, notes)


def _notes_on_files(files: kestrel_files.Files) -> list[str]:
    notes = [f"{name} is a pack that was not put in its place: the start does that" for name in sorted(files.packs)]
    return notes + [f"{name} is unfinished, and left out" for name in files.temps]


def _is_temporary(name: str) -> bool:
    is_stream = libkestrel_files.parse(name).kind is libkestrel_files.StreamFileKind.TEMP
    return is_stream or kestrel_files.parse(name).kind is kestrel_files.Kind.TEMP


def _stat_files(folder: str, names: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file. Raises OSError."""
    statuses = {name: os.stat(f"{folder}/{name}") for name in names}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in statuses.items()}


def _refuse_unfinished(fs: OsFs, folder: str) -> None:
    """Refuse a folder in which a server of ours has left more than journals. Raises BackupError, OSError."""
    if not is_folder(f"{folder}/{OWN_FOLDER}"):
        return
    left = unfinished_work(fs, folder)
    why = left[0].work.value if left else "its .staniel/version is missing"
    what = "start a server on it once, which makes it whole, then use `staniel backup` and `restore`"
    raise BackupError(f"{folder} has been a spool of Staniel, and {why}: {what}")


def _refuse_used(fs: OsFs, folder: str) -> None:
    """Refuse a folder that a server uses, as far as this user can see. Raises BackupError, OSError."""
    path = f"{folder}/{workq_files.APPEND_LOCK}"
    if is_named(path):
        try:
            fs.hold(path, shared=False)()
        except AlreadyLocked:
            raise BackupError(f"a workq server uses {folder}: stop it first") from None
        except OSError as error:
            if error.errno not in UNSEEN:
                raise
    inside = f"{os.path.realpath(folder)}/"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        numbers: list[str] = _look_if_allowed(lambda path: os.listdir(path), f"/proc/{pid}/fd", [])
        for number in numbers:
            opened = _look_if_allowed(os.readlink, f"/proc/{pid}/fd/{number}", "")
            if opened.startswith(inside) and int(pid) != os.getpid():
                raise BackupError(f"process {pid} ({_command_of(pid)}) has {opened} open: stop it first")


def _look_if_allowed(look: Callable[[str], T], path: str, otherwise: T) -> T:
    """Return what `look` returns; `otherwise` if this user may not see it, or the process has ended. Raises OSError."""
    try:
        return look(path)
    except OSError as error:
        if error.errno not in UNSEEN:
            raise
        return otherwise


def _command_of(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


class Adopted(Struct, frozen=True):
    """The result of a recovery of the copy. `differences` names queues with more or fewer items than the old files."""

    queues: int
    items: int
    jobs: int
    differences: list[str]


def adopt(old_files: Survey, target: str, now_ms: int, progress: Progress) -> Adopted:
    """Copy the surveyed files into a new spool, and verify it. Raises BackupError: then there is no spool at
    `target`.
    """
    old, new = os.path.realpath(old_files.folder), os.path.realpath(target)
    if f"{new}/".startswith(f"{old}/") or f"{old}/".startswith(f"{new}/"):
        raise BackupError(f"{target} and {old_files.folder} lie within each other: give a folder elsewhere")
    spool = NewSpool(target, old_files.bytes)
    try:
        with removed_if_refused(spool):
            for name, new_name in old_files.files.items():
                _copy(old_files, name, f"{target}/{new_name}", spool, progress)
            _refuse_changed(old_files)
    finally:
        spool.close()
    proved = _recover_copy(
        old_files, target, now_ms
    )  # with the mark that keeps servers off still there, whatever ends it
    if not proved.differences:
        spool.open_again()
        try:
            with removed_if_refused(spool):
                spool.complete_spool()
        finally:
            spool.close()
    return proved


def _copy(old_files: Survey, name: str, path: str, spool: NewSpool, progress: Progress) -> None:
    size, at = old_files.marks[name][0], 0
    try:
        reader = spool.fs.reader(f"{old_files.folder}/{name}")
        try:
            made = spool.fs.append(path)
            try:
                while at < size and (piece := reader.read(at, min(PIECE_BYTES, size - at))):
                    made.write(piece)
                    at += len(piece)
                    progress(len(piece))
            finally:
                made.close()
        finally:
            reader.close()
    except OSError as error:
        raise failure(error, spool.folder) from error


def _refuse_changed(old_files: Survey) -> None:
    """Check that no file has changed since the survey. Raises BackupError."""
    try:
        now = _stat_files(old_files.folder, old_files.files)
    except FileNotFoundError as error:
        raise BackupError(f"{error.filename} was removed while it was copied: stop the old server first") from error
    except OSError as error:
        raise failure(error, old_files.folder) from error
    changed = [name for name, mark in now.items() if old_files.marks[name] != mark]
    if changed:
        raise BackupError(f"{old_files.folder}/{changed[0]} has changed while it was copied: stop the old server first")


class ProvingFs(OsFs):
    """A disk on which an unfinished copy counts as a spool."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self._version = f"{os.path.abspath(target)}/{OWN_FOLDER}/{VERSION}"

    def read(self, path: str, at: int, size: int) -> bytes:
        return f"{FORMAT_VERSION}\n".encode() if path == self._version else super().read(path, at, size)


def _recover_copy(old_files: Survey, target: str, now_ms: int) -> Adopted:
    """Start on the copy like a server without sockets, and count. Raises BackupError."""
    wanted = {
        queue.name: queue.items for journal in old_files.journals if journal.name != JOBS for queue in journal.queues
    }
    jobs = sum(journal.items for journal in old_files.journals if journal.name == JOBS)
    has_jobs = any(journal.name == JOBS for journal in old_files.journals)
    config = f"[server]\nspool = {quoted(os.path.abspath(target))}\n" + ("[workq]\n" if has_jobs else "")
    fs = ProvingFs(target)
    troubles = list[str]()

    def report(level: Level, event: str, /, **fields: object) -> None:
        if event in TROUBLES:
            troubles.append(f"{event}: {fields}")

    try:
        broker = Broker(parse(config.encode("utf-8", "surrogateescape"), "/"), fs, report)
        summary = broker.recover(now_ms)
        has = {queue.name: len(queue.line) + len(queue.resting) for queue in broker.queues}
        broker.shutdown(now_ms)
    except (OSError, SpoolError, JournalFailure, AlreadyLocked) as error:
        why = f"a server cannot start on {target}: {failure_line(error, target)}"
        raise BackupError(f"{why}. It is not complete, and stays to be looked at: remove it, or adopt again") from error
    finally:
        fs.close()
    differences = [
        f"{name}: {wanted.get(name, 0):,} items in the old files, {has.get(name, 0):,} in the new spool"
        for name in sorted({*wanted, *has})
        if wanted.get(name, 0) != has.get(name, 0)
    ]
    if summary.jobs != jobs:
        differences.append(f"{jobs:,} jobs in the old files, {summary.jobs:,} in the new spool")
    return Adopted(len(has), sum(has.values()), summary.jobs, differences + troubles)
