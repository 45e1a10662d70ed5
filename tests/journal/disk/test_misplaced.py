"""Files that another program takes away, as a stepped clock and a fake disk see it; and what is no such thing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from staniel.broker.broker import LOOK_AGAIN_MS, LOOK_MS
from staniel.journal.disk.fs import FilesMisplaced
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.unsynced_names import LOOKS_MAX, UnsyncedNames
from tests.support.spool import new_disk
from tests.support.world import World


def served() -> World:
    world = World("", new_disk())
    assert world.client().puts("1", "q").hears() in ("", "STORED")
    world.sync()
    world.turn(LOOK_MS)
    return world


def test_a_journal_that_is_gone_at_two_looks_ends_the_server() -> None:
    world = served()
    world.disk.remove("s/q")
    world.turn(LOOK_MS)
    with pytest.raises(FilesMisplaced, match=r"s/q was removed, moved or cut short"):
        world.turn(LOOK_AGAIN_MS)


def test_a_journal_that_is_back_at_the_second_look_was_being_renamed() -> None:
    world = served()
    world.disk.rename("s/q", "s/elsewhere")
    world.turn(LOOK_MS)
    world.disk.rename("s/elsewhere", "s/q")
    for _ in range(3):
        world.turn(LOOK_MS)


def test_a_lock_that_is_gone_ends_the_server_at_the_first_look() -> None:
    world = served()
    world.disk.remove("s/.staniel/lock")
    with pytest.raises(FilesMisplaced, match="the spool s was removed, moved"):
        world.turn(LOOK_MS)


def test_every_open_file_is_looked_at_in_turns(tmp_path: Path) -> None:
    fs = UnsyncedNames(OsFs())
    files = [fs.append(f"{tmp_path}/{number}") for number in range(2 * LOOKS_MAX + 10)]
    for gone in (0, LOOKS_MAX, 2 * LOOKS_MAX + 9):
        (tmp_path / str(gone)).rename(tmp_path / "away")
        assert [found for _ in range(6) if (found := fs.find_misplaced())] == [f"{tmp_path}/{gone}"]
        (tmp_path / "away").rename(tmp_path / str(gone))
        assert not any(fs.find_misplaced() for _ in range(6))
    for file in files:
        file.close()
    assert fs.find_misplaced() == ""


def test_own_renames_removals_and_cuts_misplace_nothing(tmp_path: Path) -> None:
    fs = UnsyncedNames(OsFs())
    a, b = fs.append(f"{tmp_path}/a"), fs.append(f"{tmp_path}/b")
    a.write(b"1234")
    fs.rename(f"{tmp_path}/a", f"{tmp_path}/c")
    fs.remove(f"{tmp_path}/b")
    fs.truncate(f"{tmp_path}/c", 2)
    a.size = 2
    assert not any(fs.find_misplaced() or fs.suspect for _ in range(4))
    (tmp_path / "c").write_bytes(b"1")
    assert fs.find_misplaced() == "" and fs.find_misplaced() == f"{tmp_path}/c"
    a.close()
    b.close()


class SlowToReturn(OsFs):
    """Something looks for misplaced files once the disk has done what was asked, before the caller knows."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] = lambda: None

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.look()

    def remove(self, path: str) -> None:
        super().remove(path)
        self.look()

    def truncate(self, path: str, size: int) -> None:
        super().truncate(path, size)
        self.look()


def test_what_a_thread_has_renamed_and_not_noted_yet_is_not_misplaced(tmp_path: Path) -> None:
    disk = SlowToReturn()
    fs = UnsyncedNames(disk)
    renamed, removed, cut = (fs.append(f"{tmp_path}/{name}") for name in ("renamed", "removed", "cut"))
    cut.write(b"1234")
    looks = []

    def look() -> None:
        looks.extend(fs.find_misplaced() for _ in range(4))
        assert fs.suspect is None

    disk.look = look
    fs.rename(f"{tmp_path}/renamed", f"{tmp_path}/other")
    fs.remove(f"{tmp_path}/removed")
    fs.truncate(f"{tmp_path}/cut", 2)
    look()
    assert looks == [""] * 16
    (tmp_path / "other").rename(tmp_path / "away")
    assert [fs.find_misplaced() for _ in range(4)].count(f"{tmp_path}/other") == 2
    for file in (renamed, removed, cut):
        file.close()


def test_a_lock_is_held_while_its_file_is_at_its_path(tmp_path: Path) -> None:
    fs, path = OsFs(), str(tmp_path / "lock")
    assert not fs.is_locked(path)
    fs.lock(path)
    assert fs.is_locked(path)
    (tmp_path / "lock").rename(tmp_path / "other")
    assert not fs.is_locked(path)
    (tmp_path / "lock").touch()
    assert not fs.is_locked(path)
    fs.close()
