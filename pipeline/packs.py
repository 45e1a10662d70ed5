"""Packing the journals of a fleet that no server has open: what is alive in sealed files becomes one file.

Knows how a pack is written and put in place, which is what the server's own rewriting does. Refuses to read the payload
of an item that is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from journal import records
from journal.fs import Locked, OsFs
from journal.kestrel import SAVE_XID, WITH_XID, Encoder
from journal.layout import archive_name, pack_name, temp_name
from journal.packing import finish_pack
from journal.summaries import State
from pipeline.files import LocalFolder, Opened, folder
from pipeline.fleet import queues_of, run
from pipeline.formats import look
from pipeline.kestrel_state import HEAD_BYTES, Queue, live_rows
from queues.changes import Added
from queues.config import Dialect
from queues.item import Item, Taken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK = ".staniel/lock"
NOTHING_TO_PACK = {
    "libkestrel": "a libkestrel queue's segments go away whole, once every reader has done with them",
    "workq": "a workq log is cleaned by its server, segment by segment",
}
WRITE_BYTES = 1 << 20


class Busy(Exception):
    """A server has the spool open: it packs by itself, and would not know of a pack made behind its back."""


class Packed(Struct, frozen=True):
    """What became of one queue's sealed files."""

    queue: str
    files: int
    before_bytes: int
    after_bytes: int
    items: int


def pack(spark: SparkSession, path: str, given: Mapping[str, str], dialect: Dialect) -> list[Packed]:
    """Pack every queue of Kestrel's format with sealed files; others are left alone. Raises Busy, and ValueError for a
    spool that is not in a local folder or that holds nothing but other formats."""
    place = folder(path)
    if not isinstance(place, LocalFolder):
        raise ValueError("packs are made in place, in a folder of this machine or one that all machines mount")
    if not look(place, "kestrel")[1]:
        form, others = look(place, "auto")
        if others:
            raise ValueError(f"there is nothing to pack in {path}: {NOTHING_TO_PACK[form.name]}")
    disk = OsFs()
    try:
        disk.make_folder(f"{place.path}/.staniel")
        disk.lock(f"{place.path}/{LOCK}")
    except Locked as locked:
        raise Busy(f"{locked.holder or 'a server'} has {place.path} open; stop it first") from None
    try:
        queues = queues_of(spark, path, {**given, "format": "kestrel"}, sealed=True)
        return run(spark, [(place.path, queue, dialect) for queue in queues], _pack)
    finally:
        disk.close()


def _pack(task: tuple[str, Queue, Dialect]) -> Packed:
    path, queue, dialect = task
    files = [one.segment for one in queue.found]
    number = max(segment.sealed_ms for segment in files)
    disk = OsFs()
    temp = f"{path}/{temp_name(queue.name, number)}"
    file = disk.append(temp)
    try:
        held = 0
        buffer: list[bytes] = []
        for data in snapshot(path, queue, dialect):
            buffer.append(data)
            held += len(data)
            if held >= WRITE_BYTES:
                file.write(b"".join(buffer))
                buffer, held = [], 0
        file.write(b"".join(buffer))
        file.sync()
    finally:
        file.close()
    made = f"{path}/{pack_name(queue.name, number)}"
    disk.rename(temp, made)
    disk.sync_folder(path)
    after = disk.size(made)
    covered = [segment.file for segment in files]
    finish_pack(disk, path, pack_name(queue.name, number), archive_name(queue.name, number), covered)
    disk.close()
    items = queue.state.items + len(queue.state.opens)
    return Packed(queue.name, len(files), sum(segment.bytes for segment in files), after, items)


def snapshot(path: str, queue: Queue, dialect: Dialect) -> Iterator[bytes]:
    """The records that make a new queue what this one is: its counter, open reads, items."""
    encoder, state = Encoder(dialect), queue.state
    copies = Copies(path)
    try:
        held = replace(queue, state=State([], state.opens, state.added, state.added, state.listed, state.counter, {}))
        opens = {row["xid"]: Taken(copies.item(row), 0, 1, row["xid"]) for row in _rows(path, held)}
        if opens:
            yield from encoder.snapshot(state.counter, opens, [])
        else:
            encoder.counter = state.counter
            yield WITH_XID.pack(SAVE_XID, state.counter)
        for row in _rows(path, replace(queue, state=replace(state, opens={}))):
            yield encoder.encode(Added(copies.item(row)))
    finally:
        copies.close()


def _rows(path: str, queue: Queue) -> Iterator[dict[str, Any]]:
    """Without payloads: each is copied from its own place."""
    for batch in live_rows(folder(path), queue, False):
        yield from batch.select(["file", "offset", "size", "flags", "xid"]).to_pylist()


class Copies:
    """Items as their records have them: times that are no times too."""

    def __init__(self, path: str) -> None:
        self._folder = folder(path)
        self._open: dict[str, Opened] = {}

    def item(self, row: dict[str, Any]) -> Item:
        file = self._open.get(row["file"])
        if file is None:
            file = self._open[row["file"]] = self._folder.open(row["file"])
        head_bytes = HEAD_BYTES[file.read(row["offset"], 1)[0]]
        data = file.read(row["offset"], head_bytes + row["size"])
        record = records.read(data, 0, len(data), 0)
        return Item(data[head_bytes:], record.added_ms, record.expires_ms, row["flags"])

    def close(self) -> None:
        for file in self._open.values():
            file.close()
