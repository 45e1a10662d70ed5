"""What is known of file systems, from what Linux says of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staniel.journal.disk.file_system import FileSystemFlaw, Mount, find_mount, flaw_of, mount_id_in
from staniel.journal.disk.os_fs import OsFs

MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
31 27 0:30 / /mnt/my\040queues\134x rw,nosuid,relatime shared:7 master:1 - nfs4 host:/export/a rw,vers=4.2,hard
32 27 0:31 / /mnt/my\040queues\134x rw - xfs /dev/sdb1 rw,attr2
33 27 0:32 / /run rw,nosuid - tmpfs tmpfs rw,size=804k
34 27 0:33 /sub /srv ro,noatime shared:9 - btrfs /dev/sdc rw,ssd,nobarrier,subvol=/sub
135 27 0:34 / /cut
36 27 0:35 / /bare rw - overlay overlay
"""


def flaw(kind: str, options: str = "rw,relatime") -> FileSystemFlaw | None:
    return flaw_of(Mount(kind, frozenset(options.split(",")), "/srv"))


def test_a_mount_is_found_by_its_number_whatever_is_mounted_at_its_place() -> None:
    below = find_mount(MOUNTS, 31)
    assert below is not None and (below.kind, below.place) == ("nfs4", "/mnt/my queues\\x")
    assert {"nosuid", "hard", "vers=4.2"} <= below.options
    above = find_mount(MOUNTS, 32)
    assert above is not None and (above.kind, above.place) == ("xfs", below.place)


def test_options_of_the_mount_and_of_the_file_system_count_together() -> None:
    found = find_mount(MOUNTS, 34)
    assert found is not None and {"ro", "noatime", "nobarrier", "ssd"} <= found.options


def test_lines_that_are_cut_short_or_of_other_mounts_are_no_mount() -> None:
    assert find_mount(MOUNTS, 135) is find_mount(MOUNTS, 2) is find_mount(MOUNTS, -1) is find_mount("", 22) is None
    bare = find_mount(MOUNTS, 36)
    assert bare is not None and bare.options == {"rw"}


def test_an_open_file_says_on_which_mount_it_is() -> None:
    assert mount_id_in("pos:\t0\nflags:\t0100000\nmnt_id:\t31\nino:\t7\n") == 31
    assert mount_id_in("pos:\t0\nflags:\t0100000\n") == -1


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("nfs", "rw,hard"),
        ("nfs4", "rw,sync"),
        ("cifs", "rw"),
        ("smb3", "rw"),
        ("9p", "rw,cache=none"),
        ("fuse.sshfs", "rw"),
        ("fuse", "rw"),
        ("fuseblk", "rw"),
        ("vfat", "rw,sync"),
        ("exfat", "rw"),
        ("ext4", "rw,nobarrier"),
        ("ext4", "rw,barrier=0"),
        ("btrfs", "rw,ssd,nobarrier"),
        ("reiserfs", "rw,barrier=none"),
        ("f2fs", "rw,fsync_mode=nobarrier"),
        ("overlay", "rw,volatile"),
        ("fuse.fuse-overlayfs", "rw,volatile"),
        ("tmpfs", "rw,nobarrier"),
    ],
)
def test_what_breaks_the_promise_is_named(kind: str, options: str) -> None:
    found = flaw(kind, options)
    assert found is not None and found.breaks and found.text.startswith(f"{kind} at /srv ")


@pytest.mark.parametrize(("kind", "options"), [("tmpfs", "rw"), ("ramfs", "rw"), ("ext4", "rw,data=writeback")])
def test_what_is_only_not_as_it_may_seem_is_named_and_breaks_nothing(kind: str, options: str) -> None:
    found = flaw(kind, options)
    assert found is not None and not found.breaks


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(
            (kind, "rw,relatime")
            for kind in ("ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "virtiofs", "new")
        ),
        ("ext4", "rw,barrier=1,data=ordered"),
        ("overlay", "rw,lowerdir=/volatile,upperdir=/a,workdir=/nobarrier"),
        ("f2fs", "rw,fsync_mode=posix"),
        ("fusion", "rw"),
        ("fuse.fuse-overlayfs", "rw"),
    ],
)
def test_what_is_not_known_to_break_the_promise_is_not_accused(kind: str, options: str) -> None:
    assert flaw(kind, options) is None


def test_this_machine_says_on_which_file_system_a_folder_is(tmp_path: Path) -> None:
    found = OsFs().mount_of(str(tmp_path))
    assert found is not None and os.path.ismount(found.place) and found.kind
    assert OsFs().mount_of(str(tmp_path / "not" / "there")) == found
    proc = OsFs().mount_of("/proc/self")
    assert proc is not None and proc.kind == "proc"
