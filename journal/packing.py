"""Putting a finished pack in the place of the files that it covers.

One function for the running server and for recovery: whatever instant a crash interrupts it, calling it again finishes.
"""

from __future__ import annotations

from journal.fs import Fs


def finish_pack(fs: Fs, folder: str, pack: str, sealed: str, covered: list[str]) -> None:
    """Remove the `covered` files, oldest first, then give `pack` its archive name `sealed`. All are file names.

    The folder is synced between the two steps: were the disk to keep the rename and forget the removals, the old files
    would be replayed in front of a summary that already contains them.
    """
    for name in covered:
        fs.remove(f"{folder}/{name}")
    fs.sync_folder(folder)
    fs.rename(f"{folder}/{pack}", f"{folder}/{sealed}")
    fs.sync_folder(folder)
