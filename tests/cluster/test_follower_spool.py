"""A follower's spool is the leader's, byte for byte: after every batch, and after any power cut and what follows."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from random import Random

import pytest

from staniel.cluster.follower_spool import (
    Applied,
    FollowerSpool,
    PlaceFile,
    SpoolDiffers,
    forget_place,
    has_place,
    store_first_place,
)
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
from staniel.journal.disk.fs import JournalFailure, is_there
from staniel.journal.disk.unsynced_names import UnsyncedNames
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


BYTES = b"\x01" * 700
UNDO, JOBS_LOG = ".staniel/undo/1", ".staniel/cmdlog/000000001.log"
HAD: list[Change] = [
    FileCreated("q"),
    FileAppended("q", 0, BYTES),
    FileCreated("q.5"),
    FileAppended("q.5", 0, BYTES),
    FileCreated("q.6"),
]
KINDS: dict[str, list[list[Change]]] = {
    "create": [[FileCreated("r")]],
    "create in a new folder": [[FileCreated(UNDO)], [FileAppended(UNDO, 0, BYTES)], [FileCreated(JOBS_LOG)]],
    "create many": [[FileCreated(f"r{number}") for number in range(6)], [FileAppended("r2", 0, BYTES)]],
    "append": [[FileAppended("q", 700, b"new")], [FileAppended("q", 703, BYTES)]],
    "truncate": [[FileAppended("q", 700, b"new")], [FileTruncated("q", 10)], [FileAppended("q", 10, b"again")]],
    "truncate what is behind the place": [[FileAppended("q", 700, BYTES), FileTruncated("q", 702)]],
    "overwrite": [[FileOverwritten("q", 600, b"new" * 100)], [FileAppended("q", 900, b"x")]],
    "rename": [[FileRenamed("q", "r")], [FileCreated("q")]],
    "rename onto a file": [[FileRenamed("q", "q.5")], [FileAppended("q.5", 700, b"more")]],
    "rename into a new folder": [[FileRenamed("q", ".staniel/aside.7/q")], [FileCreated("q")]],
    "remove": [[FileRemoved("q")]],
    "remove and make again": [[FileRemoved("q")], [FileCreated("q"), FileAppended("q", 0, b"new")]],
    "remove what was just made": [[FileCreated("r"), FileAppended("r", 0, b"x"), FileRemoved("r")], [FileCreated("s")]],
    "rotation": [[FileRenamed("q", "q.7"), FileCreated("q")], [FileAppended("q", 0, b"new")]],
    "pack": [
        [FileCreated("q~~1"), FileAppended("q~~1", 0, b"packed" * 200)],
        [FileRenamed("q~~1", "q.6.pack")],
        [FileRemoved("q.5"), FileRemoved("q.6"), FileRenamed("q.6.pack", "q.6")],
        [FileAppended("q", 700, b"new")],
    ],
}
"""What happens to the files of HAD, by its name: the records."""


def files_of(kind: str) -> dict[str, bytes]:
    """The files that records of KINDS lead to."""
    follower = FollowerSpool(disk := with_had(), PATHS)
    for number, changes in enumerate(KINDS[kind], 2):
        follower.apply(Place(1, number), record_of(*changes))
    return contents(disk, PATHS)


def with_had() -> Disk:
    disk = empty_disk()
    follower = FollowerSpool(disk, PATHS)
    follower.apply(Place(1, 1), record_of(*HAD))
    follower.sync()
    disk.kill()
    disk.log.clear()
    return disk


def apply_kind(disk: Disk, kind: str, *, ends: bool = False) -> FollowerSpool:
    """Apply the records that the files do not have, and sync."""
    follower = FollowerSpool(disk, PATHS)
    for number, changes in enumerate(KINDS[kind], 2):
        if number > follower.last.number:
            assert follower.apply(Place(1, number), record_of(*changes)) is Applied.APPLIED
    follower.sync()
    if ends:
        follower.close()
    return follower


SYNCS = ("sync", "sync_folder", "sync_all")


def accidents(disk: Disk, kind: str) -> Iterator[tuple[str, Disk]]:
    """Yield the disk, with its caches, after each failed sync of a process that applies the records."""
    for verb in SYNCS:
        for after in range(200):
            left = disk.fork()
            left.fail(verb, "", errno.EIO, after=after)
            try:
                apply_kind(left, kind, ends=True)
            except JournalFailure:
                yield f"{verb} {after} failed", left.kill()
            else:
                break
        else:
            raise AssertionError(f"no end of {verb}")


def kills(disk: Disk, kind: str) -> Iterator[tuple[int, Disk]]:
    """Yield the disk, with its caches, after a kill at each step of a process that applies the records."""
    whole = disk.fork()
    apply_kind(whole, kind, ends=True)
    for stop in range(len(whole.log)):
        left = disk.fork()
        left.stop_at = stop
        with pytest.raises(PowerCut):
            apply_kind(left, kind, ends=True)
        yield stop, left.kill()


def is_whole(disk: Disk, kind: str, files: dict[str, bytes]) -> bool:
    """Tell whether the disk has the files after any power cut, with their place."""
    choices = [Random(seed).randrange for seed in range(4)]
    for how in (Crash.DROP, Crash.KEEP, *choices):
        left = disk.crash(how)
        if contents(left, PATHS) != files or FollowerSpool(left, PATHS).durable.number != 1 + len(KINDS[kind]):
            return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_failed_sync_left_in_the_caches_is_done_anew(kind: str) -> None:
    files = files_of(kind)
    for accident, left in accidents(with_had(), kind):
        apply_kind(left, kind)
        assert is_whole(left, kind, files), accident


@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_while_what_a_failed_sync_left_is_done_anew_leaves_a_spool_to_go_on_with(kind: str) -> None:
    files = files_of(kind)
    for accident, left in accidents(with_had(), kind):
        for steps, killed in kills(left, kind):
            for how in (Crash.DROP, Random(steps).randrange):
                cut = killed.crash(how)
                apply_kind(cut, kind)
                assert is_whole(cut, kind, files), (accident, steps)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_sync_after_a_kill_loses_nothing_of_the_killed_process(kind: str) -> None:
    files = files_of(kind)
    for steps, killed in kills(with_had(), kind):
        for accident, left in accidents(killed, kind):
            apply_kind(left, kind)
            assert is_whole(left, kind, files), (steps, accident)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_after_a_failed_sync_and_another_failed_sync_lose_nothing(kind: str) -> None:
    files, chance = files_of(kind), Random(7)
    for first, failed in accidents(with_had(), kind):
        for steps, killed in kills(failed, kind):
            for accident, left in accidents(killed, kind):
                if chance.randrange(6) == 0:
                    apply_kind(left, kind)
                    assert is_whole(left, kind, files), (first, steps, accident)


@pytest.mark.parametrize("seed", range(300))
def test_any_changes_are_applied_again_after_any_failed_syncs_and_kills(seed: int) -> None:
    chance = Random(seed)
    records, files = any_stream(chance)
    disk = empty_disk("s/.staniel")
    for _ in range(chance.randrange(1, 5)):
        if chance.randrange(3):
            disk.fail(chance.choice(SYNCS), "", errno.EIO, after=chance.randrange(12))
        else:
            disk.stop_at = len(disk.log) + chance.randrange(40)
        try:
            apply_all(disk, records, every=chance.randrange(1, 5)).close()
        except JournalFailure:
            pass
        except PowerCut:
            disk = disk.crash(chance.randrange) if chance.randrange(4) == 0 else disk
        disk.kill()
    apply_all(disk, records)
    for how in (Crash.DROP, Crash.KEEP, chance.randrange):
        assert contents(disk.crash(how), PATHS) == files, how


SIDECARS = "s/.staniel/segments"


def test_an_index_whose_removal_was_not_synced_does_not_come_back() -> None:
    disk = empty_disk(SIDECARS)
    for name in ("q.5", "q.8"):
        disk.append(f"{SIDECARS}/{name}").close()
    disk.sync_folder(SIDECARS)
    first, second = record_of(FileCreated("q.5")), record_of(FileCreated("q.8"), FileRemoved("q.5"))
    disk.fail("sync_folder", "/segments", errno.EIO)
    follower = FollowerSpool(disk, PATHS)
    follower.apply(Place(1, 1), first)
    with pytest.raises(JournalFailure):
        follower.apply(Place(1, 2), second)
    follower = FollowerSpool(disk.kill(), PATHS)
    follower.apply(Place(1, 1), first)
    follower.apply(Place(1, 2), second)
    follower.sync()
    assert disk.crash(Crash.DROP).list(SIDECARS) == []


def test_files_that_were_begun_by_an_earlier_process_are_not_left_as_clean_by_one_that_applies_nothing() -> None:
    disk = with_had()
    FollowerSpool(disk, PATHS).apply(Place(1, 2), record_of(FileAppended("q", 700, b"new")))
    FollowerSpool(disk.kill(), PATHS).close()
    follower = FollowerSpool(disk.kill(), PATHS)
    assert follower.apply(Place(1, 2), record_of(FileAppended("q", 700, b"new"))) is Applied.APPLIED


def test_a_place_whose_removal_was_not_synced_is_forgotten_once_more() -> None:
    disk = with_had()
    disk.fail("sync_folder", "/.staniel", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        forget_place(disk, PATHS)
    forget_place(disk.kill(), PATHS)
    assert not has_place(disk.crash(Crash.DROP), PATHS)


def test_a_power_cut_while_a_place_is_forgotten_leaves_the_old_one_or_none() -> None:
    for seed in range(40):
        disk = with_had()
        disk.fail("sync_folder", "/.staniel", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            forget_place(disk, PATHS)
        disk.kill().stop_at = len(disk.log) + seed % 4
        with suppress(PowerCut):
            forget_place(disk, PATHS)
        left = disk.crash(Random(seed).randrange)
        assert not has_place(left, PATHS) or FollowerSpool(left, PATHS).durable == (1, 1)


@pytest.mark.parametrize("verb", SYNCS)
def test_a_place_that_could_not_be_stored_is_stored_anew(verb: str) -> None:
    for after in range(3):
        disk = with_had()
        forget_place(disk, PATHS)
        disk.fail(verb, "/.staniel", errno.EIO, after=after)
        try:
            store_first_place(UnsyncedNames(disk), PATHS, Place(1, 1))
        except JournalFailure:
            disk.kill()
            if not has_place(disk, PATHS):
                store_first_place(UnsyncedNames(disk), PATHS, Place(1, 1))
        assert FollowerSpool(disk.kill(), PATHS).durable == (1, 1)
        assert FollowerSpool(disk.crash(Crash.DROP), PATHS).durable == (1, 1)


def broken_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust a place that an earlier process may have failed to sync."""
    write = PlaceFile._write
    monkeypatch.setattr(PlaceFile, "_write", lambda self, new: None if new is self.stored else write(self, new))


