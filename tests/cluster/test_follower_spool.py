"""A follower's spool is the leader's, byte for byte: after every batch, and after any power cut and what follows."""

from __future__ import annotations

import errno
from functools import cache
from random import Random

import pytest

from staniel.cluster.follower_spool import Applied, FollowerSpool, SpoolDiffers
from staniel.cluster.places import NOWHERE, Place
from staniel.cluster.spool_changes import (
    BadRecord,
    Change,
    FileAppended,
    FileCreated,
    FileOverwritten,
    FileRemoved,
    FileRenamed,
    FileTruncated,
    encode_changes,
)
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import JournalFailure
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Choose, Crash
from staniel.sim.world import content
from tests.cluster.spools import EPOCH, JOBS, FollowedWorld, contents, empty_disk, everything, to_lead, use_jobs
from tests.support.job_world import job_id
from tests.support.world import World

PATHS = SpoolPaths("s")
SYNC_EVERY = 7  # records, in the tests of accidents


def record_of(*changes: Change) -> bytes:
    (record,) = encode_changes(changes)
    return record


@cache
def stream() -> tuple[list[bytes], dict[str, bytes]]:
    """The records of a server that does everything, and its files at the end."""
    world = FollowedWorld()
    everything(world)
    return world.records, contents(world.leader, world.paths)


def apply_all(disk: Disk, records: list[bytes], every: int = SYNC_EVERY) -> FollowerSpool:
    """Apply the records behind the durable place, with a sync now and then."""
    follower = FollowerSpool(disk, PATHS)
    for number in range(follower.last.number + 1, len(records) + 1):
        assert follower.apply(Place(EPOCH, number), records[number - 1]) is Applied.APPLIED
        if number % every == 0:
            follower.sync()
    follower.sync()
    return follower


def test_whatever_a_server_does_its_follower_has_the_same_files_and_serves_the_same_items() -> None:
    world = FollowedWorld()
    everything(world)
    world.broker.shutdown(world.now_ms)
    world.follow()
    world.follower.close()
    items = content(world.leader)
    assert content(to_lead(world.follower_disk)) == items
    assert {"big", "mail", "mail+b", "other", "q"} <= items.keys()


def test_a_start_on_the_followers_disk_has_the_jobs_of_a_command_log_elsewhere() -> None:
    config = f'workq.port = 0\nworkq.cmdlog_path = "{JOBS}"\n'
    world = FollowedWorld(f'default.sync_journal = "always"\nadmin.port = 0\n{config}', JOBS)
    use_jobs(world, 2)
    world.broker.shutdown(world.now_ms)
    world.follow()
    world.follower.close()
    served = World(config, to_lead(world.follower_disk.copy()), world.now_ms + 1000)
    jobs = served.broker.workq.jobs.by_id
    assert sorted(id.hex() for id in jobs) == sorted(id.hex() for id in world.broker.workq.jobs.by_id)
    assert len(jobs) == 11 and job_id(3).replace("-", "") not in {id.hex() for id in jobs}


def test_a_leader_that_was_killed_starts_again_and_is_followed_on() -> None:
    """The redo log is in use, a queue has a torn end, an undo file and intents are left: recovery changes files."""
    world = FollowedWorld()
    everything(world)
    torn = world.leader.append("s/q")
    torn.write(b"\x05torn")
    world.recorder.add_data(FileAppended("q", torn.size - 5, b"\x05torn"))
    world.follow()
    before = len(world.records)
    again = FollowedWorld(before=world)
    assert len(again.records) > before
    again.client().puts("one more")
    again.sync()
    again.broker.shutdown(again.now_ms)
    again.follow()
    again.follower.close()
    assert content(to_lead(again.follower_disk)) == content(again.leader)


def any_stream(chance: Random) -> tuple[list[bytes], dict[str, bytes]]:
    """Records of changes that no server makes so close together, and the files that they lead to."""
    names = ["q", "r", "q.1", "r~~2", ".staniel/undo/1"]
    files: dict[str, bytearray] = {}
    records = []
    for _ in range(chance.randrange(3, 12)):
        changes = [any_change(chance, names, files) for _ in range(chance.randrange(1, 5))]
        records.append(record_of(*changes))
    return records, {name: bytes(data) for name, data in files.items()}


