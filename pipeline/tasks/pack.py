"""Packing journals that no server has open: the remaining items of a queue's sealed files go to one file.

Tasks write new files under temporary names and read them back; the driver, which holds the spool's lock, puts them in
place. So a task that runs twice, or after its driver has died, changes nothing. The server's own recovery repairs the
remains of a crash, and a new file counts only if recovery reads the same from it as from the old files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from staniel.journal.disk.fs import AlreadyLocked, File, Fs
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.kestrel.effect import State
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.files import Files, pack_name, temp_name
from staniel.journal.kestrel.notes import NOTE_RECORDS_MAX, fact_in
from staniel.journal.kestrel.records import HEAD_BYTES, SAVE_XID, WITH_XID, WITH_XID_BYTES, decode
from staniel.journal.kestrel.recovery import Recovery
from staniel.journal.spool import Spool, SpoolError
from staniel.journal.tools.unfinished import unfinished_work
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.kestrel.state import QueueSummary, live_rows
from staniel.pipeline.lake.folders import LocalFolder, OpenFile, folder
from staniel.pipeline.lake.names import real_name, shown_name
from staniel.pipeline.sources.journal_options import JournalOptions
from staniel.pipeline.sources.planning import check_wanted
from staniel.pipeline.tasks.summarise import queues_of, run
from staniel.queues.config import JournalDialect
from staniel.queues.item import LOST_MS, Delivery, Item, item_with, past_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTHING_TO_PACK = {
    "libkestrel": "a libkestrel queue's segments go away whole, once every reader has done with them",
    "workq": "a workq log is cleaned by its server, segment by segment",
}
WRITE_BYTES = 1 << 20
READ_BACK_BYTES = 64 << 20  # of items that one side of the comparison keeps in memory
TEMP_NUMBERS = 10**15, 10**16  # numbers of temporary files: those of a server are milliseconds


class SpoolInUse(Exception):
    """The spool is open in a server. The server packs by itself and would not notice replaced files."""


class PackMismatch(Exception):
    """The content of the new file differs from that of a queue's sealed files, which are unchanged."""


class Packed(Struct, frozen=True):
    """The result for one queue's sealed files."""

    queue: str
    files: int
    before_bytes: int
    after_bytes: int
    items: int


class PackTask(Struct, frozen=True):
    """A queue to be packed. `files` are its sealed ones, by name."""

    path: str
    queue: QueueSummary
    dialect: JournalDialect

    @property
    def files(self) -> dict[str, int]:
        return {real_name(one.segment.file): one.segment.sealed_ms for one in self.queue.found}

    def bytes(self) -> int:
        return sum(one.segment.bytes for one in self.queue.found)

    @property
    def name(self) -> str:
        """The queue's name in the file system."""
        return real_name(self.queue.name)


class PackedFiles(Struct, frozen=True):
    """A file that a task has made, with the same content as `files`. `number` is the largest of theirs."""

    queue: str
    temp: str
    size: int
    number: int
    files: list[str]
    before_bytes: int
    items: int


def pack(spark: SparkSession, path: str, given: Mapping[str, str], dialect: JournalDialect) -> list[Packed]:
    """Pack every queue of Kestrel's format with sealed files; others are left alone.

    Raises SpoolInUse; ValueError for a spool that is not in a local folder, that has only other formats, or in which a
    server has unfinished work; PackMismatch.
    """
    place = folder(path)
    if not isinstance(place, LocalFolder):
        raise ValueError("packs are made in place, in a folder of this machine or one that all machines mount")
    kestrel, segments_of = list_segments(place, "kestrel")
    if not segments_of:
        form, others = list_segments(place, "auto")
        if others:
            raise ValueError(f"there is nothing to pack in {path}: {NOTHING_TO_PACK[form.name]}")
    check_wanted(place, JournalOptions({**given, "path": path, "format": "kestrel"}), kestrel, segments_of)
    disk = OsFs()
    try:
        spool = _ready(disk, place.path)
        queues = queues_of(spark, path, {**given, "format": "kestrel"}, sealed=True)
        written = run(spark, [PackTask(place.path, queue, dialect) for queue in queues], write_pack, PackTask.bytes)
        packed = [_put_in_place(spool, pack) for pack in written]
        _tidy(spool)
        return packed
    finally:
        disk.close()


def _ready(disk: OsFs, path: str) -> Spool:
    """Lock the spool and bring its files into the state that a start of the server would leave. Raises SpoolInUse,
    ValueError.
    """
    try:
        spool = Spool(disk, path)
    except AlreadyLocked as locked:
        raise SpoolInUse(f"{locked.holder or 'a server'} has {path} open; stop it first") from None
    except SpoolError as error:
        raise ValueError(str(error)) from None
    kestrel = spool.listing().kestrel
    if left := unfinished_work(disk, path):
        why = left[0].work.value
        raise ValueError(f"the last server left work to finish in {path}: {why}; start it once, stop it, and try again")
    for queue, files in kestrel.items():
        spool.recovery.finish_pack(queue, files)
    return spool


def _put_in_place(spool: Spool, written: PackedFiles) -> Packed:
    """Replace the old files by the new one, in the steps in which recovery finishes a pack: after a crash a start
    finishes it.
    """
    temp = f"{spool.folder}/{written.temp}"
    if spool.fs.size(temp) != written.size:
        raise PackMismatch(f"{temp} has changed since it was compared; the files of {written.queue} are as they were")
    spool.fs.rename(temp, f"{spool.folder}/{pack_name(written.queue, written.number)}")
    spool.fs.sync_folder(spool.folder)
    spool.recovery.finish_pack(written.queue, spool.listing().kestrel[written.queue])
    return Packed(shown_name(written.queue), len(written.files), written.before_bytes, written.size, written.items)


