"""What a failed sync leaves behind: pages that the system shows and the disk never got.

After a failed sync the kernel may count the pages as clean. A process started again on the same machine would read
them, build on them, and lose all of it at the next power cut. So the process that ends leaves a mark, and the next one
writes every byte that it is going to rely on anew, and makes and removes names anew. Knows the mark, which lists the
names in doubt, and how files are renewed; refuses to know records.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from journal.damaged import UNDECODABLE
from journal.names import Names

PIECE_BYTES = 1 << 20


class Doubt:
    """`path` is the mark's: a line of JSON for each time it was raised, an array of paths."""

    def __init__(self, fs: Names, path: str) -> None:
        self._fs = fs
        self._path = path
        self._said: list[str] | None = None
        fs.failed = self.raise_mark

    def raise_mark(self) -> None:
        """As well as this disk lets us: the next process must see it, power cuts need not keep it."""
        unsure = self._fs.unsure()
        if unsure == self._said:
            return
        with suppress(OSError):  # then nothing on this disk can be written, and the next start says so
            mark = self._fs.append(self._path)
            try:
                mark.write(msgspec.json.encode(unsure) + b"\n")
            finally:
                mark.close()
            self._said = unsure

    @property
    def exists(self) -> bool:
        try:
            self._fs.size(self._path)
        except OSError:
            return False
        return True

    def unsure(self) -> list[str]:
        """The paths whose names may be wrong, by the mark. A line that cannot be read names none. Raises OSError."""
        lines = self._fs.read(self._path, 0, self._fs.size(self._path)).splitlines()
        paths: dict[str, None] = {}
        for line in lines:
            with suppress(*UNDECODABLE):
                paths |= dict.fromkeys(msgspec.json.decode(line, type=list[str]))
        return list(paths)

    def renew(self, pairs: list[tuple[str, str]], gone: list[str]) -> None:
        """Give each file, by way of its temporary name, new bytes; make each of the names `gone`, which are there no
        more, and remove it again; then lower the mark. Safe to interrupt at every step. Raises OSError.
        """
        for path, temp in pairs:
            self._copy(path, temp)
            self._fs.rename(temp, path)
        self._sync_folders([path for path, _ in pairs])
        for path in gone:
            self._fs.append(path).close()
            self._fs.remove(path)
        self._sync_folders(gone)
        self._fs.remove(self._path)
        self._fs.sync_folder(self._path.rpartition("/")[0])

    def _sync_folders(self, paths: list[str]) -> None:
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            self._fs.sync_folder(folder)

    def _copy(self, path: str, temp: str) -> None:
        try:
            self._fs.remove(temp)
        except FileNotFoundError:
            pass
        file = self._fs.append(temp)
        try:
            while piece := self._fs.read(path, file.size, PIECE_BYTES):
                file.write(piece)
            file.sync()
        finally:
            file.close()
