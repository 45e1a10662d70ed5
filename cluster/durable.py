"""Durable state of a member: one file of framed entries, read at a start up to the first one that is not whole.

The file begins with MAGIC; frames follow (frames.py), each with one entry in MessagePack. A later entry overrules an
earlier one. A power cut leaves a first part of what was written behind the last sync, and whatever the disk makes of
the rest: an entry with a wrong checksum ends the file, and the driver cuts it off there before it writes on. If a whole
entry follows it, the file is damaged. A file that has grown is compacted.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from staniel.cluster.frames import HEAD, PAYLOAD_BYTES_MAX, frame, read_frame
from staniel.cluster.key import Id
from staniel.cluster.messages import Data, Number
from staniel.cluster.places import Place
from staniel.cluster.stream import Record, RecordKind, Run, Stream

MAGIC = b"staniel-member 1\n"
ALL_FIXED = (1 << 63) - 1
ENTRY_BYTES_MAX = 40
"""Bytes of a record's entry beside its data, at most."""
SOUGHT_BYTES_MAX = 1 << 30  # of checksums that are computed to find a whole entry: half a second


BootId = Annotated[bytes, Meta(max_length=16)]


class Fitness(IntEnum):
    """Degree to which a member's spool is known to be whole. Anything but WHOLE is the mark *unfit*."""

    WHOLE = 1
    SHORT = 2  # a sync has failed, or a power cut came before one: answered records may be missing here
    HALF = 3  # its files are being copied and are of different moments


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag_field="kind"):
    """An entry of the file."""


class Created(Entry, frozen=True, tag=1):
    """The member's id, made with the spool."""

    member_id: Id


class Joined(Entry, frozen=True, tag=2):
    """The cluster's id. `base`: 1 if the spool had items before, which no record has; else 0."""

    cluster_id: Id
    base: Number


class Promised(Entry, frozen=True, tag=3):
    """The highest epoch that this member led or followed."""

    epoch: Number


class Seen(Entry, frozen=True, tag=4):
    """The highest `mod_revision` of the key that this member has seen."""

    revision: Number


class Marked(Entry, frozen=True, tag=5):
    """The mark *unfit*, or its end."""

    fitness: Fitness


class Appended(Entry, frozen=True, tag=6):
    """A record of the stream."""

    epoch: Number
    number: Number
    record_kind: RecordKind
    data: Data


class Cut(Entry, frozen=True, tag=7):
    """The end of a tail: records behind this number are gone."""

    number: Number


class Fixed(Entry, frozen=True, tag=8):
    """Statement that records up to this number are in files, or may be: they cannot be cut off any more. ALL_FIXED:
    each record, as long as this member leads.
    """

    number: Number


class Copied(Entry, frozen=True, tag=9):
    """A new beginning of the stream: the files are copied from a leader, whose place was this when that began."""

    epoch: Number
    number: Number
    runs: tuple[tuple[Number, Number], ...]


class Trimmed(Entry, frozen=True, tag=10):
    """The last record that is no longer kept: files have its effect, and are synced."""

    number: Number


class Unsynced(Entry, frozen=True, tag=11):
    """Statement that this member leads since this boot of its machine, and that its replies do not wait for its own
    disk. It holds until Fixed or Copied says that the files have what the records say. b"": it does not hold.
    """

    boot_id: BootId


Entries = Created | Joined | Promised | Seen | Marked | Appended | Cut | Fixed | Copied | Trimmed | Unsynced

_BEGIN = re.compile(rb"[\x92-\x9f][\x01-\x0b]")
"""The first bytes of an entry: an array in MessagePack, and the tag."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Entries)


class Kept:
    """The state that entries add up to."""

    def __init__(self) -> None:
        self.member_id = b""
        self.cluster_id = b""
        self.promised = 0
        self.revision = 0
        self.fitness = Fitness.WHOLE
        self.fixed = 0
        self.unsynced = b""
        self.stream = Stream()

    def apply(self, entry: Entries) -> bool:
        """Take an entry in. Return False if it contradicts the ones before it."""
        match entry:
            case Created(member_id):
                self.member_id = member_id
            case Joined(cluster_id, base):
                self.cluster_id, self.stream, self.fixed = cluster_id, Stream(Place(0, base)), base
            case Promised(epoch):
                self.promised = max(self.promised, epoch)
            case Seen(revision):
                self.revision = max(self.revision, revision)
            case Marked(fitness):
                self.fitness = fitness
            case Fixed(number):
                self.fixed = number
                self.unsynced = self.unsynced if number == ALL_FIXED else b""
            case Copied(epoch, number, runs):
                self.stream = Stream(Place(epoch, number), [Run(*run) for run in runs])
                self.fixed, self.unsynced = number, b""
            case Unsynced(boot_id):
                self.unsynced = boot_id
            case _:
                return self._apply_to_stream(entry)
        return True

    def has_lost_power(self, boot_id: bytes) -> bool:
        """Tell whether the power was cut while replies did not wait for the disk. `boot_id`: of the machine now; zeros
        if it does not say.
        """
        return bool(self.unsynced) and (self.unsynced != boot_id or not any(boot_id))

    def _apply_to_stream(self, entry: Appended | Cut | Trimmed) -> bool:
        stream = self.stream
        if isinstance(entry, Appended):
            record = Record(Place(entry.epoch, entry.number), entry.record_kind, entry.data)
            if not stream.follows(record):
                return False
            stream.append(record)
            return True
        if not stream.base.number <= entry.number <= stream.last.number:
            return False
        if isinstance(entry, Cut):
            stream.cut(entry.number)
        else:
            stream.forget(entry.number)
            self.fixed = max(self.fixed, entry.number)
        return True


def encode_entry(entry: Entries) -> bytes:
    """Return the entry in its frame."""
    return frame(_encoder.encode(entry))


def new_file(member_id: bytes) -> bytes:
    """Return the content of a new member's file."""
    return MAGIC + encode_entry(Created(member_id))


