"""The files of a backup, held at one moment while another process copies them and the server continues.

The moment lies right after a commit and between two background tasks. The files of all queues are then as a killed
process would leave them, and recovery finishes what was under way between two queues. They contain everything that was
acknowledged before, whatever the queues' sync policies are, because other processes read the page cache.

The files get second names (hard links) in the spool's own folder, so that a rotation, a pack or a deletion does not
take them away from the copier. Journals only grow, so the copier needs only a length with each name. The few files that
are rewritten in place are copied at once. The second names are removed when the session that asked ends; those of a
killed server, at the next startup.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from staniel.broker.figures import SYNC_NAMES
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.broker.status import StatusControl
from staniel.broker.version import VERSION
from staniel.journal.background import CallbackTask
from staniel.journal.disk.fs import Fs, remove_each
from staniel.journal.journals import primary_log
from staniel.journal.spool import Spool
from staniel.journal.spool_listing import HELD, JOBS_HELD, SpoolFile, spool_files
from staniel.queues.config import QueueConfig

if TYPE_CHECKING:
    from staniel.broker.jobs import JobService

HOLDS_MAX = 4
FILES_PER_PIECE = 500


class HeldFiles(Struct, frozen=True):
    """The summary of a backup. Lengths and counts are those of the moment `made_at_ms`. `items`: in queues with a
    journal, including open reads, without items that are moving to another queue. `sync`: the policy of queues without
    one of their own; `other_syncs`: the different policies of the others. `files` lines [name, length, path] follow: a
    file's name within the spool, how many of its bytes count, and where to read them.
    """

    made_at_ms: int
    version: str
    spool: str
    queues: int
    items: int
    jobs: int
    sync: str
    other_syncs: dict[str, str]
    files: int
    bytes: int


class HeldFile(Struct, frozen=True):
    name: str
    bytes: int
    path: str


class HeldSpool(Struct, frozen=True, eq=False):
    """The server whose files are held. `jobs` None: it serves none; `commit` is the broker's."""

    spool: Spool
    maintenance: MaintenanceScheduler
    status: StatusControl
    jobs: JobService | None
    commit: Callable[[int], None]


class BackupHold:
    """The files of one backup, from `prepare` until `release`, which is called when the session of `owner` has ended.
    Meanwhile it is in `holds`.
    """

    def __init__(self, owner: object, holds: list[BackupHold], server: HeldSpool) -> None:
        self.owner = owner
        self._holds, self._server = holds, server
        self._spool, self._queues = server.spool, server.maintenance.queues
        self._tasks, self._jobs = server.maintenance.tasks, server.jobs
        self._fs: Fs = self._spool.fs.beneath
        self._names: dict[str, list[str]] = {}  # by folder
        self.files: list[HeldFile] = []
        self.summary: HeldFiles | None = None
        self.why = ""
        """The reason why there is nothing to copy."""

    def prepare(self, then: Callable[[int], None]) -> None:
        """Call `then(now_ms)` once the files are held, or once `why` says why they are not."""
        self._holds.append(self)
        folders = [f"{self._spool.own}/{HELD}"]
        if self._outside:
            folders.append(f"{self._outside}/{JOBS_HELD}")

        def begin(error: OSError | None, now_ms: int) -> None:
            if self not in self._holds:
                return
            try:
                if error is not None:
                    raise error
                self._hold(folders, now_ms)
            except OSError as failure:
                self.why = f"the files cannot be held: {failure.filename}: {failure.strerror}"
                self.release()
            then(now_ms)

        # The task runs alone, urgent or not: no other task has begun, and none is in the middle of renaming files.
        self._tasks.submit(MakeFolders(self._spool.fs.make_folder, folders, begin), urgent=True)

    def release(self) -> None:
        """Remove the second names: the files are not needed any more."""
        if self in self._holds:
            self._holds.remove(self)
            task = RemoveNames(self._fs, self._names)
            if self._server.status.is_stopping:
                task.run()
            else:
                self._tasks.submit(task)

    @property
    def _outside(self) -> str:
        """The folder of a command log outside the spool; "" if there is none."""
        jobs = self._jobs
        return "" if jobs is None or jobs.folder.startswith(f"{self._spool.own}/") else jobs.folder

    def _hold(self, folders: list[str], now_ms: int) -> None:
        """Commit, and hold the files. Raises OSError, JournalFailure."""
        fs, outside = self._fs, self._outside
        self._server.commit(now_ms)
        numbers = [name.partition("-")[0] for folder in folders for name, _ in fs.list(folder)]
        number = max((int(text) for text in numbers if text.isdecimal()), default=0) + 1
        for at, file in enumerate(spool_files(fs, self._spool.folder, outside)):
            folder = folders[bool(outside) and file.path.startswith(f"{outside}/")]
            self.files.append(self._hold_file(file, folder, f"{number}-{at}"))
        self.summary = self._summarize(now_ms)

    def _hold_file(self, file: SpoolFile, folder: str, name: str) -> HeldFile:
        path = f"{folder}/{name}"
        self._names.setdefault(folder, []).append(name)
        if not file.is_whole:
            self._fs.link(file.path, path)
            return HeldFile(file.name, self._fs.size(path), path)
        data = self._fs.read(file.path, 0, self._fs.size(file.path))
        copy = self._fs.append(path)
        try:
            copy.write(data)
        finally:
            copy.close()
        return HeldFile(file.name, len(data), path)

    def _summarize(self, now_ms: int) -> HeldFiles:
        kept = [queue for queue in self._queues if primary_log(queue.journal) is not None]
        usual = shown_sync(self._queues.config_of(""))
        syncs = {queue.name: shown_sync(queue.config) for queue in kept}
        return HeldFiles(
            made_at_ms=self._queues.calendar.wall_ms(now_ms),
            version=VERSION,
            spool=self._spool.folder,
            queues=len(kept),
            items=sum([queue.waiting_items + len(queue.open_reads) + len(queue.delayed) for queue in kept]),
            jobs=0 if self._jobs is None else len(self._jobs.jobs.by_id),
            sync=usual,
            other_syncs={name: sync for name, sync in syncs.items() if sync != usual},
            files=len(self.files),
            bytes=sum([file.bytes for file in self.files]),
        )

    def pieces(self) -> Iterator[bytes]:
        """Yield the reply: a line with the summary, then the files. Names of queues need not be UTF-8, so letters
        beyond ASCII are escaped.
        """
        assert self.summary is not None
        yield _line(structs.asdict(self.summary))
        for first in range(0, len(self.files), FILES_PER_PIECE):
            some = self.files[first : first + FILES_PER_PIECE]
            yield b"".join([_line([file.name, file.bytes, file.path]) for file in some])


class MakeFolders(CallbackTask):
    def __init__(
        self, make_folder: Callable[[str], None], folders: list[str], then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._make_folder, self._folders = make_folder, folders

    def work(self) -> None:
        for folder in self._folders:
            self._make_folder(folder)


class RemoveNames(CallbackTask):
    """A task that removes second names. Names that it cannot remove are left to the next startup."""

    def __init__(self, fs: Fs, names: dict[str, list[str]]) -> None:
        super().__init__(lambda error, now_ms: None)
        self._fs, self._names = fs, names

    def work(self) -> None:
        for folder, names in self._names.items():
            remove_each(self._fs, folder, names)


def shown_sync(config: QueueConfig) -> str:
    return SYNC_NAMES.get(config.sync_ms, f"{config.sync_ms}ms")


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
