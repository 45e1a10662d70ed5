"""What a failed sync leaves behind: pages that the system shows and the disk never got.

After a failed sync the kernel may count the pages as clean. A process started again on the same machine would read
them, build on them, and lose all of it at the next power cut. So the process that ends leaves a mark, and the next one
writes every byte that it is going to rely on anew. Knows the mark and how files are renewed; refuses to know records.
"""

from __future__ import annotations

from journal.fs import Fs

PIECE_BYTES = 1 << 20


class Doubt:
    """`path` is the mark's."""

    def __init__(self, fs: Fs, folder: str, path: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = path

    def raise_mark(self) -> None:
        """As well as this disk lets us: the next process must see it, power cuts need not keep it."""
        try:
            self._fs.append(self._path).close()
        except OSError:
            pass  # then nothing on this disk can be written, and the next start says so

    @property
    def exists(self) -> bool:
        try:
            self._fs.size(self._path)
        except OSError:
            return False
        return True

    def renew(self, pairs: list[tuple[str, str]]) -> None:
        """Give each file, by way of its temporary name, new bytes; then lower the mark. Safe to interrupt at every
        step. Raises OSError.
        """
        for path, temp in pairs:
            self._copy(path, temp)
            self._fs.rename(temp, path)
        for folder in dict.fromkeys(path.rpartition("/")[0] for path, _ in pairs):
            self._fs.sync_folder(folder)
        self._fs.remove(self._path)
        self._fs.sync_folder(self._path.rpartition("/")[0])

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
