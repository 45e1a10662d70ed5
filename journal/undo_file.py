"""The file of one operation that can be undone: the items that it takes, written and synced before they are removed.

The file is a row of frames, each written and synced before the next one is begun:

    u32 bytes of the head · u32 bytes of the payload · u32 crc32 of the head · u32 crc32 of the payload · head · payload

Numbers are little-endian; the head is msgpack, one of the Structs below. A file begins with `Began`. A purge appends a
`Slice` for each piece of the queue, and `Over` when the last removal is durable. An undo appends `Returning` before it
returns a slice, and `Returned` when the slice's copies are durable. Recovery appends `Kept` after a crash: those items
of a slice are in their queue, and must not be returned.

An operation that a crash or a stop has cut off continues at the next startup. So `Began` has the number of wanted items
and the client that asked, and `Over` says that the operation has ended. `UndoBegan` and `UndoEnded` are the same for an
undo.

A move stores no payload here. Its `Moving` is written and synced before the items of a slice are copied. Like
transfer_log.Intent, it says which items leave and where their copies will be. `Back` is the same for an undo. Slices
below the numbers of `Settled` need no check of the journals: their items have arrived, and their removal is durable.

A redrive that sends each item home is a move whose `Moving` names its target; the items of a `Back` were there.

A move of an earlier version appends a `Moved` for each piece instead: the size and digest that identify its copies, and
the times that the items had before.
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
RESUMED_VERSION = 3  # of files whose operations continue after a crash; those of 1 (purges) and 2 (moves) do not
HOMEWARD_VERSION = 4  # of redrives that send each item home: earlier versions would take one for a purge
DELETE = "delete"  # the operation that takes all items of a queue, then deletes it
LENGTHS = struct.Struct("<IIII")
FileNumber = int | str
"""A number of a file. Its name may have any number of digits, but an integer in msgpack has at most 64 bits; see
`file_number`.
"""


def file_number(number: int) -> FileNumber:
    """Return `number` as a frame stores it; int() reverses it."""
    return number if number < 1 << 64 else str(number)


class UndoItem(Struct, frozen=True, array_like=True):
    """An item, without its payload. `xid` or `id` identifies it among equal ones, as in transfer_log.Intent. `past`: an
    encoded queues.past.Past; files of earlier versions have none.
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
    """The start of operation `id`, which takes items from `queue`, whose name need not be UTF-8. `until_ms`: how long
    it can be undone. `target`: where a move sends the items. `total`: the number of items to take. `client`,
    `protocol`, `user`: who asked for it. `is_kept`: the file stays for an undo when the operation has ended.
    `is_chosen`: the items are not the first ones of the queue, so recovery cannot continue the operation; `total` is 0.
    `is_homeward`: each item goes to the queue that it comes from, and each slice has its target.
    """

    version: int
    id: int
    at_ms: int
    until_ms: int
    operation: str
    queue: bytes
    target: bytes = b""
    total: int = 0
    client: str = ""
    protocol: str = ""
    user: str = ""
    is_kept: bool = True
    is_chosen: bool = False
    is_homeward: bool = False

    @property
    def carries_items(self) -> bool:
        """True if the items go to another queue, not into the file."""
        return bool(self.target) or self.is_homeward


class Slice(Struct, frozen=True, tag="slice"):
    """Items from the head of the queue, in their order. The payload is theirs, one after another. `left`: how many more
    items the operation wants, at most.
    """

    items: list[UndoItem]
    left: int = 0


class MovedItem(Struct, frozen=True, array_like=True):
    """The times of an item before it was moved, and its length and a digest of its payload, which identify it later."""

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


class MovingItem(Struct, frozen=True, array_like=True):
    """A MovedItem, with what recovery needs to finish its move: a checksum, and its identity among equal items. `past`:
    an encoded queues.past.Past, if the format of the target has no room for one.
    """

    added_ms: int
    expires_ms: int
    size: int
    digest: bytes
    crc: int
    xid: int
    id: int
    past: bytes = b""


class Moving(Struct, frozen=True, tag="moving"):
    """Items that are about to be moved, in their order, at the time `at_ms`. `after` and `at` say where their copies
    will be, as in transfer_log.Intent. `left`: as in Slice. `target`: the queue of the copies; empty: that of Began.
    """

    at_ms: int
    after: FileNumber
    at: int
    items: list[MovingItem]
    left: int = 0
    target: bytes = b""


