"""The files of a member at a change of its role: what a leader may have done to them is not taken for a follower's."""

from __future__ import annotations

import errno
from contextlib import closing
from pathlib import Path

import pytest

from staniel.cluster.durable import ALL_FIXED, Appended, Created, Fitness, Fixed, Joined, Kept, Promised
from staniel.cluster.follower_spool import FollowerSpool, SpoolDiffers
from staniel.cluster.leader import LeaderState
from staniel.cluster.spool_changes import FileCreated, FileRemoved, encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.stream import Record, RecordKind
from staniel.journal.disk.fs import JournalFailure
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.holds import Hold, HoldState, encode, read_holds
from staniel.server.cluster.driver import MustBeginAnew
from staniel.server.cluster.member_file import MemberFile, is_ahead
from staniel.server.cluster.member_spool import HOLDS_ENDED, MemberSpool
from staniel.sim.disk.disk import Disk
from staniel.sim.disk.durable import Crash
from tests.cluster.driven import CLUSTER, FOLLOWED, B, C, Process, key, write_member
from tests.cluster.spools import empty_disk


@pytest.mark.parametrize("was_ahead", [False, True])
@pytest.mark.parametrize("state", [LeaderState.PROMISING, LeaderState.RECOVERING])
def test_a_leader_that_is_deposed_before_it_serves_begins_anew_and_says_what_its_files_are(
    state: LeaderState, was_ahead: bool, tmp_path: Path
) -> None:
    paths = write_member(tmp_path, *FOLLOWED, *([Fixed(ALL_FIXED)] if was_ahead else []))
    with closing(Process(paths)) as process:
        process.elect()
        if state is LeaderState.RECOVERING:
            process.end_syncs()
        leader = process.driver.member.leader
        assert leader is not None and leader.state is state
        with pytest.raises(MustBeginAnew):
            process.driver.key_watched(key(3, C), 7)
        process.end_syncs()
    kept = MemberFile(OsFs(), paths.own).kept
    assert is_ahead(kept) is (was_ahead or state is LeaderState.RECOVERING)
    assert is_ahead(kept) or kept.fixed == 2


def records_of(paths: SpoolPaths) -> list[Record]:
    """The records that a member has kept."""
    return list(MemberFile(OsFs(), paths.own).kept.stream.behind(0))


def test_records_are_not_applied_to_files_that_are_no_followers(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED, Fixed(ALL_FIXED))
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    with pytest.raises(SpoolDiffers):
        spool.apply(records_of(paths))
    spool.become_leaders(records_of(paths))


def test_a_member_that_has_made_the_cluster_with_its_items_and_lost_power_can_lead_with_them(tmp_path: Path) -> None:
    (tmp_path / "q").write_bytes(b"items")
    paths = write_member(tmp_path, Joined(CLUSTER, 1), Promised(1))  # the next entry, that it leads, was not synced
    with closing(Process(paths)) as process:
        assert process.driver.kept.fitness is Fitness.WHOLE
        process.driver.spool.become_leaders([])
    assert (tmp_path / "q").read_bytes() == b"items"


def test_files_that_were_left_to_a_leader_take_no_records(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    spool.become_leaders(records_of(paths))
    assert tmp_path.joinpath("q").read_bytes() == b"item"
    with pytest.raises(SpoolDiffers):
        spool.apply(records_of(paths))


def test_a_gap_before_the_kept_records_is_an_error(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED)
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    with pytest.raises(SpoolDiffers, match="missing"):
        spool.apply(records_of(paths)[1:])


def test_a_member_that_died_before_it_led_has_its_last_records_applied_once_it_leads(tmp_path: Path) -> None:
    paths = write_member(tmp_path, *FOLLOWED, Fixed(ALL_FIXED))
    FollowerSpool(OsFs(), paths).close()
    spool = MemberSpool(OsFs(), paths, MemberFile(OsFs(), paths.own).kept)
    spool.open()
    spool.become_leaders(records_of(paths))
    assert tmp_path.joinpath("q").read_bytes() == b"item"


def test_a_removal_that_was_begun_is_done_when_the_files_are_opened() -> None:
    """A copy may come next, which cannot see what was removed in the cache alone."""
    disk, paths = empty_disk("s/.staniel"), SpoolPaths("s")
    kept, changes = Kept(), ([FileCreated("q")], [FileRemoved("q")])
    records = [Appended(1, number, RecordKind.CHANGE, *encode_changes(some)) for number, some in enumerate(changes, 1)]
    for entry in (Created(B), Joined(CLUSTER, 0), *records, Fixed(2)):
        assert kept.apply(entry)
    spool = MemberSpool(disk, paths, kept)
    spool.open()
    spool.apply(list(kept.stream.behind(0))[:1])
    disk.fail("sync_folder", "/s", errno.EIO, after=1)
    with pytest.raises(JournalFailure):
        spool.apply(list(kept.stream.behind(1)))
    MemberSpool(disk.kill(), paths, kept).open()
    assert paths.replicated_files(disk.crash(Crash.DROP)) == []


def held(disk: Disk) -> list[tuple[HoldState, str]]:
    return [(hold.state, hold.why) for hold in read_holds(disk, "s")]


@pytest.mark.parametrize("how", ["records", "a copy"])
def test_a_member_that_follows_keeps_no_hold_of_the_time_when_it_led(how: str) -> None:
    disk, paths = empty_disk("s/.staniel"), SpoolPaths("s")
    disk.make_folder("s/.staniel/kept")
    for path in ("s/.staniel/kept/archive~q.5", "s/.staniel/kept/of a user"):
        disk.append(path).close()
    replace_file(disk, "s/.staniel/holds", encode([Hold("archive", ["*"], 0, 1, 1, {"q": "q.4"})]))
    kept = Kept()
    change = Appended(1, 1, RecordKind.CHANGE, *encode_changes([FileCreated("q")]))
    for entry in (Created(B), Joined(CLUSTER, 0), change, Fixed(1)):
        assert kept.apply(entry)
    spool = MemberSpool(disk, paths, kept)
    spool.open()
    assert held(disk) == [(HoldState.ACTIVE, "")]  # it may lead again at once, with all files as they were
    if how == "records":
        spool.apply(list(kept.stream.behind(0)))
    else:
        spool.begin_copy()
    left = disk.crash(Crash.DROP)
    assert held(left) == held(disk) == [(HoldState.DROPPED, HOLDS_ENDED)]
    assert [name for name, _ in disk.list("s/.staniel/kept")] == ["of a user"]
