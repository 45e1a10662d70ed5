"""Where drained items lie until Spark has stored them: immutable files, numbered by batch.

Knows names, durability and the columns. Refuses to know servers. A local spool is written with the journal's own disk,
so "synced" means what it means there; in an object store a file is there whole or not at all.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from journal.fs import Locked, OsFs
from pipeline.columns import TIME, schema, times
from pipeline.files import Folder, LocalFolder, Vanished, folder
from protocol.client_replies import Item

SCHEMA = schema(
    queue=pa.string(),
    value=pa.binary(),
    flags=pa.int64(),
    id=pa.int64(),
    addTime=TIME,
    server=pa.string(),
)
NAME = re.compile(r"(\d{12})\.(\d{6})\.[0-9a-f]{16}\.arrow")
LOCK_WAIT_S = 60.0
Drained = tuple[str, str, list[Item]]  # server, queue, items


class SpoolLost(Exception):
    """Files of a batch that Spark wants again are not in the spool any more."""


class Spool:
    """One folder, of one streaming query."""

    def __init__(self, url: str) -> None:
        self.folder: Folder = folder(url)
        self._disk = OsFs()

    def __enter__(self) -> Spool:
        """Only one process writes at a time: one that Spark has given up may still be at work."""
        if isinstance(self.folder, LocalFolder):
            self._disk.make_folder(self.folder.path)
            until = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    self._disk.lock(f"{self.folder.path}/lock")
                    break
                except Locked as locked:
                    if time.monotonic() > until:
                        raise SpoolLost(f"{locked.holder} writes to {self.folder.url}: one query a spool") from None
                    time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()

    def batches(self) -> dict[int, list[str]]:
        """The files of each batch, in order."""
        found: dict[int, list[str]] = {}
        for name, _ in self.folder.list():
            match = NAME.fullmatch(name)
            if match:
                found.setdefault(int(match[1]), []).append(name)
        return found

    def put(self, batch: int, turn: int, drained: list[Drained], written: Callable[[], None]) -> None:
        """Add one file to a batch; it is durable when this returns. `written` is called between write and sync."""
        name = f"{batch:012d}.{turn:06d}.{secrets.token_hex(8)}.arrow"
        data = encode(drained)
        if not isinstance(self.folder, LocalFolder):
            self.folder.write(name, data)
            written()
            return
        path = os.path.join(self.folder.path, name)
        file = self._disk.append(f"{path}.new")
        try:
            file.write(data)
            written()
            file.sync()
        finally:
            file.close()
        self._disk.rename(f"{path}.new", path)
        self._disk.sync_folder(self.folder.path)

    def forget(self, batch: int) -> None:
        """Remove the batches up to and with this one, and what a killed process has left half written."""
        for name, _ in self.folder.list():
            match = NAME.match(name)
            if match and int(match[1]) <= batch:
                self.folder.remove(name)

    def read(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            try:
                file = self.folder.open(name)
            except Vanished:
                raise SpoolLost(f"{self.folder.url}/{name} is gone; Spark had not stored it yet") from None
            try:
                data = _whole(file.read, self._size(name))
            finally:
                file.close()
            with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
                yield from stream

    def _size(self, name: str) -> int:
        if isinstance(self.folder, LocalFolder):
            return os.path.getsize(os.path.join(self.folder.path, name))
        return dict(self.folder.list())[name]


def _whole(read: Callable[[int, int], bytes], size: int) -> bytes:
    return read(0, size)


def encode(drained: list[Drained]) -> bytes:
    """The items as one Arrow stream."""
    queues = [queue for _, queue, items in drained for _ in items]
    servers = [server for server, _, items in drained for _ in items]
    items = [item for _, _, each in drained for item in each]
    ids = pa.array([item.id for item in items], pa.int64())
    stamps = pa.array([None if item.id is None else item.id >> 16 for item in items], pa.int64())
    columns = [
        pa.array(queues, pa.string()),
        pa.array([item.data for item in items], pa.binary()),
        pa.array([item.flags for item in items], pa.int64()),
        ids,
        times(stamps),
        pa.array(servers, pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        for at in range(0, batch.num_rows, 10_000):
            writer.write_batch(batch.slice(at, 10_000))
    data: bytes = sink.getvalue().to_pybytes()
    return data
