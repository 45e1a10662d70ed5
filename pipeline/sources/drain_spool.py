"""The spool of a drain: drained items in immutable files, numbered by batch, until Spark has stored them.

A local spool is written with journal/disk/fs.py and synced; in an object store a file is there whole or not at all.

A spool belongs to one query at a time. A local one is locked. An object store has no locks, so a query writes its name
into `owner.json` and checks it between writing a file and confirming its items, and before removing one: if another
query owns the spool, the items stay in their queue and the files in the spool. So every confirmed item was written
before the next owner took over and is in its first listing.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from msgspec import Struct

from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.os_fs import OsFs
from staniel.pipeline.lake.arrow import TIME, schema, times
from staniel.pipeline.lake.folders import FileVanished, Folder, LocalFolder, folder
from staniel.protocol.client.replies import Item

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
OWNER = "owner.json"
Drained = tuple[str, str, list[Item]]  # server, queue, items


class SpoolLost(Exception):
    """Files of a batch that Spark requests again are missing from the spool."""


class SpoolTaken(Exception):
    """The spool belongs to another query, or has belonged to one since this query used it."""


class Owner(Struct):
    """The owner of a spool. `query` is in the query's offsets and stays the same over restarts; `writer` is one process
    of it.
    """

    query: str = ""
    writer: str = ""


class DrainSpool:
    """A folder of one streaming query."""

    def __init__(self, url: str) -> None:
        self.folder: Folder = folder(url)
        self._disk = OsFs()
        self._owner: Owner | None = None

    def __enter__(self) -> DrainSpool:
        """Lock the spool: only one process writes at a time, and one that Spark has given up may still be running."""
        if isinstance(self.folder, LocalFolder):
            self._disk.make_folder(self.folder.path)
            until = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    self._disk.lock(f"{self.folder.path}/lock")
                    break
                except AlreadyLocked as locked:
                    if time.monotonic() > until:
                        raise SpoolTaken(f"{locked.holder} drains into {self.folder.url}: one query a spool") from None
                    time.sleep(0.05)
        return self

    def claim(self, query: str, *, new: bool) -> None:
        """Make this process the writer, for `query`. A `new` query takes over the remains of another one.

        Raises SpoolTaken if the spool has gone to another query since this one last drained: items which that one has
        not stored yet would count as stored here.
        """
        known = self._known_owner()
        if known is not None and known.query != query and not new:
            raise SpoolTaken(
                f"{self.folder.url} belongs to another query, with a checkpoint of its own: one query a spool"
            )
        self._owner = Owner(query, secrets.token_hex(8))
        self.folder.write(OWNER, msgspec.json.encode(self._owner))

    def _known_owner(self) -> Owner | None:
        try:
            file = self.folder.open(OWNER)
        except FileVanished:
            return None
        try:
            return msgspec.json.decode(file.read(0, 1000), type=Owner)
        finally:
            file.close()

    def _check_owner(self) -> None:
        """Check that no other drain has taken over; a locked spool excludes others. Raises SpoolTaken."""
        if self._owner is not None and not isinstance(self.folder, LocalFolder) and self._known_owner() != self._owner:
            raise SpoolTaken(f"another query drains into {self.folder.url} now: one query a spool")

    def __exit__(self, *_: object) -> None:
        self._disk.close()

    def batches(self) -> dict[int, list[str]]:
        """Return the files of each batch, in order."""
        batches: dict[int, list[str]] = {}
        for name, _ in self.folder.list():
            match = NAME.fullmatch(name)
            if match:
                batches.setdefault(int(match[1]), []).append(name)
        return batches

    def put(self, batch: int, number: int, data: bytes, written: Callable[[], None]) -> None:
        """Add one file, an Arrow stream, to a batch; it is durable when this returns. `written` is called between write
        and sync.

        Raises SpoolTaken if the file may be removed before it is read: then its items must not be confirmed.
        """
        name = f"{batch:012d}.{number:06d}.{secrets.token_hex(8)}.arrow"
        if not isinstance(self.folder, LocalFolder):
            self.folder.write(name, data)
            written()
            self._check_owner()
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
        """Remove the batches up to and including this one, and half-written files of killed processes. Raises
        SpoolTaken.
        """
        self._check_owner()
        for name, _ in self.folder.list():
            match = NAME.match(name)
            if match and int(match[1]) <= batch:
                self.folder.remove(name)

    def read(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        for name in names:
            try:
                file = self.folder.open(name)
            except FileVanished:
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


def encode_items(drained: list[Drained]) -> bytes:
    """Return the items as an Arrow stream."""
    queues = [queue for _, queue, items in drained for _ in items]
    servers = [server for server, _, items in drained for _ in items]
    items = [item for _, _, received in drained for item in received]
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
    return arrow_stream(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


def arrow_stream(batch: pa.RecordBatch) -> bytes:
    """Return the rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for at in range(0, batch.num_rows, 10_000):
            writer.write_batch(batch.slice(at, 10_000))
    data: bytes = sink.getvalue().to_pybytes()
    return data
