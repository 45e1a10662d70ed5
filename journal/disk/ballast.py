"""Disk space held in reserve, so that a full disk can be handled.

The ballast is a file of allocated blocks, `.staniel/ballast`: at most 16 MB, and at most an eighth of the disk. While
it exists, a turn admits puts up to half of its size, or more if the disk has other room. So all admitted records can be
written: when a write meets ENOSPC, the ballast is removed and the write is finished. From then on puts are refused;
gets and closes use the other half. Each second the broker tries to allocate the ballast again, which needs twice its
size. Without a ballast, a full disk ends the process. A member of a cluster writes all twice, into journals and into
its own file, so it admits half as much.
"""

from __future__ import annotations

from contextlib import suppress
from enum import Enum

from staniel.journal.disk.fs import FULL_ERRNOS, Fs, is_missing
from staniel.journal.disk.refusals import described

BALLAST_BYTES_MAX = 16 << 20
SHARE_OF_DISK = 8  # of the disk: the most that the reserve takes of a small disk
ROOM_FACTOR = 2  # times its size: the room that is needed to make the reserve
RECORD_OVERHEAD_BYTES = 64  # at most, of the heads and flags around an item's data


INODES_MIN = 16  # below this the disk counts as full: rotations and packs need some
INODES_SHARE = 8  # of the inodes of a small disk


class Space(Enum):
    AMPLE = "ample"  # the reserve exists
    FULL = "full"  # the reserve was released: puts are refused until it exists again
    UNRESERVED = "unreserved"  # the system refuses to allocate the reserve, although there is room


def reserve_bytes(disk_bytes: int) -> int:
    """Return the size of the ballast on a disk of that size."""
    return min(BALLAST_BYTES_MAX, disk_bytes // SHARE_OF_DISK)


class Ballast:
    """A file of real blocks in the spool's own sub-folder. `copies`: how many files get each byte that is admitted."""

    def __init__(self, fs: Fs, folder: str, path: str, copies: int = 1) -> None:
        self.fs = fs
        self.copies = copies
        self.folder = folder
        self.path = path
        self.space = Space.FULL
        self.trouble = ""
        """The reason why there is no reserve although there is room."""
        self.lacks_inodes = False
        """True if the disk has too few inodes."""
        self.bytes = reserve_bytes(fs.free_bytes(folder)[1])

    @property
    def budget_bytes(self) -> int:
        """The bytes that one tick may write: half of the ballast, so that gets and closes still have the other half
        when the disk is full.
        """
        return -1 if self.space is Space.FULL else self.bytes // (2 * self.copies)

    def create(self) -> bool:
        """Create the ballast. Return False while the disk has no room for twice its size. If the system refuses for
        another reason, there is no ballast, and puts are refused earlier: once there is no room for it.
        """
        if self.space is Space.AMPLE:
            return True
        self.space = Space.FULL
        with suppress(OSError):  # then the disk stays full
            self.fs.remove(self.path)
        if not self._has_inodes(ROOM_FACTOR):
            return False
        if self.fs.free_bytes(self.folder)[0] < ROOM_FACTOR * self.bytes:
            return False
        try:
            self.fs.allocate(self.path, self.bytes)
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                return False
            self.space, self.trouble = Space.UNRESERVED, described(error, self.path)
            return True
        self.space, self.trouble = Space.AMPLE, ""
        return True

    def release(self) -> None:
        """Remove the ballast."""
        self.space = Space.FULL
        with suppress(OSError):  # then the disk stays full
            self.fs.remove(self.path)
        self._has_inodes(1)

    @property
    def has_room(self) -> bool:
        """True if there are inodes, and room for the ballast in addition to the present files. If the ballast exists,
        the system need not be asked about the room.
        """
        if not self._has_inodes(1):
            return False
        return self.space is not Space.UNRESERVED or self.fs.free_bytes(self.folder)[0] >= ROOM_FACTOR * self.bytes

    def _has_inodes(self, factor: int) -> bool:
        """Tell whether the disk has `factor` times the inodes that are kept in reserve."""
        free, total = self.fs.free_inodes(self.folder)
        self.lacks_inodes = free < factor * min(INODES_MIN, total // INODES_SHARE)
        return not self.lacks_inodes

    @property
    def is_lost(self) -> bool:
        """True if another program has removed the ballast."""
        return self.space is Space.AMPLE and is_missing(self.fs, self.path)

    def has_room_for(self, size: int) -> bool:
        """Tell whether `size` bytes, more than a tick's budget, fit on the disk in addition to the ballast."""
        return self.space is not Space.FULL and self.fs.free_bytes(self.folder)[0] > self.copies * size + self.bytes
