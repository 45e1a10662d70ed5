"""A member's file on a disk: what was promised and synced is there after any accident, also while it is compacted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from staniel.cluster.durable import Appended, Fitness, Fixed, Joined, Promised, Trimmed
from staniel.cluster.places import Place
from staniel.cluster.stream import RecordKind
from staniel.journal.disk.fs import FilesMisplaced, JournalFailure
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.spool import SpoolError
from staniel.server.cluster import member_file
from staniel.server.cluster.member_file import MemberFile
from staniel.sim.disk.disk import Disk, PowerCut
from staniel.sim.disk.durable import Crash
from tests.cluster.spools import empty_disk

C = b"c" * 16
OWN = "s/.staniel"
PATH = f"{OWN}/member"


def opened(disk: Disk) -> MemberFile:
    file = MemberFile(disk, OWN)
    file._worker.close()  # tests sync by themselves
    return file


class Story:
    """A member that promises and appends, syncs, trims, and compacts its file. `promised`, `last`: synced."""

    def __init__(self) -> None:
        self.promised = self.last = 0

    def tell(self, disk: Disk) -> None:
        file = opened(disk)
        self.say(file, Joined(C, 0))
        for number in range(1, 13):
            self.say(file, Promised(number), Appended(number, number, RecordKind.PUT, b"x" * 60))
            file.sync_now()
            self.promised = self.last = number
            if number % 3 == 0:
                self.say(file, Trimmed(number - 1), Fixed(number))
                file.rewrite_if_large()
        file._file.close()

    def say(self, file: MemberFile, *entries: Joined | Promised | Appended | Trimmed | Fixed) -> None:
        for entry in entries:
            assert file.kept.apply(entry)
        file.write(entries)


@pytest.fixture(autouse=True)
def compacted_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_file, "REWRITE_BYTES_MIN", 200)


def member_disk() -> Disk:
    disk = empty_disk()
    disk.make_folder(OWN)
    disk.sync_all("")
    disk.log.clear()
    return disk


def test_a_file_that_has_grown_is_compacted() -> None:
    disk = member_disk()
    Story().tell(disk)
    sizes = disk.size(PATH)
    assert sizes < 1000
    kept = opened(disk).kept
    assert (kept.promised, kept.cluster_id, kept.stream.base, kept.stream.last) == (12, C, Place(11, 11), Place(12, 12))


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP, "any", "kill"])
def test_what_was_synced_is_there_after_an_accident_at_any_step(how: Crash | str) -> None:
    whole = member_disk()
    Story().tell(whole)
    chance = Random(3)
    assert len(whole.log) > 50
    for stop in range(len(whole.log)):
        disk = member_disk()
        disk.stop_at = stop
        story = Story()
        with pytest.raises(PowerCut):
            story.tell(disk)
        if how == "kill":
            disk.stop_at = None
            left = disk.kill()
        else:
            left = disk.crash(how if isinstance(how, Crash) else chance.randrange)
        kept = opened(left).kept
        assert kept.promised >= story.promised and kept.stream.last.number >= story.last, stop
        assert kept.fitness is Fitness.WHOLE


def test_what_a_killed_member_had_renamed_is_durable_before_more_is_written() -> None:
    disk = member_disk()
    Story().tell(disk)
    renames = [at for at, op in enumerate(disk.log) if op.verb == "rename"]
    assert len(renames) > 2
    disk = member_disk()
    disk.stop_at = renames[1] + 1
    story = Story()
    with pytest.raises(PowerCut):
        story.tell(disk)
    disk.stop_at = None
    file = opened(disk.kill())
    story.say(file, Promised(99))
    file.sync_now()
    assert opened(file._fs.crash(Crash.DROP)).kept.promised == 99  # type: ignore[attr-defined]


def test_a_damaged_file_marks_the_member_durably_and_says_so() -> None:
    disk = member_disk()
    Story().tell(disk)
    region = disk.overwrite(PATH)
    region.write_at(disk.size(PATH) - 100, b"\xff")
    region.sync()
    file = opened(disk)
    assert "is damaged at byte" in file.damage and file.kept.fitness is Fitness.HALF
    again = opened(disk.crash(Crash.DROP))
    assert again.damage == "" and again.kept.fitness is Fitness.HALF and again.kept.member_id == file.kept.member_id


def test_a_file_that_does_not_say_whose_it_is_stops_the_member() -> None:
    disk = member_disk()
    Story().tell(disk)
    region = disk.overwrite(PATH)
    region.write_at(20, b"\xff")
    region.sync()
    before = disk.read(PATH, 0, 1 << 20)
    with pytest.raises(SpoolError, match="which member of which cluster"):
        opened(disk)
    assert disk.read(PATH, 0, 1 << 20) == before


@pytest.mark.parametrize("harm", ["removed", "replaced", "cut"])
def test_a_file_that_another_program_takes_away_ends_the_member(harm: str, tmp_path: Path) -> None:
    fs = OsFs()
    file = MemberFile(fs, str(tmp_path))
    path = tmp_path / "member"
    file.check_in_place()
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        data = path.read_bytes()
        path.unlink()
        if harm == "replaced":
            path.write_bytes(data)
    with pytest.raises(FilesMisplaced, match="was removed, moved or cut"):
        file.check_in_place()
    file.close()


def full_disk(torn: bytes = b"") -> Disk:
    """A disk that has no room for a second copy of the member's file, which ends with `torn`."""
    disk = member_disk()
    file = opened(disk)
    Story().say(file, Joined(C, 0), *[Appended(1, number, RecordKind.PUT, b"x" * 1000) for number in range(1, 40)])
    if torn:
        file._file.write(torn)
    file._file.close()
    disk.capacity_bytes = disk.used_bytes
    return disk