def broken_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a rename or a removal that seems to be done for done."""
    change_name = FollowerSpool._change_name

    def broken(self: FollowerSpool, change: FileRenamed | FileRemoved, *, may_be_done: bool) -> None:
        if not may_be_done or is_there(self._fs, self._paths.path_of(change.name)):
            change_name(self, change, may_be_done=may_be_done)

    monkeypatch.setattr(FollowerSpool, "_change_name", broken)


def broken_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on with a file that is there already."""
    create = FollowerSpool._create

    def broken(self: FollowerSpool, name: str) -> None:
        if is_there(self._fs, self._paths.path_of(name)) and name not in self._touched:
            self._cut_behind(name, self._opened(name), 0)
        create(self, name)

    monkeypatch.setattr(FollowerSpool, "_create", broken)


def broken_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on with a folder that a killed process has made, and may not have synced."""

    def broken(self: FollowerSpool, name: str) -> None:
        if "/" in name:
            self._fs.make_folder(self._folder_of(name))

    monkeypatch.setattr(FollowerSpool, "_make_folder", broken)


def broken_folder_of_begun_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace an empty folder although a change of names was begun that may have moved a file out of it."""
    undo_name = FollowerSpool._undo_name

    def broken(self: FollowerSpool, change: FileRenamed | FileRemoved) -> None:
        undo_name(self, change)
        if isinstance(change, FileRenamed):
            self._make_folder(change.new)

    monkeypatch.setattr(FollowerSpool, "_undo_name", broken)


