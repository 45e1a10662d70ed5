"""A spool folder: who is there, what they held, and where to write next.

Knows the folder's layout, its lock and its own sub-folder `.staniel/`, where everything lives that is not a journal,
so that an older server still starts on the same spool. Refuses to know queues in service.
"""

from __future__ import annotations

from journal import layout
from journal.ballast import Ballast
from journal.fs import Fs, Locked
from journal.group import CommitGroup
from journal.layout import OWN_FOLDER, Files
from journal.log import Log
from journal.packing import drop_sidecars
from journal.recovery import Recovered, Recovery
from journal.sidecar import prune
from queues.config import QueueConfig

FORMAT_VERSION = "staniel-spool 1"


class SpoolError(Exception):
    """The spool cannot be used; the text says why and what to do."""


class Store:
    """The journals of one folder, in the Kestrel format."""

    def __init__(self, fs: Fs, folder: str) -> None:
        """Takes the lock. Raises SpoolError, or journal.fs.Locked if another server has it."""
        self.fs = fs
        self.folder = folder
        self.own = f"{folder}/{OWN_FOLDER}"
        self._prepare()
        self.group = CommitGroup(fs, folder, Ballast(fs, folder, f"{self.own}/ballast"))
        self.recovery = Recovery(fs, folder)

    def _prepare(self) -> None:
        try:
            self.fs.make_folder(self.own)
            self._lock()
            # What a killed server had created and not synced is seen again: it must not vanish any more.
            self.fs.sync_folder(self.folder)
            self._check_version(f"{self.own}/version")
        except OSError as error:
            why = f"cannot use the spool {self.folder}: {error.strerror}"
            raise SpoolError(f"{why}; give a folder that this user may write, with --spool") from error

    def _lock(self) -> None:
        try:
            self.fs.lock(f"{self.own}/lock")
        except Locked as locked:
            raise Locked(f"{locked.holder or 'another process'} ({self.folder})") from None

    def _check_version(self, path: str) -> None:
        try:
            found = self.fs.read(path, 0, 100).decode("utf-8", "replace").strip()
        except FileNotFoundError:
            self.fs.replace(path, f"{FORMAT_VERSION}\n".encode())
            return
        if found != FORMAT_VERSION:
            why = f"{path} says {found!r}, this program knows {FORMAT_VERSION!r}"
            raise SpoolError(f"{why}; use the version of staniel that wrote it")

    def survey(self) -> tuple[dict[str, Files], list[str]]:
        """One listing: the files of each queue, and the names of what is left alone."""
        queues, foreign = layout.sort_out(self.fs.list(self.folder))
        return queues, [name for name in foreign if name != OWN_FOLDER]

    def size(self, files: Files) -> int:
        """How many bytes the files of a queue have; one that cannot be asked counts as empty."""
        return sum(self._size(f"{self.folder}/{name}") for name in files.names())

    def _size(self, path: str) -> int:
        try:
            return self.fs.size(path)
        except OSError:
            return 0

    def prune(self, files: dict[str, Files]) -> None:
        """Remove the sidecars of files that are gone. Raises OSError."""
        prune(self.fs, self.folder, {name for each in files.values() for name in each.archives})

    def set_aside(self, files: Files, now_ms: int) -> str:
        """Take a queue's files out of the spool without losing them; the folder where they are now."""
        aside = f"{self.own}/aside.{now_ms}"
        self.fs.make_folder(aside)
        drop_sidecars(self.fs, self.folder, files.names())
        for name in files.names():
            self.fs.rename(f"{self.folder}/{name}", f"{aside}/{name}")
        self.fs.sync_folder(aside)
        self.fs.sync_folder(self.folder)
        return aside

    def recover(self, name: str, files: Files, config: QueueConfig, now_ms: int) -> tuple[Recovered, Log]:
        """Replay one queue. The log goes on where its files end. Raises OSError if the disk refuses."""
        recovered = self.recovery.recover(name, files, now_ms, config.max_memory_bytes)
        log = Log(self.fs, self.folder, name, self.group, config)
        log.encoder.counter = recovered.replay.counter
        log.encoder.open.update(recovered.replay.open)
        log.take_over(recovered.segments)
        log.newest_number = files.newest_number()
        if files.current:
            log.resume(self.fs.size(log.path))
        else:
            self._create(log, now_ms)
        return recovered, log

    def settle(self) -> None:
        """What a killed server had written and not synced is seen again: it must not vanish any more."""
        self.fs.sync_all(self.folder)

    def create(self, name: str, config: QueueConfig, now_ms: int) -> Log:
        """The journal of a new queue: an empty file, at once. Raises OSError."""
        log = Log(self.fs, self.folder, name, self.group, config)
        self._create(log, now_ms)
        return log

    def erase(self, log: Log, now_ms: int) -> int:
        """Remove a queue's files; the batch that a reply about it waits for. Raises OSError."""
        log.erase()
        return self.group.change_folder(log.sync_ms, now_ms)

    def _create(self, log: Log, now_ms: int) -> None:
        assert log.file.size == 0
        self.group.change_folder(log.sync_ms, now_ms)
