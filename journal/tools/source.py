"""The files of a queue, in any format, for tools that only read, whether or not a server has them open."""

from __future__ import annotations

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import Flaw
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.trace import KestrelTrace
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.trace import StreamTrace
from staniel.journal.spool_listing import SpoolListing, list_spool
from staniel.journal.tools.verify import CMDLOG_FOLDER
from staniel.journal.trace import FrozenFs, Progress
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.trace import CmdLogTrace
from staniel.queues.names import family_of

JOBS = "command log"  # no queue can have this name, because names have no blanks


class JournalNotFound(Exception):
    """The error for a queue or a command log that does not exist; the text says which."""


class FileFlaw(Struct, frozen=True):
    """A flaw of a file: its unreadable part."""

    file: str
    flaw: Flaw


class ReadSource:
    """A spool, or the folder of a command log. Raises OSError."""

    def __init__(self, fs: Fs, folder: str, progress: Progress = lambda size: None) -> None:
        self.fs = fs
        self.folder = folder
        self.progress = progress
        self.listing: SpoolListing = list_spool(fs, folder)
        self.cmdlog = next((path for path in (folder, f"{folder}/{CMDLOG_FOLDER}") if _has_segments(fs, path)), "")

    def queues(self) -> list[str]:
        """Return every queue that has files of its own, and each family of libkestrel's format, sorted by name."""
        return sorted([*self.listing.kestrel, *self.listing.streams])

    def names(self) -> dict[str, list[str]]:
        """Return the present file names of each of `queues()`, from one listing. Raises OSError."""
        names: dict[str, list[str]] = {queue: [] for queue in self.queues()}
        for name, regular in self.fs.list(self.folder):
            for queue, those in (
                (kestrel_files.parse(name).queue, self.listing.kestrel),
                (libkestrel_files.parse(name).queue, self.listing.streams),
            ):
                if regular and queue in those:
                    names[queue].append(name)
        return names

    def family(self, queue: str) -> str:
        """Return the name under which the libkestrel files of a queue are stored; "" if it has none."""
        name = family_of(queue)
        return name if name in self.listing.streams else ""

    def check(self, queue: str) -> None:
        """Raise JournalNotFound if there is no readable queue of this name."""
        if queue in self.listing.mixed:
            raise JournalNotFound(f"queue {queue} cannot be read: {self.listing.mixed[queue]}")
        if queue not in self.listing.kestrel and not self.family(queue):
            raise JournalNotFound(f"there is no queue {queue} in {self.folder}")

    def kestrel(self, queue: str, listed: list[str] | None = None) -> tuple[KestrelTrace, FrozenFs]:
        """Return the trace of a queue in Kestrel's format, and its files, which the caller closes. `listed`: as in
        FrozenFs. Raises OSError.
        """
        frozen = FrozenFs(self.fs, self.folder, lambda name: kestrel_files.parse(name).queue == queue, listed)
        files = kestrel_files.sort_out(frozen.list(self.folder))[0].get(queue)
        none = kestrel_files.Files(queue, {}, {}, [])
        return KestrelTrace(frozen, self.folder, files or none, self.progress), frozen

    def stream(self, family: str, listed: list[str] | None = None) -> tuple[StreamTrace, FrozenFs]:
        """Return the trace of a family in libkestrel's format, and its files, which the caller closes. `listed`: as in
        FrozenFs. Raises OSError.
        """
        frozen = FrozenFs(self.fs, self.folder, lambda name: libkestrel_files.parse(name).queue == family, listed)
        files = libkestrel_files.group_by_queue(frozen.list(self.folder)).get(family)
        none = libkestrel_files.StreamFiles(family, {}, {}, [])
        return StreamTrace(frozen, self.folder, files or none, self.progress), frozen

    def jobs(self) -> tuple[CmdLogTrace, FrozenFs]:
        """Return the trace of the command log and its files, which the caller closes. Raises OSError,
        JournalNotFound.
        """
        if not self.cmdlog:
            raise JournalNotFound(f"there is no command log in {self.folder}")
        frozen = FrozenFs(self.fs, self.cmdlog, lambda name: bool(workq_files.segment_numbers([(name, True)])))
        return CmdLogTrace(frozen, self.cmdlog, self.progress), frozen


def _has_segments(fs: Fs, folder: str) -> bool:
    try:
        return bool(workq_files.segment_numbers(fs.list(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def file_flaws(flaws: list[tuple[str, Flaw]]) -> list[FileFlaw]:
    return [FileFlaw(*flaw) for flaw in dict.fromkeys(flaws)]
