"""Which bytes of a sealed file are not those that were written, by the checksums of its sidecar.

Knows blocks. Refuses to know records: a block may be other than it was and be read all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import Flaw
from staniel.journal.kestrel.effect import join
from staniel.journal.kestrel.segments import checks_of
from staniel.journal.kestrel.sidecar import Sidecar

SLICE_BLOCKS = 16  # read at once: 4 MiB at most
UNLIKE = "not what was written, by the checksum"
STRANGE = "no block is what was written, by the checksums: the file or its sidecar is another one's"
MISSING = "missing at the end of a sealed file"
BEHIND = "behind the end of a sealed file"


def verify_checksums(described: Sidecar, fs: Fs, path: str) -> list[Flaw]:
    """Where the file `path` is not what its sidecar describes, in order. Raises OSError."""
    size, written, block_bytes = fs.size(path), described.size, described.block_bytes
    count = len(described.checks) if size >= written else size // block_bytes
    bad = list(_bad_blocks(described, fs, path, count))
    if len(bad) == count > 1:
        return [Flaw(0, size, STRANGE)]
    flaws = [
        Flaw(first * block_bytes, min((last + 1) * block_bytes, written) - first * block_bytes, UNLIKE)
        for first, last in join([(block, block) for block in bad])
    ]
    if size < written:
        flaws.append(Flaw(size, written - size, MISSING))
    elif size > written:
        flaws.append(Flaw(written, size - written, BEHIND))
    return flaws


def is_beginning(described: Sidecar, fs: Fs, path: str) -> bool:
    """Whether the file `path` is the one described, without its end. Raises OSError."""
    return [flaw.why for flaw in verify_checksums(described, fs, path)] == [MISSING]


def _bad_blocks(described: Sidecar, fs: Fs, path: str, count: int) -> Iterator[int]:
    """Which of the first `count` blocks have another checksum than they should."""
    block_bytes = described.block_bytes
    for first in range(0, count, SLICE_BLOCKS):
        expected = described.checks[first : min(first + SLICE_BLOCKS, count)]
        at = first * block_bytes
        data = fs.read(path, at, min(len(expected) * block_bytes, described.size - at))
        found = checks_of(data, block_bytes)
        yield from (first + place for place, check in enumerate(expected) if found[place : place + 1] != [check])
