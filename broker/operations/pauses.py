"""The paused queues, kept across restarts in a JSON file in the spool's own folder.

A damaged file is reported and ignored: a queue that is served surprises less than one that stays paused.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.fs import Fs, is_missing
from staniel.journal.disk.quarantine import UNDECODABLE, quarantine
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import refused_start
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused, Queues

FORMAT_VERSION = 1


class QueuePause(Struct, frozen=True):
    """The paused requests of a queue."""

    gets: bool
    puts: bool


class Content(Struct, frozen=True):
    """The content of the file."""

    version: int
    queues: dict[str, QueuePause]


class Pauses:
    """Every pause, by the queue's name."""

    def __init__(self, fs: Fs, path: str, report: EventSink) -> None:
        self.fs = fs
        self.path = path
        self.report = report
        self._pauses: dict[str, QueuePause] = {}

    def __len__(self) -> int:
        """Return how many queues are paused."""
        return len(self._pauses)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of paused queues."""
        return iter(self._pauses)

    def change(self, queue: Queue, pause: QueuePause, now_ms: int) -> None:
        """Store `pause`, then apply it; the queue's waiters are served if it allows gets again. Raises OSError; nothing
        has changed then.
        """
        pauses = {**self._pauses, queue.name: pause}
        if not (pause.gets or pause.puts):
            del pauses[queue.name]
        if pauses != self._pauses:
            self._write(pauses)
        self._pauses = pauses
        queue.pause(gets=pause.gets, puts=pause.puts)
        queue.time_out(now_ms)

    def forget(self, name: str) -> None:
        """Forget the pause of a deleted queue. Forgetting cannot fail: the next write drops the stale line in
        the file.
        """
        if self._pauses.pop(name, None) is None:
            return
        try:
            self._write(self._pauses)
        except OSError as error:
            self.report(Level.ERROR, "pauses.unwritten", file=self.path, why=str(error))

    @property
    def kept(self) -> KeptFile:
        """The file, while there are pauses."""
        return KeptFile(
            self.path,
            lambda: bool(self._pauses) and is_missing(self.fs, self.path, 1),
            lambda: self._write(self._pauses),
        )

    def restore(self, queues: Queues, now_ms: int) -> None:
        """Pause the queues that were paused in an earlier run, before clients are served. A paused queue without items
        is created.
        """
        self._pauses = self._read()
        for name, pause in self._pauses.items():
            try:
                queues.make(name, now_ms).pause(gets=pause.gets, puts=pause.puts)
            except QueueRefused as refused:
                self.report(Level.WARNING, "pauses.unserved", queue=name, why=refused.why)

    def apply_to(self, queue: Queue) -> None:
        """Pause `queue` as it was paused before, because it is served again."""
        pause = self._pauses.get(queue.name)
        if pause is not None:
            queue.pause(gets=pause.gets, puts=pause.puts)

    def _read(self) -> dict[str, QueuePause]:
        """Read the file. Raises SpoolError if it cannot be read."""
        try:
            data = self.fs.read(self.path, 0, self.fs.size(self.path))
            content = msgspec.json.decode(data, type=Content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise refused_start(error, self.path) from error
        except UNDECODABLE as error:
            why = str(error)
        else:
            if content.version == FORMAT_VERSION:
                return content.queues
            why = f"version {content.version}, this program knows {FORMAT_VERSION}"
        try:
            folder = f"{self.path.rpartition('/')[0]}/damaged"
            saved_as = quarantine(self.fs, self.path, 0, self.fs.size(self.path), folder)
        except OSError as error:
            saved_as = f"not saved: {error.strerror}"
        hint = "no queue is paused"
        self.report(Level.ERROR, "pauses.damaged", file=self.path, why=why, saved_as=saved_as, hint=hint)
        return {}

    def _write(self, pauses: dict[str, QueuePause]) -> None:
        replace_file(self.fs, self.path, msgspec.json.encode(Content(FORMAT_VERSION, pauses)) + b"\n")
