"""The index of a sealed file, in a small file in `.staniel/segments/` with the same name.

A sidecar has the effect of the file on its queue (`effect.py`), the positions of some records, and a checksum of each
block. broker/maintenance/sidecars.py writes them, one at a time, while no other background task waits. Recovery follows
the sidecars from checkpoint to checkpoint, reads only the files that have no usable one, leaves the items to
read-behind, and loads the open reads by their seq (recovery.py). Nothing depends on sidecars: if one is missing or
broken, or does not fit its file, the next start takes longer, but no item is lost. Decision 0012 has the alternatives.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from enum import Enum

import msgspec
from msgspec import Struct

from staniel.journal.background import CallbackTask, checks_of
from staniel.journal.disk.fs import Fs
from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.errors import Flaw
from staniel.journal.interval_set import IntervalSet
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.derived_effect import effect_of
from staniel.journal.kestrel.effect import SegmentEffect
from staniel.journal.kestrel.segments import IndexEntry, LogSegment
from staniel.journal.slices import Slices, sliced
from staniel.queues.checkpoint import Known

MAGIC = b"staniel-segment 1\n"
HEAD_BYTES = len(MAGIC) + 4
BLOCK_BYTES = 256 << 10  # the size of a block with a checksum of its own
BLOCK_MIN_BYTES = 4 << 10
BLOCKS_MIN = 16  # smaller files have smaller blocks, so that damage is distinguished from a wrong file
SIDECAR_MAX_BYTES = 256 << 20
SLICE_BLOCKS = 16  # read in one step: 4 MiB at most
CHECKSUM_MISMATCH = "not what was written, by the checksum"
WRONG_SIDECAR = "no block is what was written, by the checksums: the file or its sidecar is another one's"
MISSING = "missing at the end of a sealed file"
BEHIND = "behind the end of a sealed file"


class Sidecar(Struct, frozen=True, array_like=True):
    """The content of a sidecar. `file`, `size`: the name and length of the sealed file. `effect`: what the file does to
    its queue. `index`: (byte, items, payload bytes, items with an expiry) at record boundaries, counted from the
    beginning of the file. `checks`: the crc32 of each `block_bytes`.

    Two facts at the end of the file are not in the effect: `last_id`, the last id given to an item; and (id,
    deliveries) of each open item by xid, and of each item before the fresh ones, the head first.
    """

    file: str
    size: int
    effect: SegmentEffect
    index: list[tuple[int, int, int, int]]
    last_id: int
    opens: dict[int, Known]
    heads: list[Known]
    block_bytes: int
    checks: list[int]


class Fit(Enum):
    SAME = "same"
    DAMAGED = "damaged"  # only its last block has changed since it was written
    OTHER = "other"


DECODER = msgspec.msgpack.Decoder(Sidecar)


def describe(segment: LogSegment, checks: list[int]) -> Slices[bytes | None]:
    """Make the sidecar of a sealed segment; None if its effect cannot be derived."""
    effect, checkpoint = (yield from effect_of(segment)), segment.checkpoint
    if effect is None or checkpoint is None:
        return None
    first, head, origin = segment.first, segment.head, segment.origin
    lead = (head.lead, head.lead_bytes, head.lead_expiring) if head is not None else (0, 0, 0)
    index = [
        (at, lead[0] + seq - first, lead[1] + size - origin.added_bytes, lead[2] + expiring - origin.added_expiring)
        for at, seq, size, expiring in segment.index
    ]
    numbers = zip(checkpoint.ids, checkpoint.deliveries, strict=True)
    opens: dict[int, Known] = {}
    for some in sliced(checkpoint.xids):
        opens |= zip(some, numbers, strict=False)  # `numbers` continues with the heads
        yield len(some)
    heads = list(numbers)
    block_bytes = block_bytes_of(segment.size)
    sidecar = Sidecar(segment.name, segment.size, effect, index, checkpoint.last_id, opens, heads, block_bytes, checks)
    try:
        body = msgspec.msgpack.encode(sidecar)
    except OverflowError:
        return None  # ids were made from add times that no clock has shown
    return MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def decode_sidecar(data: bytes) -> Sidecar | None:
    """Return the sidecar in `data`; None if this program cannot decode it."""
    body = data[HEAD_BYTES:]
    if not data.startswith(MAGIC) or data[len(MAGIC) : HEAD_BYTES] != zlib.crc32(body).to_bytes(4, "little"):
        return None
    try:
        sidecar = DECODER.decode(body)
    except UNDECODABLE:
        return None
    blocks = -(-sidecar.size // sidecar.block_bytes) if sidecar.block_bytes > 0 else -1
    return sidecar if blocks == len(sidecar.checks) else None


def block_bytes_of(size: int) -> int:
    """Return the number of bytes for each checksum of a file of `size` bytes: a power of two."""
    block_bytes = BLOCK_BYTES
    while block_bytes > BLOCK_MIN_BYTES and size < BLOCKS_MIN * block_bytes:
        block_bytes //= 2
    return block_bytes


def compare_file(sidecar: Sidecar, fs: Fs, path: str) -> Fit:
    """Tell whether `path`, of the described size, is the described file, damaged, or another file. Raises OSError."""
    if not sidecar.checks:
        return Fit.SAME
    last = len(sidecar.checks) - 1
    if _is_as_written(sidecar, fs, path, last):
        return Fit.SAME
    others_match = last > 0 and all(_is_as_written(sidecar, fs, path, block) for block in range(last))
    return Fit.DAMAGED if others_match else Fit.OTHER


def _is_as_written(sidecar: Sidecar, fs: Fs, path: str, block: int) -> bool:
    data = fs.read(path, block * sidecar.block_bytes, sidecar.block_bytes)
    return zlib.crc32(data) == sidecar.checks[block]


def apply_to_segment(segment: LogSegment, sidecar: Sidecar) -> None:
    """Give a new segment the facts in its sidecar."""
    _, first, added_bytes, added_expiring = segment.origin
    segment.index = [
        IndexEntry(at, first + items, added_bytes + size, added_expiring + expiring)
        for at, items, size, expiring in sidecar.index
    ]
    segment.checks, segment.block_bytes = sidecar.checks, sidecar.block_bytes


def load(fs: Fs, folder: str, name: str) -> Sidecar | None:
    """Return the sidecar of file `name` of a spool; None if it is missing or broken."""
    path = kestrel_files.sidecar_path(folder, name)
    try:
        size = fs.size(path)
        return decode_sidecar(fs.read(path, 0, size)) if size <= SIDECAR_MAX_BYTES else None
    except OSError:
        return None


def names_in(fs: Fs, folder: str) -> list[str]:
    """Return the names of the files that have sidecars."""
    try:
        return [name for name, regular in fs.list(kestrel_files.sidecar_folder(folder)) if regular]
    except OSError:
        return []


def verify_checksums(described: Sidecar, fs: Fs, path: str) -> list[Flaw]:
    """Return where the file `path` differs from its sidecar, in order. Raises OSError."""
    size, written, block_bytes = fs.size(path), described.size, described.block_bytes
    count = len(described.checks) if size >= written else size // block_bytes
    bad = list(_bad_blocks(described, fs, path, count))
    if len(bad) == count > 1:
        return [Flaw(0, size, WRONG_SIDECAR)]
    flaws = [
        Flaw(first * block_bytes, min((last + 1) * block_bytes, written) - first * block_bytes, CHECKSUM_MISMATCH)
        for first, last in IntervalSet(bad).intervals()
    ]
    if size < written:
        flaws.append(Flaw(size, written - size, MISSING))
    elif size > written:
        flaws.append(Flaw(written, size - written, BEHIND))
    return flaws


def is_beginning(described: Sidecar, fs: Fs, path: str) -> bool:
    """Tell whether the file `path` is the beginning of the described file. Raises OSError."""
    return [flaw.why for flaw in verify_checksums(described, fs, path)] == [MISSING]


def _bad_blocks(described: Sidecar, fs: Fs, path: str, count: int) -> Iterator[int]:
    """Yield which of the first `count` blocks have a wrong checksum."""
    block_bytes = described.block_bytes
    for first in range(0, count, SLICE_BLOCKS):
        expected = described.checks[first : min(first + SLICE_BLOCKS, count)]
        at = first * block_bytes
        data = fs.read(path, at, min(len(expected) * block_bytes, described.size - at))
        checksums = checks_of(data, block_bytes)
        yield from (first + block for block, check in enumerate(expected) if checksums[block : block + 1] != [check])


class CheckBlocks(CallbackTask):
    """A background task that computes `checks`: the crc32 of each `block_bytes` of a part of a file that begins with a
    block.
    """

    def __init__(
        self, fs: Fs, path: str, at: int, count: int, block_bytes: int, then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._fs, self._path, self._at, self._count, self._block_bytes = fs, path, at, count, block_bytes
        self.checks: list[int] = []

    def work(self) -> None:
        for at in range(self._at, self._at + self._count, self._block_bytes):
            self.checks += checks_of(self._fs.read(self._path, at, self._block_bytes), self._block_bytes)


class WriteSidecar(CallbackTask):
    """A background task that writes the sidecar of a sealed file, unless another file has taken that file's place."""

    def __init__(
        self, fs: Fs, folder: str, segment: LogSegment, data: bytes, then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._fs, self._folder, self._segment, self._data = fs, folder, segment, data

    def work(self) -> None:
        if not self._segment.is_replaced:
            self._fs.make_folder(kestrel_files.sidecar_folder(self._folder))
            replace_file(self._fs, kestrel_files.sidecar_path(self._folder, self._segment.name), self._data)