def any_change(chance: Random, names: list[str], files: dict[str, bytearray]) -> Change:
    name = chance.choice(names)
    if name not in files:
        files[name] = bytearray()
        return FileCreated(name)
    data = files[name]
    new = bytes([chance.randrange(1, 256)]) * chance.randrange(1, 1500)
    at = chance.randrange(len(data) + 1)
    match chance.choice(("append", "append", "rename", "rename", "remove", "cut", "overwrite")):
        case "append":
            at = len(data)
            data += new
            return FileAppended(name, at, new)
        case "rename":
            to = chance.choice([other for other in names if other != name])
            files[to] = files.pop(name)
            return FileRenamed(name, to)
        case "remove":
            del files[name]
            return FileRemoved(name)
        case "cut":
            del data[at:]
            return FileTruncated(name, at)
        case _:
            data[at : at + len(new)] = new
            return FileOverwritten(name, at, new)


@pytest.mark.parametrize("seed", range(200))
def test_any_changes_are_applied_again_after_any_accidents(seed: int) -> None:
    chance = Random(seed)
    records, files = any_stream(chance)
    disk = empty_disk()
    for _ in range(chance.randrange(1, 4)):
        disk.stop_at = len(disk.log) + chance.randrange(40)
        try:
            apply_all(disk, records, every=chance.randrange(1, 5))
        except PowerCut:
            disk = disk.crash(chance.randrange) if chance.randrange(4) else disk.kill()
        disk.stop_at = None
        disk.kill()
    apply_all(disk, records)
    assert contents(disk, PATHS) == files


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP, "any"])
@pytest.mark.slow
def test_a_power_cut_at_any_step_leaves_what_applying_again_completes(how: Crash | str) -> None:
    records, files = stream()
    whole = empty_disk()
    whole.log.clear()
    apply_all(whole, records).close()
    steps = len(whole.log)
    assert steps > 300
    chance = Random(11)
    stops = range(steps) if how == "any" else range(0, steps, 3)
    for stop in stops:
        disk = empty_disk()
        disk.log.clear()
        disk.stop_at = stop
        with pytest.raises(PowerCut):
            apply_all(disk, records).close()
        left = disk.crash(chance.randrange if how == "any" else choice(how))
        if stop % 5 == 0:  # a second accident, while it applies again
            left.stop_at = chance.randrange(1, 60)
            try:
                apply_all(left, records)
            except PowerCut:
                left = left.crash(chance.randrange)
            left.stop_at = None
        apply_all(left, records)
        assert contents(left, PATHS) == files, (how, stop)


def choice(how: Crash | str) -> Crash | Choose:
    assert isinstance(how, Crash)
    return how


@pytest.mark.slow
def test_a_follower_killed_at_any_step_applies_again_to_the_same_files() -> None:
    records, files = stream()
    whole = empty_disk()
    whole.log.clear()
    apply_all(whole, records)
    for stop in range(0, len(whole.log), 2):
        disk = empty_disk()
        disk.log.clear()
        disk.stop_at = stop
        try:
            apply_all(disk, records)
        except PowerCut:
            pass
        disk.kill()
        apply_all(disk, records)
        assert contents(disk, PATHS) == files, stop


def test_a_full_disk_refuses_a_record_which_can_be_given_again() -> None:
    records, files = stream()
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    chance = Random(3)
    refused = 0
    for number, record in enumerate(records, 1):
        verb, path = chance.choice(("write", "create", "rename", "remove")), chance.choice(("/big", "/mail", "/undo/"))
        disk.fail(verb, path, errno.ENOSPC, short=1)
        while True:
            try:
                assert follower.apply(Place(EPOCH, number), record) is Applied.APPLIED
                break
            except OSError:
                refused += 1
        if number % SYNC_EVERY == 0:
            follower.sync()
    assert refused > 10 and contents(disk, PATHS) == files


def test_after_a_failed_sync_nothing_is_applied_nor_durable() -> None:
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    follower.apply(Place(1, 1), record_of(FileCreated("q"), FileAppended("q", 0, b"abc")))
    disk.fail("sync", "/q", errno.EIO)
    for _ in range(2):
        with pytest.raises(JournalFailure):
            follower.sync()
    assert follower.durable == NOWHERE
    with pytest.raises(JournalFailure):
        follower.apply(Place(1, 2), record_of(FileRemoved("q")))
    assert FollowerSpool(disk.crash(Crash.DROP), PATHS).durable == NOWHERE