def broken_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say at the end that nothing is in doubt, although not all has been done anew."""
    close = FollowerSpool.close

    def broken(self: FollowerSpool) -> None:
        self._is_exact = True
        close(self)

    monkeypatch.setattr(FollowerSpool, "close", broken)


def broken_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take an index that is not there for removed."""
    drop_sidecar = FollowerSpool._drop_sidecar

    def broken(self: FollowerSpool, name: str) -> None:
        self._repeated = 0
        drop_sidecar(self, name)

    monkeypatch.setattr(FollowerSpool, "_drop_sidecar", broken)


def broken_forgetting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a place that is not there for forgotten."""
    forget = forget_place
    monkeypatch.setitem(globals(), "forget_place", lambda fs, paths: has_place(fs, paths) and forget(fs, paths))


def all_kinds(test: Callable[[str], None]) -> Callable[[], None]:
    def run() -> None:
        for kind in KINDS:
            test(kind)

    return run


BROKEN: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    broken_place: all_kinds(test_what_a_failed_sync_left_in_the_caches_is_done_anew),
    broken_names: all_kinds(test_what_a_failed_sync_left_in_the_caches_is_done_anew),
    broken_creation: all_kinds(test_what_a_failed_sync_left_in_the_caches_is_done_anew),
    broken_folder: all_kinds(test_a_failed_sync_after_a_kill_loses_nothing_of_the_killed_process),
    broken_folder_of_begun_names: all_kinds(
        test_a_power_cut_while_what_a_failed_sync_left_is_done_anew_leaves_a_spool_to_go_on_with
    ),
    broken_end: test_files_that_were_begun_by_an_earlier_process_are_not_left_as_clean_by_one_that_applies_nothing,
    broken_indexes: test_an_index_whose_removal_was_not_synced_does_not_come_back,
    broken_forgetting: test_a_place_whose_removal_was_not_synced_is_forgotten_once_more,
}
"""Rules broken on purpose, and the test that notices each. The simulated cluster has no files of queues for them."""


@pytest.mark.pure
@pytest.mark.parametrize("breaks", BROKEN)
def test_a_broken_rule_of_doing_anew_is_noticed(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises((AssertionError, SpoolDiffers)):
        BROKEN[breaks]()
