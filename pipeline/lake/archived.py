"""The Parquet files that hold a queue's records, in the order of archiving, for reading an archive back.

A batch counts once it is in the ledger (lake.py). A reader that reads the ledger before it lists the files is not
affected by a job that adds to the archive meanwhile.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct, field

from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.pipeline.lake.folders import FileVanished, below, folder
from staniel.pipeline.lake.lake import LEDGER, OWN, LakeFolder, LedgerEntry, ReadMark, lake_folder_of, staged_name
from staniel.pipeline.lake.names import queue_of_partition

FILE = re.compile(r"queue=([^/]+)/day=[^/]+/(\d{8,})-[0-9a-f]+\.parquet")


class IncompleteArchive(Exception):
    """Records of a queue are missing from the archive, and its contents cannot be known without them."""


class ArchivedFile(Struct, frozen=True, order=True):
    """A Parquet file: the records of one queue and day, written by one task of batch `batch`."""

    batch: int
    name: str


class ArchivedQueue(Struct, frozen=True):
    """A queue's files, by batch.

    `restarts` has the batches before which its journal had lost records; the archive from there on begins with all that
    the queue then held. `rows` is the expected number of rows; None: not counted. `readers` has each reader's progress
    by name; None: not noted. `end` is the offset in the journal up to which it was archived.
    """

    queue: str
    files: list[ArchivedFile]
    restarts: list[int] = field(default_factory=list)
    rows: int | None = None
    readers: dict[str, ReadMark] | None = None
    end: Any = None


def is_archive(url: str) -> bool:
    """Return True if a folder is an archive, and no spool that contains one."""
    try:
        folder(below(url, OWN)).size(LEDGER)
    except FileVanished:
        return False
    return not folder(below(url, OWN_FOLDER)).exists()


def queues_of_archive(url: str) -> dict[str, ArchivedQueue]:
    """Return the queues of an archive by their names in tables. Raises IncompleteArchive."""
    entry = _ledger(url)
    names = {name for name in lake_folder_of(url).names("") if not name.startswith(f"{OWN}/")} | set(entry.files)
    by_queue: dict[str, list[ArchivedFile]] = {queue: [] for queue in (*entry.end, *entry.gaps)}
    for name in names:
        if (match := FILE.fullmatch(name)) and int(match[2]) <= entry.batch:
            queue = queue_of_partition(match[1])
            by_queue.setdefault(queue or "", []).append(ArchivedFile(int(match[2]), name))
    return {queue: _queue(entry, queue, sorted(files)) for queue, files in sorted(by_queue.items())}


def open_archived(place: LakeFolder, file: ArchivedFile) -> Any:
    """Open a file at its present name: a file of the last batch may not have been moved yet. Raises
    IncompleteArchive.
    """
    for name in (file.name, staged_name(file.name), file.name):
        try:
            return place.open(name)
        except FileNotFoundError:
            continue
    raise IncompleteArchive(f"{file.name} was listed, and is gone: was it removed from the archive?")


def _queue(entry: LedgerEntry, queue: str, files: list[ArchivedFile]) -> ArchivedQueue:
    gap = entry.gaps.get(queue)
    if gap is not None and gap.times > len(gap.batches):
        raise IncompleteArchive(
            f"queue {queue}: its journal had lost records {gap.times} times, and the version that made this archive"
            " did not note where: what the queue held cannot be told; archive into a new folder"
        )
    restarts = [] if gap is None else gap.batches
    return ArchivedQueue(queue, files, restarts, entry.rows.get(queue), entry.readers.get(queue), entry.end.get(queue))


def _ledger(url: str) -> LedgerEntry:
    place = folder(below(url, OWN))
    file = place.open(LEDGER)
    try:
        return msgspec.json.decode(file.read(0, place.size(LEDGER)), type=LedgerEntry)
    finally:
        file.close()
