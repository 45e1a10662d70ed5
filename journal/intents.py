"""Transfers from one journal to another that a crash may catch half way: what was meant, so that recovery can finish
it.

One small file in the spool's own folder, a line of JSON a record. Knows what was meant and where the copy was to be
found. Refuses to know queues. The order that makes it safe: the intent is on the disk before the copy is written, and
the copy is on the disk before the removal is recorded. So after a crash there is the item, or the item and an intent
with its copy, or the copy alone.
"""

from __future__ import annotations

from zlib import crc32

import msgspec
from msgspec import Struct

from journal.fs import File, Fs
from queues.item import Item

RESTART_BYTES = 1 << 20


class Intent(Struct, frozen=True):
    """An item of `source`, added there at `was_added_ms`, is to be removed once its copy is in `target`.

    The copy lies in the target's journal, at byte `at` or later of the first file numbered above `after` (the current
    file counts as the last). `added_ms`, `size` and `crc` are the copy's.
    """

    begin: int
    source: str
    was_added_ms: int
    target: str
    after: int
    at: int
    added_ms: int
    size: int
    crc: int

    @property
    def copy_key(self) -> tuple[int, int, int]:
        """What the copy can be known by; equal items have equal keys, and then it does not matter which is which."""
        return self.added_ms, self.size, self.crc

    def means(self, item: Item) -> bool:
        """Whether `item` is the one to be removed."""
        return key_of(item) == (self.was_added_ms, self.size, self.crc)


def key_of(item: Item) -> tuple[int, int, int]:
    """(add time, size, checksum) of an item: ids change when a journal is rewritten, these do not."""
    return item.added_ms, len(item.data), crc32(item.data)


class Done(Struct, frozen=True):
    """Intent number `end` is over."""

    end: int


class Intents:
    """The file. `prepare` must run before anything else is written in the same tick."""

    def __init__(self, fs: Fs, path: str) -> None:
        self.fs = fs
        self.path = path
        self._file: File | None = None
        self._pending: list[bytes] = []
        self._unwritten = b""
        self._open = 0
        self._last = 0
        self._must_sync = False

    def read(self) -> list[Intent]:
        """The intents that an earlier run has left, in their order. A torn last line was never relied on."""
        found: dict[int, Intent] = {}
        for line in self._read_all().split(b"\n"):
            try:
                record = msgspec.json.decode(line, type=dict[str, int | str])
                if "end" in record:
                    found.pop(int(record["end"]), None)
                else:
                    intent = msgspec.convert(record, Intent)
                    found[intent.begin] = intent
                    self._last = max(self._last, intent.begin)
            except msgspec.MsgspecError:
                continue
        return list(found.values())

    def begin(self, source: str, was_added_ms: int, target: str, after: int, at: int, copy: Item) -> int:
        """Note what is meant; the number to end it by."""
        self._last += 1
        self._open += 1
        intent = Intent(self._last, source, was_added_ms, target, after, at, *key_of(copy))
        self._pending.append(msgspec.json.encode(intent) + b"\n")
        self._must_sync = True
        return self._last

    def end(self, number: int) -> None:
        """The removal is on the disk. Were this line lost, recovery would find nothing left to remove."""
        self._open -= 1
        self._pending.append(msgspec.json.encode(Done(number)) + b"\n")

    @property
    def is_news(self) -> bool:
        """Whether `prepare` has something to write."""
        return bool(self._pending or self._unwritten)

    def prepare(self) -> None:
        """Write what is noted; sync it if something was begun. Raises OSError; a second call goes on where the first
        one failed.
        """
        if not self.is_news:
            return
        if self._file is None:
            self._file = self.fs.append(self.path)
        self._unwritten += b"".join(self._pending)
        self._pending.clear()
        before = self._file.size
        try:
            self._file.write(self._unwritten)
        finally:
            self._unwritten = self._unwritten[self._file.size - before :]
        if self._must_sync:
            self._file.sync()
            self._must_sync = False
        if not self._open and self._file.size > RESTART_BYTES:
            self.restart()

    def restart(self) -> None:
        """Nothing is under way: an empty file will do."""
        if self._file is not None:
            self._file.close()
        self.fs.append(self.path).close()
        self.fs.truncate(self.path, 0)
        self._file = self.fs.append(self.path)
        self.fs.sync_folder(self.path.rpartition("/")[0])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_all(self) -> bytes:
        try:
            return self.fs.read(self.path, 0, self.fs.size(self.path))
        except FileNotFoundError:
            return b""
