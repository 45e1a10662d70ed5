"""The interface of a format's adapter, what it works on, and what is done about damage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from staniel.journal.errors import Corrupt, Damage, Truncated
from staniel.pipeline.lake.folders import Folder
from staniel.pipeline.lake.lake import ReadMark

if TYPE_CHECKING:
    import pyarrow as pa


class OnCorrupt(Enum):
    FAIL = "fail"
    PERMISSIVE = "permissive"
    QUARANTINE = "quarantine"


class CorruptJournal(Exception):
    """A journal file is corrupt, and the option `onCorrupt` says to fail."""


class ItemTooLarge(Exception):
    """A payload is longer than the option `maxValueBytes` allows, or than the memory of a task can hold."""


class JournalSegment(Struct, frozen=True):
    """Bytes `begin` to `end` of one file of a queue.

    `live`: a server may be writing to it, so its end may be torn. `number`: the file's place among its queue's, from 0.
    `sealed_ms`: no item was added after this time; 0: not known. `id`: of the file (folders.py), "" if it is not known.
    `mark`: a fingerprint of the bytes before `end`, taken when the query was planned (offsets.py); None: not taken.
    `as_of`: the add time in ms of the newest item of the file before `begin`.
    """

    queue: str
    file: str
    begin: int
    end: int
    live: bool = False
    number: int = 0
    sealed_ms: int = 0
    id: str = ""
    mark: int | None = None
    as_of: int = 0

    @property
    def bytes(self) -> int:
        return self.end - self.begin


class Part(Struct, frozen=True):
    """What one task reads: segments of one queue, in order. `beside`: reader files, which say what became of the items;
    None: not looked up yet.
    """

    queue: str
    segments: list[JournalSegment]
    beside: list[JournalSegment] | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.segments)


class Reading(Struct, frozen=True):
    """How a part is read: the options that its tasks need."""

    include_value: bool = True
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    quarantine: str = ""
    ops: frozenset[str] | None = None
    now_ms: int = 0  # the add time of items whose records have none
    damages: list[Damage] | None = None  # where all damage is noted, torn ends among it, for callers that name it
    value_bytes_max: int = 0  # a longer payload is an error; 0: none is
    use_summaries: bool = True  # those that a server has left beside sealed files, instead of the files

    def without_values(self) -> Reading:
        return msgspec.structs.replace(self, include_value=False)


class BatchEnd(NamedTuple):
    """The end of a stream's batch in a segment: byte `end`. `damage`: the damage there that ends it, if any. `records`:
    how many rows the view `ops` has of it. `as_of`: the add time of the newest item in front of `end`. `last_id`: the
    id of the last item, 0 where records have none.
    """

    end: int
    damage: Corrupt | None = None
    records: int = 0
    as_of: int = 0
    last_id: int = 0


View = Callable[[Folder, Part, Reading], "Iterator[pa.RecordBatch]"]


class FormatAdapter(Protocol):
    """A journal format. Views: `ops` one row a record; the others as the documentation of the source says."""

    name: str
    by_queue: bool  # whether a queue has files of its own, so that others need not be read
    op_names: tuple[str, ...]  # what the column `op` may say
    has_ids: bool  # whether items have ids without holes, so that a stream knows what it has missed

    def schemas(self) -> dict[str, pa.Schema]:
        """The columns of each view."""

    def whole_queue(self, view: str) -> bool:
        """Whether one task has to read all segments of a queue for this view."""

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[JournalSegment]]:
        """The segments of each queue, in the order of replay, from a folder's (name, size)."""

    def until(self, folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
        """A queue's segments up to the first item that was added after `until_ms`."""

    def cuts(self, folder: Folder, segment: JournalSegment, parts: int) -> list[tuple[int, int]]:
        """Where a segment may be cut so that about `parts` of the same size come out, with `as_of` there."""

    def boundary(self, folder: Folder, segment: JournalSegment, max_bytes: int, max_records: int) -> BatchEnd:
        """Where the last record ends that is whole and within the limits, and may be cut off from the next one; a first
        one of any size is."""

    def as_of(self, folder: Folder, segment: JournalSegment) -> int:
        """The add time in ms of the newest item before a segment's `begin`, in its file; 0: none, or not needed."""

    def tells(self, head: bytes) -> bool:
        """Whether a file that begins so is known by that: no other one of the queue can begin in the same way."""

    def beside(self, folder: Folder) -> dict[str, list[JournalSegment]]:
        """The files that say what became of each queue's items, where that is not in its segments. To be looked for
        after the segments: what was taken out of a queue had been put into it."""

    def read_marks(self, folder: Folder, queues: Collection[str], reading: Reading) -> dict[str, dict[str, ReadMark]]:
        """How far each reader of these queues has come, where that is in files of its own; none where it is not. To be
        asked after the queues' segments were read. Raises Vanished."""

    def is_broken(self, segments: list[JournalSegment]) -> bool:
        """Whether something was taken out from behind the first of these segments, which follow each other."""

    def missing(self, folder: Folder, segments: list[JournalSegment], last_id: int) -> int | None:
        """How many items are gone between the one with `last_id` and a queue's segments; None: it cannot be known."""

    def view(self, name: str) -> View: ...


def check_values(rows: pa.RecordBatch, most: int) -> None:
    """Raises ItemTooLarge if a payload has more than `most` bytes."""
    import pyarrow.compute as pc

    if not most or "value" not in rows.schema.names:
        return
    sizes = pc.binary_length(rows["value"])
    if (size := pc.max(sizes).as_py() or 0) > most:
        row = rows.slice(int(pc.index(sizes, size).as_py()), 1).select(["queue", "file", "offset"]).to_pylist()[0]
        raise ItemTooLarge(
            f"queue {row['queue']}: the item at byte {row['offset']} of {row['file']} has {size:,} bytes, more than"
            f" option maxValueBytes allows ({most:,}): give more, and memory for it, or includeValue=false"
        )


def torn_end(segment: JournalSegment, error: Corrupt) -> Damage | None:
    """The end of a file that is being written, if `error` is that."""
    if not (segment.live and isinstance(error, Truncated)):
        return None
    return Damage(segment.file, error.at, segment.end - error.at, error.why, is_torn=True)


def handle_damage(folder: Folder, segment: JournalSegment, error: Corrupt, reading: Reading) -> Damage | None:
    """What to do about damage: None if it is only the torn end of a file that is being written.

    Raises CorruptJournal where the reader wants to fail. Quarantine copies the unreadable bytes to its folder.
    """
    torn = torn_end(segment, error)
    damage = torn or Damage(segment.file, error.at, segment.end - error.at, error.why)
    if reading.damages is not None:
        reading.damages.append(damage)
    if torn is not None:
        return None
    if reading.on_corrupt is OnCorrupt.FAIL:
        more = "read on with option onCorrupt=permissive or quarantine"
        raise CorruptJournal(
            f"{folder.url}/{segment.file}: byte {error.at}: {error.why} ({damage.lost_bytes} bytes unread); {more}"
        )
    if reading.on_corrupt is OnCorrupt.QUARANTINE:
        _put_aside(folder, segment, error.at, reading.quarantine or f"{folder.url}/.staniel/quarantine")
    return damage


QUARANTINE_BYTES_MAX = 64 << 20


def _put_aside(folder: Folder, segment: JournalSegment, at: int, where: str) -> None:
    from staniel.pipeline.lake.folders import folder as open_folder

    file = folder.open(segment.file)
    try:
        data = file.read(at, min(segment.end - at, QUARANTINE_BYTES_MAX))
    finally:
        file.close()
    open_folder(where).write(f"{segment.file}@{at}", data)
