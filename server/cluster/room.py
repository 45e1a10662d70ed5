"""The room on the disk of a member that follows. Without room it cannot take a record: it leaves its leader, and comes
back once there is as much as the reserve of a leader takes (journal/disk/ballast.py).
"""

from __future__ import annotations

from staniel.journal.disk.ballast import INODES_MIN, INODES_SHARE, reserve_bytes
from staniel.journal.disk.fs import FULL_ERRNOS, MISSING, Fs, JournalFailure, SyncFailed


def is_of_full_disk(error: BaseException | None) -> bool:
    """Tell whether a write has failed because the disk is full: what was written and synced before is as it was."""
    if isinstance(error, JournalFailure):
        error = error.__cause__
    return isinstance(error, OSError) and not isinstance(error, SyncFailed) and error.errno in FULL_ERRNOS


def lack_of_room(fs: Fs, folder: str) -> str:
    """Return why a member cannot take records; "" if there is room."""
    try:
        (free, total), (free_inodes, inodes) = fs.free_bytes(folder), fs.free_inodes(folder)
    except MISSING:
        return ""  # another program has removed the spool: the member ends
    needed = reserve_bytes(total)
    if free < needed:
        return f"the disk of its spool is full: {free >> 20:,} MiB are free, {-(-needed >> 20):,} are needed"
    if free_inodes < min(INODES_MIN, inodes // INODES_SHARE):
        return f"the disk of its spool is full: {free_inodes} inodes are free"
    return ""
