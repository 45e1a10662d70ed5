"""A copy brings over what differs and nothing else, and the stream goes on from the place at which it began."""

from __future__ import annotations

from random import Random

import pytest

from staniel.cluster import compare
from staniel.cluster.compare import (
    SUM_BYTES,
    BadPlan,
    CopiedPart,
    CopyPlan,
    FileToSum,
    SpoolCopy,
    Sums,
    files_to_sum,
    hold_files,
    plan_parts,
    sum_files,
)
from staniel.cluster.follower_spool import Applied, FollowerSpool, SpoolDiffers
from staniel.cluster.places import Place
from staniel.cluster.spool_changes import FileAppended, encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import Fs
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from staniel.sim.world import content
from tests.cluster.spools import EPOCH, FollowedWorld, contents, empty_disk, everything, to_lead

PATHS = SpoolPaths("s")


def summed(fs: Fs, files: list[FileToSum]) -> Sums:
    sums = Sums()
    for part in sum_files(fs, files):
        if part is not None:
            sums.add(part)
    return sums


def plan_of(leader: Fs, held: list[FileToSum], member: Fs) -> CopyPlan:
    theirs = files_to_sum(member, PATHS)
    parts = [part for part in plan_parts(leader, held, summed(member, theirs)) if part is not None]
    return CopyPlan(parts, sorted({file.name for file in theirs} - {file.name for file in held}))


def spool_with(files: dict[str, bytes]) -> Disk:
    disk = empty_disk("s/.staniel")
    for name, data in files.items():
        file = disk.append(f"s/{name}")
        file.write(data)
        file.close()
    disk.sync_all("")
    return disk


def copy(leader: Disk, held: list[FileToSum], member: Disk, place: Place) -> CopyPlan:
    """Make the member's spool what the leader holds."""
    plan = plan_of(leader, held, member)
    target = SpoolCopy(member, PATHS, plan)
    paths = {file.name: file.path for file in held}
    for part in plan.parts:
        for at in range(part.at, part.size, 7000):
            target.write(part.name, at, leader.read(paths[part.name], at, min(7000, part.size - at)))
    target.end_copy(place)
    return plan


@pytest.fixture
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "CHUNK_BYTES", 10)


@pytest.mark.usefixtures("_small_chunks")
def test_a_plan_has_what_differs_from_the_first_chunk_that_does() -> None:
    same = {"q.1": b"1" * 25, "q.2": b""}
    leader = spool_with({**same, "q": b"a" * 25, "r": b"b" * 30, "t": b"c" * 12, "new": b"n", "none": b""})
    member = spool_with({**same, "q": b"a" * 31, "r": b"b" * 19 + b"x" + b"b" * 10, "t": b"c" * 11, "old": b"o"})
    plan = plan_of(leader, files_to_sum(leader, PATHS), member)
    assert plan.parts == [
        CopiedPart("new", 0, 1), CopiedPart("none", 0, 0), CopiedPart("q", 20, 25), CopiedPart("q.1", 25, 25),
        CopiedPart("q.2", 0, 0), CopiedPart("r", 10, 30), CopiedPart("t", 11, 12),
    ]  # fmt: skip
    assert plan.removals == ["old"]
    copy(leader, files_to_sum(leader, PATHS), member, Place(1, 1))
    assert contents(member, PATHS) == contents(leader, PATHS)


