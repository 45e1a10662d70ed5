"""The files of a queue's journal, for operators: their kind and size, and how much of each has not been read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from staniel.journal.disk.unsynced_names import UnsyncedNames
from staniel.journal.journals import append_log, removal_log
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.segments import LogSegment
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.queues.queue import Queue
from staniel.queues.stream.stream import StreamLine

FILES_MAX = 1_000
PACK = ".pack"


class JournalFile(Struct, frozen=True):
    """A file of a journal. `state`: "sealed", "packed" (one file that replaces older ones), "written to", or "reads",
    which in libkestrel's format records reads. `items`: how many it added; `unread_items`: how many of those have not
    been delivered. `unsynced_bytes`: bytes that a power cut could take. `is_damaged`: a part of it could not be read.
    """

    name: str
    state: str
    bytes: int
    items: int
    unread_items: int
    unsynced_bytes: int
    is_damaged: bool


class JournalFiles(Struct, frozen=True):
    """The files of a queue, the oldest first. Of more than FILES_MAX files only the newest are listed; `files_total`
    counts all. `folder`: where they are. A queue without a journal has none.
    """

    queue: str
    format: str
    folder: str
    files_total: int
    bytes: int
    unsynced_bytes: int
    files: list[JournalFile]


def journal_view(fs: UnsyncedNames, queue: Queue) -> JournalFiles:
    journal = queue.journal
    if isinstance(journal, Log):
        files = list(_of_log(fs, queue, journal))
    elif isinstance(journal, ReaderLog):
        files = list(_of_stream(fs, queue, journal))
    else:
        files = []
    log = append_log(journal) or removal_log(journal)
    kind = "none" if log is None else "kestrel" if isinstance(log, Log) else "libkestrel"
    return JournalFiles(
        queue=queue.name,
        format=kind,
        folder=log.folder if isinstance(log, Log | StreamWriter) else "",
        files_total=len(files),
        bytes=sum(file.bytes for file in files),
        unsynced_bytes=sum(file.unsynced_bytes for file in files),
        files=files[-FILES_MAX:],
    )


def _of_log(fs: UnsyncedNames, queue: Queue, log: Log) -> Iterator[JournalFile]:
    segments = log.segments
    every = [*segments.sealed, segments.current]
    tip = queue.line.left + len(queue.line.in_memory) + queue.line.on_disk
    ends = [after.first for _, after in pairwise(every)]
    for segment, end in zip(every, [*ends, max(tip, every[-1].first)], strict=True):
        is_current = segment is segments.current
        yield JournalFile(
            name=segment.name,
            state="written to" if is_current else _sealed_state(segment),
            bytes=segments.size(segment),
            items=max(0, end - segment.first),
            unread_items=max(0, end - max(segment.first, queue.line.left)),
            unsynced_bytes=fs.unsynced_bytes(log.path) if is_current else 0,
            is_damaged=segment.is_damaged or segment.is_gone,
        )


def _sealed_state(segment: LogSegment) -> str:
    return "packed" if segment.name.endswith(PACK) or segment.head is not None else "sealed"


def _of_stream(fs: UnsyncedNames, queue: Queue, log: ReaderLog) -> Iterator[JournalFile]:
    line, writer = queue.line, log.writer
    head = line.next_id if isinstance(line, StreamLine) else 0
    for segment in log.segments.files:
        is_current = segment is log.segments.files[-1]
        items = segment.last_id - segment.first_id + 1 if segment.last_id else 0
        yield JournalFile(
            name=segment.name,
            state="written to" if is_current else "sealed",
            bytes=segment.size,
            items=items,
            unread_items=min(items, max(0, segment.last_id - head + 1)) if items else 0,
            unsynced_bytes=fs.unsynced_bytes(writer.path) if is_current else 0,
            is_damaged=False,
        )
    if log.has_file:
        unsynced = fs.unsynced_bytes(log.path)
        yield JournalFile(log.file_name, "reads", log.current_bytes, 0, 0, unsynced, is_damaged=False)
