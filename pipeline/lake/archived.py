"""Reading an archive back: which Parquet files hold a queue's records, in the order in which they were archived.

A batch counts once the ledger has it (lake.py), so a job that adds to the archive meanwhile changes nothing for who has
read the ledger before listing the files.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct, field

from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.pipeline.lake.folders import Vanished, below, folder
from staniel.pipeline.lake.lake import LEDGER, OWN, LakeFolder, LedgerEntry, ReadMark, lake_folder_of, staged_name
from staniel.pipeline.lake.names import queue_of_partition

FILE = re.compile(r"queue=([^/]+)/day=[^/]+/(\d{8,})-[0-9a-f]+\.parquet")


class IncompleteArchive(Exception):
    """Records of a queue are not in the archive, and what it held cannot be told without them."""


class ArchivedFile(Struct, frozen=True, order=True):
    """One Parquet file: the records of one queue and day that one task of batch `batch` has written."""

    batch: int
    name: str


class ArchivedQueue(Struct, frozen=True):
    """A queue's files, by batch. `restarts`: batches in front of which its journal had lost records; what the archive
    has from there on begins with all that the queue then held. `rows`: how many there must be; None: not counted.
    `readers`: by name, how far each had come; None: not noted.
    """

    queue: str
    files: list[ArchivedFile]
    restarts: list[int] = field(default_factory=list)
    rows: int | None = None
    readers: dict[str, ReadMark] | None = None


def is_archive(url: str) -> bool:
    """Whether a folder is an archive, and not a spool in which one lies."""
    try:
        folder(below(url, OWN)).size(LEDGER)
    except Vanished:
        return False
    return not folder(below(url, OWN_FOLDER)).exists()


def queues_of_archive(url: str) -> dict[str, ArchivedQueue]:
    """Each queue of an archive, by its name as tables have it. Raises IncompleteArchive."""
    entry = _ledger(url)
    names = {name for name in lake_folder_of(url).names("") if not name.startswith(f"{OWN}/")} | set(entry.files)
    found: dict[str, list[ArchivedFile]] = {queue: [] for queue in (*entry.end, *entry.gaps)}
    for name in names:
        if (match := FILE.fullmatch(name)) and int(match[2]) <= entry.batch:
            queue = queue_of_partition(match[1])
            found.setdefault(queue or "", []).append(ArchivedFile(int(match[2]), name))
    return {queue: _queue(entry, queue, sorted(files)) for queue, files in sorted(found.items())}


def open_archived(place: LakeFolder, file: ArchivedFile) -> Any:
    """A file, where it is now: the last batch may still wait for its move. Raises IncompleteArchive."""
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
    return ArchivedQueue(queue, files, restarts, entry.rows.get(queue), entry.readers.get(queue))


def _ledger(url: str) -> LedgerEntry:
    place = folder(below(url, OWN))
    file = place.open(LEDGER)
    try:
        return msgspec.json.decode(file.read(0, place.size(LEDGER)), type=LedgerEntry)
    finally:
        file.close()