def test_records_come_in_their_order_or_are_refused() -> None:
    follower = FollowerSpool(empty_disk(), PATHS)
    first, second = record_of(FileCreated("q")), record_of(FileAppended("q", 0, b"a"))
    assert follower.apply(Place(2, 2), second) is Applied.GAP
    assert follower.apply(Place(2, 1), first) is Applied.APPLIED
    assert follower.apply(Place(2, 1), first) is Applied.KNOWN
    assert follower.apply(Place(1, 2), second) is Applied.OLD_EPOCH
    assert follower.apply(Place(3, 2), second) is Applied.APPLIED
    assert follower.apply(Place(3, 3), b"") is Applied.APPLIED  # the first record of an epoch changes no file
    with pytest.raises(BadRecord):
        follower.apply(Place(3, 4), b"\x01\x09")
    assert follower.last == (3, 3) and follower.durable == NOWHERE
    assert follower.sync() == (3, 3) == follower.durable


DIFFERING = {
    "a write to a missing file": FileAppended("r", 0, b"x"),
    "a write behind the end": FileAppended("q", 4, b"x"),
    "a write before the end": FileAppended("q", 2, b"x"),
    "a new file that is not empty": FileCreated("q"),
    "a missing file renamed": FileRenamed("r", "q"),
    "a missing file removed": FileRemoved("r"),
    "a missing file cut": FileTruncated("r", 0),
    "a cut behind the end": FileTruncated("q", 4),
    "a missing file overwritten": FileOverwritten("r", 0, b"x"),
    "bytes overwritten behind the end": FileOverwritten("q", 4, b"x"),
}


@pytest.mark.parametrize("what", DIFFERING)
def test_a_spool_that_is_not_the_leaders_is_noticed(what: str) -> None:
    follower = FollowerSpool(empty_disk(), PATHS)
    follower.apply(Place(1, 1), record_of(FileCreated("q"), FileAppended("q", 0, b"abc")))
    with pytest.raises(SpoolDiffers):
        follower.apply(Place(1, 2), record_of(DIFFERING[what]))


def test_a_spool_is_noticed_that_differs_after_a_clean_end() -> None:
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    follower.apply(Place(1, 1), record_of(FileCreated("q"), FileAppended("q", 0, b"abc")))
    follower.close()
    disk.append("s/q").write(b"by another program")
    with pytest.raises(SpoolDiffers):
        FollowerSpool(disk, PATHS).apply(Place(1, 2), record_of(FileAppended("q", 3, b"d")))


def test_a_spool_with_files_and_no_place_or_a_redo_log_in_use_is_not_followed() -> None:
    disk = empty_disk()
    disk.append("s/q").write(b"x")
    with pytest.raises(SpoolDiffers, match="no place"):
        FollowerSpool(disk, PATHS)
    world = World('server.redo_log = "1MB"\ndefault.sync_journal = "always"')
    world.client().puts("a")
    world.sync()
    world.turn()
    world.sync()
    assert world.disk.read("s/.staniel/version", 0, 99).startswith(b"staniel-spool 2")
    with pytest.raises(SpoolDiffers, match="redo log"):
        FollowerSpool(world.disk.kill(), PATHS)


def test_a_damaged_place_is_noticed_and_a_torn_one_is_the_one_before() -> None:
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    for number in (1, 2, 3):
        follower.apply(Place(1, number), b"")
        follower.sync()
    newest = max(range(2), key=lambda slot: disk.read("s/.staniel/follower", slot * 4096 + 8, 8))
    region = disk.overwrite("s/.staniel/follower")
    region.write_at(newest * 4096 + 20, b"\xff\xff")
    assert FollowerSpool(disk, PATHS).last == (1, 2)
    region.write_at((1 - newest) * 4096 + 20, b"\xff\xff")
    with pytest.raises(SpoolDiffers, match="damaged"):
        FollowerSpool(disk, PATHS)


def test_the_index_of_a_file_that_changes_goes_before_the_file() -> None:
    disk = empty_disk("s/.staniel/segments")
    follower = FollowerSpool(disk, PATHS)
    follower.apply(Place(1, 1), record_of(FileCreated("q.7"), FileCreated("q.8"), FileCreated("r")))
    for name in ("q.7", "q.8", "r.9"):
        disk.append(f"s/.staniel/segments/{name}").close()
    follower.apply(Place(1, 2), record_of(FileRemoved("q.7"), FileTruncated("q.8", 0), FileRenamed("r", "r.9")))
    assert disk.list("s/.staniel/segments") == []


def test_more_files_than_may_be_open_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staniel.cluster.follower_spool.OPEN_MAX", 3)
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    names = [f"q{number}" for number in range(10)]
    follower.apply(Place(1, 1), record_of(*[FileCreated(name) for name in names]))
    follower.apply(Place(1, 2), record_of(*[FileAppended(name, 0, name.encode()) for name in names]))
    follower.close()
    assert contents(disk.crash(Crash.DROP), PATHS) == {name: name.encode() for name in names}
