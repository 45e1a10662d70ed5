"""A guard against repeated writes: how many of a task's rows the servers have stored, noted beside the checkpoint.

It also says since when rows may have been put that it does not count: sink.py compares that with the time for which
servers remember keys.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from pyspark.sql.datasource import WriterCommitMessage

from staniel.pipeline.lake.folders import FileVanished, folder
from staniel.pipeline.sources.item_rows import Row
from staniel.pipeline.sources.live_options import SinkOptions


class TaskReplaced(Exception):
    """The task has a newer attempt: this one puts nothing more."""


class TaskCommit(WriterCommitMessage):
    """The result of one task. `guard` is the key of its guard, "" without one; `repeated` the number of rows that the
    servers had.
    """

    def __init__(self, stored: int, dropped: int, skipped: int, guard: str = "", repeated: int = 0) -> None:
        self.stored = stored
        self.dropped = dropped
        self.skipped = skipped
        self.guard = guard
        self.repeated = repeated


class NotedRows(Struct, frozen=True):
    """The notes of a task's earlier attempts. `began_ms`: when the first one began, and `noted_ms`: when the last note
    was made, in epoch ms; 0 if there was no attempt.
    """

    rows: int = 0
    digest: str = ""
    began_ms: int = 0
    noted_ms: int = 0


FIELDS = NotedRows.__struct_fields__
ZERO = NotedRows.__struct_defaults__


def wall_clock_ms() -> int:
    return int(time.time() * 1000)


class RepeatGuard:
    """The number of rows of a task's share that the servers have stored, and the digest of these rows, in a small file.

    Spark repeats a streaming batch with the same rows in the same tasks. If the digest of the first rows is the same,
    they are skipped; if not, all are put. The key in the file's name includes the query and the servers, because
    neither another query nor other servers have these items. Two attempts of a task may run at the same time, for
    example if Spark has given up an executor that still runs: the file names the later one, and the earlier one ends
    before its next window.
    """

    def __init__(self, url: str, name: str, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.folder = folder(url)
        self.name = name
        self.now_ms = now_ms
        self.writer = secrets.token_hex(8)
        self.rows = 0
        self.digest = ""
        self._began_ms = self._noted_ms = 0
        self._has_written = False

    @classmethod
    def of(cls, options: SinkOptions, batch: str, query: str = "") -> RepeatGuard | None:
        """Return the guard of this task; None if there is none, or nothing identifies a repeated batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if not options.guard_path or not batch or context is None:
            return None
        name = f"{guard_key(options, query)}.{int(batch):012d}.{context.partitionId():06d}.json"
        return cls(options.guard_path, name)

    @property
    def key(self) -> str:
        return self.name.partition(".")[0]

    def stored(self) -> NotedRows:
        """Return what earlier attempts have stored, and stop them from putting more."""
        known = self._known()
        noted = NotedRows(*(known.get(name, default) for name, default in zip(FIELDS, ZERO, strict=True)))
        now_ms = self.now_ms()
        self._began_ms, self._noted_ms = noted.began_ms or now_ms, noted.noted_ms or now_ms
        self._write(noted.rows, noted.digest)
        return noted

    def check(self) -> None:
        """Check that no newer attempt has begun. Raises TaskReplaced. A missing file was forgotten: the other attempt
        has ended, and the next batch too.
        """
        if self._known().get("writer", "" if self._has_written else self.writer) != self.writer:
            raise TaskReplaced("another try of this task puts these rows now")

    def note_stored(self, rows: list[Row]) -> None:
        """Note stored rows. Raises TaskReplaced."""
        self.check()
        for row in rows:
            self.digest = digest_of(row, self.digest)
        self.rows += len(rows)
        self._noted_ms = self.now_ms()
        self._write(self.rows, self.digest)

    def _write(self, rows: int, digest: str) -> None:
        noted = dict(zip(FIELDS, (rows, digest, self._began_ms, self._noted_ms), strict=True))
        self.folder.write(self.name, json.dumps({**noted, "writer": self.writer}).encode())
        self._has_written = True

    def _known(self) -> dict[str, Any]:
        try:
            file = self.folder.open(self.name)
        except FileVanished:
            return {}
        try:
            known: dict[str, Any] = json.loads(file.read(0, 1000))
            return known
        except ValueError:
            return {}
        finally:
            file.close()


def guard_key(options: SinkOptions, query: str) -> str:
    """Return the key of a guard's file beside batch and task. The order of the servers counts: it decides which server
    gets a queue.
    """
    said = json.dumps([options.app_id, query, options.servers])
    return blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def digest_of(row: Row, before: str) -> str:
    """Return the digest of a row and all before it."""
    return blake2b(b"%b " % before.encode() + row.content(), digest_size=16).hexdigest()


def forget(options: SinkOptions, messages: list[WriterCommitMessage | None], batch: int) -> None:
    """Remove the guards of batches before `batch`, by the messages of its tasks."""
    if options.guard_path:
        keys = {message.guard for message in messages if isinstance(message, TaskCommit) and message.guard}
        forget_before(options.guard_path, keys, batch)


def check_not_past(options: SinkOptions, batch: int) -> None:
    """Refuse a batch if the guard knows a later one, because the guards of earlier batches are removed. Raises
    ValueError.
    """
    key = guard_key(options, "")
    known = [int(parts[1]) for name, _ in folder(options.guard_path).list() if (parts := name.split("."))[0] == key]
    if known and max(known) > batch:
        raise ValueError(
            f"batch {batch} of appId {options.app_id} comes after batch {max(known)}, and what it has put is not known"
            " any more: numbers of batches grow; name another write with another appId"
        )


def forget_before(guard_path: str, keys: set[str], batch: int) -> None:
    """Remove the guards of these keys for batches before `batch`, and half-written files of killed tasks."""
    place = folder(guard_path)
    for name, _ in place.list():
        parts = name.split(".")
        if len(parts) >= 4 and parts[0] in keys and parts[1].isdigit() and int(parts[1]) < batch:
            place.remove(name)