def _tidy(spool: Spool) -> None:
    """Remove files of tasks that ran twice."""
    for files in spool.listing().kestrel.values():
        spool.recovery.tidy(files)


def write_pack(task: PackTask) -> PackedFiles:
    """Write a new file with the content of the sealed files. Raises PackMismatch, and what reading raises; then nothing
    has changed.
    """
    disk, queue = OsFs(), task.queue
    name = temp_name(task.name, secrets.choice(range(*TEMP_NUMBERS)))
    path = f"{task.path}/{name}"
    file = create(disk, path)
    try:
        try:
            _write(file, snapshot(task.path, queue, task.dialect))
        finally:
            file.close()
        if contents(disk, task.path, task.name, {name: 0}) != contents(disk, task.path, task.name, task.files):
            raise PackMismatch(
                f"{queue.name}: the new file does not hold what the sealed files hold; they are as they were"
            )
    except BaseException:
        with suppress(OSError):
            disk.remove(path)
        raise
    finally:
        disk.close()
    items = queue.state.items + len(queue.state.opens)
    return PackedFiles(task.name, name, file.size, max(task.files.values()), list(task.files), task.bytes(), items)


def create(disk: Fs, path: str) -> File:
    """Create a file. Raises FileExistsError."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
    return disk.append(path)


def _write(file: File, pieces: Iterator[bytes]) -> None:
    buffer: list[bytes] = []
    held = 0
    for data in pieces:
        buffer.append(data)
        held += len(data)
        if held >= WRITE_BYTES:
            file.write(b"".join(buffer))
            buffer, held = [], 0
    file.write(b"".join(buffer))
    file.sync()


def contents(disk: Fs, path: str, queue: str, files: Mapping[str, int]) -> tuple[Any, ...]:
    """Return what a server recovers from these files as a queue's sealed ones: the number of the last reserve, each
    open read, the number of items and a checksum of all of them in order. Raises PackMismatch for unreadable records.
    """
    recovered = Recovery(disk, path).recover(queue, Files(queue, dict(files), {}, []), 0, READ_BACK_BYTES)
    if recovered.damages:
        damage = recovered.damages[0]
        raise PackMismatch(f"{damage.file}: byte {damage.at}: {damage.why}; the files of {queue} are as they were")
    line, hashed = recovered.replay.line, sha256()
    items = 0
    while line.head() is not None:
        hashed.update(_seen(line.pop().item))
        items += 1
    opens = {xid: sha256(_seen(taken.item)).digest() for xid, taken in recovered.replay.open.items()}
    return recovered.replay.counter, opens, items, hashed.digest()


def _seen(item: Item) -> bytes:
    if item.expires_ms == LOST_MS:
        raise PackMismatch("an item cannot be read back; the files are as they were")
    times = b"%d %d %d %d " % (len(item.data), item.added_ms, item.expires_ms, item.flags)
    return times + b"%d " % len(past_bytes(item)) + past_bytes(item) + item.data


def snapshot(path: str, queue: QueueSummary, dialect: JournalDialect) -> Iterator[bytes]:
    """Yield the records that give a new queue the state of this one: its counter, open reads, items."""
    encoder, state = Encoder(dialect), queue.state
    copies = OriginalItems(path)
    try:
        held = replace(queue, state=State([], state.opens, state.added, state.added, state.listed, state.counter, {}))
        opens = {row["xid"]: Delivery(copies.item(row), 0, 1, row["xid"]) for row in _rows(path, held)}
        if opens:
            yield from encoder.snapshot(state.counter, opens, [])
        else:
            yield (encoder.save_xid if state.items else encoder.encode_empty)(state.counter)
        for row in _rows(path, replace(queue, state=replace(state, opens={}))):
            yield encoder.addx(copies.item(row))
    finally:
        copies.close()


def _rows(path: str, queue: QueueSummary) -> Iterator[dict[str, Any]]:
    """Yield the rows without payloads: each is copied from its original file."""
    for batch in live_rows(folder(path), queue, False, stand_ins=True):
        yield from batch.select(["file", "offset", "size", "flags", "xid"]).to_pylist()


class OriginalItems:
    """A reader of items as they stand in their records, invalid times included, with the notes before them."""

    def __init__(self, path: str) -> None:
        self._folder = folder(path)
        self._open: dict[str, OpenFile] = {}

    def item(self, row: dict[str, Any]) -> Item:
        file = self._open.get(row["file"])
        if file is None:
            file = self._open[row["file"]] = self._folder.open(row["file"])
        head_bytes = HEAD_BYTES[file.read(row["offset"], 1)[0]]
        data = file.read(row["offset"], head_bytes + row["size"])
        record = decode(data, 0, len(data), 0)
        fact = _fact_before(file, row["offset"], record.added_ms, data[head_bytes:])
        return item_with(fact, data[head_bytes:], record.added_ms, record.expires_ms, row["flags"])

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def _fact_before(file: OpenFile, offset: int, added_ms: int, data: bytes) -> bytes:
    """Return the fact of the note about an item whose record begins at `offset`; b"" if there is none. Bytes of an
    earlier payload may look like records, but not like a note about this item.
    """
    start = max(0, offset - NOTE_RECORDS_MAX * WITH_XID_BYTES)
    before, ids = file.read(start, offset - start), list[int]()
    for at in range(len(before) - WITH_XID_BYTES, -1, -WITH_XID_BYTES):
        op, xid = WITH_XID.unpack_from(before, at)
        if op != SAVE_XID:
            break
        ids.append(xid)
    return fact_in(ids[::-1], added_ms, data)