def compacted(kept: Kept) -> bytes:
    """Return a file that says what all entries so far add up to. It takes the place of the old one in one step: written
    under another name, synced, renamed, and the folder synced before anything else is written.
    """
    stream, entries = kept.stream, list[Entries]()
    if kept.cluster_id:
        runs = tuple((run.epoch, run.first) for run in stream.runs if run.first <= stream.base.number)
        entries += [Joined(kept.cluster_id, 0), Copied(*stream.base, runs)]
    entries += [Promised(kept.promised), Seen(kept.revision), Marked(kept.fitness)]
    entries += [Appended(*record.place, record.kind, record.data) for record in stream.behind(stream.base.number)]
    entries += [Fixed(kept.fixed), Unsynced(kept.unsynced)]
    return new_file(kept.member_id) + b"".join(map(encode_entry, entries))


def record_bytes_max(kept: Kept) -> int:
    """Return how many bytes the records take in `compacted` at most; the rest of it is small."""
    return kept.stream.data_bytes + ENTRY_BYTES_MAX * len(kept.stream.records)


class Content(NamedTuple):
    """The content of a member's file. `whole`: how many bytes of it are whole; the driver cuts off the rest. `damage`:
    "", or why `kept` has the mark HALF; the driver writes the file anew then, as `compacted` has it.
    """

    kept: Kept
    whole: int
    damage: str


def read_file(data: bytes) -> Content | str:
    """Return what a file holds, or why a member must not start with it.

    A power cut may leave anything behind the last sync, as a rule nothing that is whole. So an entry that is not whole
    is the torn end if no whole one follows. Otherwise it was damaged after it was written: promises, records, or the
    mark HALF may have been there. Such a member may follow, because it promises again what it reads in the key; it is
    copied to, and never leads before that.
    """
    if not data.startswith(MAGIC):
        return "not the file of a cluster's member, or of another version"
    kept = Kept()
    at = take_entries(kept, data, len(MAGIC))
    if isinstance(at, str):
        return at
    follower = next_whole(data, at)
    if not kept.member_id or (follower and not kept.cluster_id):
        return f"it is damaged at byte {at}, and does not say which member of which cluster it is of"
    if not follower:
        return Content(kept, at, "")
    kept.apply(Marked(Fitness.HALF))
    return Content(kept, at, f"it is damaged at byte {at}: a whole entry follows at byte {follower}")


def take_entries(kept: Kept, data: bytes, at: int) -> int | str:
    """Take in the whole entries from byte `at` on. Return where they end, or why a member must not start with them."""
    while isinstance(payload := read_frame(data, at), bytes):
        try:
            entry = _decoder.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return f"an entry at {at} is not of this version: {error}"
        if not kept.apply(entry):
            return f"an entry at {at} contradicts those before it: {entry}"
        at += HEAD.size + len(payload)
    return at


def next_whole(data: bytes, at: int) -> int:
    """Return where a whole entry begins behind byte `at`, which begins none; 0 if there is none. Bytes that were made
    to look like many long entries count as one.
    """
    left = SOUGHT_BYTES_MAX
    for begin in _BEGIN.finditer(data, at + 1 + HEAD.size):
        head = begin.start() - HEAD.size
        length = HEAD.unpack_from(data, head)[0]
        if length > PAYLOAD_BYTES_MAX or begin.start() + length > len(data):
            continue
        left -= length
        if left < 0:
            return head
        payload = read_frame(data, head)
        if isinstance(payload, bytes):
            with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                _decoder.decode(payload)
                return head
    return 0
