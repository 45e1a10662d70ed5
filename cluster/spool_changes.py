"""Changes of a spool's files, and their bytes in a record of the stream.

A record is a version and changes, one after another. Numbers are big endian.

    version     1   VERSION
    each change 1   kind
                2   bytes of the name; the name, relative to the spool
      CREATED       -
      APPENDED  8   at; 4 bytes of the data; the data
      OVERWRITTEN   as APPENDED
      TRUNCATED 8   size
      RENAMED   2   bytes of the new name; the new name
      REMOVED       -

Folders are not in it: a file that arrives makes its folder, and an empty one is no content. Nor are links: no file of a
spool has two replicated names.

A peer's bytes decode to these changes or raise BadRecord. Nothing is allocated for a length before the bytes are there,
and every name is one that a follower may have (spool_names.py), so none leaves the spool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct as Layout
from struct import error as LayoutError

from msgspec import Struct

from staniel.cluster.messages import RECORD_BYTES_MAX
from staniel.cluster.spool_names import is_replicated

VERSION = 1
CHANGES_MAX = 1 << 15  # in a record: smaller ones would be too many objects for a peer's bytes
PIECE_BYTES = 512 << 10  # of the data of one change

_HEAD = Layout(">BH")
_DATA = Layout(">QI")
_SIZE = Layout(">Q")
_NAME = Layout(">H")
_PLACE_MAX = 1 << 62


class ChangeKind(IntEnum):
    CREATED = 1
    APPENDED = 2
    OVERWRITTEN = 3
    TRUNCATED = 4
    RENAMED = 5
    REMOVED = 6


CREATED, APPENDED, OVERWRITTEN, TRUNCATED, RENAMED, REMOVED = (kind.value for kind in ChangeKind)
_VERSION = bytes((VERSION,))


class BadRecord(Exception):
    """The error for bytes that are no record of this version."""


class SpoolChange(Struct, frozen=True):
    """A change of the file `name` of a spool that has taken effect."""

    name: str


class FileCreated(SpoolChange, frozen=True):
    """The file is there, and empty."""


class FileAppended(SpoolChange, frozen=True):
    """Data at the end of the file, which is byte `at`."""

    at: int
    data: bytes


class FileOverwritten(SpoolChange, frozen=True):
    """Data in place of the bytes from `at` on, which is at most the end of the file."""

    at: int
    data: bytes


class FileTruncated(SpoolChange, frozen=True):
    """The file is cut to `size` bytes."""

    size: int


class FileRenamed(SpoolChange, frozen=True):
    """The file is now `new`, in place of any file of that name."""

    new: str


class FileRemoved(SpoolChange, frozen=True):
    """The file is gone."""


Change = FileCreated | FileAppended | FileOverwritten | FileTruncated | FileRenamed | FileRemoved


def encode_changes(changes: Iterable[Change]) -> Iterator[bytes]:
    """Yield records with these changes, in their order; large ones are in pieces."""
    pieces, size, count = [_VERSION], 1, 0
    for change in changes:
        for encoded in _encode(change):
            if size + len(encoded) > RECORD_BYTES_MAX or count == CHANGES_MAX:
                yield b"".join(pieces)
                pieces, size, count = [_VERSION], 1, 0
            pieces.append(encoded)
            size += len(encoded)
            count += 1
    if count:
        yield b"".join(pieces)


def _encode(change: Change) -> Sequence[bytes]:
    """Return the bytes of a change, or of several that are the same as this one."""
    name = change.name.encode("utf-8", "surrogateescape")
    if isinstance(change, FileAppended | FileOverwritten):
        at, data = change.at, change.data
        head = _HEAD.pack(APPENDED if isinstance(change, FileAppended) else OVERWRITTEN, len(name)) + name
        if len(data) <= PIECE_BYTES:
            return (b"".join((head, _DATA.pack(at, len(data)), data)),)
        begins = range(0, len(data), PIECE_BYTES)
        cut = [(at + begin, data[begin : begin + PIECE_BYTES]) for begin in begins]
        return [b"".join((head, _DATA.pack(place, len(piece)), piece)) for place, piece in cut]
    if isinstance(change, FileCreated):
        return (_HEAD.pack(CREATED, len(name)) + name,)
    if isinstance(change, FileRemoved):
        return (_HEAD.pack(REMOVED, len(name)) + name,)
    if isinstance(change, FileTruncated):
        return (_HEAD.pack(TRUNCATED, len(name)) + name + _SIZE.pack(change.size),)
    new = change.new.encode("utf-8", "surrogateescape")
    return (b"".join((_HEAD.pack(RENAMED, len(name)), name, _NAME.pack(len(new)), new)),)


def decode_changes(record: bytes) -> list[Change]:
    """Return the changes in a record. Raises BadRecord."""
    if len(record) > RECORD_BYTES_MAX:
        raise BadRecord(f"a record of {len(record)} bytes; {RECORD_BYTES_MAX} are allowed")
    if record[:1] != bytes((VERSION,)):
        raise BadRecord(f"a record of version {record[:1].hex() or 'none'}; this program reads {VERSION:02x}")
    reading = _RecordReader(record)
    changes: list[Change] = []
    while reading.at < len(record):
        if len(changes) == CHANGES_MAX:
            raise BadRecord(f"more than {CHANGES_MAX} changes in a record")
        changes.append(reading.change())
    if not changes:
        raise BadRecord("a record without a change")
    return changes


class _RecordReader:
    """The bytes of a record, from `at` on."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self.at = 1
        self._names: dict[bytes, str] = {}  # those that are checked: a record repeats them

    def change(self) -> Change:
        kind, length = self._unpack(_HEAD)
        name = self._name(length)
        if kind == APPENDED:
            return FileAppended(name, *self._data())
        if kind == OVERWRITTEN:
            return FileOverwritten(name, *self._data())
        if kind == CREATED:
            return FileCreated(name)
        if kind == REMOVED:
            return FileRemoved(name)
        if kind == TRUNCATED:
            return FileTruncated(name, self._place(self._unpack(_SIZE)[0]))
        if kind == RENAMED:
            new = self._name(self._unpack(_NAME)[0])
            if new == name:
                raise BadRecord(f"{name!r} is renamed to itself")
            return FileRenamed(name, new)
        raise BadRecord(f"a change of the unknown kind {kind}")

    def _data(self) -> tuple[int, bytes]:
        at, length = self._unpack(_DATA)
        if not length:
            raise BadRecord("a change without data")
        return self._place(at), self._take_bytes(length)

    def _place(self, place: int) -> int:
        if place > _PLACE_MAX:
            raise BadRecord(f"no file has a byte {place}")
        return place

    def _name(self, length: int) -> str:
        raw = self._take_bytes(length)
        name = self._names.get(raw)
        if name is None:
            name = raw.decode("utf-8", "surrogateescape")
            if not is_replicated(name):
                raise BadRecord(f"{name!r} is not the name of a file that followers have")
            self._names[raw] = name
        return name

    def _take_bytes(self, length: int) -> bytes:
        data = self._record[self.at : self.at + length]
        if len(data) < length:
            raise BadRecord(f"{length} bytes are claimed where {len(data)} are left")
        self.at += length
        return data

    def _unpack(self, layout: Layout) -> tuple[int, ...]:
        try:
            numbers: tuple[int, ...] = layout.unpack_from(self._record, self.at)
        except LayoutError:
            raise BadRecord("a change that is cut off") from None
        self.at += layout.size
        return numbers
