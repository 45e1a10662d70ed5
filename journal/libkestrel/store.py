"""The libkestrel queues of one spool.

Knows the family of every queue, and from files to readers. Refuses to know Kestrel's format: journal/spool.py decides
which of the two a queue has.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.journal.background import Chores
from staniel.journal.disk.fs import Fs
from staniel.journal.group_commit import CommitGroup
from staniel.journal.libkestrel.family import Family
from staniel.journal.libkestrel.files import Files
from staniel.journal.libkestrel.position import Position
from staniel.journal.libkestrel.reader import Reader
from staniel.journal.libkestrel.recovery import DEFAULT_READER, Recovered, Recovery
from staniel.journal.libkestrel.segments import Segments
from staniel.queues.config import QueueConfig
from staniel.queues.names import parent_of


class StreamStore:
    """`families` by the queue's name, without `+`."""

    def __init__(self, fs: Fs, folder: str, damaged: str, group: CommitGroup) -> None:
        self.fs = fs
        self.folder = folder
        self.group = group
        self.recovery = Recovery(fs, folder, damaged)
        self.families: dict[str, Family] = {}
        self._taken: dict[str, int] = {}  # by deleted queue: numbers up to this one are not used again
        self.chores = Chores()  # until the broker has its own
        self.tell_stuck: Callable[[str, OSError], None] = lambda name, error: None

    def recover(
        self, files: Files, config_of: Callable[[str], QueueConfig], now_ms: int
    ) -> tuple[Recovered, list[tuple[str, Reader]]]:
        """(queue's name, journal) of each reader of a queue. Raises OSError if the disk refuses.

        Segments without any reader are read from the oldest item on: an operator has put them there, or the reader's
        file is lost.
        """
        recovered = self.recovery.recover(files, now_ms)
        config = config_of(files.queue)
        family = self._family(files.queue, config, recovered.segments)
        family.start(files.newest_number(), now_ms)
        readers = []
        for reader, position in recovered.readers.items():
            journal = family.resume(reader, position, config_of(family.queue_name(reader)))
            journal.resume(self.fs.size(journal.path))
            readers.append((family.queue_name(reader), journal))
        if not readers:
            position = Position(recovered.segments.last_id if config.fanout_only else recovered.segments.first_id - 1)
            journal = family.resume(DEFAULT_READER, position, config)
            journal.is_kept = not config.fanout_only
            if journal.is_kept:
                journal.create(now_ms)
            readers.append((files.queue, journal))
        return recovered, readers

    def create(self, name: str, config: QueueConfig, config_of: Callable[[str], QueueConfig], now_ms: int) -> Reader:
        """The journal of a new queue. Raises OSError."""
        parent = parent_of(name) or name
        family = self.families.get(parent)
        if family is None:
            family = self._family(parent, config_of(parent), Segments(self.fs, self.folder))
        try:
            family.start(self._taken.get(parent, 0), now_ms)
            return family.add(name, config, now_ms)
        except OSError:
            if not family.readers:
                del self.families[parent]
                family.give_up()
            raise

    def erase(self, journal: Reader, now_ms: int) -> int:
        """Remove a reader's file, with the last one all of the queue's; the batch that a reply about it waits for.

        Raises OSError.
        """
        family = journal.family
        if family.erase(journal):
            del self.families[family.queue]
            # A chore may still remove files by names that the next queue of this name must not have.
            self._taken[family.queue] = family.leaves_until
            self._taken = {name: number for name, number in self._taken.items() if number >= now_ms}
        return self.group.change_folder(journal.sync_ms, now_ms)

    def _family(self, queue: str, config: QueueConfig, segments: Segments) -> Family:
        family = Family(self.fs, self.folder, queue, self.group, config, segments, self.chores)
        family.tell_stuck = self.tell_stuck
        self.families[queue] = family
        return family
