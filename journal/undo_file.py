"""The file of one operation that can be undone: the items that it takes, written and synced before they go.

It is a row of frames, each written and synced before the next one is begun:

    u32 bytes of the head · u32 bytes of the payload · u32 crc32 of the head · u32 crc32 of the payload · head · payload

Numbers are little-endian; the head is msgpack, one of the Structs below. A file begins with `Began`. A purge appends a
`Slice` for each piece of the queue, and `Over` when the disk has the last removal. An undo notes each slice that it is
about to return (`Returning`), and that the disk has its copies (`Returned`). `Kept` is written by the start after a
crash: those items of a slice are in their queue, and are not to be returned.

A move has no payload here: it appends a `Moved` for each piece before it sends that, with what its copies in the other
queue can be known by, and the times that they have lost. What of that is still there can be moved back.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from hashlib import blake2b
from zlib import crc32

import msgspec
from msgspec import Struct

from staniel.journal.background import CallbackTask
from staniel.journal.disk.fs import File, Fs
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.queues.item import Delivery, Item, Numbered, item_with, past_bytes

FOLDER = "undo"  # in the spool's own folder
FORMAT_VERSION, MOVES_VERSION = 1, 2  # of a purge's file, and of a move's, which came later
LENGTHS = struct.Struct("<IIII")


class UndoItem(Struct, frozen=True, array_like=True):
    """An item, without its payload. `xid` or `id` says which of several equal ones it is, as in transfer_log.Intent.
    `past`: an encoded queues.past.Past; files of earlier versions have none.
    """

    added_ms: int
    expires_ms: int
    flags: int
    size: int
    crc: int
    xid: int
    id: int
    past: bytes = b""

    def is_of(self, item: Item) -> bool:
        return (self.added_ms, self.size, self.crc) == (item.added_ms, len(item.data), crc32(item.data))


class Began(Struct, frozen=True, tag="began"):
    """Operation `id` took items from `queue`, whose name need not be UTF-8. `until_ms`: how long it can be undone.
    `target`: where a move has sent them.
    """

    version: int
    id: int
    at_ms: int
    until_ms: int
    operation: str
    queue: bytes
    target: bytes = b""


class Slice(Struct, frozen=True, tag="slice"):
    """Items from the head of the queue, in their order; the payload is theirs, one behind the other."""

    items: list[UndoItem]


class MovedItem(Struct, frozen=True, array_like=True):
    """The times of an item before it was moved, and what it is known by: its length and a digest of its payload."""

    added_ms: int
    expires_ms: int
    size: int
    digest: bytes

    @classmethod
    def of(cls, item: Item) -> MovedItem:
        return cls(item.added_ms, item.expires_ms, len(item.data), digest_of(item.data))


class Moved(Struct, frozen=True, tag="moved"):
    """Items that are about to be moved, in their order; each is added to the other queue with the time `at_ms`."""

    at_ms: int
    items: list[MovedItem]


class Over(Struct, frozen=True, tag="over"):
    """The disk has the removal of all items, but for those that are kept."""


class Kept(Struct, frozen=True, tag="kept"):
    """Items of slice number `slice`, by their places in it, that are in the queue."""

    slice: int
    places: list[int]


class Returning(Struct, frozen=True, tag="returning"):
    """Slice number `slice` is about to be returned: its copies will be found behind the file numbered `after`, at byte
    `at` or later, as in transfer_log.Intent.
    """

    slice: int
    after: int
    at: int


class Returned(Struct, frozen=True, tag="returned"):
    """The disk has all copies of slice number `slice`."""

    slice: int


Head = Began | Slice | Moved | Over | Kept | Returning | Returned
_DECODER = msgspec.msgpack.Decoder(Head)


class Place(Struct, frozen=True):
    """Where a slice lies in its file: its frame, and how many items and bytes of payload it has."""

    at: int
    size: int
    items: int
    payload_bytes: int


class UndoContent(Struct):
    """What a file tells. `end`: behind its last whole frame; `kept`: by slice; `returning`: the slice of which it is
    not known whether it has been returned.
    """

    began: Began
    end: int = 0
    slices: list[Place] = []
    kept: dict[int, frozenset[int]] = {}
    is_over: bool = False
    returning: Returning | None = None
    returned: set[int] = set()

    def apply(self, head: Head, at: int, size: int) -> None:
        """A frame of `size` bytes at `at`."""
        match head:
            case Slice(items) | Moved(_, items):
                self.slices.append(Place(at, size, len(items), sum([item.size for item in items])))
            case Over():
                self.is_over = True
            case Kept(number, places):
                self.kept[number] = self.kept.get(number, frozenset()) | frozenset(places)
                if self.returning is not None and self.returning.slice == number:
                    self.returning = None
            case Returning():
                self.returning = head
            case Returned(number):
                self.returned.add(number)
                self.returning = None
            case Began():
                pass
        self.end = at + size

    def add_slice(self, taken: list[Delivery], size: int) -> None:
        """A frame of `size` bytes with these items has been written."""
        self.slices.append(Place(self.end, size, len(taken), sum([len(each.item.data) for each in taken])))
        self.end += size

    @property
    def is_settled(self) -> bool:
        """Whether it is known which of its items are in their queue, whatever becomes of the journal. Of a move it
        does not matter: they are where they are.
        """
        return bool(self.began.target) or (self.is_over and self.returning is None)

    @property
    def left(self) -> list[int]:
        """The numbers of the slices that are not returned."""
        return [number for number in range(len(self.slices)) if number not in self.returned]

    def counts(self) -> tuple[int, int]:
        """(items, about how many bytes of payload) that an undo would return."""
        left = [(self.slices[number], len(self.kept.get(number, ()))) for number in self.left]
        return sum([place.items - kept for place, kept in left]), sum([place.payload_bytes for place, _ in left])


def digest_of(data: bytes) -> bytes:
    """What no two payloads share, by accident or on purpose."""
    return blake2b(data, digest_size=16).digest()


def frame(head: Head, payload: bytes = b"") -> bytes:
    body = msgspec.msgpack.encode(head)
    return LENGTHS.pack(len(body), len(payload), crc32(body), crc32(payload)) + body + payload


def slice_frame(taken: list[Delivery]) -> bytes:
    """The frame of items that have just been set aside."""
    return frame(Slice([_described(each) for each in taken]), b"".join([each.item.data for each in taken]))


def _described(taken: Delivery) -> UndoItem:
    item = taken.item
    item_id = item.id if isinstance(item, Numbered) else 0
    xid = 0 if item_id else taken.xid
    times, crc = (item.added_ms, item.expires_ms), crc32(item.data)
    return UndoItem(*times, item.flags, len(item.data), crc, xid, item_id, past_bytes(item))


class Unusable(Enum):
    """Why a file tells nothing that can be undone."""

    EMPTY = "it was cut off before anything was taken"
    LATER = "a later version has written it"


def read_content(fs: Fs, path: str) -> UndoContent | Unusable:
    """What the file tells, up to its first frame that is not whole. Raises OSError."""
    found: UndoContent | None = None
    size, at = fs.size(path), 0
    while (entry := _head_at(fs, path, at, size)) is not None:
        head, length = entry
        if head is None or (isinstance(head, Began) and head.version > MOVES_VERSION):
            return Unusable.LATER  # whole, and of a kind that is not known here
        if found is None:
            if not isinstance(head, Began):
                return Unusable.EMPTY
            found = UndoContent(head)
        found.apply(head, at, length)
        at += length
    return found or Unusable.EMPTY


def _head_at(fs: Fs, path: str, at: int, size: int) -> tuple[Head | None, int] | None:
    """The head of the frame at byte `at`, None if it says nothing that is known here, and the frame's length; None if
    the frame is not whole. The payload is read only of the last frame: those before it were synced before another was
    begun.
    """
    lengths = fs.read(path, at, LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_bytes, payload_bytes, head_crc, payload_crc = LENGTHS.unpack(lengths)
    length = LENGTHS.size + head_bytes + payload_bytes
    if not head_bytes or at + length > size:
        return None
    body = fs.read(path, at + LENGTHS.size, head_bytes)
    if crc32(body) != head_crc:
        return None
    if at + length == size and crc32(fs.read(path, at + LENGTHS.size + head_bytes, payload_bytes)) != payload_crc:
        return None
    try:
        return _DECODER.decode(body), length
    except UNDECODABLE:
        return None, length


def read_moved(data: bytes) -> Moved | None:
    """What the frame of a piece of a move tells; None if it is damaged."""
    if len(data) < LENGTHS.size:
        return None
    head_bytes, _, head_crc, _ = LENGTHS.unpack_from(data)
    body = data[LENGTHS.size : LENGTHS.size + head_bytes]
    if len(body) != head_bytes or crc32(body) != head_crc:
        return None
    try:
        head = _DECODER.decode(body)
    except UNDECODABLE:
        return None
    return head if isinstance(head, Moved) else None


def read_items(data: bytes) -> list[tuple[UndoItem, Item]] | None:
    """The items of the frame of a slice; None if it is damaged."""
    if len(data) < LENGTHS.size:
        return None
    head_bytes, payload_bytes, head_crc, payload_crc = LENGTHS.unpack_from(data)
    body = data[LENGTHS.size : LENGTHS.size + head_bytes]
    payload = data[LENGTHS.size + head_bytes :]
    if len(payload) != payload_bytes or crc32(body) != head_crc or crc32(payload) != payload_crc:
        return None
    try:
        head = _DECODER.decode(body)
    except UNDECODABLE:
        return None
    return list(_items(head.items, payload)) if isinstance(head, Slice) else None


def _items(described: list[UndoItem], payload: bytes) -> Iterator[tuple[UndoItem, Item]]:
    at = 0
    for each in described:
        yield each, item_with(each.past, payload[at : at + each.size], each.added_ms, each.expires_ms, each.flags)
        at += each.size


class AppendFrames(CallbackTask):
    """Write `data` at the end of an undo file, and sync it; its name too, if `folder` is not empty."""

    def __init__(
        self, file: File, data: bytes, fs: Fs, folder: str, then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._file, self._data = file, data
        self._fs, self._folder = fs, folder

    def work(self) -> None:
        self._file.write(self._data)
        self._file.sync()
        if self._folder:
            self._fs.sync_folder(self._folder)
