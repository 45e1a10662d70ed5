"""The mark of a folder that is becoming a spool. Until the copy in the folder is complete and durable, no server starts
on it and no tool reads it. The mark is stored in place of the spool's version.

It is set before the first file is copied, and cleared last, after everything else was synced.
"""

from __future__ import annotations

from contextlib import suppress

from staniel.journal.disk.fs import MISSING, Fs, JournalFailure
from staniel.journal.disk.replace_file import replace_file

UNFINISHED = "staniel-spool unfinished"
VERSION = "version"


def set_mark(fs: Fs, own: str) -> None:
    """Set the mark, durably. Raises OSError."""
    replace_file(fs, f"{own}/{VERSION}", f"{UNFINISHED}\n".encode())


def has_mark(fs: Fs, own: str) -> bool:
    """Tell whether the own folder of a spool has the mark. Raises OSError."""
    try:
        return fs.read(f"{own}/{VERSION}", 0, 100).strip() == UNFINISHED.encode()
    except MISSING:
        return False


def clear_mark(fs: Fs, own: str, version: bytes) -> None:
    """Replace the mark by the spool's version, or remove it if that is empty. Raises OSError; the mark is restored
    then, unless the disk refuses that, too.
    """
    try:
        if version:
            replace_file(fs, f"{own}/{VERSION}", version)
        else:
            fs.remove(f"{own}/{VERSION}")
            fs.sync_folder(own)
    except (OSError, JournalFailure):
        with suppress(OSError, JournalFailure):
            set_mark(fs, own)
        raise
