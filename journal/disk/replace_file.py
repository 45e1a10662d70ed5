"""Replace a file as a whole: after a crash it has the old content or the new, never a part of either.

The order ensures that: write a temporary file, sync it, rename it, sync the folder. The steps are calls of Fs, so that
the simulated disk can stop or fail between any two of them.
"""

from __future__ import annotations

import os
from contextlib import suppress

from staniel.journal.disk.fs import File, Fs, JournalFailure


def replace_file(fs: Fs, path: str, data: bytes, temp: str = "") -> None:
    """Make `data` the whole content of `path`, durably. It is first written to `temp` (`path` with `.new` if that is
    empty). Raises OSError; the file has the old content then, unless the last step failed, the sync of the folder.
    """
    temp = temp or f"{path}.new"
    _write(fs, temp, data).close()
    _rename(fs, temp, path)
    fs.sync_folder(os.path.dirname(path))


def replace_and_open(fs: Fs, path: str, data: bytes, temp: str) -> File:
    """Replace a file as `replace_file` does; the new file stays open for appending. Raises OSError."""
    file = _write(fs, temp, data)
    try:
        _rename(fs, temp, path)
    except OSError:
        file.close()
        raise
    fs.sync_folder(os.path.dirname(path))
    return file


def replace_empty_folder(fs: Fs, folder: str) -> None:
    """Replace a folder that shows no files by a new one, durably. Its name may be in the page cache alone, and names
    that it still has on the disk are gone then. Raises OSError, JournalFailure.
    """
    fs.make_folder(f"{folder}.new")
    fs.rename(f"{folder}.new", folder)
    fs.sync_folder(os.path.dirname(folder))


class Replacement:
    """A file whose new content waits for a sync of the whole file system. After that sync call `install`, then sync the
    folder. After a crash the file has the old content or the new, as with `replace_file`.
    """

    def __init__(self, fs: Fs, path: str, data: bytes) -> None:
        """Write the new content to a temporary file. Raises OSError; the file has the old content then."""
        self._fs = fs
        self._path = path
        self._temp = f"{path}.new"
        _write(fs, self._temp, data, is_synced=False).close()

    def install(self) -> None:
        """Put the new content in place. Raises OSError; the file has the old content then."""
        _rename(self._fs, self._temp, self._path)


def create_empty(fs: Fs, path: str) -> File:
    """Create `path` empty, even if an earlier attempt has left a file there. Raises OSError."""
    file = fs.append(path)
    if file.size:
        file.close()
        fs.remove(path)
        file = fs.append(path)
    return file


def discard(fs: Fs, path: str, file: File) -> None:
    """Close and remove a temporary file that is not needed any more. One that cannot be removed does no harm:
    `create_empty` and the next start try again.
    """
    file.close()
    with suppress(OSError):
        fs.remove(path)


def _write(fs: Fs, temp: str, data: bytes, *, is_synced: bool = True) -> File:
    file = create_empty(fs, temp)
    try:
        file.write(data)
        if is_synced:
            file.sync()
    except OSError:
        discard(fs, temp, file)
        raise
    except JournalFailure:
        file.close()
        raise
    return file


def _rename(fs: Fs, temp: str, path: str) -> None:
    try:
        fs.rename(temp, path)
    except OSError:
        with suppress(OSError):
            fs.remove(temp)
        raise
