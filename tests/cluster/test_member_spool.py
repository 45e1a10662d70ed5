"""The files of a member at a change of its role: what a leader may have done to them is not taken for a follower's."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from staniel.broker.events import Level
from staniel.cluster.core import MemberConfig
from staniel.cluster.durable import ALL_FIXED, Appended, Entries, Fixed, Joined, Promised, Seen, encode_entry, new_file
from staniel.cluster.effects import ReadKey, Transact
from staniel.cluster.follower_spool import SpoolDiffers
from staniel.cluster.key import Key
from staniel.cluster.leader import LeaderState
from staniel.cluster.spool_changes import FileAppended, FileCreated, encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import RecordKind
from staniel.journal.disk.os_fs import OsFs
from staniel.server.cluster.driver import Driver, MustBeginAnew, Outside
from staniel.server.cluster.member_file import MemberFile, is_ahead
from staniel.server.cluster.member_spool import MemberSpool
from staniel.server.cluster.reactor import Reactor

A, B, C, CLUSTER = b"a" * 16, b"b" * 16, b"c" * 16, b"x" * 16
ITEM = next(iter(encode_changes([FileCreated("q"), FileAppended("q", 0, b"item")])))
FOLLOWED = (
    Joined(CLUSTER, 0),
    Promised(1),
    Seen(5),
    Appended(1, 1, RecordKind.EPOCH, A),
    Appended(1, 2, RecordKind.PUT, ITEM),
)


def ignore(level: Level, event: str, **fields: object) -> None:
    """Report nothing."""


def key(epoch: int, leader: bytes) -> Key:
    return Key(CLUSTER, epoch, leader, "x:1", (A, B, C))


def write_member(folder: Path, *entries: Entries) -> SpoolPaths:
    """Write the file of member B."""
    own = folder / ".staniel"
    own.mkdir()
    own.joinpath("member").write_bytes(new_file(B) + b"".join(map(encode_entry, entries)))
    return SpoolPaths(str(folder))


class Process:
    """A member's driver on real files, in a process of which the test plays the rest."""

    def __init__(self, paths: SpoolPaths) -> None:
        self.asked: list[ReadKey | Transact] = []
        self.driver = Driver(MemberConfig("b:1"), OsFs(), paths, Reactor(), 5000, ignore)
        self.driver.outside = Outside(
            self.asked.append, lambda leader: None, lambda upto: None, lambda: None, lambda: None
        )
        self.driver.start()
        self.end_syncs()

    def end_syncs(self) -> None:
        """Wait for the syncs that run."""
        while self.driver.file.running is not None:
            assert select.select([self.driver.file.fd], [], [], 60)[0]
            self.driver._on_synced(0)

    def elect(self) -> None:
        """Have this member elected for epoch 2; its promise is not synced yet."""
        self.driver.member.key_read(self.asked[-1].ask, key(1, A), 5)
        self.driver.carry_out()
        self.end_syncs()
        self.driver.key_watched(key(2, B), 6)


@pytest.mark.parametrize("was_ahead", [False, True])
@pytest.mark.parametrize("state", [LeaderState.PROMISING, LeaderState.RECOVERING])
def test_a_leader_that_is_deposed_before_it_serves_begins_anew_and_says_what_its_files_are(
    state: LeaderState, was_ahead: bool, tmp_path: Path
) -> None:
    paths = write_member(tmp_path, *FOLLOWED, *([Fixed(ALL_FIXED)] if was_ahead else []))
    process = Process(paths)
    process.elect()
    if state is LeaderState.RECOVERING:
        process.end_syncs()
    leader = process.driver.member.leader
    assert leader is not None and leader.state is state
    with pytest.raises(MustBeginAnew):
        process.driver.key_watched(key(3, C), 7)
    kept = MemberFile(OsFs(), paths.own).kept
    assert is_ahead(kept) is (was_ahead or state is LeaderState.RECOVERING)
    assert is_ahead(kept) or kept.fixed == 2


def test_records_are_not_applied_to_files_that_are_no_followers(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED, Fixed(ALL_FIXED))
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    with pytest.raises(SpoolDiffers):
        spool.apply(2)
    spool.become_leaders(2)


def test_files_that_were_left_to_a_leader_take_no_records(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    spool.become_leaders(2)
    assert tmp_path.joinpath("q").read_bytes() == b"item"
    with pytest.raises(SpoolDiffers):
        spool.apply(2)


def test_a_gap_before_the_kept_records_is_an_error(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    kept = MemberFile(OsFs(), paths.own).kept
    spool = MemberSpool(OsFs(), paths, kept)
    spool.open()
    kept.stream.forget(1)
    with pytest.raises(SpoolDiffers, match="missing"):
        spool.apply(2)