class BackItem(Struct, frozen=True, array_like=True):
    """An item of a move, by its slice and its place there, that is moved back. It was added at `was_added_ms` to the
    queue that it leaves now, and at `added_ms` to the queue that it returns to.
    """

    slice: int
    place: int
    was_added_ms: int
    added_ms: int
    size: int
    crc: int
    xid: int
    id: int


class Back(Struct, frozen=True, tag="back"):
    """Items that are about to be moved back. The place of their copies is as in Moving."""

    after: FileNumber
    at: int
    items: list[BackItem]


class Settled(Struct, frozen=True, tag="settled"):
    """The first `slices` slices and the first `backs` Backs have arrived or never will, durably. Copies of the others
    are after the place of `after` and `at`, as in Moving; 0 and 0: no such place is known.
    """

    slices: int
    backs: int
    after: FileNumber = 0
    at: int = 0


class UndoBegan(Struct, frozen=True, tag="undo-began"):
    """The start of undo number `id`, of `total` items. The client that asked is described as in Began."""

    id: int
    at_ms: int
    total: int
    client: str
    protocol: str
    user: str


class UndoEnded(Struct, frozen=True, tag="undo-ended"):
    """The end of the undo. Items that it has not returned can be returned by another one."""


class Over(Struct, frozen=True, tag="over"):
    """The end of the operation: the removal of all items is durable, except of kept ones."""


class DeleteEnded(Struct, frozen=True, tag="ended"):
    """The end of a delete, after `Over`: its queue is deleted, or stays after all."""


class Kept(Struct, frozen=True, tag="kept"):
    """Items of slice number `slice` that are in the queue, by their places in the slice."""

    slice: int
    places: list[int]


class Returning(Struct, frozen=True, tag="returning"):
    """The start of the return of slice number `slice`. Its copies will be after the file with number `after`, at byte
    `at` or later, as in transfer_log.Intent. They have times before `before_ms` of the wall clock: the copy of an item
    with a later time has the ms before that. 0: the copies have the times of their items, as in files of an earlier
    version.
    """

    slice: int
    after: FileNumber
    at: int
    before_ms: int = 0


class Returned(Struct, frozen=True, tag="returned"):
    """The end of the return of slice number `slice`. All its copies are durable."""

    slice: int


Head = (
    Began
    | Slice
    | Moved
    | Moving
    | Over
    | DeleteEnded
    | Kept
    | Returning
    | Returned
    | Back
    | Settled
    | UndoBegan
    | UndoEnded
)
_DECODER = msgspec.msgpack.Decoder(Head)


class Place(Struct, frozen=True):
    """The place of a slice in its file: its frame, its number of items and its bytes of payload. `target`: as in
    Moving.
    """

    at: int
    size: int
    items: int
    payload_bytes: int
    target: bytes = b""

    @property
    def end(self) -> int:
        return self.at + self.size


class Behind(Struct, frozen=True):
    """The place where the settled copies end, as (after, at) of a Moving, when there were `count` slices or Backs. It
    does not apply to later ones: when none is under way, the other queue's journal may be rewritten.
    """

    place: tuple[int, int] = (0, 0)
    count: int = 0

    def end_for(self, number: int, announced: tuple[int, int]) -> tuple[int, int]:
        """Return the place after which the copies of number `number` may be; it was `announced`."""
        return max(announced, self.place) if number < self.count else announced


