"""What a failed sync leaves behind: pages that the system shows and the disk never got.

After a failed sync the kernel may count the pages as clean. A process started again on the same machine would read
them, build on them, and lose all of it at the next power cut. So the process that ends leaves a mark, and the next one
writes every byte that it is going to rely on anew, and makes and removes names anew. Knows the mark, which lists names
and files in doubt, and how files are renewed; refuses to know records.

The mark is a value of JSON a line: a path whose name is in doubt; {"file": a path whose bytes are}; {"gone": a path
that a start is about to remove for good}; null, the list is complete; an array of paths, from earlier versions.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
from msgspec import Struct, field

from journal.damaged import UNDECODABLE
from journal.names import Names

PIECE_BYTES = 1 << 20


class Mark(Struct):
    """Paths. `gone`: what an earlier start has found to be there no more, and may have left there, empty, or brought
    back. `is_torn`: it was cut off, and more than it says may be in doubt.
    """

    names: dict[str, None] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    is_torn: bool = True


class Doubt:
    """`path` is the mark's. `reserve`: a file that may go if there is no room for it."""

    def __init__(self, fs: Names, path: str, reserve: str = "") -> None:
        self._fs = fs
        self._path = path
        self._reserve = reserve
        self._said: tuple[list[str], list[str]] | None = None
        fs.failed = self.raise_mark

    def raise_mark(self) -> None:
        """As well as this disk lets us: the next process must see it, power cuts need not keep it."""
        in_doubt = self._fs.unsure(), self._fs.unsynced()
        if in_doubt == self._said:
            return
        names, files = in_doubt
        try:
            self._write([*names, *({"file": path} for path in files), None])
        except OSError:
            # The next start needs the whole list more than this one needs the reserve.
            with suppress(OSError):
                self._fs.remove(self._reserve)
            with suppress(OSError):  # then nothing on this disk can be written, and the next start says so
                self._write([*names, *({"file": path} for path in files), None])
        self._said = in_doubt

    @property
    def exists(self) -> bool:
        try:
            self._fs.size(self._path)
        except OSError:
            return False
        return True

    def read(self) -> Mark:
        """What the mark says. A line that cannot be read says nothing. Raises OSError."""
        mark = Mark()
        for line in self._fs.read(self._path, 0, self._fs.size(self._path)).splitlines():
            try:
                value = msgspec.json.decode(line, type=str | list[str] | dict[str, str] | None) if line else {}
            except UNDECODABLE:
                mark.is_torn = True
                continue
            match value:
                case {"gone": str(path)}:
                    mark.gone[path] = None
                case {"file": str(path)}:
                    mark.files[path] = None
                    mark.is_torn = True  # until its end comes
                case str(path):
                    mark.names[path] = None
                    mark.is_torn = True
                case list(paths):
                    mark.names |= dict.fromkeys(paths)
                    mark.is_torn = False
                case None:
                    mark.is_torn = False
        return mark

    def renew(self, pairs: list[tuple[str, str]], gone: list[str], left: list[str]) -> None:
        """Give each file, by way of its temporary name, new bytes; make each of the names `gone`, which are there no
        more, and remove it again; then lower the mark, but for the paths `left`, which are out of reach. Safe to
        interrupt at every step. Raises OSError, JournalFailure.
        """
        for path, temp in pairs:
            self._copy(path, temp)
            self._fs.rename(temp, path)
        self._sync_folders([path for path, _ in pairs])
        if gone:
            # What is made here is no file of a queue's: a start that finds it must know that it is to go.
            self._write([{"gone": path} for path in gone], sync=True)
        for path in gone:
            self._fs.append(path).close()
            self._fs.remove(path)
        self._sync_folders(gone)
        if left:
            self._fs.replace(self._path, b"".join(_line(path) for path in [*left, None]))
        else:
            self._fs.remove(self._path)
            self._sync_folders([self._path])

    def _write(self, lines: list[str | dict[str, str] | None], *, sync: bool = False) -> None:
        mark = self._fs.append(self._path)
        try:
            # A line of its own, whatever an earlier attempt has left.
            mark.write(b"\n" + b"".join(map(_line, lines)))
            if sync:
                mark.sync()
        finally:
            mark.close()
        if sync:
            self._sync_folders([self._path])

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


def _line(value: str | dict[str, str] | None) -> bytes:
    return msgspec.json.encode(value) + b"\n"
