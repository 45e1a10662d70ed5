"""The log of transfers from one journal to another, so that recovery can finish those that a crash has interrupted.

It is one small file in the spool's own folder, with a line of JSON for each record: the item to move, and the place of
its copy. The order makes it safe: the intent is durable before the copy is written, and the copy is durable before the
removal is recorded. So after a crash there is the item, or the item and an intent with its copy, or the copy alone.
Neither journal is rewritten before the intent's end is durable, too: until then recovery may read the intent again, and
must find both as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from typing import TypeVar
from zlib import crc32

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from staniel.journal.disk.fs import FULL_ERRNOS, File, Fs
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import replace_file
from staniel.queues.item import Delivery, Item, Numbered

RESTART_BYTES = 1 << 20
BY_ID = 1 << 62
"""The least `at` of an intent that is no byte, but this plus the least id that the copy may have."""
NAMES = ("source", "target")
HEX_SIGN = "/"
CHECKSUM = b',"check":'
MENDED_BYTES_MAX = 2048  # of a line, which has about 300; trying every bit of such a line takes 10 ms
MENDED_LINES_MAX = 50
RecordT = TypeVar("RecordT")


class FilePosition(Struct, frozen=True, order=True):
    """A position: byte `at` of the file with number `file`. Kestrel's current file, which has no number, counts as the
    last.
    """

    file: int
    at: int


class Fate(Enum):
    """The known outcome of a copy."""

    UNKNOWN = "unknown"
    LANDED = "landed"  # the copy is durable; noted only if its source cannot be read


class Intent(Struct, frozen=True, forbid_unknown_fields=True):
    """The intent to remove an item of `source`, added there at `was_added_ms`, once its copy is in `target`.

    `xid` or `id` identifies the item among equal ones: in Kestrel's format by the number of the transaction under which
    it left, in libkestrel's by its id. An intent of an older version has neither.

    The copy is in the target's journal, at byte `at` or later of the first file with a number above `after` (the
    current file counts as the last), or, with an `at` from BY_ID on, has that id or a higher one. `added_ms`, `size`
    and `crc` are the copy's.
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
    xid: int = 0
    id: int = 0
    fate: Fate = Fate.UNKNOWN

    @property
    def copy_key(self) -> tuple[int, int, int]:
        """The values that identify the copy. Copies with equal keys are distinguished by their places."""
        return self.added_ms, self.size, self.crc

    def matches(self, item: Item, item_id: int) -> bool:
        """Tell whether `item` is the one to be removed. If the intent has neither a transaction nor an id, any equal
        item is.
        """
        if self.id and item_id != self.id:
            return False
        return key_of(item) == (self.was_added_ms, self.size, self.crc)

    def is_torn(self, item: Item) -> bool:
        """Tell whether `item`, found at the place of the copy, is the copy after a power cut, with zeros in place of
        some bytes.
        """
        if len(item.data) != self.size or key_of(item) == self.copy_key:
            return False
        item_time, written = item.added_ms.to_bytes(8, "little", signed=True), self.added_ms.to_bytes(8, "little")
        return all(byte in (0, right) for byte, right in zip(item_time, written, strict=True))


def key_of(item: Item) -> tuple[int, int, int]:
    """Return (add time, size, checksum) of an item. Ids change when a journal is rewritten, these values do not."""
    return item.added_ms, len(item.data), crc32(item.data)


