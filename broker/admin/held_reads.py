"""The disk space that open reads keep. In libkestrel's format a segment stays until every reader has confirmed all of
it, and so does each later segment: one open item can keep many segments that are otherwise read.
"""

from __future__ import annotations

from itertools import islice

from msgspec import Struct

from staniel.journal.libkestrel.reader import ReaderLog
from staniel.queues.queue import Queue
from staniel.queues.stream.stream import StreamLine

LOOK_MAX = 1000  # of the returned, delayed and open items each, to bound the time of a call


class HeldByReads(Struct, frozen=True):
    """The files that open reads keep. `bytes`: size of the segments that would be removed if the queue's open reads
    were confirmed. `ms`: how long the first open read in the line has been open. Both are 0 if the open reads keep no
    file.
    """

    bytes: int = 0
    ms: int = 0


NOTHING = HeldByReads()


def held_files(queue: Queue, now_ms: int) -> HeldByReads:
    """Return the files that the open reads of `queue` keep. With more than LOOK_MAX returned or delayed items, those
    beyond may keep a part of them. The newest segment always stays and is not counted. The call takes two microseconds
    if there is only one segment.
    """
    journal = queue.journal
    if not (queue.open_reads and isinstance(journal, ReaderLog) and journal.has_file):
        return NOTHING
    files, head = journal.segments.files, journal.position.head
    if len(files) < 2 or files[-2].last_id <= head:
        return NOTHING
    first_id = journal.segments.next_after(head)
    reads = list(islice(queue.open_reads.values(), LOOK_MAX))
    first = next((taken for taken in reads if taken.id == first_id), None)
    if first is None and len(reads) == len(queue.open_reads):
        return NOTHING  # the file is kept by an item that waits or is delayed
    readers = journal.readers.values()
    aside = (
        *islice(queue.delayed.values(), LOOK_MAX),
        *islice(queue.resting.values(), LOOK_MAX),
        *islice(queue.in_transfer.values(), LOOK_MAX),
    )
    reached = min([_taken_through(reader.line) for reader in readers if reader.has_file])
    reached = min([reached, *(taken.id - 1 for taken in aside)])
    newest = max(file.last_id for file in files)
    kept = sum([file.size for file in files if head < file.last_id <= reached and file.last_id < newest])
    return HeldByReads(kept, max(0, now_ms - (first or reads[0]).opened_ms)) if kept else NOTHING


def _taken_through(line: StreamLine) -> int:
    """Return the highest id up to which no item waits in `line`."""
    waiting = [taken.id for taken in islice(reversed(line.returned), LOOK_MAX)]
    waiting += [item.id for item in islice(line.in_memory, 1)]  # type: ignore[attr-defined]
    return min([line.next_id, *waiting]) - 1