@pytest.mark.parametrize("seed", range(3))
def test_a_member_joins_while_the_leader_serves(seed: int) -> None:
    """It has files of its own: some are the leader's, some are cut, longer, damaged, or nobody's."""
    world = FollowedWorld()
    everything(world)
    chance = Random(seed)
    files = contents(world.leader, PATHS)
    member = spool_with({"stranger": b"x" * 5000, "q.read.old": b"y"})
    member.make_folder("s/.staniel/segments")
    for folder in ("undo", "keys", "cmdlog"):
        member.make_folder(f"s/.staniel/{folder}")
    member.append("s/.staniel/segments/big.1700000000000").close()
    for name in chance.sample(sorted(files), 8):
        data = bytearray(files[name])
        data += b"tail" * chance.randrange(2)
        if chance.randrange(2) and data:
            data[chance.randrange(len(data))] ^= 1
        member.append(f"s/{name}").write(bytes(data[: chance.randrange(len(data) + 1)]))
    world.broker.spool.fs.make_folder("s/.staniel/held")
    world.follow()
    held, began = hold_files(world.leader, PATHS, "1"), len(world.records)
    everything(world, scale=1)  # rotates, packs, removes what is being copied
    copy(world.leader, held, member, Place(EPOCH, began))
    follower = FollowerSpool(member.crash(Crash.DROP), PATHS)
    assert follower.last == (EPOCH, began)
    for number in range(began + 1, len(world.records) + 1):
        assert follower.apply(Place(EPOCH, number), world.records[number - 1]) is Applied.APPLIED
    assert len(world.records) - began > 50
    disk = follower._fs.beneath
    follower.close()
    assert isinstance(disk, Disk)
    assert contents(disk, PATHS) == contents(world.leader, PATHS)
    assert content(to_lead(disk)) == content(world.leader)


def test_an_interrupted_copy_has_no_place() -> None:
    leader = spool_with({"q": b"a" * 100, "r": b"b" * 100})
    held = files_to_sum(leader, PATHS)
    whole = spool_with({"q": b"z"})
    whole.log.clear()
    copy(leader, held, whole, Place(1, 5))
    for stop in range(len(whole.log)):
        member = spool_with({"q": b"z"})
        member.log.clear()
        member.stop_at = stop
        with pytest.raises(PowerCut):
            copy(leader, held, member, Place(1, 5))
        left = member.crash(Crash.KEEP if stop % 2 else Crash.DROP)
        try:
            follower = FollowerSpool(left, PATHS)
        except SpoolDiffers:
            continue
        assert follower.last == (1, 5) and contents(left, PATHS) == contents(leader, PATHS), stop


def test_pieces_and_plans_that_do_not_fit_are_refused() -> None:
    disk = spool_with({"q": b"abc"})
    for plan in (CopyPlan([], ["../q"]), CopyPlan([CopiedPart(".staniel/version", 0, 1)], ["q"])):
        with pytest.raises(BadPlan):
            SpoolCopy(disk, PATHS, plan)
    assert disk.read("s/q", 0, 9) == b"abc"
    target = SpoolCopy(disk, PATHS, CopyPlan([CopiedPart("q", 2, 4)], []))
    for name, at, data in (("r", 0, b"x"), ("q", 3, b"x"), ("q", 2, b"xyz"), ("q", 0, b"x")):
        with pytest.raises(BadPlan):
            target.write(name, at, data)
    with pytest.raises(BadPlan):
        target.end_copy(Place(1, 1))
    target.write("q", 2, b"xy")
    target.end_copy(Place(1, 1))
    assert disk.read("s/q", 0, 9) == b"abxy"
    (record,) = encode_changes([FileAppended("q", 4, b"z")])
    assert FollowerSpool(disk, PATHS).apply(Place(1, 2), record) is Applied.APPLIED


def test_a_file_of_the_leader_that_became_shorter_is_an_error() -> None:
    disk, member = spool_with({"q": b"abc"}), spool_with({"q": b"abcd"})
    with pytest.raises(OSError, match="shorter"):
        plan_of(disk, [FileToSum("q", "s/q", 4)], member)


@pytest.mark.usefixtures("_small_chunks")
def test_a_large_file_is_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "SUMS_MAX", 2)
    disk = spool_with({"q": b"x" * 45, "r": b"y" * 40})
    parts = [part for part in sum_files(disk, files_to_sum(disk, PATHS)) if part is not None]
    assert [(part.name, len(part.sums) // SUM_BYTES) for part in parts] == [
        ("q", 2), ("q", 2), ("q", 1), ("r", 2), ("r", 2), ("r", 0),
    ]  # fmt: skip
    assert plan_of(disk, files_to_sum(disk, PATHS), disk).parts == [CopiedPart("q", 45, 45), CopiedPart("r", 40, 40)]
