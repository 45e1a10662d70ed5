"""The log of puts with a key, by which a repeated put is known: across restarts, for as long as keys are kept.

A put with a key is like a transfer without a source (transfer_log.py). Its line is durable before the item is written,
and says where the item will be. When the item is durable, too, a `PutsStored` follows. After a crash recovery looks for
the items of the lines that have none: an item that is there is stored, and its key known; one that is not there never
will be, and its key is free again. So no crash leaves an item without its key, and a key without an item is no key.

The log is a row of numbered files in the spool's own folder, a line of JSON a record. Keys are forgotten in the order
in which they came, so a file goes as a whole, when the last key in it is forgotten: nothing is ever written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, MISSING, File, Fs, is_missing
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.new_file import NewFile
from staniel.journal.transfer_log import (
    CHECKSUM,
    MENDED_BYTES_MAX,
    MENDED_LINES_MAX,
    Intent,
    TransferLogDamage,
    correct_line,
    read_name,
    spelled_name,
)

FOLDER = "keys"  # in the spool's own folder
FILE_BYTES = 1 << 20
FILES_PER_LOOK = 16  # to remove; each costs a sync of the folder
KEY_BYTES_MAX = 250
LINE_BYTES_MAX = 300 + 6 * (KEY_BYTES_MAX + 255)  # JSON writes some letters as six


class KeyedPut(Struct, frozen=True, forbid_unknown_fields=True):
    """A put of an item with `key` to `queue`. The item lies in the queue's journal, behind the place that `after` and
    `at` tell, as those of an Intent do. `added_ms`, `size` and `crc` are the item's.
    """

    put: int
    queue: str
    key: str
    after: int
    at: int
    added_ms: int
    size: int
    crc: int

    @property
    def intent(self) -> Intent:
        """The transfer that this put is, of no other queue; its number is none of the transfers'."""
        return Intent(~self.put, "", self.added_ms, self.queue, self.after, self.at, self.added_ms, self.size, self.crc)


class PutsStored(Struct, frozen=True, forbid_unknown_fields=True):
    """The items of these puts are durable."""

    stored: list[int]


class PutsVoid(Struct, frozen=True, forbid_unknown_fields=True):
    """The items of these puts did not come before a crash, and never will."""

    void: list[int]


class Forgotten(Struct, frozen=True, forbid_unknown_fields=True):
    """All keys of puts up to number `until` to `forgotten`, a queue, are forgotten: it was deleted. The last such
    record of a queue counts; one with a smaller number follows if the queue could not be deleted.
    """

    forgotten: str
    until: int


Record = KeyedPut | PutsStored | PutsVoid | Forgotten
KINDS: dict[bytes, type[Any]] = {b'{"put': KeyedPut, b'{"sto': PutsStored, b'{"voi': PutsVoid, b'{"for': Forgotten}
NAMES = ("queue", "forgotten")


def is_name(name: str) -> bool:
    """Tell whether a file of the folder is one of the log's."""
    return name.isascii() and name.isdecimal() and len(name) <= 18


def encode(record: Record) -> bytes:
    """Return the line of a record. Its last field is a checksum of the bytes before it."""
    try:
        body = msgspec.json.encode(record)[:-1]
    except UnicodeEncodeError:
        fields = [name for name in NAMES if name in record.__struct_fields__]
        body = msgspec.json.encode(replace(record, **{name: spelled_name(getattr(record, name)) for name in fields}))
        body = body[:-1]
    return b"%b%b%d}\n" % (body, CHECKSUM, crc32(body))


def decode(line: bytes) -> Record | None:
    """Decode a line; None if it is not as it was written."""
    body, _, checksum = line.rpartition(CHECKSUM)
    kind = KINDS.get(line[:5])
    if kind is None or checksum != b"%d}" % crc32(body):
        return None
    try:
        record: Record = msgspec.json.decode(body + b"}", type=kind)
        if isinstance(record, KeyedPut):
            return replace(record, queue=read_name(record.queue))
        if isinstance(record, Forgotten):
            return replace(record, forgotten=read_name(record.forgotten))
        return record
    except UNDECODABLE:
        return None