class UndoContent(Struct):
    """The content of a file. `end`: the end of its last whole frame. `kept`: by slice. `returning`: the slice that may
    or may not have been returned. `undoing`: an undo that has not ended. `wanted`: how many more items than those of
    the slices the operation was to take.
    """

    began: Began
    end: int = 0
    slices: list[Place] = []
    kept: dict[int, frozenset[int]] = {}
    is_over: bool = False
    returning: Returning | None = None
    returned: set[int] = set()
    backs: list[Place] = []
    settled: int = 0
    settled_backs: int = 0
    wanted: int = 0
    undoing: UndoBegan | None = None
    is_ended: bool = False
    moved_behind: dict[str, Behind] = {}  # by target
    returned_behind: Behind = Behind()

    @property
    def has_queue_left(self) -> bool:
        """True for a delete that may have been cut off before its queue was deleted."""
        began = self.began
        return self.is_over and not self.is_ended and began.operation == DELETE and began.version >= RESUMED_VERSION

    @property
    def is_cut_off(self) -> bool:
        """True if the operation continues at the next startup."""
        return self.began.version >= RESUMED_VERSION and not self.is_over

    @property
    def is_settled(self) -> bool:
        """True if the file alone shows which of its items are in which queue, without a check of the journals."""
        return not self.routes

    @property
    def routes(self) -> list[tuple[str, str]]:
        """The (source, target) pairs of queues between which items may be on their way. Both may be the same queue;
        with a target of "" items may only be leaving the source.
        """
        began, queue = self.began, _name(self.began.queue)
        if not began.carries_items:
            return [(queue, "" if self.returning is None else queue)] if not self.is_over or self.returning else []
        is_moved = began.version < RESUMED_VERSION
        under_way = [] if is_moved else range(self.settled, len(self.slices))
        routes = [(queue, target) for target in dict.fromkeys(map(self.target_of, under_way))]
        return routes + ([] if self.settled_backs == len(self.backs) else [(target, queue) for target in self.targets])

    @property
    def targets(self) -> list[str]:
        """The queues that the items were sent to; () for a purge."""
        if not self.began.is_homeward:
            return [_name(self.began.target)] if self.began.target else []
        return [_name(target) for target in dict.fromkeys([place.target for place in self.slices])]

    @property
    def queues(self) -> list[str]:
        """The queues that the operation affects: its source first, then its targets."""
        return list(dict.fromkeys([_name(self.began.queue), *self.targets]))

    def target_of(self, number: int) -> str:
        """Return the queue that the items of a slice were sent to."""
        return _name(self.slices[number].target or self.began.target)

    def apply(self, head: Head, at: int, size: int) -> None:
        """Apply the frame of `size` bytes at `at`, whose head is `head`."""
        match head:
            case Slice(items, left) | Moving(_, _, _, items, left):
                self.wanted, self.is_over = left, False
                target = head.target if isinstance(head, Moving) else b""
                self.slices.append(Place(at, size, len(items), sum([item.size for item in items]), target))
            case Moved(_, items):
                self.slices.append(Place(at, size, len(items), sum([item.size for item in items])))
            case Back(_, _, items):
                self.backs.append(Place(at, size, len(items), 0))
            case Settled(slices, backs, after, last):
                begin = int(after), last
                if begin == (0, 0):  # none of it was copied, so facts about earlier copies still apply
                    pass
                elif backs > self.settled_backs:
                    self.returned_behind = Behind(begin, len(self.backs))
                elif slices:
                    self.moved_behind[self.target_of(slices - 1)] = Behind(begin, len(self.slices))
                self.settled, self.settled_backs = slices, backs
            case UndoBegan():
                self.undoing = head
            case UndoEnded():
                self.undoing = None
            case Over():
                self.is_over = True
            case DeleteEnded():
                self.is_ended = True
            case Kept(number, places):
                kept_before = self.kept.get(number, frozenset())
                self.kept[number] = kept_before | frozenset(places)
                if not (self.is_over or self.undoing or self.began.is_chosen):  # recovery continues with those, too
                    self.wanted += len(self.kept[number]) - len(kept_before)
                if self.returning is not None and self.returning.slice == number:
                    self.returning = None
            case Returning():
                self.returning = head
            case Returned(number):
                self.returned.add(number)
                self.returning = None
            case Began(total=total):
                self.wanted = total
        self.end = at + size

    def add_slice(self, reads: list[Delivery], size: int) -> None:
        """Add the slice of these items. Its frame of `size` bytes has been written at the end of the file."""
        self.slices.append(Place(self.end, size, len(reads), sum([len(read.item.data) for read in reads])))
        self.end += size

    @property
    def left(self) -> list[int]:
        """The numbers of the slices that are not returned."""
        return [number for number in range(len(self.slices)) if number not in self.returned]

    def counts(self) -> tuple[int, int]:
        """Return (items, roughly how many bytes of payload) that an undo would return."""
        left = [(self.slices[number], len(self.kept.get(number, ()))) for number in self.left]
        return sum([place.items - kept for place, kept in left]), sum([place.payload_bytes for place, _ in left])


def _name(queue: bytes) -> str:
    return queue.decode("utf-8", "surrogateescape")


def digest_of(data: bytes) -> bytes:
    """Return a digest of 16 bytes. No two payloads have the same one, neither by accident nor on purpose."""
    return blake2b(data, digest_size=16).digest()


def frame(head: Head, payload: bytes = b"") -> bytes:
    body = msgspec.msgpack.encode(head)
    return LENGTHS.pack(len(body), len(payload), crc32(body), crc32(payload)) + body + payload


def slice_frame(reads: list[Delivery], left: int = 0) -> bytes:
    """Return the frame of items that have just been set aside; `left` more are wanted."""
    return frame(Slice([_described(read) for read in reads], left), b"".join([read.item.data for read in reads]))


