"""The folder of a set of extensions: replaced as a whole or not at all, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.scripts import script


@pytest.fixture
def sets() -> ModuleType:
    return script("compiled_set")


def write(sets: ModuleType, folder: Path, text: str) -> None:
    with sets.replacement(folder) as fresh:
        (fresh / "manifest").write_text(text)
        sets.sync(fresh)


def test_a_folder_is_replaced_as_a_whole(sets: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "set"
    for text in ("first", "second"):
        write(sets, folder, text)
        assert (folder / "manifest").read_text() == text
        assert folder.stat().st_mode & 0o777 == 0o755
        assert list(folder.parent.iterdir()) == [folder], "nothing is left over"


def test_two_folders_change_their_names_in_one_step(sets: ModuleType, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "first").touch()
    assert sets.exchange(one, other)
    assert [path.name for path in tmp_path.rglob("first")] == ["first"] and (other / "first").exists()
    assert not sets.exchange(one, tmp_path / "missing")


def test_a_file_system_that_cannot_exchange_names_is_served_by_renames(
    sets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "exchange", lambda one, other: False)
    folder = tmp_path / "set"
    for text in ("first", "second"):
        write(sets, folder, text)
        assert (folder / "manifest").read_text() == text
    assert list(tmp_path.iterdir()) == [folder]


def test_what_fails_leaves_the_folder_as_it_is(sets: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write(sets, folder, "first")
    with pytest.raises(ZeroDivisionError), sets.replacement(folder) as fresh:
        (fresh / "manifest").write_text(str(1 / 0))
    assert (folder / "manifest").read_text() == "first"
    assert list(tmp_path.iterdir()) == [folder]


def test_what_an_interrupted_build_left_is_removed_by_the_next(sets: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (tmp_path / "set.new-abc").mkdir()
    (tmp_path / "set.new-abc" / "half.so").touch()
    (tmp_path / "set.newer").mkdir()
    write(sets, folder, "first")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.newer"]
