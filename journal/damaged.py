"""Keeping aside what cannot be read, where no summary will replace it.

Knows the folder of the copies and their names. Refuses to know what is wrong with the bytes.
"""

from __future__ import annotations

from journal import layout
from journal.fs import Fs

CHUNK_BYTES = 256 << 10


def keep(fs: Fs, folder: str, file: str, at: int, size: int, now_ms: int) -> str:
    """Copy `size` bytes of a spool's `file` from byte `at` on, unless that has been done before; where the copy is.
    Raises OSError.
    """
    damaged = layout.damaged_folder(folder)
    fs.make_folder(damaged)
    begin = f"{file}@{at}."
    for name, _ in fs.list(damaged):
        if name.startswith(begin) and fs.size(f"{damaged}/{name}") == size:
            return f"{damaged}/{name}"
    saved_as = f"{damaged}/{begin}{now_ms}"
    _copy(fs, f"{folder}/{file}", at, at + size, saved_as)
    fs.sync_folder(damaged)
    return saved_as


def _copy(fs: Fs, path: str, at: int, end: int, saved_as: str) -> None:
    copy = fs.append(saved_as)
    try:
        while at < end and (piece := fs.read(path, at, min(CHUNK_BYTES, end - at))):
            copy.write(piece)
            at += len(piece)
        copy.sync()
    finally:
        copy.close()
