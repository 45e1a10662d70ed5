"""The steps that the real disk and the simulated one share."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from staniel.journal.disk import os_fs
from staniel.journal.disk.fs import SyncFailed
from staniel.journal.disk.os_fs import OsFs
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.spool import Spool, SpoolError
from staniel.server.sync_thread import close_apart
from staniel.sim.disk.disk import Disk

OLD, NEW = b"the old content", b"the new content, " * 1000


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system writes what fits of a longer file, then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_not_replaced_by_the_half_that_was_written(tmp_path: Path) -> None:
    path, fs = tmp_path / "status", OsFs()
    replace_file(fs, str(path), OLD)
    with files_of_at_most(len(NEW) // 2), pytest.raises(OSError) as refused:
        replace_file(fs, str(path), NEW)
    assert refused.value.errno == errno.EFBIG
    assert path.read_bytes() == OLD and [each.name for each in tmp_path.iterdir()] == ["status"]
    replace_file(fs, str(path), NEW)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("short", [0, 1, len(NEW) - 1])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_the_simulated_disk_replaces_by_the_same_steps(short: int, number: int) -> None:
    disk = Disk()
    replace_file(disk, "status", OLD)
    disk.fail("write", "status.new", number, short=short)
    with pytest.raises(OSError):
        replace_file(disk, "status", NEW)
    assert disk.read("status", 0, 1 << 20) == OLD and disk.list("") == [("status", True)]
    replace_file(disk, "status", NEW)
    assert disk.read("status", 0, 1 << 20) == NEW


def test_room_is_set_aside_without_making_the_file_longer(tmp_path: Path) -> None:
    path, fs = str(tmp_path / "mark"), OsFs()
    for _ in range(2):
        fs.set_aside(path, 1 << 20)
        status = os.stat(path)
        assert status.st_size == 0 and status.st_blocks * 512 >= 1 << 20
    file = fs.append(path)
    file.write(NEW)
    assert fs.read(path, 0, 1 << 20) == NEW
    file.close()


def test_there_is_room_on_a_simulated_disk_that_is_full_or_says_so() -> None:
    disk = Disk(capacity_bytes=1000)
    disk.set_aside("mark", 600)
    file = disk.append("other")
    with pytest.raises(OSError):
        file.write(bytes(500))
    assert disk.free_bytes("")[0] == 0
    disk.fail("write", "mark", errno.ENOSPC, times=2)
    mark = disk.append("mark")
    mark.write(bytes(600))
    with pytest.raises(OSError):
        mark.write(b"1")
    with pytest.raises(OSError):
        disk.set_aside("third", 100)


def test_what_a_crash_has_left_of_a_replacement_is_no_part_of_the_next_one(tmp_path: Path) -> None:
    fs = OsFs()
    (tmp_path / "status.new").write_bytes(OLD)
    replace_file(fs, str(tmp_path / "status"), NEW)
    assert (tmp_path / "status").read_bytes() == NEW


def test_an_error_of_reading_names_the_file(tmp_path: Path) -> None:
    """A folder can be opened, and then not be read."""
    with pytest.raises(OSError) as refused:
        OsFs().read(str(tmp_path), 0, 10)
    assert refused.value.filename == str(tmp_path)


def test_a_large_file_without_a_name_is_closed_where_no_client_waits_for_it(tmp_path: Path) -> None:
    later, opened = list[int](), dict[str, list[int]]()
    fs, path, large = OsFs(later.append), str(tmp_path / "queue"), os_fs.LARGE_BYTES
    for name, size, is_named in (("large", large, False), ("named", large, True), ("small", 9, False)):
        file = fs.append(path)
        os.truncate(path, size)
        reader = fs.reader(path)
        if not is_named:
            fs.remove(path)
        numbers = file.fd, reader._fd  # type: ignore[attr-defined]
        file.close()
        reader.close()
        opened[name] = [number for number in numbers if is_open(number)]
    assert [len(numbers) for numbers in opened.values()] == [2, 0, 0] and later == opened["large"]
    for number in later:
        close_apart(number)
    while any(map(is_open, later)):
        os.sched_yield()


def is_open(number: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{number}")


def failing_sync(monkeypatch: pytest.MonkeyPatch, folder: str, number: int) -> None:
    """Let each sync of `folder` fail."""
    fsync = os.fsync

    def sync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == folder:
            raise OSError(number, os.strerror(number))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
def test_no_folder_is_made_in_one_whose_name_could_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "s").mkdir()  # by a process that was killed before its sync
    failing_sync(monkeypatch, str(tmp_path), number)
    with pytest.raises(SyncFailed, match=f"{os.strerror(number)}.*{tmp_path}"):
        OsFs().make_folder(f"{tmp_path}/s/.staniel")
    assert not (tmp_path / "s/.staniel").exists()
    with pytest.raises(SpoolError, match=f"cannot sync {tmp_path}: {os.strerror(number)}; "):
        Spool(OsFs(), f"{tmp_path}/s")
    assert not (tmp_path / "s/.staniel").exists()
    (tmp_path / "s/.staniel").mkdir()  # killed a step later
    with pytest.raises(SpoolError, match=f"cannot sync {tmp_path}: {os.strerror(number)}; "):
        Spool(OsFs(), f"{tmp_path}/s")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_no_folder_is_made_in_one_that_cannot_be_opened_for_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "s").mkdir()
    opened = os.open

    def refuse(path: str, flags: int, *args: int) -> int:
        if path == str(tmp_path):
            raise OSError(number, os.strerror(number), path)
        return opened(path, flags, *args)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        OsFs().make_folder(f"{tmp_path}/s/.staniel")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EROFS])
def test_a_folder_is_made_where_the_one_around_it_knows_no_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "s").mkdir()  # mounted on a file system without a sync of folders
    failing_sync(monkeypatch, str(tmp_path), number)
    Spool(OsFs(), f"{tmp_path}/s")
    assert (tmp_path / "s/.staniel").is_dir()


def test_a_folder_is_made_in_one_whose_parent_this_user_may_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s").mkdir()
    opened = os.open

    def refuse(path: str, flags: int, *args: int) -> int:
        if path == str(tmp_path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, flags, *args)

    monkeypatch.setattr(os, "open", refuse)
    Spool(OsFs(), f"{tmp_path}/s")
    assert (tmp_path / "s/.staniel").is_dir()


def test_a_folder_whose_name_cannot_be_synced_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OsFs, folder: str) -> None:
        raise SyncFailed(errno.EIO, "Input/output error", folder)

    fs = OsFs()
    monkeypatch.setattr(OsFs, "sync_folder", refuse)
    with pytest.raises(SyncFailed):
        fs.make_folder(str(tmp_path / "new"))
    monkeypatch.undo()
    assert not (tmp_path / "new").exists()
    fs.make_folder(str(tmp_path / "new"))
    assert (tmp_path / "new").is_dir()
