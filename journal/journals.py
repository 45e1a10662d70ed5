"""The files of a queue's journal by their purpose, in either format. In Kestrel's format one Log records both items and
removals; in libkestrel's format these are two files.
"""

from __future__ import annotations

from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.transfer_log import BY_ID
from staniel.queues.interfaces import Journal

Pinned = list[Log | ReaderLog | StreamWriter]
"""Files of a queue that must stay as they are: neither rewritten nor deleted."""


def removal_log(journal: Journal) -> Log | ReaderLog | None:
    """Return the file that records removals; None for a queue without a journal."""
    return journal if isinstance(journal, Log | ReaderLog) else None


def append_log(journal: Journal) -> Log | StreamWriter | None:
    """Return the file that records new items; None for a queue without a journal."""
    if isinstance(journal, ReaderLog):
        return journal.writer
    return journal if isinstance(journal, Log) else None


def primary_log(journal: Journal) -> Log | StreamWriter | ReaderLog | None:
    """Return the file that grows with the queue. A fan-out child in libkestrel's format has only a reader file of its
    own.
    """
    if isinstance(journal, ReaderLog) and journal.queue_name == journal.queue:
        return journal.writer
    return removal_log(journal)


def total_bytes(journal: Journal) -> int:
    """Return the size of a queue's files."""
    log = primary_log(journal)
    if isinstance(log, Log | StreamWriter):
        return log.archived_bytes + log.current_bytes
    return log.current_bytes if log is not None else 0


def next_write_position(log: Log | StreamWriter) -> tuple[int, int]:
    """Return where the next item will be written, as `Search.position_after` takes it: at this byte of the first file
    after this number, or later. In libkestrel's format: with this id or a higher one, to which BY_ID is added.
    """
    if isinstance(log, StreamWriter):
        number, item_id = log.next_item()
        return number - 1, BY_ID + item_id
    return log.newest_number, log.current_bytes