@pytest.mark.parametrize("torn", [b"", b"\0\0\1\0torn"])
def test_a_member_starts_on_a_full_disk(torn: bytes) -> None:
    disk = full_disk(torn)
    file = opened(disk)
    assert file.kept.stream.last == Place(1, 39) and not file.damage
    assert disk.list(OWN) == [("member", True)]
    left = disk.crash(Crash.DROP)  # what it has read is durable from here on
    left.capacity_bytes = 1 << 30
    assert opened(left).kept.stream.last == Place(1, 39)


@pytest.mark.parametrize("how", [Crash.DROP, Crash.KEEP, "any"])
def test_an_accident_while_a_member_starts_on_a_full_disk_loses_nothing(how: Crash | str) -> None:
    chance = Random(5)
    whole = full_disk(b"\0\0\1\0torn")
    whole.sync_all("")
    whole.log.clear()
    opened(whole)
    assert len(whole.log) > 3
    for stop in range(len(whole.log)):
        disk = full_disk(b"\0\0\1\0torn")
        disk.sync_all("")
        disk.log.clear()
        disk.stop_at = stop
        with pytest.raises(PowerCut):
            opened(disk)
        left = disk.crash(how if isinstance(how, Crash) else chance.randrange)
        kept = opened(left).kept
        assert kept.stream.last == Place(1, 39) and kept.fitness is Fitness.WHOLE, stop


def test_a_file_that_has_grown_waits_for_room_to_be_compacted() -> None:
    disk = full_disk()
    file = opened(disk)
    assert file.kept.apply(Trimmed(39))
    file.rewrite_if_large()
    assert file._file.size > 30_000
    disk.capacity_bytes = 1 << 30
    file.write([Trimmed(39)] * 20)
    file.rewrite_if_large()
    assert file._file.size < 1000


def test_on_a_full_disk_entries_take_the_place_of_the_reserve_and_old_ones_go_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_file, "REWRITE_BYTES_MIN", 1 << 20)
    monkeypatch.setattr(member_file, "REWRITE_FULL_BYTES_MIN", 1000)
    disk = full_disk()
    disk.capacity_bytes += 5000
    disk.allocate(f"{OWN}/ballast", 5000)
    file = opened(disk)
    assert file.kept.apply(Trimmed(39))
    file.rewrite_if_large()
    assert file._file.size > 30_000 and not file.is_short_of_room
    file.write([Trimmed(39)])
    assert disk.list(OWN) == [("member", True)] and file.is_short_of_room
    with pytest.raises(JournalFailure, match="cannot write"):
        file.write([Appended(1, 40, RecordKind.PUT, b"x" * 10_000)])
    size = file._file.size
    assert disk.size(PATH) == size
    file.rewrite_if_large()
    assert file._file.size < 1000 and not file.is_short_of_room
    entry = Appended(1, 40, RecordKind.PUT, b"x" * 10_000)
    assert file.kept.apply(entry)
    file.write([entry])
    file.sync_now()
    assert opened(disk.crash(Crash.DROP)).kept.stream.last == Place(1, 40)
