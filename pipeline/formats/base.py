"""The interface of a format's adapter, its input, and the handling of damage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from staniel.journal.errors import CorruptRecord, Damage, TruncatedRecord
from staniel.pipeline.lake.archived import ArchivedQueue
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
    """A payload longer than the option `maxValueBytes` allows, or than the memory of a task can hold."""


class JournalSegment(Struct, frozen=True):
    """The bytes `begin` to `end` of one file of a queue.

    `live`: a server may be writing to it, so its end may be torn. `number`: the file's position among its queue's, from
    0. `sealed_ms`: no item was added after this time; 0: unknown. `id`: of the file (folders.py), "" if unknown.
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


class PartArchive(Struct, frozen=True):
    """A queue in the archive under `url`. `goes_on`: the segments begin where it ends; else they may repeat some."""

    url: str
    queue: ArchivedQueue
    goes_on: bool


class Part(Struct, frozen=True):
    """The input of one task: segments of one queue, in order. `fates` has the reader files, which record the fate of
    the items; None: not looked up yet. `archive` has the records before those of the segments, for the view `history`.
    """

    queue: str
    segments: list[JournalSegment]
    fates: list[JournalSegment] | None = None
    archive: PartArchive | None = None

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)


class SelectedQueues(Protocol):
    """The queues that a query selects."""

    def __contains__(self, name: str, /) -> bool: ...


class Reading(Struct, frozen=True):
    """The options with which a task reads its part."""

    include_value: bool = True
    on_corrupt: OnCorrupt = OnCorrupt.FAIL
    quarantine: str = ""
    ops: frozenset[str] | None = None
    queues: SelectedQueues | None = None  # the selected queues, for a format whose files hold all of them
    ids: frozenset[str] | None = None  # of the view `history`: only these items
    now_ms: int = 0  # the add time of items whose records have none
    damages: list[Damage] | None = None  # collects all damage, torn ends included, for callers that report it
    value_bytes_max: int = 0  # a longer payload is an error; 0: no limit
    use_summaries: bool = True  # read the sidecars that a server left beside sealed files instead of the files

    def without_values(self) -> Reading:
        return msgspec.structs.replace(self, include_value=False)


class BatchEnd(NamedTuple):
    """The end of a stream's batch in a segment, at byte `end`.

    `damage` is the damage there that ends the batch, if any. `records` counts its rows in the view `ops`. `as_of` is
    the add time of the newest item before `end`. `last_id` is the id of the last item, 0 for records without ids.
    """

    end: int
    damage: CorruptRecord | None = None
    records: int = 0
    as_of: int = 0
    last_id: int = 0


View = Callable[[Folder, Part, Reading], "Iterator[pa.RecordBatch]"]


class FormatAdapter(Protocol):
    """A journal format. The view `ops` has one row for each record; the source's documentation describes the others."""

    name: str
    by_queue: bool  # a queue has files of its own, so that other files need not be read
    op_names: tuple[str, ...]  # the values of the column `op`
    has_ids: bool  # items have ids without holes, so that a stream can count missed items

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of each view."""

    def whole_queue(self, view: str) -> bool:
        """Return True if one task must read all segments of a queue for this view."""

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[JournalSegment]]:
        """Return the segments of each queue, in the order of replay, from a folder's (name, size)."""

    def until(self, folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
        """Return a queue's segments up to the first item added after `until_ms`."""

    def cuts(self, folder: Folder, segment: JournalSegment, parts: int) -> list[tuple[int, int]]:
        """Return where to cut a segment into about `parts` parts of the same size, and `as_of` at each cut."""

    def boundary(self, folder: Folder, segment: JournalSegment, max_bytes: int, max_records: int) -> BatchEnd:
        """Return the end of the last whole record that is within the limits and may be separated from the next one. The
        first record counts whatever its size.
        """

    def as_of(self, folder: Folder, segment: JournalSegment) -> int:
        """Return the add time in ms of the newest item before a segment's `begin`, in its file; 0: none, or not
        needed.
        """

    def tells(self, head: bytes) -> bool:
        """Return True if this head identifies its file: no other file of the queue can begin the same way."""

    def list_fates(self, folder: Folder) -> dict[str, list[JournalSegment]]:
        """Return the files that record the fate of each queue's items, if its segments do not. Look for them after the
        segments: every item taken from a queue was put into it before.
        """

    def read_marks(self, folder: Folder, queues: Collection[str], reading: Reading) -> dict[str, dict[str, ReadMark]]:
        """Return how far each reader of these queues has come, for formats with reader files; else nothing. Call it
        after reading the queues' segments. Raises FileVanished.
        """

    def is_broken(self, segments: list[JournalSegment]) -> bool:
        """Return True if a file behind the first of these consecutive segments was removed."""

    def missing(self, folder: Folder, segments: list[JournalSegment], last_id: int) -> int | None:
        """Return how many items are missing between the one with `last_id` and a queue's segments; None if unknown."""

    def view(self, name: str) -> View: ...


def check_values(rows: pa.RecordBatch, most: int) -> None:
    """Check the sizes of payloads. Raises ItemTooLarge if one has more than `most` bytes."""
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


def torn_end(segment: JournalSegment, error: CorruptRecord) -> Damage | None:
    """Return the torn end of a file that is being written, None if `error` is other damage."""
    if not (segment.live and isinstance(error, TruncatedRecord)):
        return None
    return Damage(segment.file, error.at, segment.end - error.at, error.why, is_torn=True)


def handle_damage(folder: Folder, segment: JournalSegment, error: CorruptRecord, reading: Reading) -> Damage | None:
    """Handle damage as `reading` says. Return None if it is only the torn end of a file that is being written.

    Raises CorruptJournal if the option says so. Quarantine copies the unreadable bytes to its folder.
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
