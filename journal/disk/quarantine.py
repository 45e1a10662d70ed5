"""Copies of unreadable bytes, made before these are cut off or replaced. A copy is named after the file, the first byte
and the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

from staniel.journal.disk.fs import Fs

CHUNK_BYTES = 256 << 10
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""Exceptions of decoding a damaged file of ours: bytes that are no text are a ValueError."""


def quarantine(fs: Fs, path: str, at: int, size: int, damaged: str) -> str:
    """Copy `size` bytes of the file `path` from byte `at` on into the folder `damaged`. Return the path of the copy.

    A copy that an earlier start has made or begun is used again. Other bytes, torn at the same place with the same
    length, get a copy of their own. Raises OSError.
    """
    fs.make_folder(damaged)
    name = f"{damaged}/{path.rpartition('/')[2]}@{at}+{size}"
    saved_as = next(name for name in numbered(name) if _save(fs, path, at, at + size, name))
    fs.sync_folder(damaged)
    return saved_as


def numbered(name: str) -> Iterator[str]:
    """Yield `name`, then `name.2` and so on, for a file that must not take the place of another."""
    return (name if number == 1 else f"{name}.{number}" for number in count(1))


def _save(fs: Fs, path: str, at: int, end: int, saved_as: str) -> bool:
    """Copy the bytes of `path` from `at` to `end` to `saved_as`. Return whether `saved_as` has them now; it does not if
    it exists with other bytes.
    """
    copy = fs.append(saved_as)
    try:
        saved_bytes = copy.size
        done = 0
        while at + done < end and (piece := fs.read(path, at + done, min(CHUNK_BYTES, end - at - done))):
            old = fs.read(saved_as, done, min(len(piece), saved_bytes - done)) if done < saved_bytes else b""
            if not piece.startswith(old):
                return False
            if len(old) < len(piece):
                copy.write(piece[len(old) :])
            done += len(piece)
        copy.sync()
        return saved_bytes <= done
    finally:
        copy.close()


def quarantine_entry(fs: Fs, folder: str, name: str, damaged: str) -> str:
    """Move an entry that is not a file, but has the name of a file of ours, into the folder `damaged`. Return its new
    path. Raises OSError.
    """
    fs.make_folder(damaged)
    entries = {entry for entry, _ in fs.list(damaged)}
    aside = next(free_name for free_name in numbered(name) if free_name not in entries)
    fs.rename(f"{folder}/{name}", f"{damaged}/{aside}")
    fs.sync_folder(damaged)
    fs.sync_folder(folder)
    return f"{damaged}/{aside}"