def replayed(records: Iterable[Record]) -> tuple[list[KeyedPut], list[KeyedPut]]:
    """Return the puts that a log tells of, in their order: those that are stored, and those that are not finished."""
    puts: dict[int, KeyedPut] = {}
    stored: set[int] = set()
    void_until: dict[str, int] = {}  # by deleted queue
    for record in records:
        if isinstance(record, KeyedPut):
            puts[record.put] = record
        elif isinstance(record, PutsStored):
            stored.update(record.stored)
        elif isinstance(record, PutsVoid):
            for number in record.void:
                puts.pop(number, None)
        else:
            void_until[record.forgotten] = record.until
    known = [put for _, put in sorted(puts.items()) if put.put > void_until.get(put.queue, 0)]
    return [put for put in known if put.put in stored], [put for put in known if put.put not in stored]


def last_number(record: Record) -> int:
    """Return the highest number of a put that a record names."""
    if isinstance(record, KeyedPut):
        return record.put
    if isinstance(record, Forgotten):
        return record.until
    return max(record.stored if isinstance(record, PutsStored) else record.void, default=0)


class KeyFile(Struct):
    """A file of the log. `last`: the number of the last put in it, or before it."""

    path: str
    last: int


class PutKeyLog:
    """The log, as files that are appended to. `write_and_sync` must run before anything else is written in the same
    tick. To the commit group it is a journal like others (see GroupMember).
    """

    batch = 0
    sync_ms = -1
    is_erased = False

    def __init__(self, fs: Fs, own: str) -> None:
        self.fs = fs
        self.path = f"{own}/{FOLDER}"
        self.damaged: dict[str, TransferLogDamage] = {}  # by path, of the last `read`
        self.on_pending: Callable[[], None] = lambda: None  # called when `write_and_sync` has something to write
        self.close_after_sync: Callable[[File], None] = File.close  # closes a file that a sync may still use
        self.last = 0  # the number of the last put
        self._files: list[KeyFile] = []  # the oldest first
        self._file: NewFile | None = None
        self._number = 0  # of the newest file
        self._pending: list[bytes] = []
        self._unwritten = b""
        self._must_sync = False
        self._has_removed = False  # a file, whose name a power cut may bring back

    def read(self) -> list[Record] | None:
        """Read what earlier runs have written, in its order; None if there is no log. A torn last line of a file was
        never relied on; `damaged` counts the other lines that cannot be read. Raises OSError.
        """
        records: list[Record] = []
        self._files.clear()
        self.damaged.clear()
        try:
            names = sorted([name for name, regular in self.fs.list(self.path) if regular and is_name(name)], key=int)
        except MISSING:
            return None
        if not names:
            return None
        for name in names:
            path = f"{self.path}/{name}"
            *lines, _torn = self.fs.read(path, 0, self.fs.size(path)).split(b"\n")
            for line in lines:
                record = self._decoded(line, path)
                if record is not None:
                    records.append(record)
                    self.last = max(self.last, last_number(record))
            self._files.append(KeyFile(path, self.last))
            self._number = int(name)
        return records

    def _decoded(self, line: bytes, path: str) -> Record | None:
        record = decode(line)
        if record is None:
            damage = self.damaged.setdefault(path, TransferLogDamage())
            if len(line) <= MENDED_BYTES_MAX and damage.lines < MENDED_LINES_MAX:
                record = correct_line(line, decode)
            damage.mended += record is not None
            damage.lost += record is None
        return record

    def append(self, record: Record, *, durably: bool) -> int:
        """Append a record. `durably`: it must be durable before anything else is written. Returns its length."""
        line = encode(record)
        self._pending.append(line)
        self._must_sync = self._must_sync or durably
        self.on_pending()
        return len(line)

    def next_number(self) -> int:
        """Return the number of a new put."""
        self.last += 1
        return self.last

    @property
    def file(self) -> NewFile:
        """The file that is written to. A run begins with a new one: the last line of an older one may be torn. Raises
        OSError if it cannot be made.
        """
        if self._file is None:
            self._file = self._next_file()
        return self._file

    def prepare(self) -> None:
        """Make the file, so that a put can be refused if that is impossible. A full or broken disk is left to the
        commit, which knows what to do about it. Raises OSError.
        """
        if self._file is not None:
            return
        try:
            self._file = self._next_file()
        except OSError as error:
            if error.errno not in FULL_ERRNOS and error.errno not in BROKEN_ERRNOS:
                raise

    def _next_file(self) -> NewFile:
        self.fs.make_folder(self.path)
        path = f"{self.path}/{self._number + 1}"
        file = NewFile(self.fs, self.path, path)
        self._number += 1
        self._files.append(KeyFile(path, self.last))
        return file

    def _rotate(self, full: NewFile) -> None:
        """Go on with another file. If the system refuses it, the full one grows until the next try. Raises OSError if
        the disk is full or broken.
        """
        try:
            following = self._next_file()
        except OSError as error:
            if error.errno in FULL_ERRNOS or error.errno in BROKEN_ERRNOS:
                raise
            return
        full.sync()  # what follows in the next file may rest on it
        self.close_after_sync(full)
        self._file = following

    def write_and_sync(self) -> None:
        """Write what is pending; sync it if it must be durable. Raises OSError; a second call continues where the first
        one failed. Raises JournalFailure if the sync fails.
        """
        if not (self._pending or self._unwritten or self._must_sync):
            return
        if self._file is not None and self._file.size > FILE_BYTES and not self._unwritten:
            self._rotate(self._file)
        file = self.file
        self._unwritten += b"".join(self._pending)
        self._pending.clear()
        before = file.size
        try:
            file.write(self._unwritten)
        finally:
            self._unwritten = self._unwritten[file.size - before :]
        self._files[-1].last = self.last
        if self._must_sync:
            file.sync()
            self._must_sync = False

    def write(self) -> File:
        self.write_and_sync()
        return self.file

    def synced(self, now_ms: int) -> None:
        """Do nothing after a sync: the files have no work that waits for one."""

    def drop_files(self, oldest: int) -> None:
        """Remove the oldest files, FILES_PER_LOOK at most, whose puts all have numbers below `oldest`; not the one that
        is written to. If that fails, a later call tries again. Raises JournalFailure.
        """
        files = self._files
        with suppress(OSError):
            for _ in range(FILES_PER_LOOK):
                if not files or files[0].last >= oldest or (self._file is not None and len(files) == 1):
                    return
                if self._has_removed:  # no power cut may bring back a file without those behind it
                    self.fs.sync_folder(self.path)
                    self._has_removed = False
                self.fs.remove(files[0].path)
                self._has_removed = True
                del files[0]

    @property
    def is_lost(self) -> bool:
        """True if another program has removed, replaced or cut a file."""
        file = self._file
        with suppress(OSError):  # the disk cannot be read now: assume nothing is lost
            older = self._files if file is None else self._files[:-1]
            if file is not None and not file.is_at(self._files[-1].path):
                return True
            return any(is_missing(self.fs, old.path) for old in older)
        return False

    def write_anew(self, records: Iterable[Record]) -> None:
        """Write `records`, all that count, in place of the newest file, durably: a file is lost. Raises OSError,
        JournalFailure.
        """
        newest = self._files[-1]
        self.fs.make_folder(self.path)
        replace_file(self.fs, newest.path, b"".join(map(encode, records)))
        if self._file is not None:
            self.close_after_sync(self._file)
            self._file = None
        for file in self._files[:-1]:  # their records are in the new file, except those that do not count any more
            with suppress(OSError):
                self.fs.remove(file.path)
        self._files = [file for file in self._files if file is newest or not is_missing(self.fs, file.path)]
        newest.last = self.last
        self._pending.clear()
        self._unwritten = b""
        self._must_sync = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