class Done(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of the intent with number `end`."""

    end: int


class TransferLogDamage(Struct):
    """The damage found when the file was read: how many lines were corrected, and how many are lost."""

    mended: int = 0
    lost: int = 0

    @property
    def lines(self) -> int:
        return self.mended + self.lost


def encode(record: Intent | Done) -> bytes:
    """Return the line of a record. Its last field is a checksum of the bytes before it."""
    try:
        body = msgspec.json.encode(record)[:-1]
    except UnicodeEncodeError:
        spelled = {key: spelled_name(getattr(record, key)) for key in NAMES}
        body = msgspec.json.encode(replace(record, **spelled))[:-1]
    return b"%b%b%d}\n" % (body, CHECKSUM, crc32(body))


def decode(line: bytes) -> Intent | Done | None:
    """Decode a line; None if it has changed since it was written. A line of an earlier version has no checksum."""
    body, has_checksum, checksum = line.rpartition(CHECKSUM)
    if has_checksum and checksum != b"%d}" % crc32(body):
        return None
    whole = body + b"}" if has_checksum else line
    try:
        if whole.startswith(b'{"end"'):
            return msgspec.json.decode(whole, type=Done)
        intent = msgspec.json.decode(whole, type=Intent)
        return replace(intent, source=read_name(intent.source), target=read_name(intent.target))
    except UNDECODABLE:
        return None


def correct_line(line: bytes, decode: Callable[[bytes], RecordT]) -> RecordT | None:
    """Decode a line with one wrong bit, which the checksum identifies. Return None if there is no such bit."""
    bent = bytearray(line)
    for at in range(len(bent)):
        for bit in range(8):
            bent[at] ^= 1 << bit
            if CHECKSUM in bent and (record := decode(bytes(bent))) is not None:
                return record
            bent[at] ^= 1 << bit
    return None


def spelled_name(name: str) -> str:
    """Return a name as JSON can represent it. A file name need not be UTF-8; such a name becomes a slash, which no name
    contains, and hexadecimal digits.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return HEX_SIGN + name.encode("utf-8", "surrogateescape").hex()
    return name


def read_name(spelled: str) -> str:
    """Return the name that `spelled_name` has spelled."""
    if not spelled.startswith(HEX_SIGN):
        return spelled
    return bytes.fromhex(spelled.removeprefix(HEX_SIGN)).decode("utf-8", "surrogateescape")


class TransferLog:
    """The log, as a file that is appended to. `write_and_sync` must run before anything else is written in the same
    tick. To the commit group it is a journal like others, so that the end of an intent can wait for a sync (see
    GroupMember).
    """

    batch = 0
    sync_ms = -1
    is_erased = False

    def __init__(self, fs: Fs, path: str) -> None:
        self.fs = fs
        self.path = path
        self.damage = TransferLogDamage()
        self.kept: dict[int, Intent] = {}
        """By number: intents of an earlier run whose outcome cannot be known yet."""
        self._file: File | None = None
        self._pending: list[bytes] = []
        self.on_pending: Callable[[], None] = lambda: None  # called when `write_and_sync` has something to write
        self._unwritten = b""
        self._under_way = 0  # transfers of this run whose end is not durable
        self._begun: dict[int, bytes] = {}  # by number: the lines of intents without a recorded end
        self._restart_bytes = RESTART_BYTES
        self.close_after_sync: Callable[[File], None] = File.close  # closes a file that a sync may still use
        self._last = 0
        self._must_sync = False

    def read(self) -> list[Intent]:
        """Read the intents of an earlier run, in their order. A torn last line was never used; `damage` counts the
        other unreadable lines. Raises OSError.
        """
        intents: dict[int, Intent] = {}
        self.damage = TransferLogDamage()
        try:
            data = self.fs.read(self.path, 0, self.fs.size(self.path))
        except FileNotFoundError:
            data = b""
        *lines, _torn = data.split(b"\n")
        for line in lines:
            record = self._decoded(line)
            if isinstance(record, Done):
                intents.pop(record.end, None)
            elif record is not None:
                intents[record.begin] = record
                self._last = max(self._last, record.begin)
        return list(intents.values())

    def _decoded(self, line: bytes) -> Intent | Done | None:
        """Decode a line, corrected if that is possible. If not, return None and count the line as lost."""
        record = decode(line)
        if record is None and len(line) <= MENDED_BYTES_MAX and self.damage.lines < MENDED_LINES_MAX:
            record = correct_line(line, decode)
            self.damage.mended += record is not None
        self.damage.lost += record is None
        return record

    def reserve(self) -> int:
        """Return a new number for an intent in another file."""
        self._last += 1
        return self._last

    def log_intent(self, source: str, delivery: Delivery, target: str, position: tuple[int, int], copy: Item) -> int:
        """Write down an intent. Return the number that ends it. `position`: where the copy will be written."""
        self._last += 1
        self._under_way += 1
        item_id = delivery.item.id if isinstance(delivery.item, Numbered) else 0
        xid = 0 if item_id else delivery.xid
        intent = Intent(self._last, source, delivery.item.added_ms, target, *position, *key_of(copy), xid, item_id)
        self._begun[self._last] = line = encode(intent)
        self._pending.append(line)
        self.on_pending()
        self._must_sync = True
        return self._last

    def end_intent(self, number: int) -> None:
        """End an intent. The removal is durable."""
        self.kept.pop(number, None)
        self._begun.pop(number, None)
        self._append(Done(number))

    def end_durably(self, number: int) -> None:
        """End a kept intent whose copy has not arrived, before anything else is written: its item may go
        elsewhere now.
        """
        self.end_intent(number)
        self._must_sync = True

    def abandon(self, number: int) -> None:
        """Stop waiting for the outcome of a kept intent, whose source is deleted. It stays in the file until `end`."""
        self._begun[number] = encode(self.kept.pop(number))

    def retain(self, intent: Intent) -> None:
        """Write down the fate of a kept intent."""
        if self.kept[intent.begin] != intent:
            self.kept[intent.begin] = intent
            self._append(intent)
            self._must_sync = True

    def end_synced(self) -> None:
        """Note that the end of an intent of this run is durable."""
        self._under_way -= 1

    def _append(self, record: Intent | Done) -> None:
        self._pending.append(encode(record))
        self.on_pending()

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.fs.append(self.path)
        return self._file

    def write_and_sync(self) -> None:
        """Write what is pending, and sync it if a transfer has begun. Raises OSError; a second call continues where the
        first one failed. Raises JournalFailure if the sync fails.
        """
        if not (self._pending or self._unwritten or self._must_sync):
            return
        file = self.file
        self._unwritten += b"".join(self._pending)
        self._pending.clear()
        before = file.size
        try:
            file.write(self._unwritten)
        finally:
            self._unwritten = self._unwritten[file.size - before :]
        if self._must_sync:
            file.sync()
            self._must_sync = False
        if file.size > self._restart_bytes:
            if self._under_way or self._begun:  # `_begun` includes abandoned ones
                self._go_on_in_another_file(file)
            else:
                self.restart(self.kept.values())

    def write(self) -> File:
        self.write_and_sync()
        return self.file

    def synced(self, now_ms: int) -> None:
        """Do nothing after a sync: no work of this file waits for one."""

    def restart(self, intents: Iterable[Intent] = ()) -> None:
        """Rewrite the file with only `intents`. No transfer is under way."""
        self._restart_bytes = RESTART_BYTES
        self.kept = {intent.begin: intent for intent in intents}
        self.close()
        if self.kept:
            lines = [encode(intent) for intent in self.kept.values()]
            replace_file(self.fs, self.path, b"".join(lines))
            return
        self.fs.append(self.path).close()
        self.fs.truncate(self.path, 0)
        self._file = self.fs.append(self.path)
        self.fs.sync_folder(self.path.rpartition("/")[0])

    @property
    def is_lost(self) -> bool:
        """True if another program has removed, replaced or cut the file."""
        with suppress(OSError):  # the disk cannot say
            return self._file is not None and not self._file.is_at(self.path)
        return False

    def write_anew(self) -> None:
        """Write the intents that have not ended to a new file, durably, in place of a lost one. Raises OSError,
        JournalFailure.
        """
        file = self.file
        replace_file(self.fs, self.path, self._unended())
        self._pending.clear()
        self._unwritten = b""
        self._must_sync = False
        self._file = None
        self.close_after_sync(file)

    def _unended(self) -> bytes:
        """Return the lines of all intents without a recorded end."""
        return b"".join([*(encode(intent) for intent in self.kept.values()), *self._begun.values()])

    def _go_on_in_another_file(self, file: File) -> None:
        """Write the intents that have not ended to a new file, and replace this one by it. Everything is written;
        transfers may be under way. Raises OSError.
        """
        data = self._unended()
        try:
            replace_file(self.fs, self.path, data)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self._restart_bytes = 2 * file.size
            return
        self._restart_bytes = max(RESTART_BYTES, 2 * len(data))
        self._file = None
        self.close_after_sync(file)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
