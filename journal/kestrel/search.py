"""Looking for items in journal files from a place onwards, without replaying them.

Knows where a record ends and which record adds an item. Refuses to know the state of a queue.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.journal.disk.fs import Fs
from staniel.journal.kestrel import files as layout
from staniel.journal.kestrel.encoder import ADDX, ADDX_HEAD, BLOCK_HEAD_BYTES, REMOVE, REMOVE_TENTATIVE
from staniel.journal.kestrel.files import Kind
from staniel.journal.transfer_log import FilePosition
from staniel.queues.item import Item

CURRENT = 2**63 - 1
FIXED_BYTES = {REMOVE: 1, REMOVE_TENTATIVE: 1, 4: 5, 5: 5, 6: 5, 9: 5}


class Search:
    """The files of one queue, as they are now."""

    def __init__(self, fs: Fs, folder: str, queue: str) -> None:
        self.fs = fs
        self.folder = folder
        self.files = sorted(_numbered(fs.list(folder), queue))

    def place(self, after: int, at: int) -> FilePosition:
        """Byte `at` of the first file numbered above `after`."""
        return FilePosition(next((number for number, _ in self.files if number > after), CURRENT), at)

    def added_since(self, start: FilePosition) -> Iterator[tuple[FilePosition, Item]]:
        """The items that ADDX records added from `start` onwards, and where.

        Only what this program writes behind its own start is looked for: the records 1 to 6 and 9. Anything else ends a
        file.
        """
        for number, name in self.files:
            if number < start.file:
                continue
            begin = start.at if number == start.file else 0
            path = f"{self.folder}/{name}"
            data = self.fs.read(path, begin, max(0, self.fs.size(path) - begin))
            for at, item in _added(data):
                yield FilePosition(number, begin + at), item


def _numbered(entries: list[tuple[str, bool]], queue: str) -> Iterator[tuple[int, str]]:
    for file_name, regular in entries:
        name = layout.parse(file_name)
        if name.queue == queue and regular and name.kind in (Kind.ARCHIVE, Kind.CURRENT):
            yield (name.number if name.kind is Kind.ARCHIVE else CURRENT), file_name


def _added(data: bytes) -> Iterator[tuple[int, Item]]:
    at = 0
    while at < len(data):
        op = data[at]
        if op == ADDX and len(data) - at >= ADDX_HEAD.size:
            _, size, added_ms, expires_ms = ADDX_HEAD.unpack_from(data, at)
            stop = at + 5 + size
            if size < BLOCK_HEAD_BYTES or stop > len(data):
                return
            yield at, Item(data[at + ADDX_HEAD.size : stop], added_ms, expires_ms)
            at = stop
        elif op in FIXED_BYTES:
            at += FIXED_BYTES[op]
        else:
            return