def _described(read: Delivery) -> UndoItem:
    item = read.item
    item_id = item.id if isinstance(item, Numbered) else 0
    xid = 0 if item_id else read.xid
    times, crc = (item.added_ms, item.expires_ms), crc32(item.data)
    return UndoItem(*times, item.flags, len(item.data), crc, xid, item_id, past_bytes(item))


class Unusable(Enum):
    """The reason why nothing in a file can be undone."""

    EMPTY = "it was cut off before anything was taken"
    LATER = "a later version has written it"


def read_content(fs: Fs, path: str) -> UndoContent | Unusable:
    """Read the content of the file, up to its first incomplete frame. Raises OSError."""
    content: UndoContent | None = None
    entry = _frame_at(fs, path, 0)
    while entry is not None:
        following = _frame_at(fs, path, entry.end)
        # Frames before the last one were synced before another was begun.
        if following is None and not entry.has_whole_payload(fs, path):
            break
        head = entry.head
        if head is None or (isinstance(head, Began) and head.version > HOMEWARD_VERSION):
            return Unusable.LATER  # whole, but of a kind unknown to this version
        if content is None:
            if not isinstance(head, Began):
                return Unusable.EMPTY
            content = UndoContent(head)
        content.apply(head, entry.at, entry.end - entry.at)
        entry = following
    return content or Unusable.EMPTY


def carries_items(fs: Fs, path: str) -> bool:
    """Return True if the file belongs to an operation that carries items from one queue to another. Until it ends, the
    journals of both are complete only together with the file. Raises OSError.
    """
    entry = _frame_at(fs, path, 0)
    return entry is not None and isinstance(entry.head, Began) and entry.head.carries_items


def is_name(name: str) -> bool:
    """Return True if this is the name of an operation's file."""
    return name.isascii() and name.isdigit()


class _Frame(Struct, frozen=True):
    """A frame whose head is whole. `head`: None if this version does not know its kind."""

    at: int
    head: Head | None
    payload_at: int
    end: int
    payload_crc: int

    def has_whole_payload(self, fs: Fs, path: str) -> bool:
        """Return True if the payload has its checksum. Raises OSError."""
        return crc32(fs.read(path, self.payload_at, self.end - self.payload_at)) == self.payload_crc


def _frame_at(fs: Fs, path: str, at: int) -> _Frame | None:
    """Read the frame at `at`; None if the file lacks some of its bytes, or its head is damaged. Raises OSError."""
    lengths = fs.read(path, at, LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    head_bytes, payload_bytes, head_crc, payload_crc = LENGTHS.unpack(lengths)
    payload_at = at + LENGTHS.size + head_bytes
    end = payload_at + payload_bytes
    if not head_bytes or end > fs.size(path):
        return None
    body = fs.read(path, at + LENGTHS.size, head_bytes)
    if crc32(body) != head_crc:
        return None
    try:
        return _Frame(at, _DECODER.decode(body), payload_at, end, payload_crc)
    except UNDECODABLE:
        return _Frame(at, None, payload_at, end, payload_crc)


def read_moved(data: bytes) -> Moved | Moving | None:
    """Read the head of the frame of a piece of a move; None if it is damaged."""
    head = _read_head(data)
    return head if isinstance(head, Moved | Moving) else None


def read_back(data: bytes) -> Back | None:
    """Read the head of the frame of a piece of a move's undo; None if it is damaged."""
    head = _read_head(data)
    return head if isinstance(head, Back) else None


def _read_head(data: bytes) -> Head | None:
    """Read the head of a frame, ignoring its payload; None if the head is damaged."""
    if len(data) < LENGTHS.size:
        return None
    head_bytes, _, head_crc, _ = LENGTHS.unpack_from(data)
    body = data[LENGTHS.size : LENGTHS.size + head_bytes]
    if len(body) != head_bytes or crc32(body) != head_crc:
        return None
    try:
        head: Head = _DECODER.decode(body)
    except UNDECODABLE:
        return None
    return head


def read_items(data: bytes) -> list[tuple[UndoItem, Item]] | None:
    """Read the items of the frame of a slice; None if it is damaged."""
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
    for item in described:
        yield item, item_with(item.past, payload[at : at + item.size], item.added_ms, item.expires_ms, item.flags)
        at += item.size


class AppendFrames(CallbackTask):
    """A task that writes `data` at the end of an undo file, and syncs it; and its name, if `folder` is given."""

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
