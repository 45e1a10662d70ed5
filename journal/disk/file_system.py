"""Flaws of file systems on which a sync does not mean what docs/durability.md says it means.

The functions are pure: they take the text of Linux' /proc/self/mountinfo (proc_pid_mountinfo(5)) and return a flaw. A
file system that is not known to break the promise has no flaw: docs/decisions/0021.
"""

from __future__ import annotations

import re

from msgspec import Struct

OCTAL = re.compile(r"\\([0-7]{3})")  # escaped blanks and backslashes in paths
IN_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs"))
NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "afs", "ncpfs", "9p", "coda"))
FAT = frozenset(("vfat", "msdos", "exfat"))
FUSE = ("fuse", "fuseblk")
OVERLAYS = ("fuse.fuse-overlayfs",)  # the root of rootless containers; it passes syncs on, unless it is volatile
# ext4, btrfs, f2fs, older xfs and reiserfs write it this way; f2fs and overlayfs have options with the same effect.
NO_FLUSHES = frozenset(("nobarrier", "barrier=0", "barrier=none", "fsync_mode=nobarrier", "volatile", "fsync=volatile"))


class Mount(Struct, frozen=True):
    """A mounted file system: its type, its options (those of the mount and of the file system together), and where it
    is mounted.
    """

    kind: str
    options: frozenset[str]
    place: str


class FileSystemFlaw(Struct, frozen=True):
    """The reason why a file system does not keep the promise. `breaks`: a power cut may lose acknowledged changes
    although the disk is sound. Otherwise the file system only differs from what the operator may expect.
    """

    breaks: bool
    text: str


def find_mount(mountinfo: str, mount_id: int) -> Mount | None:
    """Return the mount of that number; None if there is none."""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if fields[0] != str(mount_id) or "-" not in fields[6:]:
            continue
        kind, _, *of_file_system = fields[fields.index("-", 6) + 1 :]
        options = ",".join([fields[5], *of_file_system[:1]])
        return Mount(kind, frozenset(options.split(",")), OCTAL.sub(lambda escape: chr(int(escape[1], 8)), fields[4]))
    return None


def mount_id_in(fdinfo: str) -> int:
    """Return the number of the mount of an open file, from the file's /proc/self/fdinfo; -1 if the text does
    not say.
    """
    match = re.search(r"^mnt_id:\s*(\d+)$", fdinfo, re.MULTILINE)
    return int(match[1]) if match else -1


def flaw_of(mount: Mount) -> FileSystemFlaw | None:
    """Return the known flaw of the file system; None if it has none."""
    kind, options = mount.kind, mount.options
    if off := options & NO_FLUSHES:
        return _broken(mount, f"is mounted with {min(off)}, so a sync does not reach the disk")
    if kind in NETWORK:
        return _broken(mount, "is a network file system, whose locks and syncs other machines carry out")
    if kind in FUSE or (kind.startswith("fuse.") and kind not in OVERLAYS):
        return _broken(mount, "is served by a program (FUSE), which may take a sync for granted")
    if kind in FAT:
        return _broken(mount, "has no journal and treats the names a and A as one")
    if kind in IN_MEMORY:
        return FileSystemFlaw(False, f"{_described(mount)} is in memory: a restart of the machine empties it")
    if "data=writeback" in options:
        why = "what was not synced may read as old contents of the disk after a power cut"
        return FileSystemFlaw(False, f"{_described(mount)} is mounted with data=writeback: {why}")
    return None


def _broken(mount: Mount, why: str) -> FileSystemFlaw:
    return FileSystemFlaw(True, f"{_described(mount)} {why}")


def _described(mount: Mount) -> str:
    return f"{mount.kind} at {mount.place}"
