"""A member that follows and whose disk is full: it leaves the set with a reason, and comes back once there is room."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from staniel.journal.disk.fs import JournalFailure, SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster.room import is_of_full_disk, lack_of_room
from tests.cluster.servers import cluster
from tests.cluster.test_operators import reasons

MIB = 1 << 20
ITEM = "x" * 500_000


class SmallFs(OsFs):
    """A disk of 40 MiB, and what is free of it."""

    bytes, inodes = (40 * MIB, 40 * MIB), (1000, 1000)

    def free_bytes(self, folder: str) -> tuple[int, int]:
        return self.bytes

    def free_inodes(self, folder: str) -> tuple[int, int]:
        return self.inodes


@pytest.mark.parametrize(
    ("free", "inodes", "why"),
    [
        (5 * MIB, 16, ""),
        (5 * MIB - 1, 16, "the disk of its spool is full: 4 MiB are free, 5 are needed"),
        (5 * MIB, 15, "the disk of its spool is full: 15 inodes are free"),
    ],
)
def test_a_member_needs_as_much_room_as_the_reserve_of_a_leader(free: int, inodes: int, why: str) -> None:
    fs = SmallFs()
    fs.bytes, fs.inodes = (free, 40 * MIB), (inodes, 1000)
    assert lack_of_room(fs, "/") == why


def caused(error: JournalFailure, cause: Exception) -> JournalFailure:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (OSError(errno.EDQUOT, "full"), True),
        (OSError(errno.EIO, "broken"), False),
        (caused(JournalFailure("full"), OSError(errno.ENOSPC, "full")), True),
        (caused(JournalFailure("broken"), OSError(errno.EIO, "broken")), False),
        (SyncFailed(errno.ENOSPC, "full"), False),
        (JournalFailure("gone"), False),
        (None, False),
    ],
)
def test_a_failed_sync_is_no_full_disk(error: Exception | None, *, is_full: bool) -> None:
    assert is_of_full_disk(error) is is_full


@pytest.mark.programs("etcd", "unshare", "nsenter", "mount", "user:root")
@pytest.mark.slow
def test_a_follower_whose_disk_is_full_leaves_the_set_and_returns_when_there_is_room(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        leader, follower = servers.members
        follower.spool.mkdir()
        script = 'mount -t tmpfs -o size=40m none "$1" && shift && exec "$@"'
        follower.wrapper = ("unshare", "--mount", "sh", "-c", script, "sh", str(follower.spool))
        assert servers.form() is leader
        wire = leader.wire()
        items = 0
        while "cluster.disk_full" not in follower.lines:
            assert wire.put("jobs", ITEM) == "STORED"
            items += 1
        servers.wait_for(lambda: follower.status.get("disk_full"), "it says so")
        servers.wait_for(lambda: leader.status["in_sync"] == [leader.member_id], "it leaves the set")
        servers.wait_for(lambda: "the disk of its spool is full: " in follower.status.get("why", ""), "it says why")
        assert "disk_full" in reasons(follower)[1]
        assert wire.put("jobs", ITEM) == "STORED"
        inside = ["nsenter", f"--target={follower.pid}", "--mount", "--"]
        subprocess.run([*inside, "mount", "-o", "remount,size=400m", str(follower.spool)], check=True)
        servers.wait_until_whole()
        assert leader.call("/cluster/handover", {"to": follower.name})[0] == 202
        servers.wait_for(lambda: follower.role == "leading", "it leads")
        assert len(follower.wire().drain("jobs")) == items + 1


@pytest.mark.programs("etcd", "unshare", "nsenter", "mount", "user:root")
@pytest.mark.slow
def test_a_leader_whose_disk_is_full_refuses_puts_serves_gets_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    with cluster(tmp_path, count=2, min_in_sync=1) as servers:
        leader, follower = servers.members
        leader.spool.mkdir()
        script = 'mount -t tmpfs -o size=60m none "$1" && shift && exec "$@"'
        leader.wrapper = ("unshare", "--mount", "sh", "-c", script, "sh", str(leader.spool))
        assert servers.form() is leader
        wire, pid = leader.wire(), leader.pid
        stored, reply = 0, ""
        while not reply.startswith("SERVER_ERROR"):
            reply = wire.put("jobs", ITEM)
            stored += reply == "STORED"
        assert "disk" in reply, reply
        for size in (100_000, 1000, 1):  # what is left of the disk is filled up
            while (reply := wire.put("jobs", "y" * size)) == "STORED":
                stored += 1
        assert [wire.get("jobs") for _ in range(stored // 2)] == [ITEM] * (stored // 2)
        assert "disk_full" in reasons(leader)[1]
        assert leader.is_running and leader.pid == pid and "cluster.leads" in leader.lines
        inside = ["nsenter", f"--target={leader.pid}", "--mount", "--"]
        subprocess.run([*inside, "mount", "-o", "remount,size=400m", str(leader.spool)], check=True)
        servers.wait_for(lambda: wire.put("jobs", "last") == "STORED", "puts are taken again")
        servers.wait_until_same()
        leader.kill()
        servers.wait_for(lambda: servers.leader is follower, "the other one leads")
        rest = follower.wire().drain("jobs")
        assert len(rest) == stored - stored // 2 + 1 and rest[-1] == "last"
